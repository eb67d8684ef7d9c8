"""Sizes of operands that torch found to be the same, and that have several names here: values decide them, say."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch import fx
from tvm import relax

from autocast.ir import dims, is_tensor, same_shape, shape_of


class Importer(Protocol):
    """What translates nodes, and knows what each is."""

    env: dict[fx.Node, Any]

    def emit(self, expr: relax.Expr) -> relax.Var: ...


@contextmanager
def agreeing(importer: Importer, node: fx.Node) -> Iterator[None]:
    """While this is active, the operands of an elementwise node, or of what joins tensors, have the same names of the
    same sizes, and masks of attention those of queries and keys.

    Before::                                        After::

        y = R.add(x, z)  # (2, u0 // 6), (2, u1 // 6)   w = R.reshape(z, R.shape([2, u0 // 6]))
                                                        y = R.add(x, w)

    That there are as many elements is checked when the model runs.
    """
    before = {}
    for operand, sizes in _renamed(importer, node):
        before[operand] = importer.env[operand]
        importer.env[operand] = importer.emit(relax.op.reshape(before[operand], sizes))
    try:
        yield
    finally:
        importer.env.update(before)


def _renamed(importer: Importer, node: fx.Node) -> Iterator[tuple[fx.Node, list[Any]]]:
    """The operands some of whose sizes have other names than others', and these names."""
    compared = _compared(importer, node)
    if compared is None:
        return
    operands, skipped, leading = compared
    shapes = {one: dims(importer.env[one]) for one in operands if _has_shape(importer, one)}
    if all(isinstance(size, int) for shape in shapes.values() for size in shape):
        return
    for operand, shape in shapes.items():
        sizes = [
            size if isinstance(size, int) or axis == skipped else _leader(axis, [*leading, *shapes.values()])
            for axis, size in zip(range(-len(shape), 0), shape, strict=True)
        ]
        renamed = any(not (isinstance(b, int) or b.same_as(a)) for a, b in zip(sizes, shape, strict=True))
        if renamed and not same_shape(sizes, shape):
            yield operand, sizes


def _leader(axis: int, shapes: Iterable[Sequence[Any]]) -> Any:
    """The size along an axis: a number where one is known, but for those that are broadcast, else the first name."""
    sizes = [shape[axis] for shape in shapes if len(shape) >= -axis and shape[axis] != 1]
    return next((size for size in sizes if isinstance(size, int)), sizes[0])


def _compared(importer: Importer, node: fx.Node) -> tuple[list[fx.Node], int, list[Sequence[Any]]] | None:
    """The operands that must agree, the axis along which they need not, and what they agree with beside each other."""
    if node.target is not torch.ops.aten.scaled_dot_product_attention.default:
        skipped = _joined(node)
        return None if skipped is None else (node.all_input_nodes, skipped, [])
    mask = node.args[3] if len(node.args) > 3 else node.kwargs.get("attn_mask")
    query, key = (dims(importer.env[operand]) for operand in node.args[:2])
    return [operand for operand in node.all_input_nodes if operand is mask], 0, [[*query[:-1], key[-2]]]


#: What joins tensors along an axis, which is its argument in this place.
_ALONG = {torch.ops.aten.cat.default: 1, torch.ops.aten.slice_scatter.default: 2}


def _joined(node: fx.Node) -> int | None:
    """The axis, from the end, along which operands need not agree: 0 of elementwise ones; None of other nodes."""
    if node.target in _ALONG:
        rank, place = node.meta["val"].dim(), _ALONG[node.target]
        axis = node.args[place] if len(node.args) > place else node.kwargs.get("dim", 0)
        return axis if axis < 0 else axis - rank
    is_elementwise = isinstance(node.target, torch._ops.OpOverload) and torch.Tag.pointwise in node.target.tags
    return 0 if is_elementwise and len(node.all_input_nodes) > 1 else None


def _has_shape(importer: Importer, operand: fx.Node) -> bool:
    value = importer.env.get(operand)
    meta = operand.meta.get("val")
    if not isinstance(meta, torch.Tensor) or not isinstance(value, relax.Expr) or not is_tensor(value):
        return False
    return shape_of(value) is not None and len(dims(value)) == meta.dim()  # pairs of complex numbers have one more
