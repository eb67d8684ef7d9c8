"""The gradient of an `If`: an `If` over the same condition, whose branches go backwards."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn import functional
from tvm.script import ir as I
from tvm.script import relax as R
from tvm.script import tirx as T

import autocast
from autocast import amp, vm
from autocast.errors import GradientError
from autocast.training import MSE, SGD, differentiate, training_step
from tests.training.gradients.checking import check_gradients, compiled
from tests.training.modules import rate


@I.ir_module
class Different:
    """Each branch reads what the other does not; `y` is read after the branch too."""

    @R.function
    def main(
        flag: R.Tensor((), "bool"),
        x: R.Tensor((3,), "float64"),
        y: R.Tensor((2, 3), "float64"),
        z: R.Tensor((3,), "float64"),
    ) -> R.Tensor((), "float64"):
        with R.dataflow():
            a = R.exp(x)
            R.output(a)
        if flag:
            b = R.multiply(a, y)
            c = R.add(b, R.sin(y))
        else:
            d = R.multiply(a, z)
            c = R.broadcast_to(R.multiply(d, d), (2, 3))
        with R.dataflow():
            e = R.multiply(c, y)
            loss = R.sum(e)
            R.output(loss)
        return loss


@I.ir_module
class Nested:
    """A branch in a branch, a branch that only renames, and one that is constant."""

    @R.function
    def main(flag: R.Tensor((), "bool"), other: R.Tensor((), "bool"), x: R.Tensor((4,), "float64")) -> R.Tensor(
        (), "float64"
    ):
        if flag:
            a = R.sin(x)
            if other:
                b = R.multiply(a, x)
                c = R.multiply(b, a)
            else:
                c = a
            d = R.multiply(c, x)
        else:
            if other:
                f = R.const([1.0, 2.0, 3.0, 4.0], "float64")
            else:
                f = R.tanh(x)
            d = f
        loss = R.sum(R.multiply(d, x))
        return loss


@I.ir_module
class Tuples:
    """Tuples go in and come out; one of their fields is of integers, and one result of a branch is not used."""

    @R.function
    def main(flag: R.Tensor((), "bool"), x: R.Tensor((4,), "float64"), y: R.Tensor((4,), "float64")) -> R.Tensor(
        (), "float64"
    ):
        pair = (R.exp(x), R.argsort(x, dtype="int64"), y)
        if flag:
            sorted = R.take(pair[0], pair[1], axis=0)
            triple = (sorted, pair[1], R.sin(y))
        else:
            triple = (pair[2], pair[1], R.exp(y))
        loss = R.sum(R.multiply(triple[0], R.take(x, triple[1], axis=0)))
        return loss


@I.ir_module
class Symbolic:
    """The branches have a dimension that is known at run time, and call a function."""

    @R.function(private=True)
    def cube(x: R.Tensor(("n", 2), "float64")) -> R.Tensor(("n", 2), "float64"):
        y = R.multiply(x, R.multiply(x, x))
        return y

    @R.function
    def main(flag: R.Tensor((), "bool"), x: R.Tensor(("n", 2), "float64")) -> R.Tensor((), "float64"):
        cls = Symbolic
        n = T.int64()
        if flag:
            y = cls.cube(x)
        else:
            y = R.broadcast_to(R.sum(x, axis=[0], keepdims=True), (n, 2))
        loss = R.sum(R.multiply(y, x))
        return loss


MODULES = {
    "branches that read different variables": (Different, 1, [(3,), (2, 3), (3,)]),
    "nested branches": (Nested, 2, [(4,)]),
    "tuples": (Tuples, 1, [(4,), (4,)]),
    "symbolic shapes and calls": (Symbolic, 1, [(5, 2)]),
}


@pytest.mark.parametrize("name", MODULES)
def test_gradients_equal_differences_whatever_the_conditions_are(name):
    mod, flags, shapes = MODULES[name]
    main = mod["main"]
    run = compiled(differentiate(main, main.params[flags:], mod=mod))
    generator = np.random.default_rng(0)
    arrays = [generator.normal(size=shape) for shape in shapes]
    for conditions in np.ndindex((2,) * flags):
        check_gradients(run, *(np.array(bool(c)) for c in conditions), *arrays)


@I.ir_module
class Gated:
    """A layer, or another one, by a flag that each batch brings; the bias is read by one branch only."""

    @R.function
    def main(
        x: R.Tensor((6, 5), "float32"),
        flag: R.Tensor((), "bool"),
        v: R.Tensor((5, 8), "float32"),
        w: R.Tensor((8, 8), "float32"),
        bias: R.Tensor((8,), "float32"),
    ) -> R.Tensor((6, 8), "float32"):
        R.func_attr({"num_input": 2})
        with R.dataflow():
            a = R.matmul(x, v)
            R.output(a)
        if flag:
            b = R.matmul(R.nn.gelu(a), w)
            y = R.add(b, bias)
        else:
            y = R.matmul(a, w)
        with R.dataflow():
            z = R.tanh(y)
            R.output(z)
        return z


def _gated() -> autocast.model.Model:
    generator = np.random.default_rng(1)
    shapes = {"v": (5, 8), "w": (8, 8), "bias": (8,)}
    return autocast.from_relax(Gated, {name: generator.normal(size=s).astype("float32") for name, s in shapes.items()})


@pytest.mark.parametrize("dtype", [None, "bfloat16", "float16"])
def test_a_model_with_a_branch_is_trained_as_by_torch(dtype):
    model = _gated()
    step = training_step(model, MSE(), SGD(momentum=0.9))
    executable = vm.compile(step if dtype is None else amp.autocast(step, dtype=dtype))
    params = [torch.from_dlpack(value).clone().requires_grad_() for value in model.params.values()]
    v, w, bias = params
    optimizer = torch.optim.SGD(params, 0.1, momentum=0.9)
    generator = torch.Generator().manual_seed(2)
    exact = dtype is None
    for flag in (True, False, False, True):
        x, labels = torch.randn(6, 5, generator=generator), torch.randn(6, 8, generator=generator)
        a = x @ v
        y = (functional.gelu(a) @ w + bias if flag else a @ w).tanh()
        loss = functional.mse_loss(y, labels)
        optimizer.zero_grad()
        loss.backward()
        for param in params:
            param.grad = torch.zeros_like(param) if param.grad is None else param.grad
        optimizer.step()
        got = executable(x, torch.tensor(flag), labels, rate(0.1))
        torch.testing.assert_close(got, loss.detach(), rtol=1e-5 if exact else 2e-2, atol=0)
    for name, param in zip(model.params, params, strict=True):
        got = torch.from_dlpack(executable.state[name])
        assert (got - param).norm() <= (1e-5 if exact else 2e-2) * param.norm()


def test_an_operator_without_a_gradient_is_found_in_a_branch():
    @I.ir_module
    class Module:
        @R.function
        def main(flag: R.Tensor((), "bool"), x: R.Tensor((3,), "float32")) -> R.Tensor((), "float32"):
            if flag:
                a = R.unique(x, sorted=True, return_index=False, return_inverse=False, return_counts=False)
                y = R.sum(a)
            else:
                y = R.sum(x)
            return y

    main = Module["main"]
    with pytest.raises(GradientError, match=r"passes through\n  relax\.unique: .* \(1 call\)"):
        differentiate(main, main.params[1:])


def test_a_branch_that_only_counts_passes_nothing_on():
    @I.ir_module
    class Module:
        @R.function
        def main(flag: R.Tensor((), "bool"), x: R.Tensor((3,), "float32")) -> R.Tensor((), "float32"):
            if flag:
                y = R.sum(R.sign(x))
            else:
                y = R.sum(R.floor(x))
            return y

    main = Module["main"]
    with pytest.raises(GradientError, match="depends on none of"):
        differentiate(main, main.params[1:])
