"""Modules as text and back, their constants in a file beside it.

TVM's own way to write constants into the text is to write the whole graph as JSON, which its wheels of 0.27 crash on
with newer versions of tvm-ffi.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from pathlib import Path

import ml_dtypes  # noqa: F401  # numpy knows bfloat16 by its name once this is loaded
import numpy as np
import tvm
from tvm import relax
from tvm.script.parser.core import entry

from autocast.ir.views import ConstantExpr, parts_of

#: What the text says where a constant stands.
_METADATA = "ir.GenericConst"


def to_script(mod: tvm.IRModule) -> tuple[str, list[relax.Expr]]:
    """A module as TVMScript, and the constants that the text only numbers, in the order of their numbers."""
    # Its parser does not take the strings that its printer writes for these.
    text = re.sub(r'R\.const\("(-?(?:inf|nan))"', r"R.const(\1", mod.script())
    functions = {var.name_hint: function for var, function in mod.functions.items()}
    found = [
        constant
        for name in re.findall(r"^    def (\w+)\(", text, re.MULTILINE)
        if isinstance(functions.get(name), relax.Function)
        for constant in parts_of(functions[name], ConstantExpr)
        if not _is_written_out(constant)
    ]
    return text, list(dict.fromkeys(found))


def _is_written_out(constant: relax.Expr) -> bool:
    """Whether the text says what a constant is: numbers that Python can write, and dtypes."""
    value = constant.value
    if not isinstance(value, tvm.runtime.Tensor):
        return True
    return len(value.shape) == 0 and str(value.dtype) != "bfloat16"


def from_script(text: str, constants: Sequence[relax.Expr] = ()) -> tvm.IRModule:
    """The module that `to_script` wrote."""
    names = {**entry._default_globals(), "metadata": {_METADATA: list(constants)}, "inf": math.inf, "nan": math.nan}
    names["take_backward"] = _take_backward
    text = text.replace("R.grad.take_backward(", "take_backward(")  # TVM's own does not know all that is written
    return tvm.script.from_source(text, extra_vars=names, check_well_formed=False)


def _take_backward(
    adjoint: relax.Expr, x: relax.Expr, indices: relax.Expr, axis: int | None = None, mode: str = "fast"
) -> relax.Expr:
    forward = relax.op.take(x, indices, axis, mode)
    return relax.Call(tvm.ir.Op.get("relax.grad.take_backward"), [adjoint, x, indices], forward.attrs)


def save_constants(path: Path, constants: Sequence[relax.Expr]) -> None:
    """Write what `to_script` found: one array of bytes for each constant, under its dtype and shape."""
    arrays = {}
    for number, constant in enumerate(constants):
        value = constant.value.numpy()
        arrays[f"{number} {value.dtype} {' '.join(map(str, value.shape))}"] = np.frombuffer(value.tobytes(), "uint8")
    np.savez(path, **arrays)  # type: ignore[arg-type]


def load_constants(path: Path) -> list[relax.Expr]:
    """What `save_constants` wrote; nothing where there is no such file."""
    if not path.exists():
        return []
    constants = []
    with np.load(path) as arrays:
        for name, data in arrays.items():
            _, dtype, *shape = name.split()
            constants.append(relax.const(data.view(dtype).reshape([int(size) for size in shape]), dtype))
    return constants
