"""The dtypes that TVM gives operators a type for, and that nobody computes them in."""

from __future__ import annotations

from collections.abc import Mapping

from tvm import relax

from autocast.ir import dtype_of, is_tensor, op_name

_INTEGERS = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")
#: A mean of int64 is a whole number, as TVM types it.
_BELOW_INT64 = ("bool", *_INTEGERS[:6])

_FLOATS = "floating-point numbers: try R.astype(x, 'float32') before"
_TRUTH = "truth values: try R.not_equal(x, R.const(0, ...)) before"
_NUMBERS = "numbers: try R.astype(x, 'int64') before"

#: Operator -> the dtypes of a first operand in which it is not computed, and what to try.
_Unfit = Mapping[str, tuple[tuple[str, ...], str]]

#: Neither by kernels of ours nor by torch.
_COMPUTED_BY_NONE: _Unfit = {
    "relax.atan2": (_INTEGERS, _FLOATS),
    "relax.mean": (_BELOW_INT64, _FLOATS),
    "relax.std": (("bool", *_INTEGERS), _FLOATS),
    "relax.variance": ((*_BELOW_INT64, "uint64"), _FLOATS),
    **{f"relax.logical_{name}": (_INTEGERS, _TRUTH) for name in ("and", "not", "or", "xor")},
    **{
        f"relax.{name}": (("bool",), _NUMBERS)
        for name in (
            *("abs", "negative", "square", "clip", "subtract", "divide", "power", "floor_divide", "mod", "floor_mod"),
            *("left_shift", "right_shift", "cumprod", "cumsum", "einsum", "outer"),
            *("collapse_sum_like", "collapse_sum_to"),
        )
    },
}

#: By torch alone.
_WITHOUT_KERNEL: _Unfit = {
    **{f"relax.{name}": (("uint64",), _NUMBERS) for name in ("argsort", "sort", "topk")},
    "relax.power": (_INTEGERS, "floating-point numbers, or a square: try R.astype(x, 'float64') before, or R.multiply"),
}

#: By our kernels alone.
_WITHOUT_TORCH: _Unfit = {
    f"relax.{name}": (("uint16", "uint32", "uint64"), _NUMBERS)
    for name in ("abs", "cumprod", "cumsum", "divide", "floor_divide", "floor_mod", "mod", "power")
}


def unfit(value: relax.Expr, *, kernels: bool) -> tuple[str, str]:
    """The dtype that an operator is not computed in, and what to try; empty where it is.

    Parameters
    ----------
    value : relax.Expr
        What a variable is bound to.
    kernels : bool
        By our kernels, else by torch.
    """
    name = op_name(value) or ""
    for table in (_COMPUTED_BY_NONE, _WITHOUT_KERNEL if kernels else _WITHOUT_TORCH):
        dtypes, advice = table.get(name, ((), ""))
        if advice and (dtype := _first(value)) in dtypes:
            return dtype, advice
    return "", ""


def _first(call: relax.Call) -> str:
    """The dtype of the first operand, or of the first in a tuple of them."""
    operand = call.args[0]
    operand = operand.fields[0] if isinstance(operand, relax.Tuple) else operand
    return str(dtype_of(operand)) if is_tensor(operand) else ""
