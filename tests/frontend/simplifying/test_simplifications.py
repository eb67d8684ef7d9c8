"""Pieces that tracing leaves of one operator, which become it again."""

from __future__ import annotations

from typing import TypeVar

import numpy as np
from tvm.script import relax as R

from tests.frontend.helpers import assert_becomes

n = TypeVar("n")  # a symbolic dimension


def test_the_pieces_of_tanh_gelu_become_one_operator() -> None:
    @R.function(private=True)
    def before(x: R.Tensor((2, 4), "float32")) -> R.Tensor((2, 4), "float32"):
        with R.dataflow():
            half = R.multiply(x, R.const(0.5, "float32"))
            cube = R.power(x, R.const(3.0, "float32"))
            small = R.multiply(cube, R.const(0.044715, "float32"))
            total = R.add(x, small)
            inner = R.multiply(total, R.const(0.7978845608028654, "float32"))
            tanh = R.tanh(inner)
            one = R.add(tanh, R.const(1.0, "float32"))
            y = R.multiply(half, one)
            R.output(y)
        return y

    @R.function(private=True)
    def expected(x: R.Tensor((2, 4), "float32")) -> R.Tensor((2, 4), "float32"):
        with R.dataflow():
            y = R.nn.gelu_tanh(x)
            R.output(y)
        return y

    assert_becomes(before, expected)


def test_the_root_mean_square_norm_is_one_operator() -> None:
    @R.function(private=True)
    def before(x: R.Tensor((2, 3, 4), "float32"), weight: R.Tensor((4,), "float32")) -> R.Tensor((2, 3, 4), "float32"):
        with R.dataflow():
            a = R.square(x)
            b = R.mean(a, axis=[-1], keepdims=True)
            c = R.add(b, R.const(1e-5, "float32"))
            d = R.rsqrt(c)
            e = R.multiply(x, d)
            y = R.multiply(weight, e)
            R.output(y)
        return y

    @R.function(private=True)
    def expected(x: R.Tensor((2, 3, 4), "float32"), weight: R.Tensor((4,), "float32")) -> R.Tensor(
        (2, 3, 4), "float32"
    ):
        with R.dataflow():
            y = R.nn.rms_norm(x, weight, axes=[-1], epsilon=float(np.float32(1e-5)))
            R.output(y)
        return y

    assert_becomes(before, expected)


def test_a_mean_over_another_axis_is_no_root_mean_square_norm() -> None:
    @R.function(private=True)
    def before(x: R.Tensor((2, 4, 4), "float32"), weight: R.Tensor((4,), "float32")) -> R.Tensor((2, 4, 4), "float32"):
        with R.dataflow():
            a = R.square(x)
            b = R.mean(a, axis=[1], keepdims=True)
            c = R.add(b, R.const(1e-5, "float32"))
            d = R.rsqrt(c)
            e = R.multiply(x, d)
            y = R.multiply(weight, e)
            R.output(y)
        return y

    assert_becomes(before, before)


def test_what_a_sigmoid_lets_through_of_a_tensor_added_to_another_is_one_operator() -> None:
    """The states of LSTM, and of GRU, whose candidate is on both sides."""

    @R.function(private=True)
    def before(
        x: R.Tensor((n, 4), "float32"), c: R.Tensor((n, 4), "float32"), h: R.Tensor((n, 4), "float32")
    ) -> R.Tensor((n, 4), "float32"):
        with R.dataflow():
            forget = R.sigmoid(x)
            candidate = R.tanh(x)
            kept = R.multiply(c, forget)
            state = R.add(candidate, kept)
            change = R.subtract(h, state)
            moved = R.multiply(forget, change)
            y = R.add(moved, state)
            R.output(y)
        return y

    @R.function(private=True)
    def expected(
        x: R.Tensor((n, 4), "float32"), c: R.Tensor((n, 4), "float32"), h: R.Tensor((n, 4), "float32")
    ) -> R.Tensor((n, 4), "float32"):
        with R.dataflow():
            forget = R.sigmoid(x)
            candidate = R.tanh(x)
            state = R.nn.gated_add(forget, c, candidate)
            change = R.subtract(h, state)
            y = R.nn.gated_add(forget, change, state)
            R.output(y)
        return y

    assert_becomes(before, expected, num_input=3)


def test_a_gate_that_is_broadcast_or_read_elsewhere_too_adds_as_it_did() -> None:
    @R.function(private=True)
    def before(
        x: R.Tensor((n, 1), "float32"), c: R.Tensor((n, 4), "float32"), y: R.Tensor((n, 4), "float32")
    ) -> R.Tensor((n, 4), "float32"):
        with R.dataflow():
            gate = R.sigmoid(x)
            scaled = R.multiply(gate, c)
            added = R.add(scaled, y)
            full = R.sigmoid(added)
            kept = R.multiply(full, c)
            state = R.add(kept, y)
            z = R.exp(kept)
            both = R.multiply(state, z)
            R.output(both)
        return both

    assert_becomes(before, before, num_input=3)


def test_repeated_heads_are_one_repeat() -> None:
    @R.function(private=True)
    def before(x: R.Tensor((2, 3, 5, 4), "float32")) -> R.Tensor((2, 6, 5, 4), "float32"):
        with R.dataflow():
            a = R.expand_dims(x, axis=[2])
            b = R.broadcast_to(a, R.shape([2, 3, 2, 5, 4]))
            y = R.reshape(b, R.shape([2, 6, 5, 4]))
            R.output(y)
        return y

    @R.function(private=True)
    def expected(x: R.Tensor((2, 3, 5, 4), "float32")) -> R.Tensor((2, 6, 5, 4), "float32"):
        with R.dataflow():
            y = R.repeat(x, 2, 1)
            R.output(y)
        return y

    assert_becomes(before, expected)
