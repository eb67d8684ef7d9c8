"""Tensors without elements: what they are, and what operators make of them, is known without a kernel."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.script import ir as I
from tvm.script import relax as R

from autocast.errors import UnsupportedError
from autocast.kernels import build, detect_target
from autocast.kernels.phases.empty import remove_empty
from tests.kernels.modules import module, random, run

op = relax.op


def test_what_has_no_elements_is_no_longer_computed():
    @I.ir_module
    class Before:
        @R.function
        def main(x: R.Tensor((0, 3), "float32"), y: R.Tensor((4, 0), "float32"), z: R.Tensor((5, 3), "float32")):
            with R.dataflow():
                a = R.exp(x)
                b = R.mean(a, axis=[0])
                c = R.matmul(y, a)
                d = R.concat((c, a, z), axis=0)
                R.output(a, b, d)
            return a, b, d

    @I.ir_module
    class Expected:
        @R.function
        def main(x: R.Tensor((0, 3), "float32"), y: R.Tensor((4, 0), "float32"), z: R.Tensor((5, 3), "float32")):
            with R.dataflow():
                a = R.zeros(R.shape([0, 3]), "float32")
                b = R.full(R.shape([3]), R.const(float("nan"), "float32"), "float32")
                c = R.zeros(R.shape([4, 3]), "float32")
                d = R.concat((c, z), axis=0)
                R.output(a, b, d)
            return a, b, d

    tvm.ir.assert_structural_equal(remove_empty(Before), Expected, map_free_vars=True)


@pytest.mark.parametrize("beside", [False, True])
def test_constants_without_elements_are_returned(beside: bool) -> None:
    builder, nothing = relax.BlockBuilder(), relax.const(np.zeros((2, 0), "float32"))
    x = relax.Var("x", relax.TensorType((3,), "float32"))
    with builder.function("main", [x]):
        builder.emit_func_output(relax.Tuple([builder.emit(op.exp(x)), nothing]) if beside else nothing)
    machine = relax.VirtualMachine(build(builder.get(), detect_target()), tvm.cpu())
    results = machine["main"](tvm.runtime.tensor(X[0]))
    assert (results[1] if beside else results).shape == (2, 0)


X, Y = np.float32([[1, 2, 3], [4, 5, 6]]), np.zeros((2, 0), "float32")

#: What is computed of X and of Y, which has no elements, and the result.
DEFINED: dict[str, tuple[Callable[..., relax.Expr], np.ndarray]] = {
    "sum": (lambda x, y: op.sum(y, 1), np.zeros(2)),
    "sum that is broadcast back": (lambda x, y: op.add(x, op.sum(y, 1, keepdims=True)), X),
    "prod": (lambda x, y: op.prod(y, 1), np.ones(2)),
    "mean of all": (lambda x, y: op.mean(y), np.array(math.nan)),
    "variance": (lambda x, y: op.variance(y, 1), np.full(2, math.nan)),
    "product": (lambda x, y: op.matmul(op.permute_dims(x), y), np.zeros((3, 0))),
    "product over nothing": (lambda x, y: op.matmul(y, op.permute_dims(y)), np.zeros((2, 2))),
    "join": (lambda x, y: op.concat([y, x, y], 1), X),
    "padding": (lambda x, y: op.nn.pad(y, [0, 1, 2, 0], pad_value=7.0), np.full((3, 2), 7)),
    "softmax": (lambda x, y: op.nn.softmax(y), np.zeros((2, 0))),
    "part of a split": (lambda x, y: op.split(x, [1, 1], 1)[1], np.zeros((2, 0))),
    "part beside an empty one": (lambda x, y: op.split(x, [1, 1], 1)[2], X[:, 1:]),
    "scattering nothing": (lambda x, y: op.scatter_elements(x, op.astype(y, "int64"), y, 1), X),
    "attention to no keys": (
        lambda x, y: op.nn.attention(*[op.reshape(t, (1, -1, 1, 3)) for t in (x, y, y)]),
        np.zeros((1, 2, 1, 3)),
    ),
    "convolution of no images": (
        lambda x, y: op.nn.conv1d(op.zeros((0, 2, 3), "float32"), op.reshape(x, (1, 2, 3)), padding=1),
        np.zeros((0, 1, 3)),
    ),
    "literal": (lambda x, y: op.concat([x, relax.const(np.zeros((0, 3), "float32"))], 0), X),
}


@pytest.mark.parametrize("name", DEFINED)
def test_what_is_made_of_no_elements_is_what_numpy_and_torch_say(name: str) -> None:
    body, expected = DEFINED[name]
    (got,) = run(module(body, (X.shape, "float32"), (Y.shape, "float32")), X, Y)
    assert got.shape == expected.shape
    np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("name", ["argmax", "argmin", "max", "median", "min"])
def test_choosing_from_nothing_is_an_error(name: str) -> None:
    with pytest.raises(UnsupportedError, match=f"relax.{name} got a .*expected elements along every axis"):
        remove_empty(module(lambda y: getattr(op, name)(y, 1), (Y.shape, "float32")))


def test_gradients_of_what_has_no_elements_are_sums_of_nothing() -> None:
    def body(x: relax.Expr, gamma: relax.Expr, g: relax.Expr) -> relax.Expr:
        return op.grad.layer_norm_backward(x, gamma, g, axes=[-1], epsilon=1e-5, center=True, scale=True)

    shape = ((0, 3), "float32")
    got = run(module(body, shape, ((3,), "float32"), shape), *[random(s, "float32") for s in ((0, 3), (3,), (0, 3))])
    assert [value.tolist() for value in got] == [[], [0, 0, 0], [0, 0, 0]]
