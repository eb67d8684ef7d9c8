"""Attention in all its variants against float64."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import relax

from autocast.errors import UnsupportedError
from autocast.kernels.matching.attention.decompose import decompose_attention
from tests.kernels.modules import EPSILON, error, module, random, run


def _reference(q: np.ndarray, k: np.ndarray, v: np.ndarray, bias: np.ndarray | None, causal: str | None) -> np.ndarray:
    q, k, v = (array.astype("float64") for array in (q, k, v))
    scores = np.einsum("bshd,bthd->bhst", q, k) * q.shape[-1] ** -0.5
    if bias is not None:
        scores += bias.astype("float64")
    if causal:
        queries, keys = scores.shape[2:]
        offset = 0 if causal == "TopLeft" else abs(queries - keys)
        scores = np.where(np.tri(queries, keys, offset, dtype=bool), scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return np.einsum("bhst,bthd->bshd", weights / weights.sum(-1, keepdims=True), v)


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "float16"])
@pytest.mark.parametrize(
    ("with_bias", "causal", "run_time"),
    [(False, None, False), (True, None, True), (False, "TopLeft", True), (True, "BottomRight", False)],
)
def test_attention_matches_float64(dtype: str, with_bias: bool, causal: str | None, run_time: bool) -> None:
    batch, queries, keys, heads, depth = 2, 5, 7, 3, 10
    names = ("b", "s", "t") if run_time else (batch, queries, keys)
    shapes = [(names[0], length, heads, depth) for length in (names[1], names[2], names[2])]
    shapes += [(names[0], 1, names[1], names[2])] if with_bias else []

    def body(q: relax.Expr, k: relax.Expr, v: relax.Expr, bias: relax.Expr | None = None) -> relax.Expr:
        return relax.op.nn.attention(q, k, v, bias, causal_mask=causal)

    mod = module(body, *[(shape, dtype) for shape in shapes])
    sizes = [(batch, length, heads, depth) for length in (queries, keys, keys)]
    q, k, v = (random(size, dtype, seed) for seed, size in enumerate(sizes))
    bias = random((batch, 1, queries, keys), dtype, 3) if with_bias else None
    (got,) = run(mod, q, k, v, *([] if bias is None else [bias]))
    assert str(got.dtype) == dtype
    assert error(got, _reference(q, k, v, bias, causal)) < 4 * EPSILON.get(dtype, 1e-16)


def test_scores_and_softmax_are_float32_whatever_the_storage() -> None:
    def body(q: relax.Expr, k: relax.Expr, v: relax.Expr) -> relax.Expr:
        return relax.op.nn.attention(q, k, v, scale=tvm.tirx.FloatImm("float32", 0.5))

    lines = decompose_attention(module(body, *[((1, 4, 2, 8), "bfloat16")] * 3)).script().splitlines()
    (softmax,) = (line for line in lines if "softmax" in line)
    assert 'dtype="float32") = R.nn.softmax' in softmax


def test_a_sliding_window_is_refused_with_advice() -> None:
    def body(q: relax.Expr, k: relax.Expr, v: relax.Expr) -> relax.Expr:
        return relax.op.nn.attention(q, k, v, causal_mask="TopLeft", window_size=2)

    with pytest.raises(UnsupportedError, match="bias"):
        decompose_attention(module(body, *[((1, 4, 2, 8), "float32")] * 3))
