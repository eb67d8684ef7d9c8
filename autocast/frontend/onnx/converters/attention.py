"""Attention of onnxruntime (`com.microsoft`): of one tensor or of several, with keys and values of the past."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from tvm import relax

from autocast.frontend.onnx.converters.node import Converter, Node, dtype, number, shape
from autocast.frontend.onnx.converters.quantized import Quantized, one_number, real_product
from autocast.ir import same_shape

op = relax.op

#: Queries, keys and values, (batch, length, heads, size).
_Heads = tuple[relax.Expr, relax.Expr, relax.Expr]


class _Masks(NamedTuple):
    """What is added to scores: for keys that a mask of zeros and ones leaves out, and a tensor of the scores' shape."""

    mask: relax.Expr | None
    added: relax.Expr | None


def _heads(node: Node, x: relax.Expr, heads: int) -> relax.Expr:
    """(batch, length, hidden) as (batch, length, heads, size)."""
    batch, length, hidden = shape(x)
    return node.emit(op.reshape(x, [batch, length, heads, int(hidden) // heads]))


def _turned(node: Node, x: relax.Expr) -> relax.Expr:
    """(batch, length, heads, size) as (batch, heads, length, size), and back."""
    return node.emit(op.permute_dims(x, [0, 2, 1, 3]))


def _attention(node: Node) -> relax.Expr:
    """Self-attention, from one product with the weights of queries, keys and values."""
    sums = node.emit(op.matmul(node[0], node[1]))
    if (bias := node.get(2)) is not None:
        sums = node.emit(op.add(sums, bias))
    return _self_attention(node, sums, node.get(4), _Masks(node.get(3), node.get(5)))


def _quantized_attention(node: Node) -> relax.Expr:
    """The same, of an input and weights of integers, with their scales and zeros."""
    x, weight = (Quantized(node[at], one_number(node, node[at + 3]), _optional_number(node, at + 6)) for at in (0, 1))
    return _self_attention(node, real_product(node, x, weight, node[2]), node.get(8), _Masks(node.get(5), None))


def _optional_number(node: Node, at: int) -> relax.Expr | None:
    value = node.get(at)
    return None if value is None else one_number(node, value)


def _self_attention(node: Node, sums: relax.Expr, past: relax.Expr | None, masks: _Masks) -> relax.Expr:
    """Of queries, keys and values beside each other; `past` and the second result are keys above values."""
    attributes = node.attributes
    node.refuse("do_rotary=1", bool(attributes.get("do_rotary")), "expected rotations of their own")
    node.refuse("past_present_share_buffer=1", bool(attributes.get("past_present_share_buffer")), "expected 0")
    width = int(shape(sums)[-1])
    sizes = [int(size) for size in attributes.get("qkv_hidden_sizes", ()) if size] or [width // 3] * 3
    parts = node.emit(op.split(sums, [sizes[0], sizes[0] + sizes[1]], axis=-1))
    heads = int(attributes["num_heads"])
    q, k, v = (_heads(node, node.emit(relax.TupleGetItem(parts, at)), heads) for at in range(3))
    if past is not None:
        k, v = (_behind(node, old, new) for old, new in zip(_halves(node, past), (k, v), strict=True))
    result = _attended(node, (q, k, v), masks, past is not None)
    if not node.reads(1):
        return result
    return relax.Tuple([result, node.emit(op.stack([_turned(node, k), _turned(node, v)], axis=0))])


def _behind(node: Node, past: relax.Expr, new: relax.Expr) -> relax.Expr:
    """Keys or values (batch, length, heads, size) behind those of the past, (batch, heads, length, size)."""
    batch, _, heads, size = shape(new)
    past = node.reshaped(past, [batch, heads, shape(past)[2], size])
    return node.emit(op.concat([_turned(node, past), new], axis=1))


def _multi_head_attention(node: Node) -> relax.Expr:
    """Attention of queries, keys and values, to which a bias of all three is added."""
    node.refuse("a cache of fixed size", node.get(8) is not None or node.get(9) is not None, "expected one that grows")
    node.refuse("the result 3, the probabilities,", node.reads(3), "expected an attention that gives none")
    past = node.get(6), node.get(7)
    q, k, v = _separated(node)
    if past[0] is not None and past[1] is not None:
        k, v = _behind(node, past[0], k), _behind(node, past[1], v)
    result = _attended(node, (q, k, v), _Masks(node.get(4), node.get(5)), past[0] is not None)
    if not any(map(node.reads, (1, 2))):
        return result
    return relax.Tuple([result, _turned(node, k), _turned(node, v)])


def _separated(node: Node) -> _Heads:
    """Of three axes each; packed in one or two of five; or keys and values of four, as a past is."""
    query, key, value, bias = (node.get(at) for at in range(4))
    heads = int(node.attributes["num_heads"])
    assert query is not None
    packed = next((x for x in (query, key) if x is not None and len(shape(x)) == 5), None)
    if packed is not None:
        node.refuse("a bias of packed tensors", bias is not None, "expected none")
        others = [] if packed.same_as(query) else [_heads(node, query, heads)]
        parts = node.emit(op.split(packed, int(shape(packed)[3]), axis=3))
        split = (relax.TupleGetItem(parts, at) for at in range(int(shape(packed)[3])))
        q, k, v = [*others, *(node.emit(op.squeeze(node.emit(part), axis=[3])) for part in split)]
        return q, k, v
    node.refuse("queries without keys and values", key is None or value is None, "expected all three")
    assert key is not None and value is not None
    if len(shape(key)) == 4:
        if bias is not None:  # of queries alone: a past has its own already
            begin = op.strided_slice(bias, axes=[0], begin=[0], end=[int(shape(query)[-1])])
            query = node.emit(op.add(query, begin))
        return _heads(node, query, heads), _turned(node, key), _turned(node, value)
    tensors = [query, key, value]
    if bias is not None:
        q_size, k_size = int(shape(query)[-1]), int(shape(key)[-1])
        parts = node.emit(op.split(bias, [q_size, q_size + k_size], axis=-1))
        tensors = [node.emit(op.add(x, relax.TupleGetItem(parts, at))) for at, x in enumerate(tensors)]
    q, k, v = (_heads(node, x, heads) for x in tensors)
    return q, k, v


def _attended(node: Node, tensors: _Heads, masks: _Masks, has_past: bool) -> relax.Expr:
    """(batch, length, heads * size). Behind a past, queries are the last of as many tokens as there are keys."""
    query, key, value = tensors
    batch, length, heads, size = shape(query)
    scale = float(node.attributes.get("scale", 0.0)) or 1 / math.sqrt(int(size))
    bias = _mask(node, masks.mask, query, key)
    if masks.added is not None:
        added = node.reshaped(masks.added, [*shape(masks.added)[:2], length, shape(key)[1]])
        bias = added if bias is None else node.emit(op.add(bias, added))
    causal = ("BottomRight" if has_past else "TopLeft") if node.attributes.get("unidirectional") else None
    if bias is None:
        result = op.nn.attention(query, key, value, scale=scale, causal_mask=causal)
    else:
        result = op.nn.attention(query, key, value, bias, scale=scale, causal_mask=causal)
    return node.emit(op.reshape(node.emit(result), [batch, length, heads * int(shape(value)[-1])]))


def _mask(node: Node, mask: relax.Expr | None, query: relax.Expr, key: relax.Expr) -> relax.Expr | None:
    """What is added to the scores of keys that a mask leaves out.

    Masks are zeros and ones; how many keys there are; or where they end, of all entries, and then where they begin.
    """
    if mask is None:
        return None
    rank, keys = len(shape(mask)), shape(key)[1]
    batch, length = shape(query)[:2]
    seen = _within(node, mask, batch, keys) if rank == 1 else op.greater(mask, relax.const(0, dtype(mask)))
    to = {1: [batch, 1, 1, keys], 2: [batch, 1, 1, keys], 3: [batch, 1, length, keys]}.get(rank, [])
    node.refuse(f"a mask of {rank} axes", not to, "expected one of 1, 2 or 3")
    out, zero = number(float(node.attributes.get("mask_filter_value", -10000.0)), query), number(0.0, query)
    return node.emit(op.reshape(op.where(seen, zero, out), to))


def _within(node: Node, mask: relax.Expr, batch: Any, keys: Any) -> relax.Expr:
    """Which keys are before the end of their entry, and not before its begin where the mask says that, too."""
    places = op.reshape(op.arange(0, keys, 1, "int32"), [1, keys])
    mask = node.cast(mask, "int32")
    if same_shape(shape(mask), [batch]):
        return op.less(places, op.reshape(mask, [batch, 1]))
    is_known = same_shape(shape(mask), [2 * batch])
    node.refuse("a mask of begins and ends", not is_known, "expected one length for each entry, or an end and a begin")
    ends, begins = _halves(node, op.reshape(mask, [2, batch, 1]))
    return op.logical_and(op.less(places, ends), op.greater_equal(places, begins))


def _halves(node: Node, both: relax.Expr) -> Sequence[relax.Expr]:
    """The two tensors that lie along the first axis of one."""
    halves = node.emit(op.split(both, 2, axis=0))
    return [node.emit(op.squeeze(node.emit(relax.TupleGetItem(halves, at)), axis=[0])) for at in range(2)]


_NAMED: dict[str, Converter] = {
    "Attention": _attention,
    "MultiHeadAttention": _multi_head_attention,
    "QAttention": _quantized_attention,
}

CONVERTERS: dict[str, Converter] = {f"com.microsoft.{name}": converter for name, converter in _NAMED.items()}
