"""Numbers of 4 or 8 bits that have a scale, and a zero, for each block of them."""

from __future__ import annotations

import numpy as np
import onnx
from tvm import relax

from autocast.errors import UnsupportedError
from autocast.frontend.onnx.converters.node import Converter, Node, dtype, shape
from autocast.frontend.onnx.converters.quantized import rounded

op = relax.op


def _matmul_nbits(node: Node) -> relax.Expr:
    """A product with a weight (N, blocks, bytes) of 4 or 8 bits, with a scale and a zero, of as many bits, a block."""
    columns, depth = int(node.attributes["N"]), int(node.attributes["K"])
    bits, block = int(node.attributes.get("bits", 4)), int(node.attributes["block_size"])
    node.refuse(f"MatMulNBits with bits={bits}", bits not in (4, 8), "expected 4 or 8")
    node.refuse("MatMulNBits with a permutation of columns (g_idx)", node.get(4) is not None, "expected none")
    blocks = -(-depth // block)
    scale = node.emit(op.reshape(node[2], [columns, blocks, 1]))
    steps = op.astype(unpacked(node, op.reshape(node[1], [columns, blocks, block * bits // 8]), bits), dtype(scale))
    given = node.get(3)
    if given is None:
        zero: relax.Expr = relax.const(float(2 ** (bits - 1)), dtype(scale))
    elif dtype(given) == "uint8":
        rows = unpacked(node, op.reshape(given, [columns, -(-blocks * bits // 8)]), bits)
        rows = op.strided_slice(rows, axes=[1], begin=[0], end=[blocks])
        zero = op.astype(op.reshape(rows, [columns, blocks, 1]), dtype(scale))
    else:
        zero = op.reshape(given, [columns, blocks, 1])
    weight = node.emit(op.reshape(op.multiply(op.subtract(steps, zero), scale), [columns, blocks * block]))
    if depth < blocks * block:
        weight = node.emit(op.strided_slice(weight, axes=[1], begin=[0], end=[depth]))
    product = node.emit(op.matmul(node[0], op.permute_dims(weight)))
    bias = node.get(5)
    return product if bias is None else node.emit(op.add(product, bias))


def _gather_blocks(node: Node) -> relax.Expr:
    """Rows of a table (rows, ..., columns) of integers, and with them the scales and zeros of their blocks.

    Rows that there are not are zeros. Bytes are packed, unless they are what integers of 4 bits were widened to.
    """
    data, places, scales, zeros = node[0], node[1], node[2], node.get(3)
    attributes, rank = node.attributes, len(shape(data))
    bits, block = int(attributes.get("bits", 4)), int(attributes.get("block_size", 128))
    axis, by = (
        int(attributes.get(name, default)) % rank for name, default in (("gather_axis", 0), ("quantize_axis", 1))
    )
    node.refuse(f"GatherBlockQuantized with bits={bits}", bits not in (4, 8), "expected 4 or 8")
    node.refuse(f"GatherBlockQuantized of {dtype(data)}", "int" not in dtype(data), "expected integers")
    is_last = axis == 0 and by == rank - 1
    node.refuse(f"GatherBlockQuantized along axes {axis} and {by}", not is_last, "expected rows, of blocks in columns")
    kind, count = dtype(scales), relax.const(int(shape(data)[0]), dtype(places))
    is_packed = dtype(data) == "uint8" and -(-int(shape(data)[-1]) * 8 // bits // block) == int(shape(scales)[-1])
    is_behind = op.less(places, relax.const(0, dtype(places)))
    places = node.emit(op.where(is_behind, op.add(places, count), places))

    def taken(table: relax.Expr) -> relax.Expr:
        rows = node.emit(op.take(table, places, axis=0, mode="clip"))
        return node.cast(unpacked(node, rows, bits) if is_packed and dtype(rows) == "uint8" else rows, kind)

    steps = taken(data)
    scale = op.repeat(taken(scales), block, axis=-1)
    columns = shape(steps)[-1]
    if zeros is None:
        zero: relax.Expr = relax.const(float(2 ** (bits - 1) if is_packed else 0), kind)
    else:
        zero = _begin(node, op.repeat(taken(zeros), block, axis=-1), columns)
    numbers = node.emit(op.multiply(op.subtract(steps, zero), _begin(node, scale, columns)))
    inside = op.logical_and(op.greater_equal(places, relax.const(0, dtype(places))), op.less(places, count))
    inside = op.reshape(inside, [*shape(places), *[1] * (rank - 1)])
    return node.emit(op.where(inside, numbers, relax.const(0.0, kind)))


def _begin(node: Node, x: relax.Expr, size: int) -> relax.Expr:
    """As many elements of the last axis."""
    x = node.emit(x)
    axis = len(shape(x)) - 1
    return x if shape(x)[axis] == size else node.emit(op.strided_slice(x, axes=[axis], begin=[0], end=[size]))


def unpacked(node: Node, packed: relax.Expr, bits: int) -> relax.Expr:
    """Bytes as the integers in them, the lowest bits first, along the last axis."""
    packed = node.emit(packed)
    if bits == 8:
        return packed
    *axes, size = shape(packed)
    low = op.bitwise_and(packed, relax.const(15, "uint8"))
    high = op.right_shift(packed, relax.const(4, "uint8"))
    return node.emit(op.reshape(op.stack([node.emit(low), node.emit(high)], axis=-1), [*axes, 2 * size]))


def _not_blocked(name: str) -> Converter:
    """By TVM's importer, but for blocks of scales, which are repeated along the axis."""

    def convert(node: Node) -> relax.Expr:
        block = int(node.attributes.get("block_size", 0))
        if not block:
            return node.emit(node.other(name, node.inputs, node.attributes))
        x, axis = node[0], int(node.attributes.get("axis", 1))
        scale, zero = (
            None if one is None else _repeated(node, one, block, axis, shape(x)) for one in (node[1], node.get(2))
        )
        assert scale is not None
        if name == "DequantizeLinear":
            steps = (
                op.astype(x, "int32") if zero is None else op.subtract(op.astype(x, "int32"), op.astype(zero, "int32"))
            )
            return node.emit(op.multiply(op.astype(steps, dtype(scale)), scale))
        to = node.attributes.get("output_dtype") or np.dtype("uint8" if zero is None else dtype(zero))
        as_dtype = onnx.helper.tensor_dtype_to_np_dtype(to) if isinstance(to, int) else to
        return rounded(node, node.cast(op.divide(x, scale), "float32"), zero, str(as_dtype))

    return convert


def _repeated(node: Node, blocks: relax.Expr, size: int, axis: int, like: tuple) -> relax.Expr:
    whole = op.repeat(blocks, size, axis)
    if not isinstance(like[axis], int):
        raise UnsupportedError(
            "blocks of scales along an axis whose size varies are not imported; expected a fixed size"
        )
    return node.emit(op.strided_slice(whole, axes=[axis], begin=[0], end=[like[axis]]))


_MICROSOFT = "com.microsoft."

CONVERTERS: dict[str, Converter] = {
    "DequantizeLinear": _not_blocked("DequantizeLinear"),
    "QuantizeLinear": _not_blocked("QuantizeLinear"),
    f"{_MICROSOFT}GatherBlockQuantized": _gather_blocks,
    f"{_MICROSOFT}MatMulNBits": _matmul_nbits,
}
