"""Which convolutions become kernels, with what of their surroundings, and that the results are right."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
import tvm
from torch.nn import functional as F
from tvm import relax

from autocast.kernels import detect_target
from autocast.kernels.matching.convolutions.rule import lower_convolutions
from autocast.kernels.phases.canonicalize import canonicalize
from autocast.kernels.phases.channels_last.phase import channels_last
from autocast.kernels.phases.widen import compute_in_float32
from autocast.kernels.targets import backend_of
from autocast.operators import own
from tests.kernels.modules import EPSILON, error, module, operators, random, run
from tests.kernels.targets.cpu.products.cases import CPUS, has_pairs, runs_here

op = relax.op

IMAGE, WEIGHTS, BIAS = (2, 5, 9, 7), (6, 5, 3, 3), (1, 6, 1, 1)


def _lowered(body: Callable[..., relax.Expr], *arguments: tuple) -> list[str]:
    """What "main" calls once its convolutions are kernels: casts, kernels and what is left."""
    mod = compute_in_float32(channels_last(canonicalize(module(body, *arguments))))
    names = operators(lower_convolutions(mod, backend_of(detect_target())))
    return [
        name for name in names if not name.endswith("_pack") and name not in ("relax.permute_dims", "relax.reshape")
    ]


def _each(dtype: str, *shapes: tuple) -> list[tuple]:
    return [(shape, dtype) for shape in shapes]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_bias_activation_and_cast_are_the_kernels(dtype: str) -> None:
    def body(x: relax.Expr, w: relax.Expr, bias: relax.Expr) -> relax.Expr:
        return op.nn.silu(op.add(op.nn.conv2d(x, w, padding=1), bias))

    short = {"float32": "f32", "bfloat16": "bf16"}[dtype]
    calls = _lowered(body, *_each(dtype, IMAGE, WEIGHTS, BIAS))
    assert calls == [f"convolution0_2x9x7x5x6_k3x3_{short}_{short}_{short}_bias_silu"]


@pytest.mark.parametrize(
    ("activation", "name", "same"),
    [
        (lambda x: op.clip(x, 0, 6), "clip", F.relu6),
        (lambda x: own.hardtanh(x, low=-1.0, high=1.0), "clip", F.hardtanh),
        (lambda x: op.nn.leakyrelu(x, 0.2), "leakyrelu", lambda x: F.leaky_relu(x, 0.2)),
    ],
)
def test_activations_with_numbers_are_the_kernels(activation: Callable, name: str, same: Callable) -> None:
    def body(x: relax.Expr, w: relax.Expr) -> relax.Expr:
        return activation(op.nn.conv2d(x, w, padding=1))

    arguments = _each("float32", IMAGE, WEIGHTS)
    assert _lowered(body, *arguments) == [f"convolution0_2x9x7x5x6_k3x3_f32_f32_f32_{name}"]
    arrays = [random(shape, dtype) for shape, dtype in arguments]
    x, w = (torch.from_numpy(array).double() for array in arrays)
    expected = same(F.conv2d(x, w, padding=1)).numpy()
    assert error(run(module(body, *arguments), *arrays)[0], expected) < 4 * EPSILON["float32"]


def test_a_function_of_a_convolution_and_a_tensor_is_the_kernels() -> None:
    def body(x: relax.Expr, w: relax.Expr, low: relax.Expr) -> relax.Expr:
        return op.maximum(op.nn.conv2d(x, w, padding=1), low)

    calls = _lowered(body, *_each("float32", IMAGE, WEIGHTS, (2, 6, 9, 7)))
    assert calls == ["convolution0_2x9x7x5x6_k3x3_f32_f32_f32_maximum"]


@pytest.mark.parametrize("first", [True, False])
def test_a_residual_is_added_before_or_after_the_activation(first: bool) -> None:
    def body(x: relax.Expr, w: relax.Expr, bias: relax.Expr, residual: relax.Expr) -> relax.Expr:
        biased = op.add(op.nn.conv2d(x, w, padding=1), bias)
        return op.nn.relu(op.add(residual, biased)) if first else op.add(op.nn.relu(biased), residual)

    calls = _lowered(body, *_each("float32", IMAGE, WEIGHTS, BIAS, (2, 6, 9, 7)))
    finish = "residual_relu" if first else "relu_residual"
    assert calls == [f"convolution0_2x9x7x5x6_k3x3_f32_f32_f32_bias_{finish}"]


@has_pairs
def test_a_rounding_before_an_activation_is_the_kernels() -> None:
    def body(x: relax.Expr, w: relax.Expr, bias: relax.Expr) -> relax.Expr:
        low = op.nn.conv2d(op.astype(x, "bfloat16"), op.astype(w, "bfloat16"), out_dtype="float32")
        return op.nn.relu(op.astype(op.add(low, bias), "bfloat16"))

    calls = _lowered(body, *_each("float32", IMAGE, WEIGHTS, BIAS))
    assert calls == ["relax.astype", "convolution0_2x9x7x5x6_k3x3_bf16_f32_bf16_bias_relu"]


@has_pairs
def test_data_with_other_readers_is_narrowed_while_it_is_read() -> None:
    builder = relax.BlockBuilder()
    x, w, v = (
        relax.Var(name, relax.TensorType(shape, "float32"))
        for name, shape in (("x", (2, 9, 7, 5)), ("w", (5, 5, 3, 3)), ("v", (5, 5, 1, 1)))
    )
    layout = {"data_layout": "NHWC", "out_layout": "NHWC"}
    with builder.function("main", [x, w, v]):
        with builder.dataflow():
            first = builder.emit(op.nn.conv2d(x, w, padding=1, **layout))
            low = builder.emit(op.nn.conv2d(op.astype(first, "bfloat16"), op.astype(v, "bfloat16"), **layout))
            result = builder.emit_output(op.add(first, op.astype(low, "float32")))
        builder.emit_func_output(result)
    calls = operators(lower_convolutions(compute_in_float32(builder.get()), backend_of(detect_target())))
    assert "relax.astype" not in calls and "relax.add" not in calls


def test_equal_convolutions_share_a_kernel() -> None:
    def body(x: relax.Expr, w: relax.Expr, v: relax.Expr) -> relax.Expr:
        return op.nn.conv2d(op.nn.conv2d(x, w, padding=1), v, padding=1)

    mod = channels_last(canonicalize(module(body, *_each("float32", IMAGE, *[(5, 5, 3, 3)] * 2))))
    lowered = lower_convolutions(mod, backend_of(detect_target()))
    assert sum(isinstance(function, tvm.tirx.PrimFunc) for function in lowered.functions.values()) == 2


DECLINED: dict[str, tuple] = {
    "it computes float64 from float64 and float64": (op.nn.conv2d, *_each("float64", IMAGE, WEIGHTS)),
    "a shape is not known": (op.nn.conv2d, (IMAGE, "float32"), (("features", 5, 3, 3), "float32")),
    "a tensor is empty": (op.nn.conv2d, *_each("float32", (0, *IMAGE[1:]), WEIGHTS)),
    "no kernel convolves along three axes": (op.nn.conv3d, *_each("float32", (2, 5, 4, 4, 4), (6, 5, 3, 3, 3))),
}


@pytest.mark.parametrize("reason", DECLINED)
def test_what_is_declined_says_why(
    reason: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("AUTOCAST_DEBUG", "4")
    body, *arguments = DECLINED[reason]
    mod = canonicalize(module(body, *arguments))
    after = lower_convolutions(channels_last(mod), backend_of(detect_target()))
    tvm.ir.assert_structural_equal(after, mod)
    assert f"convolutions declines gv: {reason}" in capsys.readouterr().err


#: Operator, its options for Relax and for torch, and shapes of data, weights and bias.
KINDS: dict[str, tuple[Callable, dict, Callable, dict, tuple]] = {
    "strided": (op.nn.conv2d, {"strides": (2, 1), "padding": (1, 0, 2, 1)}, F.conv2d, {}, (IMAGE, (6, 5, 3, 2), (6,))),
    "grouped": (op.nn.conv2d, {"groups": 2}, F.conv2d, {"groups": 2}, ((2, 6, 9, 7), (4, 3, 3, 3), (4,))),
    "depthwise": (
        op.nn.conv2d,
        {"groups": 6, "padding": 3, "dilation": 2},
        F.conv2d,
        {"groups": 6, "padding": 3, "dilation": 2},
        ((2, 6, 9, 7), (6, 1, 3, 3), (6,)),
    ),
    "transposed": (
        op.nn.conv2d_transpose,
        {"strides": (2, 2), "padding": (1, 1), "output_padding": (1, 1)},
        F.conv_transpose2d,
        {"stride": 2, "padding": 1, "output_padding": 1},
        ((2, 5, 4, 3), (5, 6, 3, 3), (6,)),
    ),
    "transposed, to fewer pixels than strides": (
        op.nn.conv2d_transpose,
        {"strides": (2, 2), "padding": (1, 1)},
        F.conv_transpose2d,
        {"stride": 2, "padding": 1},
        ((2, 5, 1, 3), (5, 6, 3, 3), (6,)),
    ),
    "along one axis": (
        op.nn.conv1d,
        {"strides": 2, "padding": (1, 1)},
        F.conv1d,
        {"stride": 2, "padding": 1},
        ((2, 5, 31), (6, 5, 4), (6,)),
    ),
    "transposed, along one axis": (
        op.nn.conv1d_transpose,
        {"strides": 3},
        F.conv_transpose1d,
        {"stride": 3},
        ((2, 5, 11), (5, 6, 4), (6,)),
    ),
}


@pytest.mark.parametrize(("dtype", "dynamic"), [("float32", True), ("bfloat16", False)])
@pytest.mark.parametrize("name", KINDS)
def test_convolutions_of_every_kind_match_torch(name: str, dtype: str, dynamic: bool) -> None:
    relax_operator, relax_options, torch_operator, torch_options, shapes = KINDS[name]

    def body(x: relax.Expr, w: relax.Expr, bias: relax.Expr) -> relax.Expr:
        shaped = op.reshape(bias, [1, -1] + [1] * (len(shapes[0]) - 2))
        return op.nn.relu(op.add(relax_operator(x, w, **relax_options), shaped))

    arrays = [random(shape, dtype, seed) for seed, shape in enumerate(shapes)]
    data_shape = ("batch", *shapes[0][1:]) if dynamic else shapes[0]
    mod = module(body, (data_shape, dtype), *_each(dtype, *shapes[1:]))
    x, w, bias = (torch.from_numpy(array.astype("float64")) for array in arrays)
    if name == "strided":
        x, torch_options = F.pad(x, (0, 1, 1, 2)), {"stride": (2, 1)}
    expected = F.relu(torch_operator(x, w, bias, **torch_options)).numpy()
    assert error(run(mod, *arrays)[0], expected) < EPSILON[dtype] * np.sqrt(np.prod(shapes[1][1:]))


@pytest.mark.parametrize("cpu", [cpu for cpu in CPUS if runs_here(cpu)])
def test_narrowed_operands_are_rounded_on_every_target(cpu: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def body(x: relax.Expr, w: relax.Expr) -> relax.Expr:
        return op.nn.conv2d(op.astype(x, "bfloat16"), op.astype(w, "bfloat16"), padding=1, out_dtype="float32")

    monkeypatch.setenv("AUTOCAST_TARGET", cpu)
    x, w = random(IMAGE, "float32"), random(WEIGHTS, "float32", 1)
    got = run(module(body, *_each("float32", IMAGE, WEIGHTS)), x, w)[0]
    rounded = [torch.from_numpy(value).bfloat16().double() for value in (x, w)]
    assert error(got, F.conv2d(*rounded, padding=1).numpy()) < 1e-6
