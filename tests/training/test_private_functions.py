"""A model that calls functions of its own is trained as the same model without them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import tvm
from tvm import relax
from tvm.script import ir as I
from tvm.script import relax as R

from autocast import amp, vm
from autocast.ir import first_order
from autocast.model import Model
from autocast.training import MSE, SGD, AdamW, Trainer, training_step
from tests.training.modules import rate


@I.ir_module
class Calls:
    """`layer` is called twice, and calls `activated`; `activated` drops."""

    @R.function(private=True)
    def activated(x: R.Tensor((6, 8), "float32")) -> R.Tensor((6, 8), "float32"):
        with R.dataflow():
            y = R.nn.gelu(x)
            z = R.nn.dropout(y, rate=0.25)
            kept = z[0]
            R.output(kept)
        return kept

    @R.function(private=True)
    def layer(
        x: R.Tensor((6, 8), "float32"), w: R.Tensor((8, 8), "float32"), bias: R.Tensor((8,), "float32")
    ) -> R.Tensor((6, 8), "float32"):
        cls = Calls
        with R.dataflow():
            y = R.add(R.matmul(x, w), bias)
            z = cls.activated(y)
            R.output(z)
        return z

    @R.function
    def main(
        x: R.Tensor((6, 8), "float32"),
        v: R.Tensor((8, 8), "float32"),
        w: R.Tensor((8, 8), "float32"),
        bias: R.Tensor((8,), "float32"),
    ) -> R.Tensor((6, 8), "float32"):
        R.func_attr({"num_input": 1})
        cls = Calls
        with R.dataflow():
            a = cls.layer(x, v, bias)
            b = cls.layer(a, w, bias)
            R.output(b)
        return b


@I.ir_module
class Closures:
    """The same with nested functions: `layer` captures the bias, and a function that returns a function makes it."""

    @R.function
    def main(
        x: R.Tensor((6, 8), "float32"),
        v: R.Tensor((8, 8), "float32"),
        w: R.Tensor((8, 8), "float32"),
        bias: R.Tensor((8,), "float32"),
    ) -> R.Tensor((6, 8), "float32"):
        R.func_attr({"num_input": 1})

        @R.function
        def layer_of(
            weight: R.Tensor((8, 8), "float32"),
        ) -> R.Callable((R.Tensor((6, 8), "float32"),), R.Tensor((6, 8), "float32")):
            @R.function
            def layer(x: R.Tensor((6, 8), "float32")) -> R.Tensor((6, 8), "float32"):
                y = R.add(R.matmul(x, weight), bias)
                z = R.nn.dropout(R.nn.gelu(y), rate=0.25)
                kept = z[0]
                return kept

            return layer

        first = layer_of(v)
        second = layer_of(w)
        a = first(x)
        b = second(a)
        return b


@I.ir_module
class Flat:
    """The same, written out."""

    @R.function
    def main(
        x: R.Tensor((6, 8), "float32"),
        v: R.Tensor((8, 8), "float32"),
        w: R.Tensor((8, 8), "float32"),
        bias: R.Tensor((8,), "float32"),
    ) -> R.Tensor((6, 8), "float32"):
        R.func_attr({"num_input": 1})
        with R.dataflow():
            a = R.nn.dropout(R.nn.gelu(R.add(R.matmul(x, v), bias)), rate=0.25)
            b = R.nn.dropout(R.nn.gelu(R.add(R.matmul(a[0], w), bias)), rate=0.25)
            c = b[0]
            R.output(c)
        return c


def _model(mod) -> Model:
    """A model whose functions are still called: `from_relax` would inline them."""
    generator = np.random.default_rng(1)
    shapes = {"v": (8, 8), "w": (8, 8), "bias": (8,)}
    values = {name: generator.normal(size=size).astype("float32") for name, size in shapes.items()}
    return Model(first_order(mod), {name: tvm.runtime.tensor(value) for name, value in values.items()})


@pytest.mark.parametrize("dtype", [None, "bfloat16"])
def test_a_step_of_a_model_that_calls_functions_is_that_of_their_bodies(dtype):
    losses, states = [], []
    x, labels = (torch.randn(6, 8, generator=torch.Generator().manual_seed(seed)) for seed in (2, 3))
    for mod in (Calls, Closures, Flat):
        step = training_step(_model(mod), MSE(), SGD(momentum=0.9), clip_norm=1.0)
        executable = vm.compile(step if dtype is None else amp.autocast(step, dtype=dtype))
        losses.append([float(executable(x, labels, rate(0.1))) for _ in range(4)])
        states.append({name: value.numpy() for name, value in executable.state.items()})
    assert losses[0] == losses[1] == losses[2]
    assert len(set(losses[0])) == 4
    for state in states[1:]:
        assert states[0].keys() == state.keys()
        for name, value in states[0].items():
            np.testing.assert_array_equal(value, state[name])


def test_only_functions_of_optimizers_are_left():
    step = training_step(_model(Calls), MSE(), AdamW())
    relax.analysis.well_formed(step.mod)
    assert sorted(gv.name_hint for gv in step.mod.get_global_vars()) == ["adamw_8", "adamw_8x8", "main"]


def test_it_is_evaluated_without_dropout():
    trainer = Trainer(_model(Calls), MSE(), SGD(), learning_rate=0.1)
    x = torch.ones(6, 8)
    prediction = trainer.trained()(x)
    assert trainer.evaluate([(x, prediction)]) == 0
    trainer.step((x, torch.zeros(6, 8)))
    assert trainer.evaluate([(x, prediction)]) > 0
