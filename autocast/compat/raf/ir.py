"""RAF's `raf.ir`: `PassContext`, whose options of mixed precision become fields of a policy."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from contextvars import ContextVar
from typing import Any

import tvm

from autocast.compat.names import named
from autocast.errors import UnsupportedError
from autocast.messages import nearest
from type_hints import PrimType, TupleType

__all__ = ["PassContext", "PrimType", "TupleType"]

#: RAF's options -> fields of a policy.
_FIELDS = {"raf.amp.dtype": "dtype", "raf.amp.out_dtype": "out_dtype"}

#: RAF's passes -> TVM's.
_PASSES = {"FuseDialect": "FuseOps", "FuseTVM": "FuseTIR"}

_active: ContextVar[tuple[Mapping[str, Any], ...]] = ContextVar("raf_pass_contexts", default=())


__getattr__ = named(__name__, __all__, instead={"AsText": "model.script() is the module's text"})


class PassContext:
    """A `with` block in which models are autocast and compiled by other options. Blocks nest.

    Parameters
    ----------
    opt_level : int
        As `tvm.transform.PassContext` has it.
    required_pass, disabled_pass, instruments
        Likewise; RAF's names of the passes that fuse operators are TVM's.
    config : mapping, optional
        "raf.amp.dtype": "float16" (where nothing says otherwise) or "bfloat16". "raf.amp.out_dtype": of floating-point
        results, which keep what they had where nothing says otherwise. Others are options of TVM's.

    Raises
    ------
    UnsupportedError
        An option of RAF's that has no meaning here.
    """

    def __init__(
        self,
        opt_level: int = 2,
        required_pass: Iterable[str] | None = None,
        disabled_pass: Iterable[str] | None = None,
        instruments: Iterable[Any] | None = None,
        config: Mapping[str, Any] | None = None,
    ) -> None:
        options = dict(config or {})
        if unknown := [name for name in options if name.startswith("raf.") and name not in _FIELDS]:
            raise UnsupportedError(
                f"PassContext: the option {unknown[0]!r} has no meaning here, expected {' or '.join(_FIELDS)} "
                f"(nearest: {nearest(unknown[0], _FIELDS)}) or an option of TVM's"
            )
        self.fields = {field: options.pop(name) for name, field in _FIELDS.items() if name in options}
        self._arguments = {
            "opt_level": opt_level,
            "required_pass": list(required_pass or ()),
            "disabled_pass": [_PASSES.get(name, name) for name in disabled_pass or ()],
            "instruments": list(instruments or ()),
            "config": options,
        }
        self._stack: list[ExitStack] = []

    def __enter__(self) -> PassContext:
        stack = ExitStack()
        stack.enter_context(tvm.transform.PassContext(**self._arguments))
        token = _active.set((*_active.get(), self.fields))
        stack.callback(_active.reset, token)
        self._stack.append(stack)
        return self

    def __exit__(self, *exception: object) -> None:
        self._stack.pop().close()


def amp_options() -> dict[str, Any]:
    """The fields of a policy that the active blocks ask for, the innermost first; float16, as RAF has it."""
    options = {"dtype": "float16"}
    for fields in _active.get():
        options.update(fields)
    return options
