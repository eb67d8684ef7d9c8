"""What normalize takes away, each as the module before and the module expected."""

from __future__ import annotations

from typing import TypeVar

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.script import relax as R

from autocast.frontend.normalize import normalize

n = TypeVar("n")  # a symbolic dimension


def _normalized(function: relax.Function, num_input: int = 1) -> relax.Function:
    mod = tvm.IRModule({"main": function.with_attr("num_input", num_input)})
    return normalize(mod)[0]["main"]


def _assert_becomes(before: relax.Function, expected: relax.Function, num_input: int = 1) -> None:
    expected = expected.with_attr("num_input", num_input)
    expected = tvm.IRModule({"main": expected})["main"].with_attr("global_symbol", "main")
    tvm.ir.assert_structural_equal(_normalized(before, num_input).with_attr("global_symbol", "main"), expected)


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

    _assert_becomes(before, expected)


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

    _assert_becomes(before, expected)


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

    _assert_becomes(before, expected, num_input=2)


def test_a_broadcast_that_makes_the_full_shape_stays() -> None:
    @R.function(private=True)
    def before(x: R.Tensor((1, 4), "float32"), y: R.Tensor((4,), "float32")) -> R.Tensor((3, 4), "float32"):
        with R.dataflow():
            a = R.broadcast_to(x, R.shape([3, 4]))
            z = R.add(a, y)
            R.output(z)
        return z

    _assert_becomes(before, before, num_input=2)


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

    _assert_becomes(before, expected)


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

    assert "R.shape([14, 4])" in tvm.IRModule({"main": _normalized(before)}).script()


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

    _assert_becomes(before, expected)


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

    _assert_becomes(before, expected)


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

    _assert_becomes(before, before)


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

    _assert_becomes(before, expected, num_input=3)


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

    _assert_becomes(before, before, num_input=3)


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

    _assert_becomes(before, expected)


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
