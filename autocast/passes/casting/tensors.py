"""The tensors of a cut problem: who produces each, who wants it and from where, and what a cast of it costs."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax

from autocast.ir import FLOATS, fits, identity, is_constant
from autocast.passes.casting.costs import CastCost, CostModel, cast_weight
from autocast.passes.casting.leaves import Leaf, Tree, element_count
from autocast.passes.casting.plan import END, ModulePlan
from autocast.passes.casting.solver import FORBIDDEN, FULL, LOW, CastTensor


class Tensors:
    """The tensors of `plan`, while the planner reads the module.

    `stack` has the sequences that are being read, outermost first: [scope, block, the plan of the If being read].
    `foreign` is the first tensor of another 16-bit dtype: its dtype, and where it is.
    """

    def __init__(self, plan: ModulePlan, objective: str, costs: CostModel) -> None:
        self.plan, self.amp, self.objective, self.costs = plan, plan.amp, objective, costs
        self.stack: list[list] = []
        self.dtypes: dict[int, tuple[tvm.ir.PrimType, str]] = {}
        self.function = ""
        self.upper_bounds: dict[str, int] = {}
        self.foreign: tuple[str, str] | None = None

    def pin(self, dtype: str) -> int:
        """The node that always is in `dtype`."""
        return LOW if dtype == self.amp else FULL

    def of(self, var: relax.Var) -> Any:
        """The tree of a variable of the innermost sequence, pinned to its dtypes until their producers are named."""
        name = var.name
        self.plan.names.add(name)
        return self.grow(var.ty, self.stack[-1][0], name)

    def placeholders(self, type: Any) -> Tree:
        """The tree of a type, as leaves that are no part of the problem."""
        return self.grow(type, -1, "", register=False)

    def grow(self, type: Any, scope: int, name: str, register: bool = True) -> Tree:
        """The tree of a type: a leaf for each tensor that may be cast."""
        if isinstance(type, relax.TensorType):
            dtype = self._dtype(type.dtype)
            if dtype == "float32" or dtype == self.amp:
                leaf = Leaf(type, dtype, scope, name)
                if register:
                    leaf.elements = element_count(type, self.upper_bounds)
                    self.register(leaf, self.pin(dtype))
                return leaf
            if dtype in FLOATS and self.foreign is None:
                self.foreign = (str(dtype), f"%{name} in @{self.function}")
        elif isinstance(type, tvm.ir.TupleType):
            return [self.grow(field, scope, f"{name}[{at}]", register) for at, field in enumerate(type.fields)]
        return None

    def _dtype(self, element: tvm.ir.PrimType | None) -> str | None:
        """The name of an element type; TVM shares these nodes, and writes the name anew whenever it is asked."""
        if element is None:
            return None
        key = identity(element)
        if key not in self.dtypes:
            self.dtypes[key] = element, element.dtype
        return self.dtypes[key][1]

    def register(self, leaf: Leaf, producer: int, *, literal: bool = False) -> None:
        """Make a leaf a tensor of the cut problem; a literal is widened for nothing, and never narrowed by choice."""
        absorbed = cast_weight(self.objective, leaf.elements, absorbed=True)
        leaf.tensor = CastTensor(producer, *((0, FORBIDDEN) if literal else (absorbed, absorbed)))
        self.plan.problem.tensors.append(leaf.tensor)
        self.plan.tensors.append(leaf)

    def argument(self, expr: Any, key: int | None = None) -> Tree:
        """The tree of an argument (and its `identity`): a variable's, a literal tuple's, or a constant's."""
        key = identity(expr) if key is None else key
        if key in self.plan.trees:
            return self.plan.trees[key]
        if isinstance(expr, relax.Tuple):
            return [self.argument(field) for field in expr.fields]
        if not is_constant(expr):
            return None
        if key not in self.plan.constants:
            leaf = self.placeholders(expr.ty)
            if isinstance(leaf, Leaf) and not fits(expr.value.numpy(), self.amp):
                # It keeps its dtype: whoever is free to choose must not make it overflow or vanish.
                self.register(leaf, self.pin(leaf.dtype), literal=True)
            if isinstance(leaf, Leaf):
                leaf.literal = expr
            self.plan.constants[key] = leaf
        return self.plan.constants[key]

    def demand(self, leaf: Leaf, node: int, consumer: relax.Call | None = None, position: int = 0) -> tuple[Leaf, int]:
        """Note that `node` consumes `leaf`, and what casts cost that it may ask for.

        It is read by `consumer` at argument `position`; None: by whatever is no operator, such as a function's result.
        """
        if leaf.tensor is not None and leaf.tensor.narrow != FORBIDDEN:
            self._price(leaf, leaf.tensor, self.amp, node, consumer, position)
            self._price(leaf, leaf.tensor, "float32", node, consumer, position)
            if leaf.rounded is not None and leaf.rounded.tensor is not None:
                self._price(leaf.rounded, leaf.rounded.tensor, self.amp, node, consumer, position)
        return self.consume(leaf, node)

    def consume(self, leaf: Leaf, node: int) -> tuple[Leaf, int]:
        """Note that `node` consumes `leaf`, from which block of the leaf's scope, and inside which conditional."""
        if leaf.tensor is not None:
            leaf.tensor.consumers.append(node)
        if leaf.literal is not None:
            leaf.uses.append((node, END))
        for scope, block, conditional in reversed(self.stack):
            if scope == leaf.scope:
                leaf.uses.append((node, block))
                if conditional is not None:
                    conditional.hoisted.append((leaf, node))
                break
        return leaf, node

    def _price(
        self, leaf: Leaf, tensor: CastTensor, dtype: str, node: int, consumer: relax.Call | None, position: int
    ) -> None:
        """Note what a cast to `dtype` costs where `node` asks for it, unless neither it nor the producer may choose."""
        if tensor.producer == self.pin(dtype) or node == (FULL if dtype == self.amp else LOW):
            return
        cost = self.costs.cast(leaf.producer, consumer, position, leaf.type, dtype)
        if cost is CastCost.KERNEL:
            self._surcharge(leaf, tensor, dtype).consumers.append(node)
        elif cost is CastCost.STORE:
            self.plan.stored.add((tensor, dtype))

    def _surcharge(self, leaf: Leaf, tensor: CastTensor, dtype: str) -> CastTensor:
        """What a cast to `dtype` costs more where it is a kernel of its own."""
        known = self.plan.surcharges.get((tensor, dtype))
        if known is None:
            alone = cast_weight(self.objective, leaf.elements, absorbed=False)
            more = alone - cast_weight(self.objective, leaf.elements, absorbed=True)
            weights = (0, more) if dtype == self.amp else (more, 0)
            known = self.plan.surcharges[tensor, dtype] = CastTensor(tensor.producer, *weights)
            self.plan.problem.surcharges.append(known)
        return known

    def mention(self, leaf: Leaf) -> None:
        """Note that this block renames or groups a leaf, in the dtype that it has."""
        block = next((block for scope, block, _ in self.stack if scope == leaf.scope), None)
        if block is not None:
            leaf.uses.append((leaf.node, block))
