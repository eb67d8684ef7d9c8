"""Which factors of channels end up in weights, and that the results stay what they were."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import tvm
from tvm import relax

from autocast.kernels.phases.canonicalize import canonicalize
from autocast.kernels.phases.fold_scales import fold_scales
from tests.kernels.matching.plain import run_plainly
from tests.kernels.modules import EPSILON, error, module, operators, random, run

op = relax.op

IMAGE, WEIGHTS, VECTOR = ((2, 3, 6, 5), "float32"), ((4, 3, 3, 3), "float32"), ((4,), "float32")


def _with_parameters(body: Callable[..., relax.Expr], *arguments: tuple) -> tvm.IRModule:
    """A module whose first argument is its only input."""
    mod = module(body, *arguments)
    mod["main"] = mod["main"].with_attr("num_input", 1)
    return canonicalize(mod)


def _values(mod: tvm.IRModule) -> list[np.ndarray]:
    """Positive random arguments for "main"."""
    shapes = [[int(dim) for dim in param.ty.shape.values] for param in mod["main"].params]
    return [
        np.abs(random(shape, str(p.ty.dtype), i))
        for i, (shape, p) in enumerate(zip(shapes, mod["main"].params, strict=True))
    ]


def _scalings(mod: tvm.IRModule, product: str) -> int:
    """How many calls after the last `product` are multiplications or divisions."""
    names = operators(mod)
    after = names[len(names) - names[::-1].index(product) :]
    return sum(name in ("relax.multiply", "relax.divide") for name in after)


def _batch_norm(x: relax.Expr, *statistics: relax.Expr) -> relax.Expr:
    return relax.TupleGetItem(op.nn.batch_norm(x, *statistics, axis=1, training=False), 0)


def _convolved(x: relax.Expr, w: relax.Expr, *statistics: relax.Expr) -> relax.Expr:
    return _batch_norm(op.nn.conv2d(x, w, padding=1), *statistics)


def _with_bias(x: relax.Expr, w: relax.Expr, bias: relax.Expr, *statistics: relax.Expr) -> relax.Expr:
    return _batch_norm(op.add(op.nn.conv2d(x, w), op.reshape(bias, [1, 4, 1, 1])), *statistics)


def _by_hand(x: relax.Expr, w: relax.Expr, mean: relax.Expr, deviation: relax.Expr) -> relax.Expr:
    shaped = [op.reshape(vector, [4, 1, 1]) for vector in (mean, deviation)]
    return op.divide(op.subtract(op.nn.conv2d(x, w, strides=2), shaped[0]), shaped[1])


def _transposed(x: relax.Expr, w: relax.Expr, *statistics: relax.Expr) -> relax.Expr:
    return _batch_norm(op.nn.conv2d_transpose(x, w, strides=2), *statistics)


def _layer_scale(x: relax.Expr, w: relax.Expr, bias: relax.Expr, scale: relax.Expr) -> relax.Expr:
    return op.multiply(scale, op.add(op.matmul(x, op.permute_dims(w)), bias))


CASES = {
    "batch_norm": ("relax.nn.conv2d", _convolved, IMAGE, WEIGHTS, *[VECTOR] * 4),
    "bias and batch_norm": ("relax.nn.conv2d", _with_bias, IMAGE, WEIGHTS, *[VECTOR] * 5),
    "subtract and divide": ("relax.nn.conv2d", _by_hand, IMAGE, WEIGHTS, *[VECTOR] * 2),
    "transposed": ("relax.nn.conv2d_transpose", _transposed, IMAGE, ((3, 4, 2, 2), "float32"), *[VECTOR] * 4),
    "layer scale": ("relax.matmul", _layer_scale, ((2, 5, 3), "float32"), ((4, 3), "float32"), *[VECTOR] * 2),
}


@pytest.mark.parametrize("name", CASES)
def test_factors_of_channels_become_factors_of_weights(name: str) -> None:
    product, *case = CASES[name]
    mod = _with_parameters(*case)
    folded = fold_scales(mod)
    assert _scalings(mod, product) > 0 and _scalings(folded, product) == 0
    arguments = _values(mod)
    assert error(run_plainly(folded, *arguments), run_plainly(mod, *arguments).astype("float64")) < 1e-6


def test_a_low_product_may_be_widened_before_its_factors_and_its_weights_are_rounded_once() -> None:
    def body(x: relax.Expr, w: relax.Expr, *statistics: relax.Expr) -> relax.Expr:
        low = op.nn.conv2d(op.astype(x, "bfloat16"), op.astype(w, "bfloat16"))
        return _batch_norm(op.astype(low, "float32"), *statistics)

    mod = fold_scales(_with_parameters(body, IMAGE, WEIGHTS, *[VECTOR] * 4))
    names = operators(mod)
    assert names.count("relax.astype") == 3  # of the data, of the weights, and of the result
    assert names.index("relax.multiply", names.index("relax.reshape")) < names.index("relax.nn.conv2d")
    assert _scalings(mod, "relax.nn.conv2d") == 0


def test_what_is_rounded_before_its_factors_keeps_them() -> None:
    def body(x: relax.Expr, w: relax.Expr, *statistics: relax.Expr) -> relax.Expr:
        rounded = op.astype(op.astype(op.nn.conv2d(x, w), "bfloat16"), "float32")
        return _batch_norm(rounded, *statistics)

    mod = _with_parameters(body, IMAGE, WEIGHTS, *[VECTOR] * 4)
    assert operators(fold_scales(mod)) == operators(mod)


def test_weights_that_change_are_not_scaled() -> None:
    mod = canonicalize(module(_convolved, IMAGE, WEIGHTS, *[VECTOR] * 4))
    assert operators(fold_scales(mod)) == operators(mod)


def test_what_something_else_reads_is_not_scaled() -> None:
    builder = relax.BlockBuilder()
    arguments = [
        relax.Var(n, relax.TensorType(s, d)) for n, (s, d) in zip("xws", (IMAGE, WEIGHTS, VECTOR), strict=True)
    ]
    with builder.function("main", arguments, attrs={"num_input": 1}):
        with builder.dataflow():
            convolved = builder.emit(op.nn.conv2d(*arguments[:2]))
            scaled = builder.emit(op.multiply(convolved, op.reshape(arguments[2], [4, 1, 1])))
            result = builder.emit_output(op.add(scaled, convolved))
        builder.emit_func_output(result)
    mod = builder.get()
    assert _scalings(fold_scales(mod), "relax.nn.conv2d") == 1


def test_a_batch_norm_before_a_convolution_is_a_factor_and_an_offset() -> None:
    def body(x: relax.Expr, w: relax.Expr, *statistics: relax.Expr) -> relax.Expr:
        return op.nn.conv2d(_batch_norm(x, *statistics), w)

    names = operators(fold_scales(_with_parameters(body, IMAGE, WEIGHTS, *[((3,), "float32")] * 4)))
    assert "relax.nn.batch_norm" not in names and names[-3:] == ["relax.multiply", "relax.add", "relax.nn.conv2d"]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_a_small_layer_scale_leaves_the_digits_of_the_weights(dtype: str) -> None:
    def body(x: relax.Expr, w: relax.Expr, scale: relax.Expr) -> relax.Expr:
        return op.multiply(op.matmul(x, w, out_dtype="float32"), scale)

    mod = fold_scales(_with_parameters(body, ((5, 8), dtype), ((8, 4), dtype), ((4,), "float32")))
    mod["main"] = mod["main"].without_attr("num_input")
    x, w = random((5, 8), dtype), random((8, 4), dtype, 1)
    (got,) = run(mod, x, w, np.full(4, 1e-7, "float32"))
    expected = x.astype("float64") @ w.astype("float64") * 1e-7
    assert error(got, expected) < 4 * EPSILON[dtype if dtype == "bfloat16" else "float32"]
