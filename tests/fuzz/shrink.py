"""Makes a module that fails smaller, as long as it fails in the same way."""

from __future__ import annotations

import itertools
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import tvm
from tvm import relax

from tests.fuzz.check import tensors
from tests.fuzz.generator.functions import signature
from tests.fuzz.generator.module import Case
from tests.fuzz.generator.writer import Dim, Var
from tests.fuzz.interpreter import Interpreter, Scope
from tests.fuzz.values import Tensor

_MAIN = "    def main("
_NUMPY = {"bfloat16": ml_dtypes.bfloat16}


def shrink(case: Case, fails: Callable[[Case], bool], seconds: float = 60.0) -> Case:
    """The smallest module that was found in this time of which `fails` says that it still fails in the same way."""
    case = replace(case, fixed=tuple(case.values()))
    ends = time.monotonic() + seconds
    changed = True
    while changed and time.monotonic() < ends:
        changed = False
        for candidates in (_results, _functions, _blocks, _bindings, _cuts, _renamed, _arguments, _values):
            tried = candidates(case)
            for candidate in tried:
                if time.monotonic() > ends:
                    break
                if fails(candidate):
                    case, changed = candidate, True
                    # What follows was made of the larger module: begin again with this kind.
                    tried = candidates(case)
                    break
    return case


def _lines(case: Case) -> tuple[list[str], list[str]]:
    """What comes before main's body, with its signature, and the body."""
    lines = case.text.splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith(_MAIN))
    return lines[: at + 1], [line for line in lines[at + 1 :] if line.strip()]


def _joined(case: Case, head: list[str], body: list[str], **changes: Any) -> Case:
    case = replace(case, **changes)
    head = [*head[:-1], f"{_MAIN[:-1]}{signature(case.arguments, None)}:"]
    return replace(case, text="\n".join([*head, *body, ""]))


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _results(case: Case) -> Iterator[Case]:
    """Fewer results."""
    head, body = _lines(case)
    match = re.fullmatch(r"\s*return \((.*)\)", body[-1])
    if match is None:
        return
    names = [name.strip() for name in match[1].split(",") if name.strip()]
    for name in names:
        yield _joined(case, head, [*body[:-1], f"        return {name}"])
    for name in names if len(names) > 2 else []:
        rest = ", ".join(n for n in names if n != name)
        yield _joined(case, head, [*body[:-1], f"        return ({rest},)"])


def _functions(case: Case) -> Iterator[Case]:
    """No functions that nobody calls."""
    head, body = _lines(case)
    starts = [i for i, line in enumerate(head) if line.startswith("    @R.function")]
    for start, end in itertools.pairwise(starts):
        yield _joined(case, head[:start] + head[end:], body)
    # Bindings of other functions.
    for i, line in enumerate(head[:-1]):
        if _indent(line) >= 8 and not line.strip().startswith(("return", "R.output", "with")):
            yield _joined(case, head[:i] + head[i + 1 :], body)


def _extent(body: list[str], start: int) -> int:
    """Where the block that a line opens ends."""
    end = start + 1
    while end < len(body) and _indent(body[end]) > _indent(body[start]):
        end += 1
    return end


def _dedented(lines: list[str]) -> list[str]:
    return [line[4:] for line in lines]


def _blocks(case: Case) -> Iterator[Case]:
    """What is in a block, without the block: a dataflow block's bindings, one of an If's branches."""
    head, body = _lines(case)
    for start, line in enumerate(body):
        end = _extent(body, start)
        if line.strip() == "with R.dataflow():":
            inner = [x for x in body[start + 1 : end] if not x.strip().startswith("R.output")]
            yield _joined(case, head, body[:start] + _dedented(inner) + body[end:])
        elif line.strip().startswith("if "):
            last = _extent(body, end)
            yield _joined(case, head, body[:start] + _dedented(body[start + 1 : end]) + body[last:])
            yield _joined(case, head, body[:start] + _dedented(body[end + 1 : last]) + body[last:])


