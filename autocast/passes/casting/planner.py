"""Read a module into a cut problem: its tensors, who produces and who wants them, and which calls may choose."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any

import tvm
from tvm import relax

from autocast.errors import CastingRuleError
from autocast.ir import Bound, Reading, dtype_of, hides_dtype, identity, parts_of, place_of, relax_functions
from autocast.model.value import updates_of, written_of
from autocast.passes.casting.costs import CostModel, traffic_weight
from autocast.passes.casting.leaves import Leaf, Tree, fold, leaves, signature
from autocast.passes.casting.modes import Ruling, missing_rules
from autocast.passes.casting.plan import END, CallPlan, CastPlan, ClosurePlan, IfPlan, MatchPlan, ModulePlan, NoPlan
from autocast.passes.casting.rulings import Rulings
from autocast.passes.casting.signatures import Signature, TypeFacts
from autocast.passes.casting.solver import LOW, CastTensor
from autocast.passes.casting.tensors import Tensors
from autocast.policy import Decisions
from autocast.policy.choices import LEAVE, Widest
from type_hints import Row


class Planner:
    """Builds the `ModulePlan` of one module.

    `policy` decides which rule each of its calls is asked, `costs` knows what casts cost.
    """

    def __init__(self, policy: Decisions, costs: CostModel) -> None:
        self.policy = policy
        self.amp, self.out_dtype = policy.policy.dtype, policy.policy.out_dtype
        self.objective = policy.policy.objective
        self.plan = ModulePlan(self.amp)
        self.problem = self.plan.problem
        self.tensors = Tensors(self.plan, self.objective, costs)
        self.plan.signatures = self.tensors.signatures.found
        self.missing: dict[str, Counter] = defaultdict(Counter)
        self.rulings = Rulings(self.amp)
        self.narrowed: dict[CastTensor, list[Leaf]] = defaultdict(list)
        self.scopes = 0

    def read(self, reading: Reading) -> ModulePlan:
        """The plan of a module; CastingRuleError where an operator has no rule."""
        self.reading = reading
        self.plan.functions = list(relax_functions(reading.mod))
        called = _called_functions(self.plan.functions) if self.out_dtype is not None else set()
        for global_var, function in self.plan.functions:
            self._function(global_var, function, None if global_var in called else self.out_dtype)
        if self.missing:
            raise CastingRuleError(missing_rules(self.missing))
        return self.plan

    # -- functions and sequences -------------------------------------------------------------------

    def _function(self, global_var: tvm.ir.GlobalVar, function: relax.Function, out_dtype: str | None) -> None:
        bounds = (function.attrs or {}).get("tir_var_upper_bound", {})
        self.tensors.enter_function(global_var.name_hint, {str(name): int(bound) for name, bound in bounds.items()})
        body = function.body
        for param in self.reading.params(function):
            name = param.name
            self.plan.names.add(name)
            facts = self.tensors.types.of(param.ty)
            self.tensors.define(identity(param), facts, self.tensors.grow(facts, self.scopes, name))
        for param in self._constant_parameters(function) if global_var.name_hint == "main" else ():
            for leaf in leaves(self.plan.trees[identity(param)]):
                leaf.producer = param
        self._sequence(body, self._results(body.ty, out_dtype, len(updates_of(function)) + len(written_of(function))))

    def _constant_parameters(self, main: relax.Function) -> list[relax.Var]:
        """The parameters of a model that no call replaces."""
        attributes, updates = main.attrs or {}, updates_of(main)
        params = self.reading.params(main)[int(attributes["num_input"]) :] if "num_input" in attributes else ()
        return [param for position, param in enumerate(params) if position not in updates]

    def _results(self, type: Any, out_dtype: str | None, replacing: int) -> list[int]:
        """The nodes of a function's results; the last of them, which replace something, stay what they are."""
        fields = list(type.fields) if isinstance(type, tvm.ir.TupleType) else [type]
        results = len(fields) - replacing
        return [
            self.tensors.pin(out_dtype if out_dtype and number < results else leaf.dtype)
            for number, field in enumerate(fields)
            for leaf in leaves(self.tensors.placeholders(self.tensors.types.of(field)))
        ]

    def _sequence(self, sequence: relax.SeqExpr, result_nodes: list[int]) -> None:
        self.tensors.stack.append([self.scopes, 0, None])
        self.plan.scopes[identity(sequence)] = self.scopes
        self.scopes += 1
        for number, (_, block) in enumerate(self.reading.blocks(sequence)):
            self.tensors.stack[-1][1] = number
            for bound in block:
                self._binding(bound)
        self.tensors.stack[-1][1] = END
        found = list(leaves(self.tensors.argument(sequence.body)))
        if len(found) != len(result_nodes):
            # The type of the result leaves out a dtype that is known here; nobody else may choose it.
            result_nodes = [self.tensors.pin(leaf.dtype) for leaf in found]
        self.plan.results[identity(sequence)] = [
            self.tensors.demand(leaf, node) for leaf, node in zip(found, result_nodes, strict=True)
        ]
        self.tensors.stack.pop()

    def _binding(self, bound: Bound) -> None:
        var, key, value = bound.var, bound.key, bound.value
        if type(value) is relax.Call:
            self._call(bound)
        elif isinstance(value, relax.If):
            self._if(var, value)
        elif isinstance(value, relax.TupleGetItem):
            tree = self.tensors.argument(value.tuple_value)
            field = tree[value.index] if isinstance(tree, list) else None
            self.tensors.define(key, self.tensors.types.of(var.ty), field)
        elif isinstance(value, relax.Function):
            self._closure(var, value)
        elif isinstance(bound.binding, relax.MatchCast):
            self._match_cast(var, value)
        else:
            tree = self.tensors.argument(value)
            facts = self.tensors.types.of(var.ty)
            if isinstance(tree, Leaf) and place_of(var).converted == self.amp:
                self._existing_cast(var, tree, facts)
                return
            self.tensors.define(key, facts, tree)
            for leaf in leaves(tree):
                self.tensors.mention(leaf)

    def _closure(self, var: relax.Var, function: relax.Function) -> None:
        """A local function is opaque: what it captures keeps its dtype."""
        captured = []
        for free in relax.analysis.free_vars(function):
            found = leaves(self.plan.trees.get(identity(free)))
            captured.append((free, [self.tensors.demand(leaf, self.tensors.pin(leaf.dtype)) for leaf in found]))
        self.plan.bindings[identity(var)] = ClosurePlan(captured)
        self.tensors.define(identity(var), self.tensors.types.of(var.ty), None)

    def _match_cast(self, var: relax.Var, value: relax.Expr) -> None:
        """A check of a type: its result is as precise as its value, but a tensor of its own, of which more is known."""
        facts = self.tensors.types.of(var.ty)
        source, target = self.tensors.argument(value), self.tensors.of(var, facts)
        self.tensors.define(identity(var), facts, target)
        if signature([source]) == signature([target]):
            for leaf in leaves(target):
                leaf.node = self.problem.new_node()
            nodes = [leaf.node for leaf in leaves(target)]
        else:
            nodes = [self.tensors.pin(leaf.dtype) for leaf in leaves(source)]
        demands = [self.tensors.demand(leaf, node) for leaf, node in zip(leaves(source), nodes, strict=True)]
        self.plan.bindings[identity(var)] = MatchPlan(demands)

    def _if(self, var: relax.Var, value: relax.If) -> None:
        facts = self.tensors.types.of(var.ty)
        tree = self.tensors.of(var, facts)
        nodes = []
        is_free = not self.policy.overflows(var)
        for leaf in leaves(tree):
            nodes.append(self.problem.new_node() if is_free else self.tensors.pin(leaf.dtype))
            leaf.node = nodes[-1]
        plan = IfPlan(nodes)
        self.tensors.stack[-1][2] = plan
        for branch in (value.true_branch, value.false_branch):
            self._sequence(branch, nodes)
        self.tensors.stack[-1][2] = None
        self.plan.bindings[identity(var)] = plan
        self.tensors.define(identity(var), facts, tree)

    # -- calls -------------------------------------------------------------------------------------

    def _call(self, bound: Bound) -> None:
        _, var, key, _, _, args, keys = bound
        tensors, known = self.tensors, self.plan.trees
        alike = tensors.signatures.of(bound)
        trees = list(map(known.get, keys))
        if None in trees:
            trees = list(map(tensors.argument, args, keys))
        name, derived = alike.name, alike.derived
        ruling = self.policy.ruling(derived.name if derived else name, bound) if name is not None else None
        row = ruling.row if ruling is not None else None
        if alike.cast_to is not None and self._is_no_operator(bound, alike, trees[0], row):
            return
        result = known[key] = tensors.of(var, alike.result)
        tensors.signatures.views[key] = alike.result
        if name is not None and row is None:
            self.missing[name][tensors.function] += 1
            return
        if alike.hides_dtype and any(
            type(tree) is not Leaf and hides_dtype(value.ty)
            for value, tree in zip((*args, var), (*trees, result), strict=True)
        ):
            row = derived = None  # what it reads or gives is not known, so nothing may change it
        decision = self.rulings.of(bound, alike, trees, result, row, derived, tensors.function)
        node = self.problem.new_node() if decision.node is None else decision.node
        demands: list[list[tuple[Leaf, int]]] = []
        for position, tree in enumerate(trees):
            readers = decision.reads[position]
            demanded = []
            if type(tree) is Leaf:
                (reader,) = readers
                demanded.append(tensors.demand(tree, node if reader is None else reader, alike, position))
            elif tree is not None:
                for leaf, reader in zip(leaves(tree), readers, strict=True):
                    demanded.append(tensors.demand(leaf, node if reader is None else reader, alike, position))
            demands.append(demanded)
        plan = CallPlan(demands, node, alike, ruling=ruling)
        self.plan.bindings[key] = plan
        self.plan.calls.append((tensors.function, var, plan))
        stored = [result] if type(result) is Leaf else list(leaves(result))
        if stored:
            self._result(alike, stored, decision, plan)
        if decision.node is None:
            read = [leaf for demanded in demands for leaf, _ in demanded]
            if row is not None and isinstance(row.rule, Widest):
                # What is narrower is widened, never the other way round; a literal is either for nothing.
                taken = (leaf for leaf in read if leaf.tensor is not None and leaf.literal is None)
                self.problem.follows.extend((node, leaf.node) for leaf in taken)
            moved = sum([leaf.elements for leaf in (*read, *stored)])
            self.problem.traffic[node] += traffic_weight(self.objective, alike.is_view, moved)

    def _is_no_operator(self, bound: Bound, alike: Signature, tree: Tree, row: Row | None) -> bool:
        """Whether a cast is one that AutoCast decides about, or changes nothing."""
        changes = dtype_of(bound.args[0]) != alike.cast_to
        if isinstance(tree, Leaf):
            is_left = row is not None and row.rule is LEAVE
            if alike.cast_to not in ("float32", self.amp) or (is_left and changes):
                return False
            self._existing_cast(bound.var, tree, alike.result)
        elif changes:
            return False
        else:
            self.tensors.define(bound.key, alike.result, tree)
            self.plan.bindings[bound.key] = NoPlan()
        return True

    def _result(self, alike: Signature, stored: list[Leaf], decision: Ruling, plan: CallPlan) -> None:
        """Say who produces the leaves of a call's result: TVM's inference, and what the rule asks of the result."""
        nodes = [plan.node if node is None else node for node in decision.results]
        wanted = decision.wanted
        if wanted == "either" and decision.has_out_dtype:
            plan.free_result = True
            nodes[0] = self.problem.new_node(traffic_weight(self.objective, alike.is_view, stored[0].elements))
            self.problem.follows.append((nodes[0], plan.node))
        elif wanted not in (None, "either"):
            if decision.has_out_dtype:
                plan.free_result = True
            elif self.tensors.pin(wanted) != nodes[0]:
                first = stored[0]
                plan.stored = Leaf(first.facts, first.dtype, first.scope, first.name, first.elements, producer=alike)
                self.tensors.register(plan.stored, nodes[0])
                self.tensors.demand(plan.stored, self.tensors.pin(wanted))
            nodes[0] = self.tensors.pin(wanted)
        plan.result_node = nodes[0]
        # What may be stored in either precision is stored wide only if somebody reads it so.
        producer: Signature | relax.Var | None = None if plan.free_result else alike
        if alike.is_view and plan.demands[0]:
            producer = plan.demands[0][0][0].producer
        for leaf, node in zip(stored, nodes, strict=True):
            leaf.node, leaf.producer = node, producer

    def _existing_cast(self, var: relax.Var, source: Leaf, facts: TypeFacts) -> None:
        """A narrowing cast keeps the rounding its author asked for; one that changes no value is its operand."""
        dtype = str(facts.dtype)
        if source.literal is not None:
            target = Leaf(facts, dtype, source.scope, source.name, literal=fold(source.literal, dtype))
        elif dtype == "float32" or source.node == LOW:
            target = Leaf(facts, dtype, source.scope, source.name, source.elements, source.tensor, source.uses)
            target.producer, target.rounded = source.producer, source.rounded
        else:
            # Equal values share a leaf, where it is visible.
            assert source.tensor is not None
            known, visible = self.narrowed[source.tensor], {scope for scope, _, _ in self.tensors.stack}
            known[:] = [leaf for leaf in known if leaf.scope in visible] or [self.tensors.of(var, facts)]
            target = known[0]
            target.producer, target.rounded = source.producer, source
            self.tensors.consume(source, LOW)
        self.tensors.define(identity(var), facts, target)
        scope, block, _ = self.tensors.stack[-1]
        self.plan.bindings[identity(var)] = CastPlan(source, target, block if source.scope == scope else None)


def _called_functions(functions: list[tuple[tvm.ir.GlobalVar, relax.Function]]) -> set[tvm.ir.GlobalVar]:
    """The functions that others, or they themselves, call: their signatures are fixed."""
    return {callee for _, function in functions for callee in parts_of(function, tvm.ir.GlobalVar)}
