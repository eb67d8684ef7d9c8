"""scaled_dot_product_attention as one Relax operator."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import fx
from tvm import relax

from autocast.errors import ImportModelError
from autocast.frontend.converters.helpers import cast, dims
from autocast.frontend.converters.noise import dropout
from autocast.frontend.importing.importer import Importer
from autocast.ir import dtype_of

#: Zeroes some probabilities of attention, and scales the others.
Drop = Callable[[relax.Expr], relax.Expr]


def attention(importer: Importer, node: fx.Node, drop: Drop | None = None) -> relax.Expr:
    """`relax.nn.attention`, which has the sequence before the heads: (batch, sequence, heads, size).

    The permutations around it mostly cancel with the model's own (see `normalize`). A mask becomes an additive float
    bias, and nothing at all where it is known to let everything pass, or to be causal. Rows of a mask that let nothing
    pass give 0, as in torch. `drop` is what drops probabilities, where that is not to be drawn here.
    """
    q, k, v = (importer.arg(node, i, "") for i in range(3))
    if importer.arg(node, 7, "enable_gqa", False):
        k, v = (repeat_heads(importer, x, dims(q)[-3]) for x in (k, v))
    shape = importer.shape(node)
    rank = len(shape)
    if rank not in (3, 4):
        source = node.args[3] if len(node.args) > 3 else node.kwargs.get("attn_mask")
        if source is not None:
            raise ImportModelError(f"a mask of query, key and value of rank {rank}; expected rank 3 or 4")
        batch = [math.prod(shape[:-2])]
        q, k, v = (
            importer.emit(relax.op.reshape(_batched(importer, x, shape[:-2]), [*batch, *dims(x)[-2:]]))
            for x in (q, k, v)
        )
        rank = 3
    else:
        q, k, v = (_batched(importer, x, shape[:-2]) for x in (q, k, v))
    bias, allowed, causal = mask_of(importer, node, rank)
    scale = scale_of(importer, node)
    if isinstance(scale, relax.Expr):
        q, scale = importer.emit(relax.op.multiply(q, scale)), 1.0
    rate = float(importer.arg(node, 4, "dropout_p", 0.0))
    if rate or drop:
        probabilities = probabilities_of(importer, q, k, bias, causal, scale)
        dropped = drop(probabilities) if drop else dropout(importer, probabilities, rate)
        result = importer.emit(relax.op.matmul(dropped, v))
    else:
        q, k, v = (_swap(importer, x, rank) for x in (q, k, v))
        mask = "TopLeft" if causal else None
        result = importer.emit(relax.op.nn.attention(q, k, v, bias=bias, scale=scale, causal_mask=mask))
        result = _swap_back(importer, result, rank)
    if rank != len(shape):
        result = importer.emit(relax.op.reshape(result, shape))
    if allowed is None:
        return result
    return importer.emit(relax.op.where(allowed, result, relax.const(0.0, importer.dtype(node))))


def scale_of(importer: Importer, node: fx.Node) -> float | relax.Expr | None:
    """The scale of the scores: a number; None for what the depth of the heads says; by a tensor where that varies."""
    scale, q = importer.arg(node, 6, "scale"), importer.arg(node, 0, "query")
    if scale is not None or isinstance(depth := dims(q)[-1], int):
        return None if scale is None else float(scale)
    root = importer.emit(relax.op.rsqrt(importer.number(depth, "float32")))
    return cast(importer, root, str(dtype_of(q)))


def probabilities_of(
    importer: Importer, q: relax.Expr, k: relax.Expr, bias: relax.Expr | None, causal: bool, scale: float | None
) -> relax.Expr:
    """`softmax(scale * q k' + bias)`, in torch's layout: `nn.attention` has no dropout inside."""
    dtype, rank = str(dtype_of(q)), len(dims(q))
    bias = _causal_bias(importer, dims(q)[-2], dims(k)[-2]) if causal else bias
    keys = importer.emit(relax.op.permute_dims(k, [*range(rank - 2), rank - 1, rank - 2]))
    scores = importer.emit(relax.op.matmul(q, keys))
    scale = int(dims(q)[-1]) ** -0.5 if scale is None else scale
    scores = importer.emit(relax.op.multiply(scores, relax.const(scale, dtype)))
    if bias is not None:
        bias = importer.emit(relax.op.squeeze(bias, [1])) if rank == 3 and len(dims(bias)) == 4 else bias
        scores = importer.emit(relax.op.add(scores, cast(importer, bias, dtype)))
    return importer.emit(relax.op.nn.softmax(scores, -1))


def _causal_bias(importer: Importer, queries: Any, keys: Any) -> relax.Expr:
    """0 where query i looks at the keys 0..i, -inf elsewhere."""
    masked = importer.emit(relax.op.broadcast_to(relax.const(float("-inf"), "float32"), [queries, keys]))
    return importer.emit(relax.op.triu(masked, 1))


