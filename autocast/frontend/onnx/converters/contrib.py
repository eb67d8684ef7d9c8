"""Operators of onnxruntime (`com.microsoft`) that its optimizers put in place of several of ONNX's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import relax

from autocast.frontend.onnx.converters.node import Converter, Node, number, shape
from autocast.frontend.onnx.converters.quantized import Quantized, one_number
from autocast.frontend.onnx.converters.windows import convolution

op = relax.op


def _of_sum(function: Callable[[relax.Expr], relax.Expr]) -> Converter:
    """A function of a tensor, to which a bias is added first where there is one."""

    def convert(node: Node) -> relax.Expr:
        bias = node.get(1)
        return node.emit(function(node[0] if bias is None else node.emit(op.add(node[0], bias))))

    return convert


def _quick_gelu(node: Node) -> relax.Expr:
    x, alpha = node[0], float(node.attributes.get("alpha", 1.702))
    return node.emit(op.multiply(x, op.sigmoid(op.multiply(x, number(alpha, x)))))


def _transposed(node: Node, tensor: relax.Expr, last: bool, batch: bool) -> relax.Expr:
    """`last`: the last two axes change places; `batch`: the first goes to where the last but one is."""
    order = [*range(len(shape(tensor)))]
    if batch:
        order = [*order[1:-1], order[0], order[-1]]
    if last:
        order[-2:] = order[:-3:-1]
    return tensor if order == sorted(order) else node.emit(op.permute_dims(tensor, order))


def _fused_matmul(node: Node) -> relax.Expr:
    a, b = (
        _transposed(node, node[at], *(bool(node.attributes.get(f"{what}{side}")) for what in ("trans", "transBatch")))
        for at, side in enumerate("AB")
    )
    product, alpha = node.emit(op.matmul(a, b)), float(node.attributes.get("alpha", 1.0))
    return product if alpha == 1.0 else node.emit(op.multiply(product, number(alpha, product)))


#: The activation of a fused operator -> its function, of the node's parameters of it.
_ACTIVATIONS: dict[str, Callable[[relax.Expr, list[float]], relax.Expr]] = {
    "": lambda x, _: x,
    "Clip": lambda x, given: op.clip(x, given[0], given[1]),
    "HardSigmoid": lambda x, given: op.clip(op.add(op.multiply(x, number(given[0], x)), number(given[1], x)), 0, 1),
    "LeakyRelu": lambda x, given: op.nn.leakyrelu(x, given[0]),
    "Relu": lambda x, _: op.nn.relu(x),
    "Sigmoid": lambda x, _: op.sigmoid(x),
    "Tanh": lambda x, _: op.tanh(x),
}


def _activated(node: Node, x: relax.Expr) -> relax.Expr:
    name = str(node.attributes.get("activation", ""))
    node.refuse(f"the activation {name}", name not in _ACTIVATIONS, f"expected one of {', '.join(_ACTIVATIONS)[2:]}")
    given = [*node.attributes.get("activation_params", ())]
    alphas = [float(node.attributes[key]) for key in ("activation_alpha", "activation_beta") if key in node.attributes]
    return node.emit(_ACTIVATIONS[name](x, given or alphas))


def _fused_conv(node: Node) -> relax.Expr:
    """A convolution, to which a tensor is added before its activation where there is one."""
    x = convolution(node, node[0], node[1], node.get(2))
    added = node.get(3)
    return _activated(node, x if added is None else node.emit(op.add(x, added)))


def _fused_gemm(node: Node) -> relax.Expr:
    attributes = {key: value for key, value in node.attributes.items() if not key.startswith("activation")}
    return _activated(node, node.emit(node.other("Gemm", (node[0], node[1], node.get(2)), attributes)))


def _layer_norm(
    node: Node, x: relax.Expr, gamma: relax.Expr, beta: relax.Expr | None, epsilon: float = 1e-12
) -> relax.Expr:
    bias, epsilon = op.zeros_like(gamma) if beta is None else beta, node.attributes.get("epsilon", epsilon)
    return node.emit(op.nn.layer_norm(x, gamma, bias, axes=[-1], epsilon=float(epsilon)))


def _rms_norm(node: Node, x: relax.Expr, gamma: relax.Expr, epsilon: float = 1e-12) -> relax.Expr:
    return node.emit(op.nn.rms_norm(x, gamma, axes=[-1], epsilon=float(node.attributes.get("epsilon", epsilon))))


def _only(node: Node, *read: int) -> None:
    """UnsupportedError if somebody reads other results than those."""
    others = [at for at, name in enumerate(node.results) if name and at not in read]
    node.refuse(
        f"the result {others[0] if others else 0}, which training reads,", bool(others), "expected an inference model"
    )


def _skip(simplified: bool) -> Converter:
    """A norm of a sum. The sum is a result, too."""

    def convert(node: Node) -> relax.Expr:
        _only(node, 0, 3)
        total = node.emit(op.add(node[0], node[1]))
        bias = node.get(3 if simplified else 4)
        if bias is not None:
            total = node.emit(op.add(total, bias))
        normed = _rms_norm(node, total, node[2]) if simplified else _layer_norm(node, total, node[2], node.get(3))
        return relax.Tuple([normed, normed, normed, total])

    return convert


def _norm(simplified: bool) -> Converter:
    """Of the last axis."""

    def convert(node: Node) -> relax.Expr:
        _only(node, 0)
        axis = int(node.attributes.get("axis", -1))
        node.refuse(f"axis={axis}", axis not in (-1, len(shape(node[0])) - 1), "expected the last axis")
        if simplified:
            return _rms_norm(node, node[0], node[1], epsilon=1e-5)
        return _layer_norm(node, node[0], node[1], node.get(2), epsilon=1e-5)

    return convert


def _embeddings(node: Node) -> relax.Expr:
    """Of words, positions and segments, summed and normed; how many tokens a mask has; and the sum."""
    ids, segments, mask, places = (node.get(at) for at in (0, 1, 7, 8))

    def rows(at: int, ids: relax.Expr) -> relax.Expr:
        return op.take(node[at], ids, axis=0, mode="clip")

    return _normed_sum(node, rows, (ids, places, segments), (node[5], node[6]), mask)


def _quantized_embeddings(node: Node) -> relax.Expr:
    """The same, of tables and vectors of integers, each with its scale and its zero."""
    ids, segments, mask = (node.get(at) for at in (0, 1, 7))

    def real(tensor: relax.Expr, at: int) -> relax.Expr:
        return Quantized(tensor, one_number(node, node[at + 6]), one_number(node, node[at + 11])).real(node)

    def rows(at: int, ids: relax.Expr) -> relax.Expr:
        return real(node.emit(op.take(node[at], ids, axis=0, mode="clip")), at)

    return _normed_sum(node, rows, (ids, None, segments), (real(node[5], 5), real(node[6], 6)), mask)


def _normed_sum(
    node: Node,
    rows: Callable[[int, relax.Expr], relax.Expr],
    numbers: tuple[relax.Expr | None, relax.Expr | None, relax.Expr | None],
    gains: tuple[relax.Expr, relax.Expr],
    mask: relax.Expr | None,
) -> relax.Expr:
    """`rows` of the tables that are the inputs 2, 3 and 4; `numbers` of words, places (0, 1, ... if None) and kinds."""
    words, places, kinds = numbers
    assert words is not None
    batch, length = shape(words)
    total = op.add(rows(2, words), rows(3, _places(length) if places is None else places))
    if kinds is not None:
        total = op.add(total, rows(4, kinds))
    total = node.emit(total)
    tokens = op.zeros((batch,), "int32") if mask is None else op.sum(op.astype(mask, "int32"), axis=[1])
    return relax.Tuple([_layer_norm(node, total, *gains), node.emit(tokens), total])


def _places(count: Any) -> relax.Expr:
    """0, 1, ... up to a number that is left out."""
    return op.arange(0, count, 1, "int32")


_NAMED: dict[str, Converter] = {
    "BiasGelu": _of_sum(op.nn.gelu),
    "EmbedLayerNormalization": _embeddings,
    "FastGelu": _of_sum(op.nn.gelu_tanh),
    "FusedConv": _fused_conv,
    "FusedGemm": _fused_gemm,
    "FusedMatMul": _fused_matmul,
    "Gelu": _of_sum(op.nn.gelu),
    "LayerNormalization": _norm(simplified=False),
    "QEmbedLayerNormalization": _quantized_embeddings,
    "QuickGelu": _quick_gelu,
    "SimplifiedLayerNormalization": _norm(simplified=True),
    "SkipLayerNormalization": _skip(simplified=False),
    "SkipSimplifiedLayerNormalization": _skip(simplified=True),
    "TransposeMatMul": _fused_matmul,
}

CONVERTERS: dict[str, Converter] = {f"com.microsoft.{name}": converter for name, converter in _NAMED.items()}
