"""Where channels are last, what moves there and back, and that the results stay what they were."""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Callable

import numpy as np
import pytest
import torch
import tvm
from tvm import relax

from autocast.frontend import from_torch
from autocast.ir.places import places_of_kernels
from autocast.kernels.phases.canonicalize import canonicalize
from autocast.kernels.phases.channels_last.phase import channels_last
from autocast.kernels.pipeline import lower
from autocast.kernels.targets.cpu.instruction_sets import detect_target
from tests.kernels.matching.plain import run_plainly
from tests.kernels.modules import error, module, operators, random, run

op = relax.op

Body = Callable[..., relax.Expr]

IMAGE, WEIGHTS = ((2, 3, 8, 6), "float32"), ((4, 3, 3, 3), "float32")
SQUARE = ((4, 4, 3, 3), "float32")


def _moves(mod: tvm.IRModule) -> int:
    return operators(mod).count("relax.permute_dims")


def _moved(body: Body, *arguments: tuple) -> tvm.IRModule:
    """The module with channels last, once it was seen to compute the same."""
    before = canonicalize(module(body, *arguments))
    after = channels_last(before)
    values = [random(shape, dtype, i) for i, (shape, dtype) in enumerate(arguments)]
    assert error(run_plainly(after, *values), run_plainly(before, *values).astype("float64")) < 1e-5
    return after


def _convolved(x: relax.Expr, w: relax.Expr) -> relax.Expr:
    return op.nn.conv2d(x, w, padding=1)


#: What may come after a convolution of 8 x 6 pixels, 4 channels; one more argument of the shape given.
BETWEEN: dict[str, tuple[Body, tuple[int, ...]]] = {
    "bias": (lambda x, b: op.nn.relu(op.add(x, b)), (1, 4, 1, 1)),
    "bias of lower rank": (lambda x, b: op.multiply(b, x), (4, 1, 1)),
    "values along the width": (lambda x, b: op.add(x, b), (6,)),
    "a map for all images": (lambda x, b: op.add(x, b), (4, 8, 6)),
    "a map for all channels": (lambda x, b: op.subtract(x, b), (2, 1, 8, 6)),
    "a residual": (lambda x, b: op.add(b, x), (2, 4, 8, 6)),
    "a scalar": (lambda x, b: op.where(op.less(x, b), x, b), ()),
    "pooling": (lambda x, b: op.add(op.nn.max_pool2d(x, 3, 2, 1), op.nn.avg_pool2d(x, 2, 2, ceil_mode=True)), ()),
    "global pooling": (lambda x, b: op.nn.adaptive_avg_pool2d(x, (2, 3)), ()),
    "group_norm": (lambda x, b: op.nn.group_norm(x, b, b, num_groups=2, channel_axis=1, axes=[2, 3]), (4,)),
    "concatenation of channels": (lambda x, b: op.concat([x, b], 1), (2, 5, 8, 6)),
    "concatenation of rows": (lambda x, b: op.concat([b, x], 2), (2, 4, 1, 6)),
    "resizing": (lambda x, b: op.image.resize2d(x, (5, 9), layout="NCHW", method="linear"), ()),
    "padding": (lambda x, b: op.nn.pad(x, [0, 0, 1, 0, 2, 0, 0, 3]), ()),
    "a slice": (lambda x, b: op.strided_slice(x, [1, 3], [1, 0], [3, 6], [1, 2]), ()),
    "a sum over channels": (lambda x, b: op.sum(x, [1], keepdims=True), ()),
    "a softmax over channels": (lambda x, b: op.nn.softmax(x, 1), ()),
    "squeeze and excitation": (
        lambda x, b: op.multiply(x, op.sigmoid(op.nn.conv2d(op.mean(x, [2, 3], keepdims=True), b))),
        (4, 4, 1, 1),
    ),
}


@pytest.mark.parametrize("name", BETWEEN)
def test_nothing_moves_between_convolutions(name: str) -> None:
    between, shape = BETWEEN[name]

    def body(x: relax.Expr, w: relax.Expr, other: relax.Expr) -> relax.Expr:
        return op.mean(between(_convolved(x, w), other), [2, 3])

    # The image moves once; so does a second operand that has both space and channels.
    whole = len(shape) >= 3 and shape[-3] > 1 and max(shape[-2:]) > 1
    assert _moves(_moved(body, IMAGE, WEIGHTS, (shape, "float32"))) == 1 + whole


