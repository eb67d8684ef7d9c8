"""Attention as onnxruntime writes it, beside onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx", reason="the extra `onnx` is not installed; make test installs it")
pytest.importorskip("onnxruntime", reason="it is compared with; make test installs it")

import autocast
from autocast.errors import UnsupportedError
from tests.frontend.onnx.one_node import by_onnxruntime, one_node, random

_MASK = np.array([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]], "int32")
_PAST_MASK = np.array([[1] * 8, [1] * 4 + [0] * 4], "int32")
_SELF = {"x": random(2, 5, 8), "w": random(8, 24), "b": random(24)}
_PRESENTS = {"results": ("y", "k1", "v1"), "axes": {"k1": 4, "v1": 4}}
_PAST = {"pk": random(2, 2, 3, 4, seed=5), "pv": random(2, 2, 3, 4, seed=6)}
_TABLES = {"cos": random(32, 8, seed=7), "sin": random(32, 8, seed=8)}
_QKV = {"q": random(2, 3, 8), "k": random(2, 5, 8), "v": random(2, 5, 8, seed=1)}

#: Operator -> its inputs, and its attributes.
_NODES: list[tuple[str, dict[str, np.ndarray | None], dict[str, Any]]] = [
    ("Attention", {**_SELF, "mask": _MASK}, {}),
    ("Attention", {**_SELF, "mask": _MASK.sum(1, dtype="int32")}, {"scale": 0.7}),
    ("Attention", {**_SELF, "mask": np.array([5, 4, 1, 0], "int32")}, {}),
    ("Attention", _SELF, {"unidirectional": 1}),
    (
        "Attention",
        {**_SELF, "mask": _PAST_MASK, "past": random(2, 2, 2, 3, 4)},
        {"unidirectional": 1, "results": ("y", "present"), "axes": {"present": 5}},
    ),
    (
        "QAttention",
        {
            **{"x": random(2, 5, 8, dtype="uint8"), "w": random(8, 24, dtype="int8") // 2, "b": random(24)},
            **{"xs": np.array(0.02, "float32"), "ws": abs(random(24)) / 50, "mask": _PAST_MASK},
            **{"xz": np.array(120, "uint8"), "wz": np.zeros(24, "int8"), "past": random(2, 2, 2, 3, 4)},
        },
        {"results": ("y", "present"), "axes": {"present": 5}, "unidirectional": 1},
    ),
    ("MultiHeadAttention", {**_QKV, "b": random(24), "mask": _MASK}, {}),
    ("MultiHeadAttention", {**_QKV, "b": None, "mask": None, "added": random(1, 2, 3, 5)}, _PRESENTS),
    ("MultiHeadAttention", {"q": random(2, 3, 8), "k": random(2, 2, 5, 4), "v": random(2, 2, 5, 4, seed=1)}, {}),
    (
        "MultiHeadAttention",
        {
            **{"q": random(2, 5, 8), "k": random(2, 5, 8, seed=3), "v": random(2, 5, 8, seed=4)},
            **{"b": random(24), "mask": _PAST_MASK, "added": None, **_PAST},
        },
        {"unidirectional": 1, **_PRESENTS},
    ),
    (
        "RotaryEmbedding",
        {"x": random(2, 3, 32), "ids": np.array([[3, 4, 5], [0, 1, 2]]), **_TABLES},
        {"interleaved": 1},
    ),
    (
        "RotaryEmbedding",
        {"x": random(2, 2, 3, 24), "ids": np.array([2]), **_TABLES},
        {"rotary_embedding_dim": 16, "num_heads": 2},
    ),
]


@pytest.mark.parametrize(("operator", "inputs", "options"), _NODES)
def test_an_attention_of_onnxruntime_computes_what_onnxruntime_does(
    operator: str, inputs: dict[str, Any], options: dict[str, Any]
) -> None:
    model = one_node(operator, inputs, **({} if operator == "RotaryEmbedding" else {"num_heads": 2}), **options)
    given = {name: value for name, value in inputs.items() if value is not None}
    outputs = autocast.from_onnx(model)(*given.values())
    for got, expected in zip(
        outputs if isinstance(outputs, tuple) else (outputs,), by_onnxruntime(model, given), strict=True
    ):
        np.testing.assert_allclose(got, expected, rtol=2e-5, atol=2e-5)


_REFUSED: list[tuple[str, dict[str, np.ndarray | None], dict[str, Any], str]] = [
    ("Attention", _SELF, {"num_heads": 2, "do_rotary": 1}, "do_rotary=1 is not imported"),
    ("Attention", {**_SELF, "mask": np.zeros(8, "int32")}, {"num_heads": 2}, "a mask of begins and ends"),
    (
        "MultiHeadAttention",
        {"q": random(2, 3, 2, 3, 4), "k": None, "v": None, "b": random(24)},
        {"num_heads": 2},
        "a bias of packed tensors",
    ),
    ("RotaryEmbedding", {"x": random(1, 2, 32), "i": np.array([0]), **_TABLES}, {"scale": 2.0}, "scale=2.0"),
]


@pytest.mark.parametrize(("operator", "inputs", "options", "message"), _REFUSED)
def test_what_of_attention_is_not_imported_is_an_error(
    operator: str, inputs: dict[str, Any], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(UnsupportedError, match=message):
        autocast.from_onnx(one_node(operator, inputs, **options))


@pytest.mark.parametrize("count", [1, 2])
def test_packed_tensors_are_what_is_packed_in_them(count: int) -> None:
    """`count`: queries, keys and values in one tensor, or in two. onnxruntime's kernel of the CPU has neither."""
    q, k, v = (random(2, 3, 2, 4, seed=seed) for seed in range(3))
    parts = {"q": np.stack([q, k, v], 3)} if count == 1 else {"q": q.reshape(2, 3, 8), "k": np.stack([k, v], 3)}
    apart = {name: one.reshape(2, 3, 8) for name, one in (("q", q), ("k", k), ("v", v))}
    got, expected = (
        autocast.from_onnx(one_node("MultiHeadAttention", given, axes={"y": 3}, num_heads=2))(*given.values())
        for given in (parts, apart)
    )
    np.testing.assert_array_equal(got, expected)


