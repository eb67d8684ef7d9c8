"""onnxruntime's mixtures of experts, beside onnxruntime; what it lacks on CPUs beside numpy."""

# ruff: noqa: E402 (what the imports need may not be installed)

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx", reason="the extra `onnx` is not installed; make test installs it")
pytest.importorskip("onnxruntime", reason="onnxruntime is not installed; make test installs it")

import autocast
from tests.frontend.onnx.one_node import assert_computes_the_same, one_node, random

_TOKENS, _EXPERTS, _HIDDEN, _INNER = 7, 4, 16, 8
_X, _ROUTER = random(_TOKENS, _HIDDEN), random(_TOKENS, _EXPERTS, seed=1)


def _layers(fused: bool) -> dict[str, np.ndarray]:
    width = _INNER * (2 if fused else 1)
    return {
        "w1": random(_EXPERTS, width, _HIDDEN, seed=2),
        "b1": random(_EXPERTS, width, seed=3),
        "w2": random(_EXPERTS, _HIDDEN, _INNER, seed=4),
        "b2": random(_EXPERTS, _HIDDEN, seed=5),
    }


_SWIGLU = {
    **{"activation_type": "swiglu", "swiglu_fusion": 1, "activation_alpha": 1.702, "activation_beta": 1.0},
    **{"swiglu_limit": 0.75, "normalize_routing_weights": 1},
}


@pytest.mark.parametrize(
    "options", [{"activation_type": "relu"}, {"activation_type": "silu", "k": 3}, {**_SWIGLU, "k": 2}]
)
def test_experts_are_those_of_onnxruntime(options: dict[str, Any]) -> None:
    inputs = {"x": _X, "router": _ROUTER} | _layers("swiglu_fusion" in options)
    assert_computes_the_same("MoE", inputs, dims={"x": ["N", _HIDDEN], "router": ["N", _EXPERTS]}, **options)


def _packed(rows: int, columns: int, bits: int, seed: int) -> np.ndarray:
    return random(_EXPERTS, rows, columns * bits // 8, dtype="uint8", seed=seed)


def _scales(rows: int, columns: int, block: int, seed: int) -> np.ndarray:
    scales = np.abs(random(_EXPERTS, rows, columns // block if block else 1, seed=seed)) / 32
    return scales if block else scales[..., 0]


@pytest.mark.parametrize(("bits", "block", "has_shares"), [(4, 0, False), (8, 16, False), (4, 16, True)])
def test_experts_of_integers_are_those_of_onnxruntime(bits: int, block: int, has_shares: bool) -> None:
    inner = 32
    biases = _layers(fused=False)
    inputs: dict[str, np.ndarray | None] = {
        **{"x": _X.reshape(1, _TOKENS, _HIDDEN) / 8, "router": _ROUTER},
        **{"w1": _packed(2 * inner, _HIDDEN, bits, 6), "s1": _scales(2 * inner, _HIDDEN, block, 7), "b1": None},
        **{"w2": _packed(_HIDDEN, inner, bits, 8), "s2": _scales(_HIDDEN, inner, block, 9), "b2": biases["b2"]},
    }
    if has_shares:
        inputs |= dict.fromkeys(("w3", "s3", "b3", "z1", "z2", "z3")) | {"shares": np.abs(_ROUTER)}
    options = {"block_size": block} if block else {}
    assert_computes_the_same("QMoE", inputs, k=2, expert_weight_bits=bits, **options, **_SWIGLU)


def test_a_third_layer_is_multiplied_by_what_the_first_activates() -> None:
    layers = _layers(fused=False)
    third = random(_EXPERTS, _INNER, _HIDDEN, seed=6)
    inputs = {"x": _X, "router": _ROUTER} | layers | {"w3": third}
    model = autocast.from_onnx(one_node("MoE", inputs, activation_type="silu", k=1))
    best = _ROUTER.argmax(1)
    shares = np.exp(_ROUTER) / np.exp(_ROUTER).sum(1, keepdims=True)
    expected = []
    for token, (expert, x) in enumerate(zip(best, _X.astype("float64"), strict=True)):
        first = layers["w1"][expert] @ x + layers["b1"][expert]
        inner = first / (1 + np.exp(-first)) * (third[expert] @ x)
        expected.append(shares[token, expert] * (layers["w2"][expert] @ inner + layers["b2"][expert]))
    np.testing.assert_allclose(model(*inputs.values()), expected, rtol=1e-4, atol=1e-4)
