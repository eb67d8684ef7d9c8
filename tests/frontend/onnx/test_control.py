"""ONNX's `If`, and `Loop` of states, beside ONNX's reference."""

# ruff: noqa: E402 (what the imports need may not be installed)

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx", reason="the extra `onnx` is not installed; make test installs it")
pytest.importorskip("onnxruntime", reason="onnxruntime is not installed; make test installs it")

from onnx.reference import ReferenceEvaluator

import autocast
from autocast import vm
from autocast.errors import ImportModelError, InputError, UnsupportedError
from autocast.frontend.onnx.loops import unrolled

_HEAD = '<ir_version: 10, opset_import: ["" : 20]>\n'


def model_of(text: str) -> Any:
    return onnx.parser.parse_model(_HEAD + text)


def random(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape).astype("float32")


def compare(model: Any, *inputs: np.ndarray) -> None:
    """Our results are those of ONNX's reference."""
    names = [value.name for value in model.graph.input]
    expected = ReferenceEvaluator(model).run(None, dict(zip(names, inputs, strict=True)))
    outputs = autocast.from_onnx(model)(*inputs)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    for got, wanted in zip(outputs, expected, strict=True):
        assert got.dtype == wanted.dtype
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5)


#: A weight in each branch, and one outside of both.
_BRANCHES = """
    main (float[N, 2] x, bool flag) => (float[N, 2] y, int64 which) <float[2, 2] w = {1, 2, 3, 4}> {
        y, which = If (flag) <
            then_branch = then () => (float[N, 2] a, int64 one) <float[2] b = {1, 2}> {
                p = MatMul (x, w)
                a = Add (p, b)
                one = Constant <value_int = 1> ()
            },
            else_branch = other () => (float[N, 2] c, int64 two) <float[2] b = {3, 4}> {
                c = Mul (x, b)
                two = Constant <value_int = 2> ()
            }
        >
    }
"""


def test_an_if_runs_the_branch_that_its_condition_chooses() -> None:
    model = model_of(_BRANCHES)
    for flag in (True, False):
        compare(model, random(3, 2), np.array(flag))


def test_an_if_may_return_other_sizes_in_each_branch() -> None:
    model = model_of(
        """
        main (float[N, 2] x, bool flag, bool nested) => (float[M, 2] y) <float[2, 2] w = {1, 2, 3, 4}> {
            rows = If (flag) <
                then_branch = then () => (float[N, 2] a) { a = Relu (x) },
                else_branch = other () => (float[K, 2] b) {
                    b = If (nested) <
                        then_branch = twice () => (float[L, 2] c) { c = Concat <axis = 0> (x, x) },
                        else_branch = thrice () => (float[L, 2] d) { d = Concat <axis = 0> (x, x, x) }
                    >
                }
            >
            products = MatMul (rows, w)
            y = Softmax <axis = 0> (products)
        }
        """
    )
    for flag, nested in ((True, False), (False, True), (False, False)):
        compare(model, random(3, 2), np.array(flag), np.array(nested))


#: A step of a network for each of two rates, of which one squeezes what would be no vector at the other's length; as
#: exporters write a cell that takes vectors.
_RATES = """
    main (float[N, T] x, int64 rate) => (float[N, 3] y) <int64 fast = {16}, int64 one = {1}, int64 two = {2},
        int64[1] last = {2}, int64[1] middle = {1}> {
        is_fast = Equal (rate, fast)
        y = If (is_fast) <
            then_branch = then () => (float[N, 3] a) <float[3, 1, 4] w = {1, 2, 3, 4, 1, 0, 0, 1, -1, 2, -3, 4}> {
                rows = Unsqueeze (x, middle)
                frames = Conv <strides = [4]> (rows, w)
                sizes = Shape (frames)
                count = Gather (sizes, two)
                is_one = Equal (count, one)
                a = If (is_one) <
                    then_branch = single () => (float[N, 3] b) {
                        squeezed = Squeeze (frames, last)
                        axes = Shape (squeezed)
                        rank = Size (axes)
                        flat = Equal (rank, two)
                        b = If (flat) <
                            then_branch = is_flat () => (float[N, 3] c) { c = Relu (squeezed) },
                            else_branch = deep () => (float d) { d = ReduceMax <keepdims = 0> (squeezed) }
                        >
                    },
                    else_branch = several () => (float[N, 3, S] e) { e = Identity (frames) }
                >
            },
            else_branch = other () => (float[N, 3] f) <float[2, 3] v = {1, 2, 3, 4, 5, 6}> { f = MatMul (x, v) }
        >
    }
"""


def test_the_rate_of_a_network_may_be_a_constant() -> None:
    """Sizes decide which branch is taken where some vary, too."""
    model = model_of(_RATES)
    for rate, samples in ((16, 4), (8, 2)):
        length = {"T": samples}
        fast = autocast.from_onnx(model, constants={"rate": rate}, dynamic=length)
        assert fast.input_names == ("x",)
        for batch in (1, 3):
            x = random(batch, samples)
            (expected,) = ReferenceEvaluator(model).run(None, {"x": x, "rate": np.array(rate)})
            np.testing.assert_allclose(fast(x), expected, rtol=1e-5, atol=1e-5)
    with pytest.raises(UnsupportedError, match=r"its branches return .* give its value, constants="):
        autocast.from_onnx(model, constants={"rate": 16})


