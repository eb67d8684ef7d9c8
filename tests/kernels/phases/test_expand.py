"""Operators of our own become operators of TVM, which compute in float32."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import tvm
from tvm import relax
from tvm.script import ir as I
from tvm.script import relax as R

import autocast
from autocast import vm
from autocast.ir import op_name
from autocast.kernels.matching.convolutions.declined import has_kernel
from autocast.kernels.phases.expand import expand_operators
from autocast.operators import Kind, is_kind
from autocast.operators.own import OPERATORS
from tests.kernels.modules import EPSILON, error, module, operators, random, run
from tests.type_hints.samples import SAMPLES

OWN = sorted(set(SAMPLES) & set(OPERATORS))


def test_a_backward_operator_computes_in_float32_and_stores_as_it_was_asked():
    @I.ir_module
    class Before:
        @R.function
        def main(y: R.Tensor((4, 6), "bfloat16"), g: R.Tensor((4, 6), "bfloat16")):
            with R.dataflow():
                d = R.grad.tanh_backward(y, g)
                R.output(d)
            return d

    @I.ir_module
    class Expected:
        @R.function
        def main(y: R.Tensor((4, 6), "bfloat16"), g: R.Tensor((4, 6), "bfloat16")):
            with R.dataflow():
                y1 = R.astype(y, "float32")
                g1 = R.astype(g, "float32")
                square = R.multiply(y1, y1)
                slope = R.subtract(R.const(1.0, "float32"), square)
                wide = R.multiply(g1, slope)
                d = R.astype(wide, "bfloat16")
                R.output(d)
            return d

    tvm.ir.assert_structural_equal(expand_operators(Before), Expected, map_free_vars=True)


def test_results_of_a_tuple_are_projected_and_unused_ones_vanish():
    @I.ir_module
    class Before:
        @R.function
        def main(x: R.Tensor((4, 6), "float32"), gamma: R.Tensor((6,), "float32"), g: R.Tensor((4, 6), "float32")):
            with R.dataflow():
                adjoints = R.grad.layer_norm_backward(x, gamma, g, axes=[-1], epsilon=1e-5, center=True, scale=True)
                beta = adjoints[2]
                R.output(beta)
            return beta

    tidy = tvm.transform.Sequential([relax.transform.CanonicalizeBindings(), relax.transform.DeadCodeElimination()])(
        expand_operators(Before)
    )
    assert operators(tidy) == ["relax.sum"]


@pytest.mark.parametrize("name", OWN)
def test_no_operator_of_our_own_is_left_except_where_a_kernel_takes_it_or_loops_are_written_of_it(name):
    call = SAMPLES[name]()
    fields = [list(arg.fields) if isinstance(arg, relax.Tuple) else [arg] for arg in call.args]

    def body(*tensors):
        left = iter(tensors)
        operands = [
            relax.Tuple([next(left) for _ in those]) if isinstance(arg, relax.Tuple) else next(left)
            for arg, those in zip(call.args, fields, strict=True)
        ]
        return relax.Call(call.op, operands, call.attrs)

    expanded = expand_operators(
        module(
            body,
            *[([int(size) for size in x.ty.shape.values], str(x.ty.dtype)) for those in fields for x in those],
        )
    )
    relax.analysis.well_formed(expanded)
    values = [binding.value for block in expanded["main"].body.blocks for binding in block.bindings]
    left = [value for value in values if op_name(value) in OPERATORS and not has_kernel(value)]
    assert [str(value) for value in left if not is_kind(value, Kind.RECURRENCE, Kind.DEFINED)] == []


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_low_storage_costs_one_rounding_of_the_result(dtype):
    body = OPERATORS["relax.grad.gelu_backward"]
    low = [random((33, 47), dtype, seed) for seed in (0, 1)]
    (result,) = run(module(body, *[((33, 47), dtype)] * 2), *low)
    (exact,) = run(module(body, *[((33, 47), "float32")] * 2), *(array.astype("float32") for array in low))
    assert result.dtype == low[0].dtype
    assert error(result, exact.astype(np.float64)) < EPSILON[dtype]


@pytest.mark.parametrize("shape", [(1, 2, 8, 3, 2), (8, 3, 2)])
def test_pixels_are_shuffled(shape: tuple[int, ...]) -> None:
    x = random(shape, "float32")
    (got,) = run(module(lambda x: relax.op.nn.pixel_shuffle(x, 2), (shape, "float32")), x)
    np.testing.assert_array_equal(got, torch.nn.functional.pixel_shuffle(torch.tensor(x), 2).numpy())


@pytest.mark.parametrize("dtype", ["int32", "float64", "float32"])
def test_what_vectors_do_not_multiply_and_add_is_done_in_two_steps(dtype: str) -> None:
    x = np.arange(6, dtype=dtype)
    (got,) = run(module(lambda x: relax.op.ewise_fma(x, x, x), ((6,), dtype)), x)
    np.testing.assert_array_equal(got, x * x + x)


def test_each_channel_has_its_slope_however_many_there_are() -> None:
    x, alpha = random((3, 5), "float32"), random((3,), "float32", 1)
    for axis, shapes in ((0, [("n", 5), ("n",)]), (1, [("n", "m"), ("m",)])):
        mod = module(lambda x, a, axis=axis: relax.op.nn.prelu(x, a, axis), *[(shape, "float32") for shape in shapes])
        turned = x if axis == 0 else x.T.copy()
        expected = np.where(x > 0, x, x * alpha[:, None])
        np.testing.assert_array_equal(run(mod, turned, alpha)[0], expected if axis == 0 else expected.T)


def test_hints_and_marks_compute_nothing() -> None:
    def body(x: relax.Expr) -> relax.Expr:
        x = relax.op.builtin.stop_lift_params(relax.op.hint_on_device(x, tvm.cpu()))
        return relax.op.add(relax.op.wrap_param(x, "float16"), relax.const(1, "float16"))

    x = random((4,), "float32")
    (got,) = run(module(body, ((4,), "float32")), x)
    np.testing.assert_array_equal(got, x.astype("float16") + np.float16(1))


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16"])
def test_quantizing_rounds_to_even_saturates_and_makes_zero_of_nan(dtype):
    numbers = [np.nan, np.inf, -np.inf, 0.5, 1.5, -0.25, 1e30, -1e30]
    x = np.float32([numbers, numbers[::-1]])
    scale, zero = np.float32([0.5, 0.125]), np.array([3, 0], dtype)

    def quantized(x, scale, zero):
        return relax.op.quantize(x, scale, zero, axis=0, out_dtype=dtype)

    found = run(module(quantized, ((2, 8), "float32"), ((2,), "float32"), ((2,), dtype)), x, scale, zero)[0]
    bounds = np.iinfo(dtype)
    steps = np.round(np.float64(x) / scale[:, None]) + zero[:, None]
    expected = np.nan_to_num(np.clip(steps, bounds.min, bounds.max), nan=0).astype(dtype)
    assert np.array_equal(found, expected)


@pytest.mark.parametrize("start", [0, 4, 64])
def test_a_view_may_begin_anywhere(start: int) -> None:
    x = relax.Var("x", relax.TensorType([64], "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            part = builder.emit(relax.op.memory.view(builder.emit(relax.op.exp(x)), [3, 5], "float32", start))
            y = builder.emit_output(relax.op.negative(part))
        builder.emit_func_output(y)
    values = np.linspace(-1, 1, 64, dtype="float32")
    (found,) = run(builder.get(), values)
    np.testing.assert_allclose(found, -np.exp(values)[start // 4 :][:15].reshape(3, 5), rtol=1e-6)


@pytest.mark.parametrize("by", ["kernels", "torch"])
@pytest.mark.parametrize(("dtype", "out_dtype"), [("bool", None), ("float32", "float64"), ("float16", "float64")])
def test_products_in_dtypes_that_tvm_has_no_sums_for(dtype: str, out_dtype: str | None, by: str) -> None:
    x, y = (torch.arange(count, dtype=torch.float64).sin().reshape(-1, 4) for count in (8, 12))
    x, y = ((value > 0.5 if dtype == "bool" else value.to(getattr(torch, dtype))) for value in (x, y.T))
    body = lambda a, b: relax.op.matmul(a, b, out_dtype)  # noqa: E731
    model = autocast.from_relax(module(body, ((2, 4), dtype), ((4, 3), dtype)))
    run = vm.compile(model) if by == "kernels" else autocast.to_torch(model)
    expected = (x.double() @ y.double()).to(torch.bool if dtype == "bool" else torch.float64)
    torch.testing.assert_close(run(x, y.contiguous()), expected)


@pytest.mark.parametrize("axis", [-3, -2, -1, 0, 1, 2])
def test_one_hot_along_any_axis(axis: int) -> None:
    x = np.array([[0, 4, 2], [1, 3, 3]])
    one, zero = (relax.prim_value(number) for number in (1.0, 0.0))
    (got,) = run(module(lambda a: relax.op.one_hot(a, one, zero, 5, axis), (x.shape, "int64")), x)
    np.testing.assert_array_equal(got, np.moveaxis(np.eye(5)[x], -1, axis))


@pytest.mark.parametrize("name", ["sum", "mean", "prod", "max", "min", "variance", "std"])
def test_what_is_reduced_along_no_axis(name: str) -> None:
    x = np.array([[1.0, -2.0, np.nan], [np.inf, 0.0, 3.0]], "float32")
    (got,) = run(module(lambda a: getattr(relax.op, name)(a, []), (x.shape, "float32")), x)
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(got, x - x if name in ("variance", "std") else x)
