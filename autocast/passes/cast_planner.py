"""Read a module into a cut problem: its tensors, who produces and who wants them, and which calls may choose."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any

import tvm
from tvm import relax

import type_hints
from autocast.errors import CastingRuleError
from autocast.ir import FLOATS, fits, identity, is_constant, op_name, relax_functions
from autocast.passes.cast_costs import CONVERTING, cast_weight, traffic_weight
from autocast.passes.cast_leaves import Leaf, Tree, element_count, fold, leaves, signature
from autocast.passes.cast_modes import Decision, decide
from autocast.passes.cast_plan import END, CallPlan, CastPlan, IfPlan, MatchPlan, ModulePlan
from autocast.passes.cast_results import dtype_attributes
from autocast.passes.cast_solver import FORBIDDEN, FULL, LOW, CastTensor
from autocast.policy import Decisions
from autocast.policy.choices import LEAVE, Widest
from type_hints.helpers import TableRule


class Planner:
    """Builds the `ModulePlan` of one module; `policy` decides which rule each of its calls is asked."""

    def __init__(self, policy: Decisions) -> None:
        self.policy = policy
        self.amp, self.out_dtype = policy.policy.dtype, policy.policy.out_dtype
        self.objective = policy.policy.objective
        self.plan = ModulePlan(self.amp)
        self.problem = self.plan.problem
        self.missing: dict[str, Counter] = defaultdict(Counter)
        self.decisions: dict[Any, Decision] = {}
        self.stored_narrow: set[CastTensor] = set()
        self.narrowed: dict[CastTensor, list[Leaf]] = defaultdict(list)
        self.stack: list[list] = []  # of [scope, block, the If being read]
        self.scopes = 0
        self.function = ""
        self.upper_bounds: dict[str, int] = {}
        self.foreign: tuple[str, str] | None = None

    def read(self, mod: tvm.IRModule) -> ModulePlan:
        """The plan of a module; CastingRuleError where an operator has no rule."""
        self.plan.functions = list(relax_functions(mod))
        called = _called_functions(self.plan.functions) if self.out_dtype is not None else set()
        for global_var, function in self.plan.functions:
            self._function(global_var, function, None if global_var in called else self.out_dtype)
        if self.missing:
            raise CastingRuleError(_missing_rules(self.missing))
        if self.foreign is not None:
            dtype, where = self.foreign
            raise CastingRuleError(
                f"AutoCast: the module holds {dtype} tensors (first: {where}) and dtype={self.amp!r} was asked for. "
                "A module that was autocast with another dtype cannot be autocast again; start from the float32 "
                f"module, or use dtype={dtype!r}"
            )
        return self.plan

    # -- functions and sequences -------------------------------------------------------------------

    def _function(self, global_var: tvm.ir.GlobalVar, function: relax.Function, out_dtype: str | None) -> None:
        self.function = global_var.name_hint
        bounds = (function.attrs or {}).get("tir_var_upper_bound", {})
        self.upper_bounds = {str(name): int(bound) for name, bound in bounds.items()}
        body = function.body
        for param in function.params:
            self.plan.trees[identity(param)] = self._tree(param.ty, self.scopes, param.name)
        self._sequence(body, self._results(body.ty, out_dtype, len((function.attrs or {}).get("updates", ()))))

    def _results(self, type: Any, out_dtype: str | None, updates: int) -> list[int]:
        """The nodes of a function's results; the last of them, which replace parameters, stay what they are."""
        fields = list(type.fields) if isinstance(type, tvm.ir.TupleType) else [type]
        results = len(fields) - updates
        return [
            self._pin(out_dtype if out_dtype and number < results else leaf.dtype)
            for number, field in enumerate(fields)
            for leaf in leaves(self._placeholders(field))
        ]

    def _sequence(self, sequence: relax.SeqExpr, result_nodes: list[int]) -> None:
        self.stack.append([self.scopes, 0, None])
        self.plan.scopes[identity(sequence)] = self.scopes
        self.scopes += 1
        for number, block in enumerate(sequence.blocks[:]):
            self.stack[-1][1] = number
            for binding in block.bindings[:]:
                self._binding(binding)
        self.stack[-1][1] = END
        tree = self._argument(sequence.body)
        self.plan.results[identity(sequence)] = [
            self._demand(leaf, node) for leaf, node in zip(leaves(tree), result_nodes, strict=True)
        ]
        self.stack.pop()

    def _binding(self, binding: relax.Binding) -> None:
        var, value = binding.var, binding.value
        if isinstance(value, relax.Call):
            self._call(var, value)
        elif isinstance(value, relax.If):
            self._if(var, value)
        elif isinstance(value, relax.TupleGetItem):
            tree = self._argument(value.tuple_value)
            self.plan.trees[identity(var)] = tree[value.index] if isinstance(tree, list) else None
        elif isinstance(value, relax.Function):
            self._closure(var, value)
        elif isinstance(binding, relax.MatchCast):
            self._match_cast(var, value)
        else:
            tree = self.plan.trees[identity(var)] = self._argument(value)
            for leaf in leaves(tree):
                self._mention(leaf)

    def _mention(self, leaf: Leaf) -> None:
        """Note that this block renames or groups a leaf, in the dtype that it has."""
        block = next((block for scope, block, _ in self.stack if scope == leaf.scope), None)
        if block is not None:
            leaf.uses.append((leaf.node, block))

    def _closure(self, var: relax.Var, function: relax.Function) -> None:
        """A local function is opaque: what it captures keeps its dtype."""
        for captured in relax.analysis.free_vars(function):
            for leaf in leaves(self.plan.trees.get(identity(captured))):
                self._demand(leaf, self._pin(leaf.dtype))
        self.plan.trees[identity(var)] = None

    def _match_cast(self, var: relax.Var, value: relax.Expr) -> None:
        """A check of a type: its result is as precise as its value, but a tensor of its own, of which more is known."""
        source, target = self._argument(value), self._tree(var.ty, self.stack[-1][0], var.name)
        self.plan.trees[identity(var)] = target
        if signature([source]) == signature([target]):
            for leaf in leaves(target):
                leaf.node = self.problem.new_node()
            nodes = [leaf.node for leaf in leaves(target)]
        else:
            nodes = [self._pin(leaf.dtype) for leaf in leaves(source)]
        demands = [self._demand(leaf, node) for leaf, node in zip(leaves(source), nodes, strict=True)]
        self.plan.bindings[identity(var)] = MatchPlan(demands)

    def _if(self, var: relax.Var, value: relax.If) -> None:
        tree = self._tree(var.ty, self.stack[-1][0], var.name)
        nodes = []
        for leaf in leaves(tree):
            nodes.append(self.problem.new_node())
            leaf.node = nodes[-1]
        plan = IfPlan(nodes)
        self.stack[-1][2] = plan
        for branch in (value.true_branch, value.false_branch):
            self._sequence(branch, nodes)
        self.stack[-1][2] = None
        self.plan.bindings[identity(var)] = plan
        self.plan.trees[identity(var)] = tree

    # -- calls -------------------------------------------------------------------------------------

    def _call(self, var: relax.Var, call: relax.Call) -> None:
        args = call.args[:]
        trees = [self._argument(arg) for arg in args]
        name = op_name(call)
        derived = type_hints.derived_name(call) if name is not None else None
        ruling = self.policy.ruling(derived.name if derived else name, call, var) if name is not None else None
        row = ruling.row if ruling is not None else None
        is_cast = name == "relax.astype" and str(call.attrs.dtype) in ("float32", self.amp)
        if is_cast and isinstance(trees[0], Leaf) and not (row is not None and row.rule is LEAVE):
            self._existing_cast(var, trees[0])
            return
        result = self._tree(var.ty, self.stack[-1][0], var.name)
        self.plan.trees[identity(var)] = result
        if name is not None and row is None:
            self.missing[name][self.function] += 1
            return
        groups = [[tree] if type(tree) is Leaf else list(leaves(tree)) for tree in trees]
        decision = self._decision(var, call, args, trees, result, row, derived)
        low, full = decision.modes.low, decision.modes.full
        node = self.problem.new_node() if low != full else self._pin(low[0] if low else "float32")
        nodes = iter([node if a != b else self._pin(a) for a, b in zip(low, full, strict=True)])
        demands = [[self._demand(leaf, next(nodes), name) for leaf in group] for group in groups]
        plan = CallPlan(args, demands, node, ruling=ruling)
        self.plan.bindings[identity(var)] = plan
        self.plan.calls.append((self.function, var, plan))
        stored = [result] if type(result) is Leaf else list(leaves(result))
        if stored:
            self._result(name, stored, decision, plan)
        if low != full and row is not None and isinstance(row.rule, Widest):
            # What is narrower is widened, never the other way round; a literal is either for nothing.
            taken = (leaf for group in groups for leaf in group if leaf.tensor is not None and leaf.literal is None)
            self.problem.follows.extend((node, leaf.node) for leaf in taken)
        if low != full:
            moved = sum([leaf.elements for group in (*groups, stored) for leaf in group])
            self.problem.traffic[node] += traffic_weight(self.objective, name or "", moved)

    def _decision(
        self,
        var: relax.Var,
        call: relax.Call,
        args: list[relax.Expr],
        trees: list[Tree],
        result: Tree,
        row: type_hints.Row | None,
        derived: type_hints.DerivedCall | None,
    ) -> Decision:
        """What a call may do. Rules of the tables look at nothing but dtypes, so equal questions are asked once."""
        key = None
        if row is None or isinstance(row.rule, TableRule):
            asked = signature(trees), signature([result]), dtype_attributes(call)
            key = (identity(call.op), asked, row and row.rule, derived and derived.positions)
        decision = self.decisions.get(key) if key is not None else None
        if decision is None:

            def where() -> str:
                types = ", ".join(str(arg.ty) for arg in args)
                return f"%{var.name} = {row.name if row else 'call'}({types}) in @{self.function}"

            decision = decide(call, args, trees, (var.ty, result), row, derived, self.amp, where)
            if key is not None:
                self.decisions[key] = decision
        return decision

    def _result(self, name: str | None, stored: list[Leaf], decision: Decision, plan: CallPlan) -> None:
        """Say who produces the leaves of a call's result: TVM's inference, and what the rule asks of the result."""
        nodes = [
            plan.node if low != full else self._pin(low)
            for low, full in zip(decision.low_result, decision.full_result, strict=True)
        ]
        wanted = decision.modes.result
        if wanted == "either" and decision.has_out_dtype:
            plan.free_result = True
            nodes[0] = self.problem.new_node(traffic_weight(self.objective, name or "", stored[0].elements))
            self.problem.follows.append((nodes[0], plan.node))
        elif wanted not in (None, "either"):
            if decision.has_out_dtype:
                plan.free_result = True
            elif self._pin(wanted) != nodes[0]:
                first = stored[0]
                plan.stored = Leaf(first.type, first.dtype, first.scope, first.name, first.elements)
                self._register(plan.stored, nodes[0])
                self._demand(plan.stored, self._pin(wanted))
            nodes[0] = self._pin(wanted)
        plan.result_node = nodes[0]
        for leaf, node in zip(stored, nodes, strict=True):
            leaf.node = node
            if name in CONVERTING and leaf.tensor is not None:
                self.stored_narrow.add(leaf.tensor)

    def _existing_cast(self, var: relax.Var, source: Leaf) -> None:
        """A narrowing cast keeps the rounding its author asked for; one that changes no value is its operand."""
        dtype = var.ty.dtype.dtype
        if source.literal is not None:
            target = Leaf(var.ty, dtype, source.scope, source.name, literal=fold(source.literal, dtype))
        elif dtype == "float32" or source.node == LOW:
            target = Leaf(var.ty, dtype, source.scope, source.name, source.elements, source.tensor, source.uses)
        else:
            # Equal values share a leaf, where it is visible.
            assert source.tensor is not None
            known, visible = self.narrowed[source.tensor], {scope for scope, _, _ in self.stack}
            known[:] = [leaf for leaf in known if leaf.scope in visible] or [
                self._tree(var.ty, self.stack[-1][0], var.name)
            ]
            target = known[0]
            self._demand(source, LOW, "relax.astype")
        self.plan.trees[identity(var)] = target
        scope, block, _ = self.stack[-1]
        self.plan.bindings[identity(var)] = CastPlan(source, target, block if source.scope == scope else None)

    # -- leaves ------------------------------------------------------------------------------------

    def _pin(self, dtype: str) -> int:
        return LOW if dtype == self.amp else FULL

    def _placeholders(self, type: Any) -> Tree:
        """The tree of a type, as leaves that are no part of the problem."""
        return self._grow(type, -1, "", False)

    def _tree(self, type: Any, scope: int, name: str) -> Any:
        """The tree of new tensors, pinned to the dtypes that they have until their producers are named."""
        return self._grow(type, scope, name, True)

    def _grow(self, type: Any, scope: int, name: str, register: bool) -> Tree:
        if isinstance(type, relax.TensorType):
            dtype = type.dtype.dtype if type.dtype is not None else None
            if dtype == "float32" or dtype == self.amp:
                leaf = Leaf(type, dtype, scope, name)
                if register:
                    leaf.elements = element_count(type, self.upper_bounds)
                    self._register(leaf, self._pin(dtype))
                return leaf
            if dtype in FLOATS and self.foreign is None:
                self.foreign = (str(dtype), f"%{name} in @{self.function}")
        elif isinstance(type, tvm.ir.TupleType):
            return [self._grow(field, scope, f"{name}[{at}]", register) for at, field in enumerate(type.fields)]
        return None

    def _register(self, leaf: Leaf, producer: int, *, literal: bool = False) -> None:
        """Make a leaf a tensor of the cut problem; a literal is widened for nothing, and never narrowed by choice."""
        absorbed = cast_weight(self.objective, leaf.elements, absorbed=True)
        leaf.tensor = CastTensor(producer, *((0, FORBIDDEN) if literal else (absorbed, absorbed)))
        self.problem.tensors.append(leaf.tensor)
        self.plan.tensors.append(leaf)

    def _argument(self, expr: Any) -> Tree:
        """The tree of an argument: a variable's, a literal tuple's, or a constant's."""
        key = identity(expr)
        if key in self.plan.trees:
            return self.plan.trees[key]
        if isinstance(expr, relax.Tuple):
            return [self._argument(field) for field in expr.fields]
        if not is_constant(expr):
            return None
        if key not in self.plan.constants:
            leaf = self._placeholders(expr.ty)
            if isinstance(leaf, Leaf) and not fits(expr.value.numpy(), self.amp):
                # It keeps its dtype: whoever is free to choose must not make it overflow or vanish.
                self._register(leaf, self._pin(leaf.dtype), literal=True)
            if isinstance(leaf, Leaf):
                leaf.literal = expr
            self.plan.constants[key] = leaf
        return self.plan.constants[key]

    def _demand(self, leaf: Leaf, node: int, operator: str | None = None) -> tuple[Leaf, int]:
        """Note that `node` consumes `leaf`, from which block of the leaf's scope, and inside which conditional.

        Where `operator` cannot load the leaf in the other precision, a cast for it is a kernel of its own.
        """
        if leaf.tensor is not None:
            leaf.tensor.consumers.append(node)
            if operator not in CONVERTING and leaf.tensor.narrow != FORBIDDEN:
                alone = cast_weight(self.objective, leaf.elements, absorbed=False)
                if node != LOW:
                    leaf.tensor.widen = alone
                if node != FULL and leaf.tensor not in self.stored_narrow:
                    leaf.tensor.narrow = alone
        if leaf.literal is not None:
            leaf.uses.append((node, END))
        for scope, block, conditional in reversed(self.stack):
            if scope == leaf.scope:
                leaf.uses.append((node, block))
                if conditional is not None:
                    conditional.hoisted.append((leaf, node))
                break
        return leaf, node


def _called_functions(functions: list[tuple[tvm.ir.GlobalVar, relax.Function]]) -> set[tvm.ir.GlobalVar]:
    """The functions that others, or they themselves, call: their signatures are fixed."""
    called: set[tvm.ir.GlobalVar] = set()

    def visit(expr: relax.Expr) -> None:
        if isinstance(expr, tvm.ir.GlobalVar):
            called.add(expr)

    for _, function in functions:
        relax.analysis.post_order_visit(function, visit)
    return called


def _missing_rules(missing: dict[str, Counter]) -> str:
    rows = [
        f"  {name}: {sum(counts.values())} call{'s' if sum(counts.values()) > 1 else ''} in "
        f"{', '.join(f'@{function}' for function in sorted(counts))}; "
        f'add one: type_hints.register_op_cast_rule("{name}", type_hints.follow(1), why="...")'
        for name, counts in sorted(missing.items())
    ]
    return (
        f"AutoCast: {len(missing)} operator{'s have' if len(missing) > 1 else ' has'} no casting rule:\n"
        + "\n".join(rows)
    )