def _swap(importer: Importer, x: relax.Expr, rank: int) -> relax.Expr:
    if rank == 3:  # one head
        return importer.emit(relax.op.expand_dims(x, 2))
    return importer.emit(relax.op.permute_dims(x, [0, 2, 1, 3]))


def _swap_back(importer: Importer, x: relax.Expr, rank: int) -> relax.Expr:
    if rank == 3:
        return importer.emit(relax.op.squeeze(x, [2]))
    return importer.emit(relax.op.permute_dims(x, [0, 2, 1, 3]))


def repeat_heads(importer: Importer, x: relax.Expr, heads: Any) -> relax.Expr:
    """Keys or values with as many heads as there are queries for: each serves several in a row."""
    own = dims(x)[-3]
    return x if own == heads else importer.emit(relax.op.repeat(x, int(heads) // int(own), len(dims(x)) - 3))


def _batched(importer: Importer, x: relax.Expr, batch: list[Any]) -> relax.Expr:
    """`x` for every entry of the batch, of which it may have fewer dimensions or entries."""
    if str(list(dims(x)[:-2])) == str(batch):
        return x
    return importer.emit(relax.op.broadcast_to(x, [*batch, *dims(x)[-2:]]))


def mask_of(importer: Importer, node: fx.Node, rank: int) -> tuple[relax.Expr | None, relax.Expr | None, bool]:
    """(additive bias of rank 4, rows that let something pass where that is not sure, causal)."""
    source = node.args[3] if len(node.args) > 3 else node.kwargs.get("attn_mask")
    causal = bool(importer.arg(node, 5, "is_causal", False))
    if source is None:
        return None, None, causal
    if causal:
        raise ImportModelError("attn_mask together with is_causal")
    keys = dims(importer.arg(node, 1, ""))[-2]
    value = importer.constants.get(source)
    if value is not None:
        if _lets_all_pass(value):
            return None, None, False
        if _is_causal(value, source.meta["val"].shape):
            return None, None, True
    mask = importer.smallest_constant(source)
    mask = importer.env[source] if mask is None else mask  # the bias broadcasts by itself
    mask = _rank_four(importer, mask, keys, rank)
    bias = mask
    if dtype_of(mask) == "bool":
        zero, masked = relax.const(0.0, "float32"), relax.const(float("-inf"), "float32")
        bias = importer.emit(relax.op.where(mask, zero, masked))
    if value is not None and _every_row_passes(value):
        return bias, None, False
    return bias, _rows(importer, mask, rank), False


def _rank_four(importer: Importer, mask: relax.Expr, keys: Any, rank: int) -> relax.Expr:
    """The mask as (batch, heads, queries, keys), each of size 1 where it does not vary, except the keys."""
    shape = list(dims(mask))
    if rank == 3 and len(shape) == 3:
        mask = importer.emit(relax.op.expand_dims(mask, 1))
    elif len(shape) < 4:
        mask = importer.emit(relax.op.reshape(mask, [1] * (4 - len(shape)) + shape))
    shape = list(dims(mask))
    if shape[-1] == 1 and keys != 1:
        mask = importer.emit(relax.op.broadcast_to(mask, [*shape[:-1], keys]))
    return mask


def _rows(importer: Importer, mask: relax.Expr, rank: int) -> relax.Expr:
    """Which queries may look at anything, shaped to broadcast with the result in torch's layout."""
    if dtype_of(mask) != "bool":
        mask = importer.emit(relax.op.not_equal(mask, relax.const(float("-inf"), dtype_of(mask))))
    counts = importer.emit(relax.op.max(relax.op.astype(mask, "int8"), axis=[-1], keepdims=True))
    rows = importer.emit(relax.op.astype(counts, "bool"))
    return importer.emit(relax.op.squeeze(rows, [1])) if rank == 3 else rows


def _lets_all_pass(value: torch.Tensor) -> bool:
    return bool(value.all()) if value.dtype is torch.bool else not bool(value.any())


def _every_row_passes(value: torch.Tensor) -> bool:
    """Whether each query may look at some key."""
    passes = value if value.dtype is torch.bool else value != float("-inf")
    return bool(passes.any(dim=-1).all())


def _is_causal(value: torch.Tensor, shape: torch.Size) -> bool:
    """Whether a constant mask is that of `is_causal=True`: query i looks at the keys 0..i."""
    if value.dim() < 2 or value.shape[-2:] != shape[-2:]:
        return False
    triangle = torch.ones(value.shape[-2:], dtype=torch.bool).tril()
    if value.dtype is torch.bool:
        return bool((value == triangle).all())
    infinite = torch.zeros(value.shape[-2:], dtype=value.dtype).masked_fill(~triangle, float("-inf"))
    return bool((value == infinite).all())