_HEADS, _GROUPS, _SIZE = 4, 2, 16
_DIMS = {
    **{name: ("batch", "length", 16 * heads) for name, heads in (("qkv", 8), ("q", 4), ("k", 2), ("v", 2))},
    **dict.fromkeys(("pk", "pv"), ("batch", _GROUPS, "capacity", _SIZE)),
    "lengths": ("batch",),
    "ids": ("batch", "length"),
    "bias": ("batch", _HEADS, "length", "total"),
}

#: What a group query attention has besides: packed, with positions, a bias and sinks; its attributes.
_GROUPED: list[tuple[set[str], dict[str, Any]]] = [
    ({"ids", "bias"}, {"rotary_interleaved": 1, "scale": 0.3, "softcap": 0.8}),
    ({"sinks"}, {"local_window_size": 3}),
    ({"packed"}, {"smooth_softmax": 1}),
]

#: How many tokens a step has, how many the cache has room for, and how many tokens each entry has after the step: a
#: prompt, one of two lengths, a token, tokens behind a cache, and the same in a cache of fixed size.
_STEPS: list[tuple[int, int, tuple[int, ...]]] = [
    *((5, 0, (5, 5)), (5, 0, (3, 5)), (1, 5, (6, 6)), (1, 7, (6, 3, 8)), (3, 5, (8,))),
    *((1, 12, (6, 4)), (5, 12, (5, 4))),
]


def _grouped_inputs(has: set[str], length: int, capacity: int, totals: tuple[int, ...]) -> dict[str, np.ndarray | None]:
    batch, total = len(totals), max(totals)
    width = {"qkv": 8} if "packed" in has else {"q": 4, "k": 2, "v": 2}
    tensors = {name: random(batch, length, count * _SIZE, seed=at) for at, (name, count) in enumerate(width.items())}
    return {
        **({**tensors, "k": None, "v": None} if "packed" in has else tensors),
        **{name: random(batch, _GROUPS, capacity, _SIZE, seed=seed) for seed, name in ((3, "pk"), (4, "pv"))},
        **{"lengths": np.array(totals, "int32") - 1, "total": np.array(total, "int32"), **_TABLES},
        "ids": random(batch, length, dtype="uint8").astype("int64") % 16 if "ids" in has else None,
        "bias": random(batch, _HEADS, length, total) if "bias" in has else None,
        "sinks": random(_HEADS) if "sinks" in has else None,
    }


def _compare_steps(has: set[str], steps: list[tuple[int, int, tuple[int, ...]]], **attributes: Any) -> None:
    """A model beside onnxruntime; of rows that are padded, and of the cache behind them, nothing is said."""
    model = one_node(
        "GroupQueryAttention",
        _grouped_inputs(has, *steps[0]),
        dims=_DIMS,
        num_heads=_HEADS,
        kv_num_heads=_GROUPS,
        do_rotary=1,
        **attributes,
        **_PRESENTS,
    )
    imported = autocast.from_onnx(model)
    window = attributes.get("local_window_size", 0)
    for length, capacity, totals in steps:
        inputs = _grouped_inputs(has, length, capacity, totals)
        given = {name: value for name, value in inputs.items() if value is not None}
        got, expected = imported(*given.values()), by_onnxruntime(model, given)
        for at, total in enumerate(totals):
            kept, drops = total, capacity - window + 1
            if attributes.get("sliding_window_cache") and total > capacity:
                kept = total - drops * -(-(total - capacity) // drops)
            for ours, theirs, rows in zip(got, expected, (min(length, total), kept, kept), strict=True):
                assert ours.shape == theirs.shape
                valid = (at, slice(rows)) if theirs.ndim == 3 else (at, slice(None), slice(rows))
                np.testing.assert_allclose(ours[valid], theirs[valid], rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize(("has", "attributes"), _GROUPED)
def test_one_model_takes_prompts_and_single_tokens_and_caches_that_grow_or_do_not(
    has: set[str], attributes: dict[str, Any]
) -> None:
    _compare_steps(has, _STEPS, **attributes)


def test_a_cache_of_a_window_drops_the_oldest_tokens() -> None:
    steps = [(5, 6, (5, 5)), (1, 6, (6, 3)), (1, 6, (20, 4)), (3, 6, (9,)), (9, 6, (20,)), (9, 6, (9,))]
    _compare_steps(set(), steps, local_window_size=4, sliding_window_cache=1)
