"""What onnxruntime's optimizer makes of networks of diffusion, for GPUs (`com.microsoft`): channels are last."""

from __future__ import annotations

from tvm import relax

from autocast.frontend.onnx.converters.node import Converter, Node, dtype, shape
from autocast.frontend.onnx.converters.windows import convolution

op = relax.op


def _moved(node: Node, x: relax.Expr, to_last: bool) -> relax.Expr:
    """Channels, the second axis, at the end, or back."""
    rest = range(2, len(shape(x)))
    order = [0, *rest, 1] if to_last else [0, len(shape(x)) - 1, *(axis - 1 for axis in rest)]
    return node.emit(op.permute_dims(x, order))


def _conv(node: Node) -> relax.Expr:
    x, weight = (_moved(node, node[at], to_last=False) for at in range(2))
    return _moved(node, convolution(node, x, weight, node.get(2)), to_last=True)


def _bias_add(node: Node) -> relax.Expr:
    return node.emit(op.add(op.add(node[0], node[1]), node[2]))


def _split_gelu(node: Node) -> relax.Expr:
    """The first half of the channels, times gelu of the second."""
    halves = node.emit(op.split(node.emit(op.add(node[0], node[1])), 2, axis=-1))
    first, second = (node.emit(relax.TupleGetItem(halves, at)) for at in range(2))
    return node.emit(op.multiply(first, op.nn.gelu(second)))


def _group_norm(node: Node) -> relax.Expr:
    return _normed(node, node[0])


def _skip_group_norm(node: Node) -> relax.Expr:
    """Of a sum, which is a result, too."""
    skip, bias, rank = node[3], node.get(4), len(shape(node[0]))
    if len(shape(skip)) == 2:
        batch, channels = shape(skip)
        to = [batch, *[1] * (rank - 2), channels] if _is_last(node) else [batch, channels, *[1] * (rank - 2)]
        skip = node.emit(op.reshape(skip, to))
    total = node.emit(op.add(node[0], skip))
    if bias is not None:
        total = node.emit(op.add(total, node.along(bias, rank - 1 if _is_last(node) else 1, rank)))
    return relax.Tuple([_normed(node, total), total])


def _is_last(node: Node) -> bool:
    return bool(node.attributes.get("channels_last", 1))


def _normed(node: Node, x: relax.Expr) -> relax.Expr:
    """By groups of channels, in float32, as the gains are; then `silu` where the node says so."""
    is_last, kind = _is_last(node), dtype(x)
    x = _moved(node, x, to_last=False) if is_last else x
    groups, epsilon = int(node.attributes["groups"]), float(node.attributes.get("epsilon", 1e-5))
    axes = [*range(2, len(shape(x)))]
    gamma, beta = (node.cast(node[at], "float32") for at in (1, 2))
    y = node.emit(op.nn.group_norm(node.cast(x, "float32"), gamma, beta, groups, 1, axes, epsilon=epsilon))
    y = node.cast(op.nn.silu(y) if node.attributes.get("activation") else y, kind)
    return _moved(node, y, to_last=True) if is_last else y


def _gemm_gelu(node: Node) -> relax.Expr:
    product, bias = node.emit(op.matmul(node[0], node[1])), node.get(2)
    return node.emit(op.nn.gelu_tanh(product if bias is None else node.emit(op.add(product, bias))))


_NAMED: dict[str, Converter] = {
    "BiasAdd": _bias_add,
    "BiasSplitGelu": _split_gelu,
    "GemmFastGelu": _gemm_gelu,
    "GroupNorm": _group_norm,
    "NhwcConv": _conv,
    "SkipGroupNorm": _skip_group_norm,
}

CONVERTERS: dict[str, Converter] = {f"com.microsoft.{name}": converter for name, converter in _NAMED.items()}
