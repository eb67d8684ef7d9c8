"""What no rule of ours took and TVM could not make a PrimFunc of is said here, by its place and its operands."""

from __future__ import annotations

from collections.abc import Callable

import tvm
from tvm import relax

from autocast.errors import UnsupportedError
from autocast.ir import all_bindings, dtype_of, op_name, relax_functions, shape_of, whereabouts
from autocast.kernels.storage import computes, is_narrow
from autocast.operators import Kind, is_kind
from autocast.operators.dtypes import unfit

#: Operators that the virtual machine runs itself.
_BUILT_IN = (
    *("relax.null_value", "relax.shape_of", "relax.shape_to_tensor", "relax.tensor_to_shape"),
    *("relax.hint_on_device", "relax.to_vdevice"),
)


def check_operands(mod: tvm.IRModule) -> tvm.IRModule:
    """`mod`, in which operators take tensors of known shapes alone: rules and TVM's passes expect no others.

    Numbers of 8 bits are moved and widened, and nothing else is done with them.

    Raises
    ------
    UnsupportedError
        An operator takes others.
    """
    for var, function in relax_functions(mod):
        for binding in all_bindings(function.body):
            dtype, advice = unfit(binding.value, kernels=True)
            if advice:
                raise UnsupportedError(
                    f"compile: there is no kernel for {op_name(binding.value)} of {dtype}, bound to "
                    f"{whereabouts(binding.var, var.name_hint)}. Expected {advice}"
                )
            if _computes_narrow(binding.value):
                raise UnsupportedError(
                    f"compile: there is no kernel for {op_name(binding.value)}, bound to "
                    f"{whereabouts(binding.var, var.name_hint)}, of {binding.value.args[0].ty} to {binding.var.ty}. "
                    "Expected numbers of 8 bits to be stored and widened only: try R.astype(x, 'float32') before"
                )
    return _check(mod, lambda call: any(map(_is_vague, call.args)))


def check_legalized(mod: tvm.IRModule) -> tvm.IRModule:
    """`mod`, in which all operators are calls of PrimFuncs.

    Raises
    ------
    UnsupportedError
        Some are not: mostly for want of the shape or dtype of an operand.
    """
    return _check(mod, lambda call: True)


def _computes_narrow(value: relax.Expr) -> bool:
    if is_kind(value, Kind.CAST):
        source, result = dtype_of(value.args[0]), dtype_of(value)
        return (is_narrow(result) and source != result) or (is_narrow(source) and not str(source).startswith("float8"))
    return (computes(value) or is_kind(value, Kind.SORT)) and any(is_narrow(dtype_of(arg)) for arg in value.args)


def _is_vague(operand: relax.Expr) -> bool:
    if isinstance(operand, relax.Tuple):
        return any(map(_is_vague, operand.fields))
    return isinstance(operand.ty, relax.TensorType) and shape_of(operand) is None


def _check(mod: tvm.IRModule, lacks_kernel: Callable[[relax.Call], bool]) -> tvm.IRModule:
    left = []
    for var, function in relax_functions(mod):
        for binding in all_bindings(function.body):
            value, name = binding.value, op_name(binding.value)
            if name is None or name in _BUILT_IN or is_kind(value, Kind.FOREIGN) or not lacks_kernel(value):
                continue
            operands = ", ".join(str(arg.ty) for arg in value.args if isinstance(arg.ty, relax.TensorType))
            left.append(f"{name}({operands}), bound to {whereabouts(binding.var, var.name_hint)}")
    if left:
        more = f" and {len(left) - 3} more" if len(left) > 3 else ""
        raise UnsupportedError(
            f"compile: there is no kernel for {'; '.join(left[:3])}{more}. Expected operators whose operands and "
            "results have known dtypes and shapes; declare them, with R.match_cast(value, R.Tensor((n, m), 'float32')) "
            "where only you know them"
        )
    return mod
