"""Mixtures of experts as onnxruntime has them: `MoE`, and `QMoE` with weights of 4 or 8 bits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import relax

from autocast.frontend.onnx.converters.block_quantized import unpacked
from autocast.frontend.onnx.converters.node import Converter, Node, dtype, number, shape, static
from autocast.operators import own

op = relax.op

_ACTIVATIONS: dict[str, Callable[[relax.Expr], relax.Expr]] = {
    "gelu": op.nn.gelu_tanh,
    "identity": lambda x: x,
    "relu": op.nn.relu,
    "silu": op.nn.silu,
}


def _of_floats(node: Node) -> relax.Expr:
    """Shares are those of all experts, or, if the node normalizes them, of those that are chosen."""
    weights = [node.get(at) for at in (2, 4, 6)]
    shares = node.emit(op.nn.softmax(node[1], -1))
    return _mixture(node, weights, [node.get(at) for at in (3, 5, 7)], *_chosen(node, shares, shares))


def _of_integers(node: Node) -> relax.Expr:
    """Shares are those of the experts that are chosen, or what the last input says of them."""
    bits = int(node.attributes.get("expert_weight_bits", 4))
    node.refuse(f"QMoE with expert_weight_bits={bits}", bits not in (4, 8), "expected 4 or 8")
    weights = [_real(node, 3 * at + 2, 3 * at + 3, 11 + at, bits) for at in range(3)]
    biases, shares = [node.get(at) for at in (4, 7, 10)], node.get(14)
    if shares is not None:
        return _mixture(node, weights, biases, *_chosen(node, node[1], shares))
    numbers, best = _chosen(node, node[1], node[1], normalizes=False)
    return _mixture(node, weights, biases, numbers, node.emit(op.nn.softmax(best, -1)))


def _real(node: Node, at: int, scales_at: int, zeros_at: int, bits: int) -> relax.Expr | None:
    """A weight (experts, rows, bytes) as numbers, of which each row, or each block of it, has a scale and a zero."""
    if (packed := node.get(at)) is None:
        return None
    scale = node[scales_at]
    steps = node.cast(unpacked(node, packed, bits), dtype(scale))
    experts, rows, columns = static(steps, "weight")
    block = int(node.attributes.get("block_size", 0)) or columns
    blocks = -(-columns // block)
    zeros = node.get(zeros_at)
    zero: relax.Expr = number(float(2 ** (bits - 1)), scale)
    if zeros is not None:
        packing = 8 // bits
        node.refuse("QMoE with zeros of rows of 4 bits", blocks == 1 and packing > 1, "expected zeros of blocks")
        zeros = op.reshape(zeros, [experts, rows, -(-blocks // packing)])
        given = op.strided_slice(unpacked(node, zeros, bits), axes=[2], begin=[0], end=[blocks])
        zero = _of_blocks(node, node.cast(given, dtype(scale)), block, columns)
    scale = _of_blocks(node, op.reshape(scale, [experts, rows, blocks]), block, columns)
    return node.cast(op.multiply(op.subtract(steps, zero), scale), dtype(node[0]))


def _of_blocks(node: Node, x: relax.Expr, block: int, columns: int) -> relax.Expr:
    x = node.emit(x)
    if shape(x)[2] == 1:
        return x
    return node.emit(op.strided_slice(op.repeat(x, block, 2), axes=[2], begin=[0], end=[columns]))


def _chosen(
    node: Node, scores: relax.Expr, shares: relax.Expr, normalizes: bool | None = None
) -> tuple[relax.Expr, relax.Expr]:
    """(tokens, k): the experts with the best scores, and their shares."""
    asked = node.attributes
    node.refuse("use_sparse_mixer=1", bool(asked.get("use_sparse_mixer")), "expected 0")
    best = node.emit(op.topk(scores, int(asked.get("k", 1)), -1, "both", True, "int64"))
    numbers = node.emit(relax.TupleGetItem(best, 1))
    taken = node.emit(op.gather_elements(shares, numbers, axis=1))
    if asked.get("normalize_routing_weights") if normalizes is None else normalizes:
        taken = node.emit(op.divide(taken, op.sum(taken, axis=[-1], keepdims=True)))
    return numbers, taken


def _mixture(
    node: Node,
    weights: list[relax.Expr | None],
    biases: list[relax.Expr | None],
    numbers: relax.Expr,
    shares: relax.Expr,
) -> relax.Expr:
    """The chosen experts' results of each token, by their shares: rows are sorted by expert, and back."""
    emit = node.emit
    *_, hidden = sizes = shape(node[0])
    tokens, count = shape(numbers)
    x = node.reshaped(node[0], [tokens, hidden])
    flat = emit(op.reshape(numbers, [tokens * count]))
    order = emit(op.argsort(flat, 0, dtype="int64"))
    experts = emit(op.take(flat, order, axis=0, mode="clip"))
    rows = emit(op.take(x, emit(op.floor_divide(order, relax.const(count, "int64"))), axis=0, mode="clip"))
    first = weights[0]
    assert first is not None
    every = op.expand_dims(op.arange(0, shape(first)[0], 1, "int64"), 1)
    ends = emit(op.sum(op.astype(op.less_equal(op.expand_dims(flat, 0), every), "int32"), axis=[1]))

    def layer(x: relax.Expr, at: int) -> relax.Expr:
        weight, bias = weights[at], biases[at]
        product = emit(own.grouped_matmul(x, emit(op.permute_dims(weight, [0, 2, 1])), ends))
        return product if bias is None else emit(op.add(product, op.take(bias, experts, axis=0, mode="clip")))

    inner = _activated(node, layer(rows, 0), None if weights[2] is None else layer(rows, 2))
    back = emit(op.argsort(order, 0, dtype="int64"))
    results = emit(op.reshape(op.take(layer(inner, 1), back, axis=0, mode="clip"), [tokens, count, hidden]))
    mixed = emit(op.sum(op.multiply(results, op.expand_dims(shares, 2)), axis=[1]))
    return node.reshaped(mixed, sizes)