def test_what_is_returned_moves_back_once() -> None:
    def body(x: relax.Expr, w: relax.Expr, v: relax.Expr) -> relax.Expr:
        return op.nn.relu(_convolved(op.nn.silu(_convolved(x, w)), v))

    calls = operators(_moved(body, IMAGE, WEIGHTS, SQUARE))
    assert [name.rpartition(".")[2] for name in calls] == [
        "permute_dims",
        "conv2d",
        "silu",
        "conv2d",
        "relu",
        "permute_dims",
    ]


#: What may come after a convolution, and decides by sizes what it is.
BY_SIZE: dict[str, Body] = {
    "bias": lambda x: op.add(x, relax.const(np.float32([2.0]))),
    "residual": lambda x: op.add(x, op.nn.relu(x)),
    "gates": lambda x: op.multiply(op.mean(x, [2, 3], keepdims=True), op.mean(x, [1], keepdims=True)),
    "standard deviation": lambda x: op.divide(x, op.std(x, [0, 2, 3], keepdims=True)),
    "maximum of the batch": lambda x: op.max(x, [0]),
    "mean of space": lambda x: op.mean(x, [2, 3]),
    "sum of a column": lambda x: op.sum(x, [2]),
    "squeezed": op.squeeze,
    "flattened": lambda x: op.flatten(x),
    "with one more axis": lambda x: op.expand_dims(x, [1]),
    "channels last": lambda x: op.permute_dims(x, [0, 2, 3, 1]),
    "softmax": lambda x: op.nn.softmax(x, 1),
    "concatenation": lambda x: op.concat([x, x], 1),
    "slice": lambda x: op.squeeze(op.strided_slice(x, [0], [0], [1]), 0),
    "transposed convolution": lambda x: op.nn.conv2d_transpose(op.mean(x, [1], keepdims=True), ONE_TO_ONE, strides=2),
    "pooling": lambda x: op.nn.adaptive_avg_pool2d(x, (1, 1)),
}

ONE_TO_ONE = relax.const(np.ones((1, 1, 2, 2), "float32"))


@pytest.mark.parametrize("name", BY_SIZE)
def test_sizes_of_1_leave_shapes_what_they_are(name: str) -> None:
    for batch, channels, filters, height, width in itertools.product((1, 2), (1, 3), (1, 4), (1, 5), (1, 6)):
        arguments = ((batch, channels, height, width), "float32"), ((filters, channels, 3, 3), "float32")
        before = canonicalize(module(lambda x, w: BY_SIZE[name](_convolved(x, w)), *arguments))
        after = channels_last(before)
        tvm.ir.assert_structural_equal(after["main"].ret_ty, before["main"].ret_ty)


@pytest.mark.parametrize("axes", [[0], [0, 2], [0, 3], [0, 1], [0, 2, 3]])
@pytest.mark.parametrize("keepdims", [False, True])
def test_reductions_over_the_batch(axes: list[int], keepdims: bool) -> None:
    _moved(lambda x, w: op.max(_convolved(x, w), axes, keepdims=keepdims), IMAGE, WEIGHTS)


def test_parts_of_a_split_stay_as_they_are() -> None:
    def body(x: relax.Expr, w: relax.Expr) -> relax.Expr:
        parts = op.split(_convolved(x, w), 2, 1)
        return op.mean(op.multiply(relax.TupleGetItem(parts, 0), relax.TupleGetItem(parts, 1)), [2, 3])

    assert _moves(_moved(body, IMAGE, WEIGHTS)) == 1


def test_a_models_own_transpositions_around_layer_norm_vanish() -> None:
    def body(x: relax.Expr, w: relax.Expr, gamma: relax.Expr, v: relax.Expr) -> relax.Expr:
        last = op.permute_dims(_convolved(x, w), [0, 2, 3, 1])
        normalized = op.nn.layer_norm(last, gamma, gamma, axes=[-1])
        return op.mean(_convolved(op.permute_dims(normalized, [0, 3, 1, 2]), v), [2, 3])

    assert _moves(_moved(body, IMAGE, WEIGHTS, ((4,), "float32"), SQUARE)) == 1


def test_space_is_flattened_without_moving_channels() -> None:
    def body(x: relax.Expr, w: relax.Expr) -> relax.Expr:
        return op.permute_dims(op.reshape(_convolved(x, w), [2, 4, 48]), [0, 2, 1])

    assert _moves(_moved(body, IMAGE, WEIGHTS)) == 1


def test_signals_along_one_axis() -> None:
    def body(x: relax.Expr, w: relax.Expr, v: relax.Expr) -> relax.Expr:
        first = op.nn.gelu(op.nn.conv1d(x, w, strides=2))
        return op.mean(op.nn.conv1d(first, v), [2])

    calls = _moved(body, ((2, 3, 20), "float32"), ((4, 3, 5), "float32"), ((6, 4, 2), "float32"))
    assert _moves(calls) == 1


