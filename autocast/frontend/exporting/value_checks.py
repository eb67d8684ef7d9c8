"""Checks of values that only raise: `assert mask.any()`, `if not x.isfinite().all(): raise ValueError(...)`.

torch.export refuses a module that decides by the values of a tensor. Where one of the two ways raises, an imported
model goes the other one, as torch does for valid inputs.
"""

from __future__ import annotations

import dis
import sys
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from torch import distributions

#: The one part of torch that checks values by itself: the parameters of distributions.
_CHECKING = distributions.__path__[0]

#: Where a module is traced from.
_FRONTEND = str(Path(__file__).parent.parent)


def valid_answer(inside: tuple[str, ...]) -> bool | None:
    """What a tensor that is asked for its truth is for all valid inputs: the other answer only raises. None where both
    ways go on. `inside` is how the names of files begin whose frames are between the tensor and the line that asks."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and _is_between(frame.f_code.co_filename, inside):
        frame = frame.f_back
    if frame is None or any(_is_caught(caller.f_code, caller.f_lasti) for caller in _callers(frame, inside)):
        return None
    return _answer(frame.f_code, frame.f_lasti)


def _callers(frame: FrameType, inside: tuple[str, ...]) -> Iterator[FrameType]:
    """The frames of the module that is traced around this one."""
    caller = frame.f_back
    while caller is not None and not caller.f_code.co_filename.startswith(_FRONTEND):
        if not caller.f_code.co_filename.startswith(inside):
            yield caller
        caller = caller.f_back


def _is_between(file: str, inside: tuple[str, ...]) -> bool:
    return file.startswith(inside) and not file.startswith(_CHECKING)


@lru_cache(maxsize=256)
def _answer(code: CodeType, at: int) -> bool | None:
    """Of a condition of `code` that is asked for by the instruction at this offset."""
    instructions = list(dis.get_instructions(code))
    place = {instruction.offset: index for index, instruction in enumerate(instructions)}
    index = place[at]
    if instructions[index].opname == "TO_BOOL":  # since Python 3.13
        index += 1
    jump = instructions[index]
    if not (jump.opname.startswith("POP_JUMP") and jump.opname.endswith(("IF_TRUE", "IF_FALSE"))):
        return None
    jumps_if = jump.opname.endswith("IF_TRUE")
    start = {jumps_if: place[jump.argval], not jumps_if: index + 1}
    raises = {answer: _raises(code, instructions[first:]) for answer, first in start.items()}
    return raises[False] if raises[False] != raises[True] else None


def _raises(code: CodeType, instructions: list[dis.Instruction]) -> bool:
    """Whether nothing but an exception comes of these instructions, whatever is computed for its message."""
    for instruction in instructions:
        if instruction.opname == "RAISE_VARARGS":
            return not _is_caught(code, instruction.offset)
        if instruction.opcode in _LEAVING:
            return False
    return False


@lru_cache(maxsize=256)
def _is_caught(code: CodeType, offset: int) -> bool:
    """Whether the function itself goes on after an exception that is raised here."""
    known = dis.Bytecode(code)
    names = {instruction.offset: instruction.opname for instruction in known}
    entries: list[Any] | None = getattr(known, "exception_entries", None)
    if entries is None:  # before Python 3.11
        return "JUMP_IF_NOT_EXC_MATCH" in names.values()
    handlers = [entry.target for entry in entries if entry.start <= offset < entry.end]
    # PUSH_EXC_INFO is what every handler begins with, WITH_EXCEPT_START what that of a `with` goes on with.
    return any(names.get(target + 2) != "WITH_EXCEPT_START" for target in handlers)


#: Instructions after which not the next one comes, or not always.
_LEAVING = frozenset(
    (*dis.hasjrel, *dis.hasjabs, *(code for name, code in dis.opmap.items() if name.startswith(("RETURN", "YIELD"))))
)
