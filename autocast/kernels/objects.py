"""One unit of PrimFuncs, as LLVM's module in memory or as the bytes of an object file."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir.instrument import pass_instrument

from autocast.kernels.contexts import changed_context
from autocast.kernels.fallback.schedule import EXISTING
from autocast.kernels.lowering import lowered

#: What is read off a kernel whose loops are final.
Describe = Callable[[tirx.PrimFunc], Any]

#: The pass after which a PrimFunc's buffers and symbolic sizes are buried in calling code.
_LOOPS_END = "tirx.MakePackedAPI"

#: How TVM calls a function in machine code.
PREFIX = "__tvm_ffi_"


class Object(NamedTuple):
    """An object file, and its functions."""

    data: bytes
    functions: tuple[str, ...]


@pass_instrument
class _Loops:
    """Remembers a module as it is before its loops are buried."""

    mod: tvm.IRModule

    def run_before_pass(self, mod: tvm.IRModule, info: Any) -> None:
        if info.name == _LOOPS_END:
            self.mod = mod


def machine_code(unit: tvm.IRModule, target: tvm.target.Target, describe: Describe) -> tuple[Any, dict[str, Any]]:
    """LLVM's module of a unit, under the caller's `PassContext`, and what `describe` says of each of its functions.

    This is `tvm.tirx.build` for one target without devices, but for what it makes of a lone function: a second entry
    named main.
    """
    loops = _Loops()
    target = _careful(target) if any(map(_has_remainders, unit.functions.values())) else target
    disabled = ("tirx.CommonSubexprElim",) if any(map(_converts_integers, unit.functions.values())) else ()
    with changed_context(instruments=[loops], disabled=disabled):
        mod = lowered(unit, target)
    functions = {var: _checked(function).without_attr("tirx.is_entry_func") for var, function in mod.functions.items()}
    code = tvm_ffi.get_global_func("target.build.llvm")(tvm.IRModule(functions, attrs=mod.attrs), target)
    return code, {var.name_hint: describe(function) for var, function in loops.mod.functions.items()}


def _checked(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """A function that checks of its arguments what whoever calls it may get wrong.

    Of a kernel that was made here these are sizes: it is called by what was compiled with it, whose dtypes, places and
    strides are known. A check is half a millisecond of LLVM's, and a kernel of two tensors had twenty of them: half of
    what it took to compile a small one.
    """
    if EXISTING in (function.attrs or {}):
        return function

    def of_size(check: tirx.AssertStmt) -> tirx.Stmt:
        is_of_size = any(".shape[" in str(part.value) for part in check.message_parts)
        return check if is_of_size else tirx.Evaluate(0)

    return function.with_body(tvm_ffi.structural_map(function.body, (tirx.AssertStmt, of_size)))


def _converts_integers(function: tirx.PrimFunc) -> bool:
    """Whether a function makes floating-point numbers of places and sizes.

    Where TVM shares these between expressions (CommonSubexprElim), LowerIntrin asks for their bounds and fails if sizes
    are symbolic. LLVM shares them anyway.
    """
    found: list[bool] = []

    def visit(cast: tirx.Cast) -> None:
        kinds = str(cast.ty.dtype), str(cast.value.ty.dtype)
        found.append("float" in kinds[0] and "int" in kinds[1])

    tvm_ffi.structural_walk(function.body, (tirx.Cast, visit))
    return any(found)


def _has_remainders(function: tirx.PrimFunc) -> bool:
    """Whether a module came with a function that has remainders in it.

    LLVM makes wrong code of a loop nest such as `y[i, j, k] = x[i % 3, j % 4, k % 5]`, which it unrolls and vectorizes,
    for processors with AVX-512. Loops that are scheduled here have explicit vectors.
    """
    found: list[bool] = []
    if EXISTING in (function.attrs or {}):
        remainders = (tirx.FloorMod, tirx.Mod)
        tvm_ffi.structural_walk(function.body, (remainders, lambda _: found.append(True)))
    return bool(found)


def _careful(target: tvm.target.Target) -> tvm.target.Target:
    """The target, for which LLVM transforms no loops."""
    return tvm.target.Target({**json.loads(str(target)), "opt-level": 1})


def object_of(unit: tvm.IRModule, target: tvm.target.Target, describe: Describe) -> tuple[Object, dict[str, Any]]:
    """The same as an object file."""
    code, facts = machine_code(unit, target, describe)
    with tempfile.TemporaryDirectory(prefix="autocast_") as folder:
        path = Path(folder, "unit.o")
        code.write_to_file(str(path), "o")
        return Object(path.read_bytes(), tuple(facts)), facts


def renamed(kernel: tirx.PrimFunc, symbol: str) -> tvm.IRModule:
    """A unit of one kernel, with another name."""
    return tvm.IRModule({symbol: kernel.with_attr("global_symbol", symbol)})
