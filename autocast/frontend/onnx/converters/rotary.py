"""Rotations of heads by their positions, as onnxruntime writes them (`com.microsoft.RotaryEmbedding`)."""

from __future__ import annotations

from typing import Any

from tvm import relax

from autocast.frontend.onnx.converters.node import Converter, Node, dtype, shape

op = relax.op


def rotated(
    node: Node, x: relax.Expr, positions: relax.Expr, cosines: relax.Expr, sines: relax.Expr, interleaved: bool
) -> relax.Expr:
    """Heads (batch, length, heads, size), of whose numbers the first are turned in pairs.

    Parameters
    ----------
    node, x
    positions
        (batch or 1, length): the rows of the tables that say how far.
    cosines, sines
        (positions, pairs); numbers behind the last pair stay as they are.
    interleaved
        Whether the two numbers of a pair are neighbours; otherwise the second ones follow all the first ones.
    """
    pairs, size = int(shape(cosines)[1]), int(shape(x)[-1])
    cosine, sine = (
        node.emit(op.expand_dims(op.take(table, positions, axis=0, mode="clip"), 2)) for table in (cosines, sines)
    )
    turned, kept = x, None
    if 2 * pairs < size:
        turned, kept = _parts(node, x, [2 * pairs])
    if interleaved:
        whole = node.emit(op.reshape(turned, [*shape(x)[:-1], pairs, 2]))
        first, second = (node.emit(op.squeeze(part, axis=[-1])) for part in _parts(node, whole, 2))
    else:
        first, second = _parts(node, turned, 2)
    real = op.subtract(op.multiply(first, cosine), op.multiply(second, sine))
    imaginary = op.add(op.multiply(second, cosine), op.multiply(first, sine))
    both = [node.emit(real), node.emit(imaginary)]
    result = op.reshape(op.stack(both, axis=-1), shape(turned)) if interleaved else op.concat(both, axis=-1)
    result = node.emit(result)
    return result if kept is None else node.emit(op.concat([result, kept], axis=-1))


def _parts(node: Node, x: relax.Expr, by: Any) -> list[relax.Expr]:
    """The two parts of a tensor along its last axis."""
    both = node.emit(op.split(x, by, axis=-1))
    return [node.emit(relax.TupleGetItem(both, at)) for at in range(2)]


def _rotary_embedding(node: Node) -> relax.Expr:
    """Of (batch, length, hidden), or of (batch, heads, length, size). One position is that of all first tokens."""
    x, positions, cosines, sines = (node[at] for at in range(4))
    node.refuse("is_packed_batching=1", bool(node.attributes.get("is_packed_batching")), "expected tensors of batches")
    scale = float(node.attributes.get("scale", 1.0))
    node.refuse(f"scale={scale}", scale != 1.0, "expected 1")
    sizes, is_flat = shape(x), len(shape(x)) == 3
    if is_flat:
        partial, heads = (int(node.attributes.get(name, 0)) for name in ("rotary_embedding_dim", "num_heads"))
        heads = heads if partial else int(sizes[-1]) // (2 * int(shape(cosines)[1]))
        whole = node.emit(op.reshape(x, [*sizes[:-1], heads, int(sizes[-1]) // heads]))
    else:
        whole = node.emit(op.permute_dims(x, [0, 2, 1, 3]))
    if len(shape(positions)) == 1:
        steps = op.arange(0, shape(whole)[1], 1, dtype(positions))
        positions = node.emit(op.expand_dims(op.add(positions, steps), 0))
    result = rotated(node, whole, positions, cosines, sines, bool(node.attributes.get("interleaved")))
    return node.emit(op.reshape(result, sizes) if is_flat else op.permute_dims(result, [0, 2, 1, 3]))


CONVERTERS: dict[str, Converter] = {"com.microsoft.RotaryEmbedding": _rotary_embedding}
