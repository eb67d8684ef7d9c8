"""What normalize takes away, each as the module before and the module expected."""

from __future__ import annotations

from typing import TypeVar

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.script import relax as R

from autocast.frontend.simplifying.normalize import normalize
from tests.frontend.helpers import assert_becomes, normalized

n = TypeVar("n")  # a symbolic dimension


def test_inverse_permutations_vanish() -> None:
    @R.function(private=True)
    def before(x: R.Tensor((2, 3, 4), "float32")) -> R.Tensor((2, 3, 4), "float32"):
        with R.dataflow():
            a = R.permute_dims(x, [1, 2, 0])
            b = R.permute_dims(a, [2, 0, 1])
            y = R.exp(b)
            R.output(y)
        return y

    @R.function(private=True)
    def expected(x: R.Tensor((2, 3, 4), "float32")) -> R.Tensor((2, 3, 4), "float32"):
        with R.dataflow():
            y = R.exp(x)
            R.output(y)
        return y

    assert_becomes(before, expected)


def test_other_permutations_become_one() -> None:
    @R.function(private=True)
    def before(x: R.Tensor((2, 3, 4), "float32")) -> R.Tensor((4, 3, 2), "float32"):
        with R.dataflow():
            a = R.permute_dims(x, [1, 2, 0])
            b = R.permute_dims(a, [1, 0, 2])
            y = R.exp(b)
            R.output(y)
        return y

    @R.function(private=True)
    def expected(x: R.Tensor((2, 3, 4), "float32")) -> R.Tensor((4, 3, 2), "float32"):
        with R.dataflow():
            b = R.permute_dims(x, [2, 1, 0])
            y = R.exp(b)
            R.output(y)
        return y

    assert_becomes(before, expected)


def test_moves_that_change_nothing_vanish_and_an_elementwise_operator_broadcasts_by_itself() -> None:
    @R.function(private=True)
    def before(x: R.Tensor((n, 4), "float32"), y: R.Tensor((1, 4), "float32")) -> R.Tensor((n, 4), "float32"):
        with R.dataflow():
            a = R.reshape(x, R.shape([n, 4]))
            b = R.astype(a, "float32")
            c = R.broadcast_to(y, R.shape([n, 4]))
            d = R.broadcast_to(b, R.shape([n, 4]))
            z = R.add(d, c)
            R.output(z)
        return z

    @R.function(private=True)
    def expected(x: R.Tensor((n, 4), "float32"), y: R.Tensor((1, 4), "float32")) -> R.Tensor((n, 4), "float32"):
        with R.dataflow():
            z = R.add(x, y)
            R.output(z)
        return z

    assert_becomes(before, expected, num_input=2)


def test_a_broadcast_that_makes_the_full_shape_stays() -> None:
    @R.function(private=True)
    def before(x: R.Tensor((1, 4), "float32"), y: R.Tensor((4,), "float32")) -> R.Tensor((3, 4), "float32"):
        with R.dataflow():
            a = R.broadcast_to(x, R.shape([3, 4]))
            z = R.add(a, y)
            R.output(z)
        return z

    assert_becomes(before, before, num_input=2)


def test_a_flattened_product_is_unflattened() -> None:
    @R.function(private=True)
    def before(
        x: R.Tensor((n, 7, 4), "float32"), w: R.Tensor((4, 6), "float32"), b: R.Tensor((6,), "float32")
    ) -> R.Tensor((n, 7, 6), "float32"):
        with R.dataflow():
            flat = R.reshape(x, R.shape([n * 7, 4]))
            m = R.matmul(flat, w)
            a = R.add(m, b)
            y = R.reshape(a, R.shape([n, 7, 6]))
            R.output(y)
        return y

    @R.function(private=True)
    def expected(
        x: R.Tensor((n, 7, 4), "float32"), w: R.Tensor((4, 6), "float32"), b: R.Tensor((6,), "float32")
    ) -> R.Tensor((n, 7, 6), "float32"):
        with R.dataflow():
            m = R.matmul(x, w)
            y = R.add(m, b)
            R.output(y)
        return y

    assert_becomes(before, expected)


def test_a_flattened_product_that_is_read_elsewhere_stays() -> None:
    @R.function(private=True)
    def before(x: R.Tensor((2, 7, 4), "float32"), w: R.Tensor((4, 6), "float32")) -> R.Tuple(
        R.Tensor((2, 7, 6), "float32"), R.Tensor((14, 6), "float32")
    ):
        with R.dataflow():
            flat = R.reshape(x, R.shape([14, 4]))
            m = R.matmul(flat, w)
            y = R.reshape(m, R.shape([2, 7, 6]))
            z = R.exp(m)
            r = (y, z)
            R.output(r)
        return r

    assert "R.shape([14, 4])" in tvm.IRModule({"main": normalized(before)}).script()


@pytest.mark.parametrize("value", [True, False])
def test_a_choice_that_is_the_same_everywhere_is_made(value: bool) -> None:
    x, y = (relax.Var(name, relax.TensorType([2, 3], "float32")) for name in "xy")
    builder = relax.BlockBuilder()
    with builder.function("main", [x, y], attrs={"num_input": 2}):
        with builder.dataflow():
            chosen = builder.emit(relax.op.where(relax.const(np.full((2, 3), value)), x, y))
            result = builder.emit_output(relax.op.exp(chosen))
        builder.emit_func_output(result)
    main = normalize(builder.get())[0]["main"]
    (binding,) = main.body.blocks[0].bindings
    assert binding.value.op.name == "relax.exp"
    assert binding.value.args[0].same_as(main.params[0 if value else 1])


def test_parameters_that_nothing_reads_are_gone() -> None:
    @R.function(private=True)
    def before(
        x: R.Tensor((2,), "float32"), used: R.Tensor((2,), "float32"), unused: R.Tensor((2,), "float32")
    ) -> R.Tensor((2,), "float32"):
        with R.dataflow():
            y = R.add(x, used)
            R.output(y)
        return y

    mod, used = normalize(tvm.IRModule({"main": before.with_attr("num_input", 1)}))
    assert used == [True, False]
    assert [var.name for var in mod["main"].params] == ["x", "used"]