def _without(body: list[str], start: int, end: int) -> list[str]:
    """The body without some lines, and without what they bind among the outputs of a dataflow block."""
    names = {line.split("=")[0].strip() for line in body[start:end] if "=" in line}
    result = []
    for line in body[:start] + body[end:]:
        if line.strip().startswith("R.output("):
            kept = [n for n in line.strip()[9:-1].split(", ") if n not in names]
            line = " " * _indent(line) + f"R.output({', '.join(kept)})"
        result.append(line)
    return result


def _bindings(case: Case) -> Iterator[Case]:
    """Without some bindings that nothing uses, or with an operand in the place of what uses it."""
    head, body = _lines(case)
    for size in (8, 4, 2, 1):
        for start in range(len(body) - 1 - size, -1, -1):
            yield _joined(case, head, _without(body, start, start + size))
    for start in range(len(body) - 1):
        end = _extent(body, start)
        if end > start + 1:
            end = _extent(body, end) if end < len(body) and body[end].strip() == "else:" else end
            yield _joined(case, head, _without(body, start, end))
    for start, line in enumerate(body[:-1]):
        match = re.fullmatch(r"\s*(\w+) = (.*)", line)
        if match is None:
            continue
        for operand in dict.fromkeys(re.findall(r"\b[a-z]\d+\b", match[2])):
            rest = [re.sub(rf"\b{match[1]}\b", operand, x) for x in body[start + 1 :]]
            yield _joined(case, head, body[:start] + rest)


class _Recorder(Interpreter):
    """Remembers the values of main's variables by their names."""

    def __init__(self, mod: tvm.IRModule) -> None:
        super().__init__(mod)
        self.found: dict[str, Tensor] = {}

    def bind(self, var: relax.Var, value: Any, scope: Scope) -> None:
        super().bind(var, value, scope)
        if isinstance(value, Tensor):
            self.found[var.name] = value


def _cuts(case: Case) -> Iterator[Case]:
    """With a value as an argument, which was computed."""
    head, body = _lines(case)
    try:
        recorder = _Recorder(case.module())
        recorder.main(tensors(case.values(), [a.dtype for a in case.arguments]))
    except Exception:
        return
    inputs = len(case.arguments) - case.parameters
    for start in range(len(body) - 2, -1, -1):
        match = re.fullmatch(r"        (\w+) = .*", body[start])
        value = recorder.found.get(match[1]) if match else None
        if match is None or value is None or any(a.name == match[1] for a in case.arguments):
            continue
        var = Var(match[1], tuple(map(Dim.of, value.shape)), value.dtype)
        array = value.value.astype(_NUMPY.get(value.dtype, value.dtype))
        values = case.values()
        yield _joined(
            case,
            head,
            body[:start] + body[start + 1 :],
            arguments=(*case.arguments[:inputs], var, *case.arguments[inputs:]),
            fixed=(*values[:inputs], array, *values[inputs:]),
        )


def _renamed(case: Case) -> Iterator[Case]:
    """With fewer variables: an argument in the place of another of the same type; with no parameters."""
    head, body = _lines(case)
    if case.parameters:
        yield replace(case, parameters=0)
    for i, one in enumerate(case.arguments):
        for other in case.arguments[:i]:
            if one.same_type(other):
                rest = [re.sub(rf"\b{one.name}\b", other.name, line) for line in body]
                if rest != body:
                    yield _joined(case, head, rest)


def _arguments(case: Case) -> Iterator[Case]:
    """Without arguments that nothing uses."""
    head, body = _lines(case)
    text, values = "\n".join(body), case.values()
    for i, argument in enumerate(case.arguments):
        if re.search(rf"\b{argument.name}\b", text) is None:
            is_parameter = i >= len(case.arguments) - case.parameters
            yield _joined(
                case,
                head,
                body,
                arguments=case.arguments[:i] + case.arguments[i + 1 :],
                fixed=tuple(values[:i] + values[i + 1 :]),
                parameters=case.parameters - is_parameter,
            )


def _values(case: Case) -> Iterator[Case]:
    """With plainer numbers: whole ones."""
    values = case.values()
    for i, (value, argument) in enumerate(zip(values, case.arguments, strict=True)):
        if argument.is_float and value.size and not (value == np.rint(value.astype(np.float64))).all():
            plain = np.rint(value.astype(np.float64)).astype(value.dtype)
            yield replace(case, fixed=(*values[:i], plain, *values[i + 1 :]))
