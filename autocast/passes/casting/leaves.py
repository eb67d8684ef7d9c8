"""Castable tensors, seen through tuples: the leaves that a cast decision is about.

A *tree* mirrors a Relax type: a `Leaf` for a tensor that may be cast, a list of trees for a tuple, None for
everything else (integer tensors, shapes, primitive values, functions). Variables that only rename, group or project
share their leaves.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tvm
from tvm import relax

from autocast.ir import items
from autocast.passes.casting.signatures import Signature, TypeFacts
from autocast.passes.casting.solver import CastTensor

#: Where a dimension is symbolic and has no declared upper bound, it counts as this many.
NOMINAL_DIMENSION = 64


@dataclass(slots=True, eq=False)
class Leaf:
    """One castable tensor of the module that is being autocast.

    `dtype` is its dtype in that module, `scope` the sequence that defines it, `tensor` its place in the cut problem
    (None for a constant that anybody may round). A constant has a `literal`, which is folded, never cast. `uses` lists
    (node, block): who wants it, from which block of its scope. Leaves of equal values (an author's widening cast and
    its operand) share `tensor` and `uses`. `producer` is what a `CostModel` calls so, a call by its signature;
    `rounded` the leaf that the author narrowed to this one.
    """

    facts: TypeFacts
    dtype: str
    scope: int
    name: str = ""
    elements: int = 0
    tensor: CastTensor | None = None
    uses: list[tuple[int, int]] = field(default_factory=list)
    literal: relax.Expr | None = None
    producer: Signature | relax.Var | None = None
    rounded: Leaf | None = None

    @property
    def node(self) -> int:
        """The node of the cut problem whose precision the tensor has."""
        assert self.tensor is not None, "a folded constant has no producer"
        return self.tensor.producer

    @node.setter
    def node(self, node: int) -> None:
        assert self.tensor is not None, "a folded constant has no producer"
        self.tensor.producer = node

    def type_in(self, dtype: str) -> relax.TensorType:
        """The leaf's type with element type `dtype` (float32 or the AMP dtype)."""
        return self.facts.type_in(dtype)


Tree = Leaf | list | None


def leaves(tree: Tree) -> Iterator[Leaf]:
    """The leaves of a tree, left to right."""
    if isinstance(tree, Leaf):
        yield tree
    elif tree is not None:
        for branch in tree:
            yield from leaves(branch)


def retype(type: Any, tree: Tree, dtypes: Iterator[str]) -> Any:
    """`type` with its castable tensors in the next dtypes."""
    if isinstance(tree, Leaf):
        return tree.type_in(next(dtypes))
    if isinstance(tree, list) and any(True for _ in leaves(tree)):
        return tvm.ir.TupleType(
            [retype(field, branch, dtypes) for field, branch in zip(type.fields, tree, strict=True)]
        )
    return type


def signature(trees: Iterable[Tree]) -> tuple:
    """The dtypes of the leaves, nested as the trees are: all that a rule of the tables looks at."""
    return tuple(
        [tree.dtype if isinstance(tree, Leaf) else None if tree is None else signature(tree) for tree in trees]
    )


def element_count(type: relax.TensorType, upper_bounds: dict[str, int]) -> int:
    """How many elements a tensor has; symbolic dimensions count as their upper bound or `NOMINAL_DIMENSION`."""
    shape = type.shape
    if not isinstance(shape, relax.ShapeExpr):
        return NOMINAL_DIMENSION ** max(int(type.ndim), 0)
    count = 1
    for dimension in items(shape.values):
        count *= dimension.value if isinstance(dimension, tvm.tirx.IntImm) else _size(dimension, upper_bounds)
    return count


def _size(dimension: object, upper_bounds: dict[str, int]) -> int:
    analyzer = tvm.sym.Analyzer()
    for variable in tvm.tirx.analysis.undefined_vars(dimension):
        analyzer.bind(variable, tvm.tirx.const(upper_bounds.get(variable.name, NOMINAL_DIMENSION), variable.ty))
    value = analyzer.simplify(dimension)
    return int(value.value) if isinstance(value, tvm.tirx.IntImm) else NOMINAL_DIMENSION


def fold(literal: relax.Expr, dtype: str) -> relax.Expr:
    """A literal tensor rounded to `dtype`."""
    if literal.ty.dtype.dtype == dtype:
        return literal
    with np.errstate(over="ignore", under="ignore"):
        return relax.const(literal.value.numpy().astype(dtype), dtype)
