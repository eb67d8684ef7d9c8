"""The tensors of a cut problem: who produces each, who wants it and from where, and what a cast of it costs."""

from __future__ import annotations

from typing import Any

from tvm import relax

from autocast.ir import fits, identity, is_constant
from autocast.passes.casting.costs import CastCost, CostModel, cast_weight
from autocast.passes.casting.leaves import Leaf, Tree, element_count, signature
from autocast.passes.casting.plan import END, ModulePlan
from autocast.passes.casting.signatures import Signature, Signatures, TypeFacts, Types
from autocast.passes.casting.solver import FORBIDDEN, FULL, LOW, CastTensor


class Tensors:
    """The tensors of `plan`, while the planner reads the module.

    `stack` has the sequences that are being read, outermost first: [scope, block, the plan of the If being read].
    What is in another 16-bit dtype has no tree: its author asked for it, and it stays.
    """

    def __init__(self, plan: ModulePlan, objective: str, costs: CostModel) -> None:
        self.plan, self.amp, self.objective, self.costs = plan, plan.amp, objective, costs
        self.types = Types()
        self.signatures = Signatures(self.types)
        self.stack: list[list] = []
        self.function = ""
        self._upper_bounds: dict[str, int] = {}
        self._elements: dict[TypeFacts, int] = {}
        self._costs: dict[tuple, tuple[CastCost, CastCost]] = {}

    def enter_function(self, function: str, upper_bounds: dict[str, int]) -> None:
        """Begin a function, whose run-time sizes have these bounds."""
        self.function, self._upper_bounds = function, upper_bounds
        self._elements = {}

    def pin(self, dtype: str) -> int:
        """The node that always is in `dtype`."""
        return LOW if dtype == self.amp else FULL

    def of(self, var: relax.Var, facts: TypeFacts | None = None) -> Any:
        """The tree of a variable of the innermost sequence, pinned to its dtypes until their producers are named."""
        name = var.name
        self.plan.names.add(name)
        return self.grow(facts or self.types.of(var.ty), self.stack[-1][0], name)

    def define(self, key: int, facts: TypeFacts, tree: Tree) -> None:
        """Enter the variable of this `identity`, whose type may say less than its tree does."""
        self.plan.trees[key] = tree
        is_castable = facts.fields is not None or facts.dtype == "float32" or facts.dtype == self.amp
        says_all = tree.facts is facts if isinstance(tree, Leaf) else tree is None and not is_castable
        self.signatures.views[key] = facts if says_all else (facts, signature([tree]))

    def placeholders(self, facts: TypeFacts) -> Tree:
        """The tree of a type, as leaves that are no part of the problem."""
        return self.grow(facts, -1, "", register=False)

    def grow(self, facts: TypeFacts, scope: int, name: str, register: bool = True) -> Tree:
        """The tree of a type: a leaf for each tensor that may be cast."""
        dtype = facts.dtype
        if dtype == "float32" or dtype == self.amp:
            leaf = Leaf(facts, dtype, scope, name)
            if register:
                leaf.elements = facts.elements or self._count(facts)
                self.register(leaf, LOW if dtype == self.amp else FULL)
            return leaf
        if facts.fields is not None:
            return [self.grow(part, scope, f"{name}[{at}]", register) for at, part in enumerate(facts.fields)]
        return None

    def _count(self, facts: TypeFacts) -> int:
        """How many elements there are with the sizes of this function."""
        if facts.elements is not None:
            return facts.elements
        if facts not in self._elements:
            self._elements[facts] = element_count(facts.type, self._upper_bounds)
        return self._elements[facts]

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
            leaf = self.placeholders(self.types.of(expr.ty))
            if isinstance(leaf, Leaf) and not fits(expr.value.numpy(), self.amp):
                # It keeps its dtype: whoever is free to choose must not make it overflow or vanish.
                self.register(leaf, self.pin(leaf.dtype), literal=True)
            if isinstance(leaf, Leaf):
                leaf.literal = expr
            self.plan.constants[key] = leaf
        return self.plan.constants[key]

    def demand(self, leaf: Leaf, node: int, consumer: Signature | None = None, position: int = 0) -> tuple[Leaf, int]:
        """Note that `node` consumes `leaf`, and what casts cost that it may ask for.

        It is read by `consumer` at argument `position`; None: by whatever is no operator, such as a function's result.
        """
        tensor, rounded = leaf.tensor, leaf.rounded
        if tensor is not None and tensor.narrow != FORBIDDEN:
            narrow, widen = self._prices(leaf, consumer, position)
            if node != FULL and tensor.producer != LOW and narrow is not CastCost.LOAD:
                self._price(leaf, tensor, self.amp, node, narrow)
            if node != LOW and tensor.producer != FULL and widen is not CastCost.LOAD:
                self._price(leaf, tensor, "float32", node, widen)
            if rounded is not None and rounded.tensor is not None and node != FULL and rounded.tensor.producer != LOW:
                self._price(rounded, rounded.tensor, self.amp, node, self._prices(rounded, consumer, position)[0])
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

    def _prices(self, leaf: Leaf, consumer: Signature | None, position: int) -> tuple[CastCost, CastCost]:
        """What casts to the AMP dtype and to float32 cost where `consumer` asks for them."""
        producer = leaf.producer
        made_by = producer if type(producer) is Signature or producer is None else relax.Var
        question = made_by, consumer, position, leaf.facts
        prices = self._costs.get(question)
        if prices is None:
            writer = producer.call if isinstance(producer, Signature) else producer
            reader, type_ = consumer and consumer.call, leaf.facts.type
            narrow, widen = (self.costs.cast(writer, reader, position, type_, to) for to in (self.amp, "float32"))
            prices = self._costs[question] = narrow, widen
        return prices

    def _price(self, leaf: Leaf, tensor: CastTensor, dtype: str, node: int, cost: CastCost) -> None:
        """Note what a cast to `dtype` costs where `node` asks for it: it and the producer may differ."""
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