def test_windows_that_tile_an_image_become_one_product() -> None:
    def body(x: relax.Expr, w: relax.Expr) -> relax.Expr:
        patches = op.nn.conv2d(x, w, strides=(4, 2))
        return op.permute_dims(op.reshape(patches, [2, 5, 6]), [0, 2, 1])

    calls = operators(_moved(body, IMAGE, ((5, 3, 4, 2), "float32")))
    assert "relax.nn.conv2d" not in calls and calls.count("relax.matmul") == 1


@pytest.mark.parametrize("size", ["batch", 2])
def test_the_batch_may_be_known_at_run_time(size: object) -> None:
    def body(x: relax.Expr, w: relax.Expr, bias: relax.Expr) -> relax.Expr:
        pooled = op.nn.adaptive_avg_pool2d(op.nn.relu(op.add(_convolved(x, w), bias)), 1)
        return op.reshape(pooled, relax.ShapeExpr([x.ty.shape.values[0], 4]))

    arguments = ((size, 3, 8, 6), "float32"), WEIGHTS, ((1, 4, 1, 1), "float32")
    after = channels_last(canonicalize(module(body, *arguments)))
    assert _moves(after) == 1


def test_the_gradient_of_weights_is_computed_where_no_convolution_is() -> None:
    def body(x: relax.Expr, w: relax.Expr, g: relax.Expr) -> relax.Expr:
        call = _convolved(x, w)
        return op.grad.conv2d_weight_backward(x, w, g, attrs=call.attrs)

    images = (2, 8, 9, 9)
    mod = module(body, (images, "float32"), ((16, 8, 3, 3), "float32"), ((2, 16, 9, 9), "float32"))
    (gradient,) = run(mod, *[np.ones(shape, "float32") for shape in (images, (16, 8, 3, 3), (2, 16, 9, 9))])
    assert gradient[0, 0].tolist() == [[128, 144, 128], [144, 162, 144], [128, 144, 128]]


def test_what_no_kernel_takes_stays_as_it_is() -> None:
    mod = canonicalize(module(_convolved, ((2, 3, 8, 6), "float64"), ((4, 3, 3, 3), "float64")))
    tvm.ir.assert_structural_equal(channels_last(mod), mod)


def test_functions_without_convolutions_stay_as_they_are() -> None:
    def body(x: relax.Expr) -> relax.Expr:
        return op.nn.softmax(op.permute_dims(op.nn.relu(op.permute_dims(x, [0, 2, 1])), [0, 2, 1]))

    mod = canonicalize(module(body, ((2, 3, 4), "float32")))
    tvm.ir.assert_structural_equal(channels_last(mod), mod)


def test_parts_of_a_split_that_are_returned_together_move_back() -> None:
    def body(x: relax.Expr, w: relax.Expr) -> relax.Expr:
        return relax.op.split(relax.op.nn.conv1d(x, w, padding=1), 2, axis=1)

    x, w = random((2, 3, 7), "float32"), random((4, 3, 3), "float32", 1)
    expected = torch.nn.functional.conv1d(torch.tensor(x), torch.tensor(w), padding=1).split(2, 1)
    for got, part in zip(
        run(module(body, ((2, 3, 7), "float32"), ((4, 3, 3), "float32")), x, w), expected, strict=True
    ):
        assert error(got, part.numpy()) < 1e-6


def test_a_sum_of_products_keeps_its_operands_of_one_shape() -> None:
    shapes = ((1, 3, 6, 6), "float32"), ((1, 3, 3, 3), "float32"), ((1, 1, 4, 4), "float32")

    def body(x: relax.Expr, w: relax.Expr, y: relax.Expr) -> relax.Expr:
        return op.ewise_fma(op.nn.conv2d(x, w), y, y)

    x, w, y = (random(*shape) for shape in shapes)
    image = torch.nn.functional.conv2d(torch.as_tensor(x), torch.as_tensor(w)).numpy()
    (got,) = run(module(body, *shapes), x, w, y)
    np.testing.assert_allclose(got, image * y + y, rtol=1e-4, atol=1e-5)


def test_kernels_of_convolutions_say_which_modules_they_come_from() -> None:
    layers = [("first", torch.nn.Conv2d(3, 8, 3)), ("act", torch.nn.ReLU()), ("second", torch.nn.Conv2d(8, 4, 3))]
    model = from_torch(torch.nn.Sequential(OrderedDict(layers)).eval(), (torch.randn(1, 3, 8, 6),))
    places = places_of_kernels(lower(model.mod, detect_target()))
    found = [modules for name, modules in places.items() if name.startswith("convolution") and "pack" not in name]
    assert sorted(found) == [("act",), ("second",)]
