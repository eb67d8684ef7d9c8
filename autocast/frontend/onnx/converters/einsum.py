"""`Einsum` as products of matrices, which have kernels and casting rules, of permuted and summed operands."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from tvm import relax

from autocast.frontend.onnx.converters.node import Converter, Node, shape

op = relax.op


def _einsum(node: Node) -> relax.Expr:
    tensors = [node[at] for at in range(len(node.inputs))]
    equation = str(node.attributes["equation"]).replace(" ", "")
    written, _, result = equation.partition("->")
    terms = _without_ellipsis(written.split(","), tensors)
    batch = _BATCH[: max((len(term) - len(_letters(term)) for term in terms), default=0)]
    if "->" not in equation:
        counts = Counter("".join(_letters(term) for term in terms))
        result = "..." + "".join(sorted(letter for letter in counts if counts[letter] == 1))
    result = result.replace("...", batch[::-1])
    operands = [_distinct(node, tensor, term) for tensor, term in zip(tensors, terms, strict=True)]
    while len(operands) > 1:
        a, b, *rest = operands
        kept = set(result).union(*(set(term) for _, term in rest))
        operands = [_product(node, a, b, kept), *rest]
    tensor, term = _summed(node, operands[0], set(result))
    return _ordered(node, tensor, term, result)


#: Letters for the axes that `...` stands for, from the last one on.
_BATCH = "0123456789"


def _letters(term: str) -> str:
    return "".join(letter for letter in term if letter not in _BATCH)


def _without_ellipsis(terms: list[str], tensors: list[relax.Expr]) -> list[str]:
    found = []
    for term, tensor in zip(terms, tensors, strict=True):
        more = len(shape(tensor)) - len(term.replace("...", ""))
        found.append(term.replace("...", _BATCH[:more][::-1]))
    return found


def _distinct(node: Node, tensor: relax.Expr, term: str) -> tuple[relax.Expr, str]:
    """A letter that names two axes names their diagonal."""
    repeated = next((letter for letter in term if term.count(letter) > 1), None)
    if repeated is None:
        return tensor, term
    first, second, *_ = (at for at, letter in enumerate(term) if letter == repeated)
    size, rank = shape(tensor)[first], len(term)
    places = node.along(op.arange(0, size, 1, "int64"), first, rank)
    index = node.emit(op.broadcast_to(places, [*shape(tensor)[:second], 1, *shape(tensor)[second + 1 :]]))
    diagonal = node.emit(op.gather_elements(tensor, index, axis=second))
    return _distinct(node, node.emit(op.squeeze(diagonal, [second])), term[:second] + term[second + 1 :])


def _summed(node: Node, operand: tuple[relax.Expr, str], kept: set[str]) -> tuple[relax.Expr, str]:
    """Without the axes that nobody reads."""
    tensor, term = operand
    axes = [at for at, letter in enumerate(term) if letter not in kept]
    if not axes:
        return operand
    return node.emit(op.sum(tensor, axes)), "".join(letter for letter in term if letter in kept)


def _product(
    node: Node, a: tuple[relax.Expr, str], b: tuple[relax.Expr, str], kept: set[str]
) -> tuple[relax.Expr, str]:
    """A product of matrices for each of what both have and is kept, summed over what both have and is not."""
    (x, left), (y, right) = _summed(node, a, kept | set(b[1])), _summed(node, b, kept | set(a[1]))
    both = [letter for letter in left if letter in right]
    batch, inner = ([letter for letter in both if (letter in kept) is whether] for whether in (True, False))
    rows, columns = ([letter for letter in term if letter not in both] for term in (left, right))
    x_sizes, y_sizes = (dict(zip(term, shape(tensor), strict=True)) for term, tensor in ((left, x), (right, y)))
    own = [[sizes[letter] for letter in batch] for sizes in (x_sizes, y_sizes)]
    height, width = ([sizes[c] for c in letters] for sizes, letters in ((x_sizes, rows), (y_sizes, columns)))
    x, y = _ordered(node, x, left, [*batch, *rows, *inner]), _ordered(node, y, right, [*batch, *inner, *columns])
    if inner:
        deep = math.prod(x_sizes[letter] for letter in inner)
        x = node.emit(op.reshape(x, [*own[0], math.prod(height), deep]))
        y = node.emit(op.reshape(y, [*own[1], deep, math.prod(width)]))
        product = node.emit(op.matmul(x, y))
        product = node.emit(op.reshape(product, [*shape(product)[: len(batch)], *height, *width]))
    else:
        x = node.emit(op.reshape(x, [*own[0], *height, *[1] * len(width)]))
        product = node.emit(op.multiply(x, node.emit(op.reshape(y, [*own[1], *[1] * len(height), *width]))))
    return product, "".join([*batch, *rows, *columns])


def _ordered(node: Node, tensor: relax.Expr, term: str, letters: Sequence[str]) -> relax.Expr:
    order = [term.index(letter) for letter in letters]
    return tensor if order == sorted(order) else node.emit(op.permute_dims(tensor, order))


CONVERTERS: dict[str, Converter] = {"Einsum": _einsum}
