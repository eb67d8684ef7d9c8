"""Legalize the operators that no kernel of ours took: TVM's way, except where that is slow or wrong."""

from __future__ import annotations

from collections.abc import Callable

import tvm
from tvm import relax, te, tirx

from autocast.ir import dtype_of, is_constant
from autocast.kernels.fallback import fast_math

#: Elementwise functions that TVM legalizes to one library call per element.
_VECTORIZABLE = {
    "relax.exp": fast_math.exp,
    "relax.log": fast_math.log,
    "relax.erf": fast_math.erf,
    "relax.tanh": fast_math.tanh,
    "relax.sigmoid": fast_math.sigmoid,
    "relax.nn.silu": fast_math.silu,
    "relax.nn.gelu": fast_math.gelu,
    "relax.nn.gelu_tanh": fast_math.gelu_tanh,
}

#: Powers that need no logarithm.
_POWERS: dict[float, Callable[[tirx.Expr], tirx.Expr]] = {
    0.5: tirx.sqrt,
    1.0: lambda x: x,
    2.0: lambda x: x * x,
    3.0: lambda x: x * x * x,
    4.0: lambda x: fast_math.once(x * x, lambda square: square * square),
    -0.5: tirx.rsqrt,
    -1.0: lambda x: tirx.const(1.0, "float32") / x,
}

LegalizeFunction = Callable[[relax.BlockBuilder, relax.Call], relax.Expr]


def _elementwise(name: str, function: Callable[[tirx.Expr], tirx.Expr]) -> LegalizeFunction:
    default = tvm.ir.Op.get(name).get_attr("FLegalize")

    def legalize(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
        if dtype_of(call.args[0]) != "float32":
            return default(builder, call)
        return _call_elementwise(builder, name.rpartition(".")[2], function, call.args[0])

    return legalize


def _call_elementwise(
    builder: relax.BlockBuilder, name: str, function: Callable[[tirx.Expr], tirx.Expr], operand: relax.Expr
) -> relax.Expr:
    def compute(x: te.Tensor) -> te.Tensor:
        return te.compute(x.shape, lambda *i: function(x(*i)), name=name)

    # The prefix keeps the function's symbol apart from the C library's.
    return builder.call_te(compute, operand, primfunc_name_hint=f"tir_{name}")


def _power(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    base, exponent = call.args
    if is_constant(exponent) and exponent.value.numpy().size == 1 and dtype_of(base) == "float32":
        function = _POWERS.get(float(exponent.value.numpy()))
        if function is not None and len(exponent.ty.shape) == 0:
            return _call_elementwise(builder, "power", function, base)
    return tvm.ir.Op.get("relax.power").get_attr("FLegalize")(builder, call)


def legalizations() -> dict[str, LegalizeFunction]:
    """Our own legalizations, by operator name, for `relax.transform.LegalizeOps`."""
    table = {name: _elementwise(name, function) for name, function in _VECTORIZABLE.items()}
    return {**table, "relax.power": _power}