@pytest.mark.parametrize(
    ("constants", "message"),
    [
        ({"rat": 16}, "constants has 'rat', expected names of inputs: 'x', 'rate'"),
        ({"rate": 16.5}, r"constants\['rate'\] is float64\[\], expected numbers that int64 holds, of the shape \[\]"),
        ({"rate": [16]}, r"is int64\[1\], expected .* of the shape \[\]"),
        ({"rate": 2**70}, "is object"),
        ({"rate": "fast"}, "is <U4"),
        ({"x": [1.0, 2.0]}, r"is float64\[2\], expected numbers that float32 holds, of the shape \[N, T\]"),
        ("rate", "constants: got a str, expected constants="),
    ],
)
def test_constants_that_are_no_values_of_inputs_are_refused(constants: Any, message: str) -> None:
    with pytest.raises(ImportModelError, match=message):
        autocast.from_onnx(model_of(_RATES), constants=constants)


def test_the_sizes_of_a_constant_are_those_of_its_dimensions() -> None:
    text = "main (float[N, T] x, float[N, T] y) => (float[N, T] z) { z = Sub (x, y) }"
    x, y = random(2, 3), np.ones((2, 3))
    model = autocast.from_onnx(model_of(text), constants={"y": y})
    np.testing.assert_array_equal(model(x), x - 1)
    with pytest.raises(InputError, match=r"input x is float32\[1, 3\], expected float32\[2, 3\]"):
        model(x[:1])


#: Until a sum passes a bound, or after so many steps; a branch in each step. Pad becomes a function of loops.
_LOOP = """
    main (float[2, 2] x, int64 most, float bound) => (float[2, 2] y, int64 taken)
        <float[2, 2] w = {0.5, 0.25, 0.25, 0.5}, float[1] half = {0.5}, int64 zero = {0}, int64[4] pads = {0, 1, 0, 1},
         float one = {1}> {
        begins = Constant <value_ints = [0, 1]> ()
        ends = Constant <value_ints = [2, 3]> ()
        size = ReduceSum <keepdims = 0> (x)
        first = Less (size, bound)
        y, taken = Loop (most, first, x, zero) <
            body = step (int64 i, bool before, float[2, 2] s, int64 n) => (bool more, float[2, 2] t, int64 m) {
                p = MatMul (s, w)
                q = Pad (p, pads, one)
                r = Slice (q, begins, ends)
                parity = BitwiseAnd (n, parity_of)
                odd = Cast <to = 9> (parity)
                t = If (odd) <
                    then_branch = then () => (float[2, 2] a) { a = Add (r, half) },
                    else_branch = other () => (float[2, 2] b) { b = Add (r, one) }
                >
                m = Add (n, parity_of)
                parity_of = Constant <value_int = 1> ()
                sum = ReduceSum <keepdims = 0> (t)
                more = Less (sum, bound)
            }
        >
    }
"""


def loop_model() -> Any:
    model = model_of(_LOOP)
    body = next(node for node in model.graph.node if node.op_type == "Loop").attribute[0].g
    nodes = sorted(body.node, key=lambda node: node.op_type != "Constant")  # as ONNX wants them: what is read is made
    del body.node[:]
    body.node.extend(nodes)
    return model


@pytest.mark.parametrize(("most", "bound"), [(7, 1e9), (100, 5.0), (0, 1e9), (3, -1e9)])
def test_a_loop_goes_on_until_its_count_or_its_condition_ends_it(most: int, bound: float) -> None:
    compare(loop_model(), np.abs(random(2, 2)), np.array(most), np.array(bound, "float32"))


def test_a_loop_of_very_many_steps_ends_well() -> None:
    model = model_of(
        """
        main (int64 most, float[N] x) => (float[N] y) <float one = {1}> {
            y = Loop (most, , x) <
                body = step (int64 i, bool before, float[N] s) => (bool more, float[N] t) {
                    t = Add (s, one)
                    more = Identity (before)
                }
            >
        }
        """
    )
    y = autocast.from_onnx(model)(np.array(20_000), np.zeros(3, "float32"))
    np.testing.assert_array_equal(y, np.full(3, 20_000, "float32"))


def test_a_loop_of_few_steps_takes_few_calls() -> None:
    model = autocast.from_onnx(loop_model())
    given = [np.ones((2, 2), "float32"), np.array(1), np.array(1e9, "float32")]
    rows = vm.profile_vm_model(model, args=given, warmup=0, number=1, repeat=1).operators
    assert sum(row.calls for row in rows if row.name == "equal") < 8  # of levels, with 0