def _activated(node: Node, x: relax.Expr, other: relax.Expr | None) -> relax.Expr:
    """`swiglu` gates one half of the columns, every other or the first, by the other, or by the third layer."""
    name = str(node.attributes.get("activation_type", "relu")).lower()
    known = ("swiglu", *_ACTIVATIONS)
    node.refuse(f"activation_type={name!r}", name not in known, f"expected one of {', '.join(known)}")
    if name != "swiglu":
        activated = node.emit(_ACTIVATIONS[name](x))
        return activated if other is None else node.emit(op.multiply(activated, other))
    fusion = int(node.attributes.get("swiglu_fusion", 0))
    rows, columns = shape(x)
    if fusion:
        halves: Any = op.reshape(x, [rows, columns // 2, 2] if fusion == 1 else [rows, 2, columns // 2])
        halves = node.emit(op.split(halves, 2, axis=2 if fusion == 1 else 1))
        x, other = (
            node.emit(op.reshape(node.emit(relax.TupleGetItem(halves, at)), [rows, columns // 2])) for at in (0, 1)
        )
    node.refuse("swiglu of one layer without swiglu_fusion", other is None, "expected a third layer")
    limit = node.attributes.get("swiglu_limit")
    if limit is not None:
        x = node.emit(op.minimum(x, number(float(limit), x)))
        other = node.emit(op.clip(other, -float(limit), float(limit)))
    alpha, beta = (
        float(node.attributes.get(f"activation_{key}", default)) for key, default in (("alpha", 1), ("beta", 0))
    )
    gate = op.multiply(x, op.sigmoid(op.multiply(x, number(alpha, x))))
    return node.emit(op.multiply(gate, op.add(other, number(beta, x))))


CONVERTERS: dict[str, Converter] = {"com.microsoft.MoE": _of_floats, "com.microsoft.QMoE": _of_integers}
