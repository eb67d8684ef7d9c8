"""Constants that a binding names, as TVM's own importers leave them."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.script import ir as I
from tvm.script import relax as R

from autocast import amp

MASK = relax.const(np.full((4, 4), 0.5, "float32"))


def module_with(value: relax.Expr) -> tvm.IRModule:
    """`(x @ w + value) @ value`, with `value` bound to a variable."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((4, 4), "float32"))
    w = relax.Var("w", relax.TensorType((4, 4), "float32"))
    with builder.function("main", [x, w]):
        with builder.dataflow():
            mask = builder.emit(value)
            product = builder.emit(relax.op.matmul(x, w))
            masked = builder.emit(relax.op.add(product, mask))
            result = builder.emit_output(relax.op.matmul(masked, mask))
        builder.emit_func_output(result)
    return builder.finalize()


def constants(mod: tvm.IRModule) -> list[str]:
    """The dtypes of the literals in a module's main, in order."""
    found: list[str] = []

    def visit(expr: relax.Expr) -> None:
        if isinstance(expr, type(MASK)):
            found.append(str(expr.ty.dtype))

    relax.analysis.post_order_visit(mod["main"], visit)
    return found


def test_a_constant_with_a_name_is_folded_to_the_dtype_of_each_use():
    result = amp.autocast(module_with(MASK))
    assert set(constants(result)) == {"bfloat16"}
    assert amp.autocast(module_with(MASK), dtype="float16").report.casts == result.report.casts


def test_a_name_for_a_constant_costs_no_cast():
    named = amp.autocast(module_with(MASK))
    inlined = amp.autocast(relax.transform.CanonicalizeBindings()(module_with(MASK)))
    assert named.report.casts == inlined.report.casts
    tvm.ir.assert_structural_equal(named, inlined)


@pytest.mark.parametrize("value", [1e6, 1e-9])
def test_what_reads_a_named_constant_beyond_the_low_range_is_float32(value):
    result = amp.autocast(module_with(relax.const(np.full((4, 4), value, "float32"))), dtype="float16")
    assert set(constants(result)) == {"float32"}
    assert set(constants(amp.autocast(module_with(relax.const(np.full((4, 4), -np.inf, "float32")))))) == {"bfloat16"}


def test_a_named_constant_may_be_a_result():
    @I.ir_module
    class Before:
        @R.function
        def main(x: R.Tensor((2, 2), "float32")):
            with R.dataflow():
                one = R.const(1.0, "float32")
                product = R.matmul(x, x)
                R.output(one, product)
            return (one, product)

    result = amp.autocast(Before)
    assert str(result["main"].ret_ty) == str(Before["main"].ret_ty)
