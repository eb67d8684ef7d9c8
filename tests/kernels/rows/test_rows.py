"""Row kernels against float64, and what of their surroundings they take."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
import tvm
from tvm import relax

from autocast.kernels import detect_target
from autocast.kernels.graph.widen import compute_in_float32
from autocast.kernels.rows.kernel import RowKernel, row_kernel
from autocast.kernels.rows.rule import lower_rows
from tests.kernels.modules import EPSILON, error, module, operators, random, run

op = relax.op


def _calls(body: Callable[..., relax.Expr], *arguments: tuple) -> list[str]:
    return operators(lower_rows(compute_in_float32(module(body, *arguments)), detect_target()))


def test_scale_mask_and_casts_belong_to_the_softmax() -> None:
    def body(scores: relax.Expr, mask: relax.Expr) -> relax.Expr:
        scaled = op.multiply(scores, relax.const(0.125, "float32"))
        return op.astype(op.nn.softmax(op.add(scaled, op.astype(mask, "float32"))), "bfloat16")

    calls = _calls(body, ((2, 3, 4, 40), "float32"), ((2, 1, 4, 40), "bfloat16"))
    assert calls == ["softmax0_2x3x4x40_bfloat16"]


def test_what_others_read_too_is_left_outside() -> None:
    def body(x: relax.Expr) -> relax.Expr:
        shared = op.exp(x)
        return op.multiply(op.nn.softmax(shared), op.sqrt(shared))

    assert _calls(body, ((4, 40), "float32")) == ["relax.exp", "relax.sqrt", "softmax0_4x40_float32"]


def test_other_axes_are_declined_with_the_reason(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setenv("AUTOCAST_DEBUG", "4")
    assert _calls(lambda x: op.nn.softmax(x, axis=0), ((4, 40), "float32")) == ["relax.nn.softmax"]
    assert "declines" in (message := capsys.readouterr().err) and "not over the last axis" in message


def _softmax(x: np.ndarray) -> np.ndarray:
    weights = np.exp(x - x.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


def _layer_norm(x: np.ndarray, gamma: np.ndarray, beta: np.ndarray) -> np.ndarray:
    centered = x - x.mean(-1, keepdims=True)
    return centered / np.sqrt((centered**2).mean(-1, keepdims=True) + 1e-5) * gamma + beta


_FUNCTIONS: dict[str, tuple[Callable, Callable, int]] = {
    "softmax": (lambda x: op.nn.softmax(x), _softmax, 0),
    "softmax between functions": (
        lambda x: op.nn.relu(op.multiply(op.nn.softmax(op.tanh(x)), relax.const(2.0, str(x.ty.dtype)))),
        lambda x: 2 * _softmax(np.tanh(x)),
        0,
    ),
    "log_softmax": (lambda x: op.nn.log_softmax(x), lambda x: np.log(_softmax(x)), 0),
    "layer_norm": (lambda x, g, b: op.nn.layer_norm(x, g, b, axes=[-1]), _layer_norm, 2),
    "rms_norm": (
        lambda x, g: op.nn.rms_norm(x, g, axes=[-1], epsilon=1e-5),
        lambda x, g: x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5) * g,
        1,
    ),
    "sum": (lambda x: op.sum(x, axis=-1), lambda x: x.sum(-1), 0),
    "mean of squares": (
        lambda x: op.mean(op.multiply(x, x), axis=[2], keepdims=True),
        lambda x: (x * x).mean(-1, keepdims=True),
        0,
    ),
    "max": (lambda x: op.max(x, axis=-1), lambda x: x.max(-1), 0),
    "min": (lambda x: op.min(x, axis=-1), lambda x: x.min(-1), 0),
}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("name", _FUNCTIONS)
def test_row_functions_match_float64(name: str, dtype: str) -> None:
    build, reference, vectors = _FUNCTIONS[name]
    for columns, dims in ((2, (3, 2)), (17, (1, 5)), (64, (2, 3)), (163, ("a", "b")), (200, ("a", 3, "n")[:2])):
        sizes = [dim if isinstance(dim, int) else 4 for dim in dims]
        last = columns if columns != 200 else "n"
        x = random((*sizes, columns), dtype, scale=2.0)
        others = [random((columns,), dtype, seed) for seed in range(1, vectors + 1)]
        mod = module(build, ((*dims, last), dtype), *[((last,), dtype)] * vectors)
        (got,) = run(mod, x, *others)
        expected = reference(x.astype("float64"), *[other.astype("float64") for other in others])
        assert str(got.dtype) == dtype and got.shape == expected.shape
        assert error(got, expected) < 2 * max(EPSILON[dtype], 5e-7), (columns, dims)


def test_every_element_is_written_and_none_beyond() -> None:
    shape = (3, 21)
    spec = RowKernel(((shape, "bfloat16"),), shape, "softmax", ("load", 0), (), ("result",), (shape, "bfloat16"))
    kernel = tvm.compile(
        row_kernel(spec, detect_target(), "softmax").with_attr("global_symbol", "softmax"), target=detect_target()
    )
    x = random(shape, "bfloat16")
    memory = torch.full((4, 21), float("nan"), dtype=torch.bfloat16)
    kernel(tvm.runtime.tensor(x), tvm.runtime.from_dlpack(memory[:3]))
    got = memory.double().numpy()
    assert error(got[:3], _softmax(x.astype("float64"))) < 2 * EPSILON["bfloat16"] and np.isnan(got[3]).all()


@pytest.mark.parametrize("cpu", ["x86-64-v3", "x86-64"])
def test_other_instruction_sets_give_the_same_numbers(cpu: str, monkeypatch: pytest.MonkeyPatch) -> None:
    x = random((3, 4, 77), "bfloat16")
    mod = module(lambda x: op.nn.softmax(op.nn.gelu(x)), ((3, 4, 77), "bfloat16"))
    (expected,) = run(mod, x)
    monkeypatch.setenv("AUTOCAST_TARGET", cpu)
    (got,) = run(mod, x)
    assert error(got, expected.astype("float64")) < EPSILON["bfloat16"]
