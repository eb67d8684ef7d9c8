"""What no rule of ours took and TVM could not make a PrimFunc of is said here, by its place and its operands."""

from __future__ import annotations

from collections.abc import Callable

import tvm
from tvm import relax

from autocast.errors import UnsupportedError
from autocast.ir import all_bindings, dtype_of, is_tensor, op_name, relax_functions, shape_of, whereabouts
from autocast.kernels.storage import computes, is_narrow
from autocast.operators import Kind, is_kind

#: Operators that the virtual machine runs itself.
_BUILT_IN = (
    *("relax.null_value", "relax.shape_of", "relax.shape_to_tensor", "relax.tensor_to_shape"),
    *("relax.hint_on_device", "relax.to_vdevice"),
)


_INTEGERS = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")
#: A mean of int64 is a whole number, as TVM types it.
_BELOW_INT64 = ("bool", *_INTEGERS[:6])

_FLOATS = "floating-point numbers: try R.astype(x, 'float32') before"
_TRUTH = "truth values: try R.not_equal(x, R.const(0, ...)) before"
_NUMBERS = "numbers: try R.astype(x, 'int64') before"

#: Operator -> the dtypes of a first operand for which TVM has a type and no code, and what to try.
_WITHOUT_CODE = {
    "relax.atan2": (_INTEGERS, _FLOATS),
    "relax.mean": (_BELOW_INT64, _FLOATS),
    "relax.power": (_INTEGERS, "floating-point numbers, or a square: try R.astype(x, 'float64') before, or R.multiply"),
    "relax.std": (("bool", *_INTEGERS), _FLOATS),
    "relax.variance": (_BELOW_INT64, _FLOATS),
    **{f"relax.logical_{name}": (_INTEGERS, _TRUTH) for name in ("and", "not", "or")},
    **{
        f"relax.{name}": (("bool",), _NUMBERS)
        for name in ("collapse_sum_like", "collapse_sum_to", "cumprod", "cumsum", "einsum", "outer")
    },
}


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
            dtype, advice = unfit(binding.value)
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


def unfit(value: relax.Expr) -> tuple[str, str]:
    """The dtype that an operator has no code for, and what to try; empty where it has."""
    dtypes, advice = _WITHOUT_CODE.get(op_name(value) or "", ((), ""))
    operand = value.args[0] if advice else None
    operand = operand.fields[0] if isinstance(operand, relax.Tuple) else operand
    dtype = str(dtype_of(operand)) if operand is not None and is_tensor(operand) else ""
    return (dtype, advice) if dtype in dtypes else ("", "")


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
