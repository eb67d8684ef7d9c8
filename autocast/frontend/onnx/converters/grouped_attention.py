"""`com.microsoft.GroupQueryAttention`: attention with a cache of keys and values, as decoders are exported.

Entry `b` of a batch has `seqlens_k[b] + 1` tokens with this step's: its new keys are put behind as many of the cache as
it had before, and its queries see what is not behind them. All of this is computed of values, so that one model takes
a prompt, prompts of different lengths, and one token after another, with a cache that grows or one of fixed size.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from tvm import relax, tirx

from autocast.frontend.onnx.converters.node import Converter, Node, number, shape, vector
from autocast.frontend.onnx.converters.rotary import rotated

op = relax.op


class _Step(NamedTuple):
    """What a step adds to the cache.

    Attributes
    ----------
    before, total
        (batch, 1): how many tokens each entry had before the step, and has after it.
    length
        How many tokens are added, with padding.
    capacity
        How many the cache has room for before the step.
    """

    before: relax.Expr
    total: relax.Expr
    length: Any
    capacity: Any


def _grouped_attention(node: Node) -> relax.Expr:
    attributes = node.attributes
    node.refuse("a quantized cache", node.get(12) is not None or node.get(13) is not None, "expected one of floats")
    node.refuse("query_seqlens", node.get(16) is not None, "expected as many queries for each entry")
    node.refuse("causal=0", not attributes.get("causal", 1), "expected MultiHeadAttention")
    node.refuse("the result 3, the scores,", node.reads(3), "expected an attention that gives none")
    query, key, value = _projected(node)
    batch, length = shape(query)[:2]
    past = [node.get(at) for at in (3, 4)]
    total = node.emit(op.add(op.reshape(node.cast(node[5], "int64"), [batch, 1]), relax.const(1, "int64")))
    before = node.emit(op.maximum(op.subtract(total, node.size(length)), relax.const(0, "int64")))
    capacity = 0 if past[0] is None else shape(past[0])[2]
    step = _Step(before, total, length, capacity)
    places = node.emit(op.add(before, _counted(length)))
    if attributes.get("do_rotary"):
        turns = _turns(node, places)
        query, key = (
            rotated(node, x, turns, node[7], node[8], bool(attributes.get("rotary_interleaved"))) for x in (query, key)
        )
    new = [node.emit(op.permute_dims(x, [0, 2, 1, 3])) for x in (key, value)]
    keys, values, first, presents = _cached(node, step, past, new)
    bias = _bias(node, places, first, shape(keys)[2], query)
    result = _attended(node, query, keys, values, bias)
    return relax.Tuple([result, *presents])


def _projected(node: Node) -> tuple[relax.Expr, ...]:
    """Queries, keys and values (batch, length, heads, size), which may come in one tensor; norms of their heads."""
    heads, groups = (int(node.attributes[name]) for name in ("num_heads", "kv_num_heads"))
    if node.get(1) is None:
        size = int(shape(node[0])[-1]) // (heads + 2 * groups)
        parts = node.emit(op.split(node[0], [heads * size, (heads + groups) * size], axis=-1))
        tensors = [node.emit(relax.TupleGetItem(parts, at)) for at in range(3)]
    else:
        tensors = [node[at] for at in range(3)]
    size = int(shape(tensors[0])[-1]) // heads
    split = [
        node.emit(op.reshape(x, [*shape(tensors[0])[:2], count, size]))
        for x, count in zip(tensors, (heads, groups, groups), strict=True)
    ]
    for at, name in ((0, "q_norm_epsilon"), (1, "k_norm_epsilon")):
        if (gamma := node.get(14 + at)) is not None:
            epsilon = node.attributes.get(name, node.attributes.get("qk_norm_epsilon", 1e-6))
            split[at] = node.emit(op.nn.rms_norm(split[at], gamma, axes=[-1], epsilon=float(epsilon)))
    return tuple(split)


def _turns(node: Node, places: relax.Expr) -> relax.Expr:
    """How far tokens are rotated: by where they are, or by `position_ids`, of a prompt from the first on."""
    given = node.get(9)
    if given is None:
        return places
    length, first = shape(given)[1], relax.const(0, "int64")
    begin = node.emit(op.take(node.emit(op.take(given, first, axis=0, mode="clip")), first, axis=0, mode="clip"))
    prompt = op.add(begin, _counted(length))
    is_prompt = op.equal(node.size(length), op.astype(op.reshape(node[6], []), "int64"))
    return node.emit(op.where(is_prompt, prompt, given))


def _counted(count: Any) -> relax.Expr:
    """(1, count): 0, 1, ..."""
    return op.expand_dims(op.arange(0, count, 1, "int64"), 0)


def _cached(
    node: Node, step: _Step, past: list[relax.Expr | None], new: list[relax.Expr]
) -> tuple[relax.Expr, relax.Expr, relax.Expr | None, list[relax.Expr]]:
    """Keys and values with those of the past, (batch, heads, length, size), which token their first is, the cache.

    The cache is as long as it was, or as the longest entry needs. A `sliding_window_cache` stays as long as it is and
    drops the oldest tokens, `capacity - window + 1` at once.
    """
    if past[0] is None or past[1] is None:
        return new[0], new[1], None, new
    batch, heads, _, size = shape(new[0])
    kept = [node.reshaped(one, [batch, heads, step.capacity, size]) for one in (past[0], past[1])]
    joined = [node.emit(op.concat([old, one], axis=2)) for old, one in zip(kept, new, strict=True)]
    if not node.attributes.get("sliding_window_cache"):
        places = node.emit(_counted(_largest(step.capacity, _total_length(node))))
        keys, values = (_rows(node, one, places, step.before, step) for one in joined)
        return keys, values, None, [keys, values]
    held, held_after = (_held(node, step, count) for count in (step.before, step.total))
    first = node.emit(op.subtract(step.before, held))
    places = node.emit(_counted(step.capacity + step.length))
    keys, values = (_rows(node, one, places, held, step) for one in joined)
    dropped = op.subtract(op.subtract(step.total, held_after), first)
    moved = node.emit(op.add(_counted(step.capacity), dropped))
    return keys, values, first, [_rows(node, one, moved, held, step) for one in joined]


def _total_length(node: Node) -> Any:
    """How many tokens the longest entry has."""
    known = node.expressions(6)
    return node.named(vector(node, 6), "total")[0] if known is None else known.reshape(-1)[0]


def _largest(a: Any, b: Any) -> Any:
    return max(a, b) if isinstance(a, int) and isinstance(b, int) else tirx.max(a, b)


def _held(node: Node, step: _Step, count: relax.Expr) -> relax.Expr:
    """How many tokens a cache keeps in which `count` were put."""
    room = node.size(step.capacity)
    dropped = op.subtract(room, relax.const(int(node.attributes["local_window_size"]) - 1, "int64"))
    over = op.maximum(op.subtract(count, room), relax.const(0, "int64"))
    times = op.floor_divide(op.subtract(op.add(over, dropped), relax.const(1, "int64")), dropped)
    return node.emit(op.subtract(count, op.multiply(dropped, times)))


def _rows(node: Node, joined: relax.Expr, places: relax.Expr, kept: relax.Expr, step: _Step) -> relax.Expr:
    """What is at `places` (batch or 1, count), of the past's first `kept` rows and the new ones behind them.

    Places behind the last new row have that row: no query sees them.
    """
    batch, heads, rows, size = shape(joined)
    last = op.subtract(node.size(step.length), relax.const(1, "int64"))
    behind = op.minimum(op.subtract(places, kept), last)
    sources = node.emit(op.where(op.less(places, kept), places, op.add(behind, node.size(step.capacity))))
    begins = op.multiply(op.arange(0, batch * heads, 1, "int64"), node.size(rows))
    sources = op.add(op.expand_dims(sources, 1), op.reshape(begins, [batch, heads, 1]))
    flat = node.emit(op.reshape(joined, [batch * heads * rows, size]))
    return node.emit(op.take(flat, node.emit(sources), axis=0, mode="clip"))


def _bias(node: Node, places: relax.Expr, first: relax.Expr | None, count: Any, query: relax.Expr) -> relax.Expr:
    """(batch, heads or 1, queries, keys): -inf for keys behind their query, and before its window."""
    keys, queries = _counted(count), op.expand_dims(places, 2)
    keys = op.expand_dims(keys if first is None else op.add(keys, first), 1)
    seen = op.less_equal(keys, queries)
    window = int(node.attributes.get("local_window_size", -1))
    if window >= 0:
        seen = op.logical_and(seen, op.greater(keys, op.subtract(queries, relax.const(window, "int64"))))
    bias = node.emit(op.expand_dims(op.where(seen, number(0.0, query), number(-np.inf, query)), 1))
    added = node.get(10)
    if added is None:
        return bias
    node.refuse("attention_bias with sliding_window_cache", first is not None, "expected one of them")
    of_keys = op.take(added, op.arange(0, count, 1, "int64"), axis=3, mode="clip")
    return node.emit(op.add(bias, of_keys))


def _attended(node: Node, query: relax.Expr, key: relax.Expr, value: relax.Expr, bias: relax.Expr) -> relax.Expr:
    """(batch, length, heads * size). Each head of keys serves several of queries in a row."""
    batch, length, heads, size = shape(query)
    repeats = heads // int(node.attributes["kv_num_heads"])
    if repeats > 1:
        key, value = (node.emit(op.repeat(x, repeats, axis=1)) for x in (key, value))
    scale = float(node.attributes.get("scale", 0.0)) or 1 / math.sqrt(size)
    softcap, is_smooth = float(node.attributes.get("softcap", 0.0)), int(node.attributes.get("smooth_softmax", -1)) == 1
    sink = node.get(11)
    if not softcap and not is_smooth and sink is None:
        key, value = (node.emit(op.permute_dims(x, [0, 2, 1, 3])) for x in (key, value))
        result = node.emit(op.nn.attention(query, key, value, bias, scale=scale))
        return node.emit(op.reshape(result, [batch, length, heads * size]))
    rows = node.emit(op.permute_dims(query, [0, 2, 1, 3]))
    scores = op.multiply(op.matmul(rows, op.permute_dims(key, [0, 1, 3, 2])), number(scale, query))
    if softcap:
        cap = number(softcap, query)
        scores = op.multiply(op.tanh(op.divide(scores, cap)), cap)
    scores = node.emit(op.add(scores, bias))
    if is_smooth or sink is not None:
        column = number(0.0, query) if sink is None else node.emit(op.reshape(sink, [1, heads, 1, 1]))
        column = op.broadcast_to(column, [batch, heads, length, 1])
        with_sink = node.emit(op.nn.softmax(node.emit(op.concat([scores, column], axis=-1)), axis=-1))
        probabilities = op.strided_slice(with_sink, axes=[3], begin=[0], end=[shape(key)[2]])
    else:
        probabilities = op.nn.softmax(scores, axis=-1)
    result = node.emit(op.permute_dims(op.matmul(node.emit(probabilities), value), [0, 2, 1, 3]))
    return node.emit(op.reshape(result, [batch, length, heads * size]))


CONVERTERS: dict[str, Converter] = {"com.microsoft.GroupQueryAttention": _grouped_attention}