def test_a_loop_reads_what_has_no_variable_yet_and_goes_on_by_sizes() -> None:
    """As tf2onnx writes loops over time: rows of a transposed input, while a step is before the size as a float."""
    model = model_of(
        """
        main (float[B, T] x, float[B] s) => (float[B] y) <int64 zero = {0}, int64 next = {1}> {
            columns = Transpose <perm = [1, 0]> (x)
            shape = Shape (x)
            size = Gather (shape, next)
            whole = Cast <to = 1> (size)
            begin = Constant <value_float = 0.0> ()
            first = Less (begin, whole)
            at, y = Loop (, first, zero, s) <
                body = step (int64 i, bool before, int64 n, float[B] a) => (bool more, int64 m, float[B] b) {
                    row = Gather <axis = 0> (columns, n)
                    sum = Add (a, row)
                    b = Tanh (sum)
                    m = Add (n, next)
                    reached = Cast <to = 1> (m)
                    more = Less (reached, whole)
                }
            >
        }
        """
    )
    for batch, steps in ((2, 5), (1, 1)):
        compare(model, random(batch, steps), random(batch))


def test_the_first_step_may_begin_with_any_number() -> None:
    """As Paddle writes its loops: states that no step reads are numbers before it, of which half an axis is left.

    A branch makes a vector of one of what is a number in the other.
    """
    model = model_of(
        """
        main (float[N, 4] x) => (float[M, 2] y, float[K] parts)
            <float none = {0}, float bound = {3}, int64 most = {9}> {
            begins = Constant <value_ints = [0, 0]> ()
            ends = Constant <value_ints = [9223372036854775807, 4]> ()
            axes = Constant <value_ints = [0, 1]> ()
            steps = Constant <value_ints = [2, 2]> ()
            some = Slice (x, begins, ends, axes, steps)
            true = Constant <value = bool {1}> ()
            sum, y, parts = Loop (most, true, none, some, none) <
                body = step (int64 i, bool before, float s, float[P, 2] a, float p) =>
                    (bool more, float t, float[P, 2] b, float[K] q) {
                    total = ReduceSum <keepdims = 0> (a)
                    large = Greater (total, none)
                    one = Constant <value_float = 1.0> ()
                    t = If (large) <
                        then_branch = then () => (float c) { c = Add (s, one) },
                        else_branch = other () => (float[1] d) {
                            ones = Constant <value_floats = [1.0]> ()
                            d = Add (s, ones)
                        }
                    >
                    b = Mul (a, one)
                    many = Reshape (a, flat)
                    q = Add (many, t)
                    flat = Constant <value_ints = [-1]> ()
                    more = Less (t, bound)
                }
            >
        }
        """
    )
    body = next(node for node in model.graph.node if node.op_type == "Loop").attribute[0].g
    nodes = sorted(body.node, key=lambda node: node.op_type != "Constant")
    del body.node[:]
    body.node.extend(nodes)
    for rows in (3, 4):
        compare(model, random(rows, 4))


#: States that grow, which only steps that are written out have.
_GROWING = """
    main (float[1, 2] x) => (float[M, 2] y, float[3, 2] rows) <int64 most = {3}, bool yes = {1}> {
        y, rows = Loop (most, yes, x) <
            body = step (int64 i, bool before, float[K, 2] s) => (bool more, float[L, 2] t, float[2] row) {
                p = Cast <to = 1> (i)
                q = Add (x, p)
                t = Concat <axis = 0> (s, q)
                row = ReduceSum <keepdims = 0> (t, zero)
                zero = Constant <value_ints = [0]> ()
                more = Identity (before)
            }
        >
    }
"""


def test_a_loop_of_known_length_may_change_the_sizes_of_its_states() -> None:
    model = model_of(_GROWING)
    body = model.graph.node[0].attribute[0].g
    nodes = sorted(body.node, key=lambda node: node.op_type != "Constant")
    del body.node[:]
    body.node.extend(nodes)
    compare(model, random(1, 2))
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    assert unrolled(copy)[1]
    assert "Loop" not in {node.op_type for node in copy.graph.node}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            _GROWING.replace("int64 most = {3}, ", "").replace("float[1, 2] x", "float[1, 2] x, int64 most"),
            "expected the same dtypes and sizes, unless the number of steps is a constant",
        ),
        (
            _GROWING.replace("int64 most = {3}, ", "")
            .replace("float[1, 2] x", "float[1, 2] x, int64 most")
            .replace(", float[3, 2] rows)", ")")
            .replace("y, rows = ", "y = ")
            .replace(", float[2] row)", ")"),
            "expected the same dtypes and sizes",
        ),
        (
            _BRANCHES.replace("(float[N, 2] y,", "(float y,").replace(
                "c = Mul (x, b)", "c = ReduceSum <keepdims = 0> (x)"
            ),
            "its branches return .* expected the same dtypes and numbers of axes",
        ),
    ],
)
def test_loops_and_branches_whose_sizes_depend_on_values_are_refused(text: str, message: str) -> None:
    model = model_of(text)
    for node in model.graph.node:
        for attribute in node.attribute:
            if attribute.g.node:
                nodes = sorted(attribute.g.node, key=lambda node: node.op_type != "Constant")
                del attribute.g.node[:]
                attribute.g.node.extend(nodes)
    with pytest.raises(UnsupportedError, match=message):
        autocast.from_onnx(model)
