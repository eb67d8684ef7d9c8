"""Attention found in graphs: as an operator and as products around a softmax, with what moves data on either side."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from tvm import relax, tirx

from autocast.kernels import detect_target
from autocast.kernels.matching.attention.rule import lower_attention
from autocast.kernels.phases.canonicalize import canonicalize
from autocast.kernels.phases.widen import compute_in_float32
from autocast.kernels.targets import backend_of
from tests.kernels.modules import EPSILON, Shape, error, module, operators, random, run

op = relax.op
B, H, S, T, D = 2, 4, 9, 13, 8
HEADS_FIRST = [0, 2, 1, 3]
LOWEST = float(np.finfo(np.float32).min)

Body = Callable[..., relax.Expr]


def _softmax(x: np.ndarray) -> np.ndarray:
    weights = np.exp(x - x.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


def _reference(q: np.ndarray, k: np.ndarray, v: np.ndarray, adjust: Callable = lambda scores: scores) -> np.ndarray:
    """Attention over (batch, heads, sequence, depth), scaled by 1/4, in float64."""
    q, k, v = (array.astype("float64") for array in (q, k, v))
    return _softmax(adjust(q @ k.swapaxes(-1, -2) / 4)) @ v


def _attention(
    q: relax.Expr, k: relax.Expr, v: relax.Expr, between: Body = lambda scores: scores, dtype: str = "float32"
) -> relax.Expr:
    """The products around a softmax, heads first."""
    scores = between(op.divide(op.matmul(q, op.permute_dims(k, [0, 1, 3, 2])), relax.const(4.0, dtype)))
    return op.matmul(op.nn.softmax(scores), v)


def _emit(value: relax.Expr) -> relax.Expr:
    return relax.BlockBuilder.current().emit(value)


def _constant(value: float) -> relax.Expr:
    return relax.const(value, "float32")


def _split(x: relax.Expr, rows: int) -> relax.Expr:
    """(batch, rows, heads * depth) to (batch, heads, rows, depth)."""
    return op.permute_dims(op.reshape(x, [B, rows, H, D]), HEADS_FIRST)


def _joined(x: relax.Expr, rows: int) -> relax.Expr:
    return op.reshape(op.permute_dims(x, HEADS_FIRST), [B, rows, H * D])


def _kernels(body: Body, *arguments: tuple[Shape, str]) -> list[str]:
    """What is called once the rule has run, before other rules."""
    mod = compute_in_float32(canonicalize(module(body, *arguments)))
    return [name.rstrip("0123456789x_d") for name in operators(lower_attention(mod, backend_of(detect_target())))]


def _only_attention(body: Body, *arguments: tuple[Shape, str]) -> bool:
    names = _kernels(body, *arguments)
    return len(names) == 1 and names[0].startswith("attention")


def _check(body: Body, expected: np.ndarray, arrays: list[np.ndarray], dtype: str = "float32") -> None:
    (got,) = run(module(body, *[(a.shape, "bool" if a.dtype == bool else str(a.dtype)) for a in arrays]), *arrays)
    assert got.shape == expected.shape
    assert error(got, expected) < 8 * EPSILON[dtype]


def _operands(dtype: str = "float32", key_heads: int = H) -> list[np.ndarray]:
    shapes = [(B, H, S, D), (B, key_heads, T, D), (B, key_heads, T, D)]
    return [random(shape, dtype, seed) for seed, shape in enumerate(shapes)]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_products_around_a_softmax_become_one_kernel(dtype: str) -> None:
    def body(q: relax.Expr, k: relax.Expr, v: relax.Expr) -> relax.Expr:
        return _attention(q, k, v, dtype=dtype)

    arrays = _operands(dtype)
    assert _only_attention(body, *[(array.shape, dtype) for array in arrays])
    _check(body, _reference(*arrays), arrays, dtype)


@pytest.mark.parametrize(
    ("between", "adjust", "shape", "dtype"),
    [
        (lambda s, m: op.add(s, m), lambda s, m: s + m, (B, 1, 1, T), "float32"),
        (lambda s, m: op.add(m, s), lambda s, m: s + m, (H, S, T), "float32"),
        (lambda s, m: op.where(m, s, _constant(-np.inf)), lambda s, m: np.where(m, s, -np.inf), (S, T), "bool"),
        (lambda s, m: op.where(m, _constant(-2.0), s), lambda s, m: np.where(m, -2.0, s), (B, 1, S, T), "bool"),
        (
            lambda s, m: op.add(s, op.where(m, _constant(0.0), _constant(-np.inf))),
            lambda s, m: np.where(m, s, -np.inf),
            (B, H, S, T),
            "bool",
        ),
        (
            lambda s, m: op.multiply(op.add(s, m), _constant(0.5)),
            lambda s, m: (s + m) / 2,
            (B, H, S, T),
            "float32",
        ),
    ],
    ids=["bias of keys", "bias of heads, first", "keep", "drop", "bias from a mask", "scaled after"],
)
def test_masks_and_biases_are_taken(between: Body, adjust: Callable, shape: tuple, dtype: str) -> None:
    def body(q: relax.Expr, k: relax.Expr, v: relax.Expr, m: relax.Expr) -> relax.Expr:
        return _attention(q, k, v, lambda scores: between(scores, m))

    arrays = _operands()
    mask = np.random.default_rng(3).random(shape) < 0.6 if dtype == "bool" else random(shape, dtype, 3)
    if dtype == "bool":
        mask[..., 0] = True  # no row without keys
    assert _only_attention(body, *[(array.shape, "float32") for array in arrays], (shape, dtype))
    _check(body, _reference(*arrays, lambda s: adjust(s, mask)), [*arrays, mask])


def test_heads_are_read_and_written_where_projections_have_them() -> None:
    def body(q: relax.Expr, k: relax.Expr, v: relax.Expr) -> relax.Expr:
        return _joined(_attention(_split(q, S), _split(k, T), _split(v, T), dtype="bfloat16"), S)

    shapes = [(B, S, H * D), (B, T, H * D), (B, T, H * D)]
    assert _only_attention(body, *[(shape, "bfloat16") for shape in shapes])
    arrays = [random(shape, "bfloat16", seed) for seed, shape in enumerate(shapes)]
    q, k, v = (a.astype("float64").reshape(B, -1, H, D).transpose(HEADS_FIRST) for a in arrays)
    _check(body, _reference(q, k, v).transpose(HEADS_FIRST).reshape(B, S, H * D), arrays, "bfloat16")


def test_a_fused_projection_is_read_through_its_parts() -> None:
    def body(qkv: relax.Expr) -> relax.Expr:
        parts = _emit(op.split(qkv, 3, axis=2))
        return _joined(_attention(*[_split(_emit(parts[i]), S) for i in range(3)], dtype="bfloat16"), S)

    def sliced(qkv: relax.Expr) -> relax.Expr:
        parts = [op.strided_slice(qkv, [2], [i * H * D], [(i + 1) * H * D]) for i in range(3)]
        return _joined(_attention(*[_split(part, S) for part in parts], dtype="bfloat16"), S)

    qkv = random((B, S, 3 * H * D), "bfloat16")
    q, k, v = (part.reshape(B, S, H, D).transpose(HEADS_FIRST) for part in np.split(qkv.astype("float64"), 3, axis=2))
    expected = _reference(q, k, v).transpose(HEADS_FIRST).reshape(B, S, H * D)
    for form in (body, sliced):
        assert any(name.startswith("attention") for name in _kernels(form, (qkv.shape, "bfloat16")))
        assert not {"relax.permute_dims", "relax.strided_slice"} & set(_kernels(form, (qkv.shape, "bfloat16")))
        _check(form, expected, [qkv], "bfloat16")


def test_heads_that_a_run_time_batch_is_multiplied_by_are_read_where_projections_have_them() -> None:
    def split(x: relax.Expr) -> relax.Expr:
        length, batch = x.ty.shape.values[:2]
        rows = op.permute_dims(op.reshape(x, [length, batch * H, D]), [1, 0, 2])
        return op.reshape(rows, [batch, H, length, D])

    def body(q: relax.Expr, k: relax.Expr, v: relax.Expr) -> relax.Expr:
        length, batch = q.ty.shape.values[:2]
        result = op.permute_dims(_attention(*map(split, (q, k, v)), dtype="bfloat16"), [2, 0, 1, 3])
        return op.reshape(result, [length * batch, H * D])

    arguments = [((length, "b", H * D), "bfloat16") for length in ("s", "t", "t")]
    assert _only_attention(body, *arguments)
    arrays = [random((length, B, H * D), "bfloat16", seed) for seed, length in enumerate((S, T, T))]
    q, k, v = (a.astype("float64").reshape(-1, B, H, D).transpose(1, 2, 0, 3) for a in arrays)
    expected = _reference(q, k, v).transpose(2, 0, 1, 3).reshape(S * B, H * D)
    (got,) = run(module(body, *arguments), *arrays)
    assert error(got, expected) < 8 * EPSILON["bfloat16"]


def test_rows_of_several_sequences_alone_are_read_as_so_many_rows() -> None:
    def body(x: relax.Expr) -> relax.Expr:
        return op.matmul(op.nn.softmax(op.matmul(x, op.permute_dims(x))), x)

    def twice(x: relax.Expr) -> relax.Expr:
        return body(_emit(op.concat([x, x], axis=0)))

    assert any(name.startswith("attention") for name in _kernels(twice, (("n", 5), "float32")))
    x = random((7, 5), "float32")
    weights = np.exp(x.astype("float64") @ x.T)
    (got,) = run(module(twice, (("n", 5), "float32")), x)
    assert error(got, np.tile(weights / weights.sum(-1, keepdims=True) @ x, (2, 1))) < 1e-6


@pytest.mark.parametrize("form", ["repeat", "broadcast"])
def test_repeated_heads_of_keys_and_values_are_read_once(form: str) -> None:
    def repeated(x: relax.Expr) -> relax.Expr:
        if form == "repeat":
            return op.repeat(x, 2, axis=1)
        wide = op.broadcast_to(op.expand_dims(x, 2), [B, H // 2, 2, T, D])
        return op.reshape(wide, [B, H, T, D])

    def body(q: relax.Expr, k: relax.Expr, v: relax.Expr) -> relax.Expr:
        return _attention(q, repeated(k), repeated(v))

    arrays = _operands(key_heads=H // 2)
    assert _only_attention(body, *[(array.shape, "float32") for array in arrays])
    q, k, v = arrays
    _check(body, _reference(q, k.repeat(2, 1), v.repeat(2, 1)), arrays)


def test_batches_of_matrices_with_scores_reshaped_between() -> None:
    def body(q: relax.Expr, k: relax.Expr, v: relax.Expr, bias: relax.Expr) -> relax.Expr:
        q, k, v = (op.reshape(x, [B * H, -1, D]) for x in (q, k, v))
        scores = op.multiply(op.matmul(q, op.permute_dims(k, [0, 2, 1])), _constant(0.25))
        scores = op.add(op.reshape(scores, [B, H, S, T]), bias)
        weights = op.nn.softmax(op.reshape(scores, [B * H, S, T]))
        return op.reshape(op.matmul(weights, v), [B, H, S, D])

    arrays = _operands()
    bias = random((1, H, S, T), "float32", 5)
    assert _only_attention(body, *[(array.shape, "float32") for array in (*arrays, bias)])
    _check(body, _reference(*arrays, lambda s: s + bias), [*arrays, bias])


@pytest.mark.parametrize("dtype", ["bool", "float32", "bfloat16"])
def test_the_operator_with_run_time_sizes_and_a_mask(dtype: str) -> None:
    def body(q: relax.Expr, k: relax.Expr, v: relax.Expr, mask: relax.Expr) -> relax.Expr:
        bias = op.where(mask, _constant(0.0), _constant(-np.inf)) if dtype == "bool" else mask
        result = op.permute_dims(op.nn.attention(q, k, v, bias, scale=tirx.FloatImm("float32", 0.25)), HEADS_FIRST)
        if dtype != "bool":
            mask = _emit(op.not_equal(mask, relax.const(-np.inf, dtype)))
        seen = op.astype(op.max(op.astype(mask, "int8"), axis=[-1], keepdims=True), "bool")
        return op.where(seen, result, relax.const(0.0, "bfloat16"))

    shapes = [("b", "s", H, D), ("b", "t", H, D), ("b", "t", H, D)]
    arguments = [*[(shape, "bfloat16") for shape in shapes], (("b", 1, "s", "t"), dtype)]
    assert _only_attention(body, *arguments)
    arrays = [np.ascontiguousarray(array.transpose(HEADS_FIRST)) for array in _operands("bfloat16")]
    mask = np.random.default_rng(3).random((B, 1, S, T)) < 0.6
    mask[..., 0] = True
    q, k, v = (array.transpose(HEADS_FIRST) for array in arrays)
    expected = _reference(q, k, v, lambda s: np.where(mask, s, -np.inf))
    mask[:, :, 4] = False
    expected[:, :, 4] = 0
    given = mask if dtype == "bool" else np.where(mask, 0.0, -np.inf).astype(dtype)
    (got,) = run(module(body, *arguments), *arrays, given)
    assert error(got, expected) < 8 * EPSILON["bfloat16"]


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (lambda q, k, v: op.nn.attention(q, k, v, causal_mask="TopLeft", window_size=3), "sliding window"),
        (lambda q, k, v: op.matmul(op.nn.softmax(op.matmul(q, k), 2), v), "over the keys"),
        (lambda q, k, v: op.matmul(op.nn.softmax(op.exp(op.matmul(q, k))), v), "relax.exp"),
        (lambda q, k, v: op.matmul(op.nn.softmax(op.matmul(q, k)), v), "contiguous"),
    ],
    ids=["window", "axis", "function", "layout"],
)
def test_what_is_declined_says_why(
    body: Body, reason: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setenv("AUTOCAST_DEBUG", "4")
    assert not any(name.startswith("attention") for name in _kernels(body, *[((1, 6, 6, 6), "float32")] * 3))
    assert reason in capsys.readouterr().err


def test_probabilities_that_are_returned_too_are_computed() -> None:
    def body(q: relax.Expr, k: relax.Expr, v: relax.Expr) -> relax.Expr:
        weights = _emit(op.nn.softmax(op.matmul(q, op.permute_dims(k, [0, 1, 3, 2]))))
        return relax.Tuple([op.matmul(weights, v), weights])

    assert not any(name.startswith("attention") for name in _kernels(body, *[((1, 2, 6, 6), "float32")] * 3))


@pytest.mark.parametrize("queries", [1, 3, "n"])
def test_one_head_of_run_time_length(queries: int | str) -> None:
    def body(x: relax.Expr, y: relax.Expr) -> relax.Expr:
        return op.matmul(op.nn.softmax(op.matmul(x, op.permute_dims(y))), y)

    arguments = [((queries, 5), "float32"), (("m", 5), "float32")]
    assert _only_attention(body, *arguments)
    x, y = random((3 if queries == "n" else queries, 5), "float32"), random((19, 5), "float32", 1)
    weights = np.exp(x.astype("float64") @ y.T)
    (got,) = run(module(body, *arguments), x, y)
    assert error(got, weights / weights.sum(-1, keepdims=True) @ y) < 1e-6
