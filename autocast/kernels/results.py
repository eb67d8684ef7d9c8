"""What functions return is, after every phase, what the module that went in says."""

from __future__ import annotations

import sys
from typing import Any

import tvm
import tvm_ffi
from tvm import relax, tirx

from autocast.errors import CompileError
from autocast.ir import all_bindings, in_phase, is_op, relax_functions
from autocast.ir.agreeing import Differ, disagree, never_equal, not_always_equal, sizes_in
from autocast.ir.private import is_private
from autocast.ir.well_formed import BOUNDS
from autocast.kernels.phases.slices import may_end_before
from autocast.model.value import updates_of, without_updates


class Results:
    """The types of what the public functions of a module return, to compare with what phases make of it.

    Sizes are equal if they are for all values of their names; a size that has no name in what the functions take, or
    that one of the two types leaves out, may be any. So may all where slices might end before they begin: TVM's types
    of these are wrong.
    """

    def __init__(self, mod: tvm.IRModule) -> None:
        functions = dict(relax_functions(mod))
        known = not any(map(may_end_before, functions.values()))
        self._functions = {var.name_hint: f for var, f in functions.items() if known and not is_private(f)}
        #: What was found to agree, by the name of the function.
        self._agreed = {name: function.body.ty for name, function in self._functions.items()}

    def check(self, phase: str, mod: tvm.IRModule, *, without_state: bool = False) -> None:
        """Raise CompileError unless the functions of `mod`, which the phase has made, return what they have to.

        Parameters
        ----------
        without_state
            Whether new state, main's last results, is written over the old by now, and not returned.
        """
        for var, function in relax_functions(mod):
            name, found = var.name_hint, function.body.ty
            if name not in self._functions or tvm_ffi.structural_equal(found, self._agreed[name]):
                continue
            before = self._functions[name]
            declared = without_updates(before, before.body.ty) if without_state else before.body.ty
            returned = found if without_state or not updates_of(before) else _first(found, len(declared.fields))
            if disagree(declared, returned, not_always_equal(_names(before, function), _bounds(before))):
                failure = CompileError(
                    f"the phase {phase!r} made @{name} return {found}, where its module has {declared}"
                )
                failure.phase, failure.function = phase, name
                raise failure
            self._agreed[name] = found


def check_types(mod: tvm.IRModule) -> None:
    """Raise CompileError unless functions return what they are declared to, and kernels write what calls expect.

    It is asked once, after all phases: those between may leave a type that the next one mends. TVM's own check believes
    the variables by which functions are called, which know what a function was when it was added.
    """
    with in_phase("check_types", mod, _check_types):
        _check_types(mod)


def _check_types(mod: tvm.IRModule) -> None:
    """Raise TypeError; apart, because who looks for the function that is wrong asks again for parts of the module."""
    known: dict[tirx.PrimFunc, tvm.ir.TupleType] = {}
    for var, function in relax_functions(mod):
        _check("returns", var, function.body.ty, "it is declared to return", function.ret_ty, _of_any_size)
        for binding in all_bindings(function.body):
            call = binding.value
            if not isinstance(call, relax.Call) or isinstance(binding, relax.MatchCast):
                continue
            if disagree(binding.var.ty, call.ty, never_equal):
                raise TypeError(f"%{binding.var.name} is declared as {binding.var.ty}, and is {call.ty}")
            if is_op(call, "relax.call_tir") and isinstance(call.args[1], relax.Tuple):
                taken = _taken(mod[call.args[0]], known)
                given = tvm.ir.TupleType([*_tensors(call.args[1].ty), *_tensors(call.ty)])
                _check("takes", call.args[0], taken, f"%{binding.var.name} passes", given, _are_others)
            elif isinstance(call.op, tvm.ir.GlobalVar) and isinstance(mod[call.op], relax.Function):
                returned = mod[call.op].ret_ty
                _check("returns", call.op, returned, f"%{binding.var.name} expects", call.ty, _are_others)


def _taken(kernel: tirx.PrimFunc, known: dict[tirx.PrimFunc, tvm.ir.TupleType]) -> tvm.ir.TupleType:
    """The tensors that a kernel reads and writes, which are `known` when they were read once."""
    if kernel not in known:
        buffers = [param for param in kernel.params if isinstance(param.ty, tirx.buffer.BufferType)]
        known[kernel] = tvm.ir.TupleType([relax.TensorType(buffer.shape, buffer.dtype) for buffer in buffers])
    return known[kernel]


def _check(
    does: str, var: tvm.ir.GlobalVar, found: tvm.ir.Type, says: str, expected: tvm.ir.Type, differ: Differ
) -> None:
    if disagree(expected, found, differ):
        raise TypeError(f"@{var.name_hint} {does} {found}, and {says} {expected}")


def _tensors(type: tvm.ir.Type) -> list[relax.TensorType]:
    """A tensor, or those of the fields of a tuple: kernels take numbers and sizes by themselves."""
    fields = type.fields if isinstance(type, tvm.ir.TupleType) else [type]
    return [field for field in fields if isinstance(field, relax.TensorType)]


def _of_any_size(one: Any, other: Any) -> bool:
    """Sizes are compared after each phase."""
    return False


def _are_others(one: Any, other: Any) -> bool:
    """Whether two sizes, of a function and its caller, are other numbers: each has names of its own."""
    return isinstance(one, int) and isinstance(other, int) and one != other


def _first(found: tvm.ir.Type, count: int) -> tvm.ir.Type:
    """The first fields of a tuple: copies of the state in low precision are returned after it."""
    return tvm.ir.TupleType(found.fields[:count]) if isinstance(found, tvm.ir.TupleType) else found


def _names(before: relax.Function, after: relax.Function) -> dict[tirx.Var, Any]:
    """What the names of sizes that a function takes were before: phases may give them others.

    The order of main's parameters is none of this: phases change it, and those have known sizes.
    """
    count = int((before.attrs or {}).get("num_input", len(before.params)))
    pairs = zip(before.params[:count], after.params[:count], strict=True)
    sizes = [pair for old, new in pairs for pair in zip(sizes_in(old.ty), sizes_in(new.ty), strict=True)]
    return {new: old for old, new in sizes if isinstance(new, tirx.Var)}


def _bounds(function: relax.Function) -> dict[str, tuple[int, int]]:
    """The smallest and the largest values of sizes that a function says, by their names."""
    lower, upper = (dict((function.attrs or {}).get(name) or {}) for name in BOUNDS)
    return {str(name): (int(lower.get(name, 0)), int(upper.get(name, sys.maxsize))) for name in {*lower, *upper}}
