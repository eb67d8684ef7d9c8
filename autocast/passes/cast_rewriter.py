"""Write the solution into the module: each binding with the dtypes its node was given, and a cast where two sides
disagree.

A cast stands just before its first use, once for each tensor and dtype. What needs no change is taken over as it is,
variable and all.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import tvm
import tvm_ffi
from tvm import relax

from autocast.ir import Place, PlacedBuilder, identity, is_constant, place_of
from autocast.passes.cast_leaves import Leaf, Tree, fold, leaves
from autocast.passes.cast_plan import END, CallPlan, CastPlan, IfPlan, MatchPlan, ModulePlan
from autocast.passes.cast_results import with_out_dtype
from autocast.passes.cast_solver import LOW, CastTensor


@dataclass(frozen=True, slots=True)
class InsertedCast:
    """One cast of the rewritten module, between float32 and the AMP dtype; `elements` is the tensor's size."""

    function: str
    tensor: str
    source: str
    target: str
    elements: int


class CastRewriter:
    """Applies an assignment (`low[node]`) to the module that a plan was read from."""

    def __init__(self, plan: ModulePlan, low: list[bool]) -> None:
        self.plan, self.low = plan, low
        self.builder = PlacedBuilder()
        self.casts: list[InsertedCast] = []
        self.function = ""
        self.variables: dict[int, relax.Expr] = {}
        self.natural: dict[CastTensor, relax.Expr] = {}
        self.converted: dict[tuple[CastTensor, str], relax.Expr] = {}
        self.fields: dict[CastTensor, tuple[relax.Expr, int]] = {}
        self.scope = self.block = -1
        self.in_last_block = False

    def rewrite(self, mod: tvm.IRModule) -> tvm.IRModule:
        """The module with its casts."""
        functions = dict(mod.functions.items())
        for global_var, function in self.plan.functions:
            self.function = global_var.name_hint
            new = self._function(function)
            if not tvm_ffi.structural_equal(new.ret_ty, function.ret_ty):
                # Another result, which nobody here calls for: the name has the type of its function.
                del functions[global_var]
                global_var = tvm.ir.GlobalVar(global_var.name_hint)
                relax.expr._update_type(global_var, new.ty)
            functions[global_var] = new
        return tvm.IRModule(functions, attrs=mod.attrs, global_infos=mod.global_infos)

    def _function(self, function: relax.Function) -> relax.Function:
        self.natural.clear()
        self.converted.clear()
        self.fields.clear()
        for param in function.params:
            self._name(param, param)
        self.builder.begin_scope(list(function.params))
        body = self._sequence(function.body)
        self.builder.end_scope()
        same_type = all(leaf.dtype == self._dtype(node) for leaf, node in self.plan.results[identity(function.body)])
        ret_ty = function.ret_ty if same_type else None
        return relax.Function(function.params, body, ret_ty, function.is_pure, function.attrs)

    def _sequence(self, sequence: relax.SeqExpr) -> relax.SeqExpr:
        blocks = []
        results = self.plan.results[identity(sequence)]
        scope = self.plan.scopes[identity(sequence)]
        count = len(sequence.blocks)
        body = None
        for number, block in enumerate(sequence.blocks[:]):
            if isinstance(block, relax.DataflowBlock):
                self.builder._begin_dataflow_block()
            else:
                self.builder._begin_binding_block()
            for binding in block.bindings[:]:
                self.scope, self.block, self.in_last_block = scope, number, number == count - 1
                self._binding(binding)
            if number == count - 1:
                body = self._use(sequence.body, iter(results), output=True)
            blocks.append(self.builder._end_block())
            if count > 1:
                self._leave_block()
        if body is None:
            self.builder._begin_binding_block()
            body = self._use(sequence.body, iter(results), output=True)
            block = self.builder._end_block()
            blocks = [block] if len(block.bindings) else []
        return self.builder.normalize(relax.SeqExpr(blocks, body))

    def _leave_block(self) -> None:
        """Forget what only the block that ends could see."""
        self.natural = {key: value for key, value in self.natural.items() if not _is_local(value)}
        self.converted = {key: value for key, value in self.converted.items() if not _is_local(value)}
        self.fields = {key: value for key, value in self.fields.items() if not _is_local(value[0])}

    # -- bindings --------------------------------------------------------------------------------

    def _binding(self, binding: relax.Binding) -> None:
        var, value = binding.var, binding.value
        plan = self.plan.bindings.get(identity(var))
        if isinstance(plan, CallPlan):
            self._call(binding, value, plan)
        elif isinstance(plan, CastPlan):
            self._existing_cast(var, value, plan)
        elif isinstance(plan, MatchPlan):
            self._match_cast(binding, plan)
        elif isinstance(plan, IfPlan):
            self._if(var, value, plan)
        else:
            self._alias(binding)

    def _call(self, binding: relax.Binding, call: relax.Call, plan: CallPlan) -> None:
        args = [self._argument(arg, demands) for arg, demands in zip(plan.args, plan.demands, strict=True)]
        attrs = self._out_dtype(call, plan) if plan.free_result else None
        if attrs is None and all(map(_same, args, plan.args)):
            self.builder.emit_normalized(binding)
            self._name(binding.var, binding.var)
        else:
            new = relax.Call(call.op, args, attrs or call.attrs, call.ty_args)
            tree = self.plan.trees[identity(binding.var)]
            if type(tree) is Leaf and self._dtype(tree.node) == tree.dtype:
                # Its type is what it was, so its variable stays, and with it every binding that only reads such ones.
                self.builder.emit_normalized(relax.VarBinding(binding.var, self.builder.normalize(new)))
                self._name(binding.var, binding.var)
            else:
                self._name(binding.var, self._emit(new, binding.var))
        if plan.stored is not None:
            # The rule asks for another precision than the operator stores: the cast that follows it is the result.
            stored = self.variables[identity(binding.var)]
            cast = self._cast(plan.stored, stored, self._dtype(plan.result_node), False)
            self._name(binding.var, cast)

    def _out_dtype(self, call: relax.Call, plan: CallPlan) -> tvm.ir.Attrs | None:
        """New attributes where the result must be stored in another dtype than the call's attributes say."""
        wanted = self._dtype(plan.result_node)
        operand = self._dtype(plan.demands[0][0][1])
        current = str(call.attrs.out_dtype or "")
        if wanted == (current or operand):
            return None
        return with_out_dtype(call, None if wanted == operand else wanted)

    def _existing_cast(self, var: relax.Var, call: relax.Call, plan: CastPlan) -> None:
        source, target = plan.source, plan.target
        value = self._renamed(call.args[0])
        is_output = not isinstance(var, relax.DataflowVar)
        if target.literal is not None:
            self.variables[identity(var)] = target.literal
        elif target.tensor is source.tensor:
            self._keep_widening(value, plan)
            self._rename(var, value, target)
        elif self.low[source.node] and target.tensor is not None and set(target.tensor.consumers) != {LOW}:
            # Nobody, or not everybody, rounds it again: without this cast, nothing would ask for the author's rounding.
            known = self.natural.get(target.tensor)
            self._name(var, known if known is not None else self._emit(relax.op.astype(value, self.plan.amp), var))
        else:
            self._rename(var, self._form(source, value, self.plan.amp, is_output), target)

    def _keep_widening(self, value: relax.Expr, plan: CastPlan) -> None:
        """Leave a widening cast where it is, if somebody needs it in this block."""
        wanted = {block for node, block in plan.target.uses if not self.low[node]}
        if plan.block is not None and (plan.block in wanted or (END in wanted and self.in_last_block)):
            self._form(plan.target, value, "float32", END in wanted)

    def _match_cast(self, binding: relax.MatchCast, plan: MatchPlan) -> None:
        value = self._use(binding.value, iter(plan.demands))
        natural = self._natural_type(binding.ty, self.plan.trees[identity(binding.var)])
        self._name(binding.var, self.builder.match_cast(value, natural, binding.var.name))

    def _if(self, var: relax.Var, value: relax.If, plan: IfPlan) -> None:
        for leaf, node in plan.hoisted:
            dtype = self._dtype(node)
            known = leaf.literal is not None or dtype == self._natural_dtype(leaf) or leaf.tensor is None
            if not known and (leaf.tensor, dtype) not in self.converted:
                self._form(leaf, self._value(leaf), dtype, False)
        outside = self.natural.copy(), self.converted.copy(), self.fields.copy()
        branches = []
        for branch in (value.true_branch, value.false_branch):
            branches.append(self._sequence(branch))
            self.natural, self.converted, self.fields = outside[0].copy(), outside[1].copy(), outside[2].copy()
        self._name(var, self._emit(relax.If(self._renamed(value.cond), *branches), var))

    def _alias(self, binding: relax.Binding) -> None:
        """Bindings that rename, group or project keep the dtypes of their value."""
        var, value = binding.var, binding.value
        new = self._renamed(value)
        if is_constant(value) and self._is_only_folded(self.plan.trees[identity(var)]):
            self.variables[identity(var)] = value
        elif is_constant(value) or _same(new, value):
            self.builder.emit_normalized(binding)
            self._name(var, var)
        elif isinstance(value, relax.Var):
            self._rename(var, new, self.plan.trees[identity(var)])
        else:
            self._name(var, self._emit(new, var))

    def _is_only_folded(self, literal: Tree) -> bool:
        """Whether all who use a literal want it in its other dtype: they take it folded, and its name is not needed."""
        if not isinstance(literal, Leaf) or not literal.uses:
            return False
        return all(self._dtype(node) != literal.dtype for node, _ in literal.uses)

    def _rename(self, var: relax.Var, value: relax.Expr, tree: Tree) -> None:
        """Let `value` stand for `var`; after a dataflow block it, or its cast, needs a name that is seen there."""
        if _is_local(value) and not isinstance(var, relax.DataflowVar):
            if isinstance(tree, Leaf) and self._is_only_converted_later(tree):
                other = "float32" if self.low[tree.node] else self.plan.amp
                self._form(tree, value, other, True)
            else:
                value = self.builder.emit_output(value, var.name)
        self._name(var, value)

    def _is_only_converted_later(self, leaf: Leaf) -> bool:
        """Whether all who use a tensor after this block, and there are some, want it in its other dtype."""
        if leaf.tensor is None or leaf.scope != self.scope:
            return False
        later = {self.low[node] for node, block in leaf.uses if block != self.block}
        return later == {not self.low[leaf.node]}

    # -- expressions --------------------------------------------------------------------------------

    def _dtype(self, node: int) -> str:
        return self.plan.amp if self.low[node] else "float32"

    def _natural_dtype(self, leaf: Leaf) -> str:
        return leaf.dtype if leaf.tensor is None else self._dtype(leaf.node)

    def _natural_type(self, type, tree: Tree):
        if isinstance(tree, Leaf):
            dtype = self._natural_dtype(tree)
            return type if dtype == tree.dtype else relax.TensorType(type.shape, dtype)
        if isinstance(tree, list):
            fields = [self._natural_type(field, branch) for field, branch in zip(type.fields, tree, strict=True)]
            return tvm.ir.TupleType(fields)
        return type

    def _emit(self, value: relax.Expr, old: relax.Var) -> relax.Var:
        self.builder.place = place_of(old)
        if not isinstance(old, relax.DataflowVar) and self.builder.current_block_is_dataflow():
            return self.builder.emit_output(value, old.name)
        return self.builder.emit(value, old.name)

    def _name(self, old: relax.Var, new: relax.Expr) -> None:
        """Record what stands for `old` now."""
        key = identity(old)
        self.variables[key] = new
        tree = self.plan.trees.get(key)
        if type(tree) is Leaf:
            if tree.tensor is not None and (tree.tensor not in self.natural or _is_local(self.natural[tree.tensor])):
                self.natural[tree.tensor] = new
        elif isinstance(tree, list):
            self._name_fields(tree, new)

    def _name_fields(self, tree: list, new: relax.Expr) -> None:
        """Record where the tensors of a tuple are to be found."""
        for at, branch in enumerate(tree):
            if isinstance(branch, list):
                self._name_fields(branch, relax.TupleGetItem(new, at))
            elif branch is not None and branch.tensor is not None:
                self.fields[branch.tensor] = new, at

    def _value(self, leaf: Leaf) -> relax.Expr:
        """A variable that holds a leaf; projected out of a tuple where it has no name yet."""
        assert leaf.tensor is not None
        if leaf.tensor not in self.natural:
            value, at = self.fields[leaf.tensor]
            self.natural[leaf.tensor] = self.builder.emit(relax.TupleGetItem(value, at))
        return self.natural[leaf.tensor]

    def _renamed(self, expr: relax.Expr) -> relax.Expr:
        """`expr` with the variables of the rewritten module, in the dtypes that they have there."""
        key = identity(expr)
        if key in self.variables:
            return self.variables[key]
        if isinstance(expr, relax.Tuple):
            old = expr.fields[:]
            fields = [self._renamed(field) for field in old]
            return expr if all(map(_same, fields, old)) else relax.Tuple(fields)
        if isinstance(expr, relax.TupleGetItem):
            new = self._renamed(expr.tuple_value)
            return expr if _same(new, expr.tuple_value) else relax.TupleGetItem(new, expr.index)
        return expr

    def _argument(self, arg: relax.Expr, demands: list[tuple[Leaf, int]]) -> relax.Expr:
        """An argument of a call, as `_use` has it; a plain tensor takes the short way."""
        key = identity(arg)
        if len(demands) != 1 or self.plan.trees.get(key) is not demands[0][0] or demands[0][0].literal is not None:
            return self._use(arg, iter(demands))
        leaf, node = demands[0]
        value = self.variables.get(key, arg)
        if self.low[node] == self.low[leaf.node]:
            return value
        return self._form(leaf, value, self._dtype(node), False)

    def _use(self, expr: relax.Expr, demands: Iterator[tuple[Leaf, int]], output: bool = False) -> relax.Expr:
        """`expr` as an argument whose leaves must have the demanded dtypes."""
        dtypes = (self._dtype(node) for _, node in demands)
        return self._convert(self._renamed(expr), self._tree_of(expr), dtypes, output)

    def _tree_of(self, expr: relax.Expr) -> Tree:
        if isinstance(expr, relax.Var):
            return self.plan.trees.get(identity(expr))
        if isinstance(expr, relax.Tuple):
            return [self._tree_of(field) for field in expr.fields]
        return self.plan.constants.get(identity(expr)) if is_constant(expr) else None

    def _convert(self, value: relax.Expr, tree: Tree, dtypes: Iterator[str], output: bool) -> relax.Expr:
        if isinstance(tree, Leaf):
            return self._exposed(self._form(tree, value, next(dtypes), output), output)
        if not isinstance(tree, list):
            return value
        wanted = [[next(dtypes) for _ in leaves(branch)] for branch in tree]
        literal = isinstance(value, relax.Tuple)
        if not literal and self._is_natural(tree, wanted):
            return self._exposed(value, output)
        fields = []
        for at, (branch, branch_dtypes) in enumerate(zip(tree, wanted, strict=True)):
            field = value.fields[at] if literal else self._field(value, at, branch)
            fields.append(self._convert(field, branch, iter(branch_dtypes), output))
        return value if literal and all(map(_same, fields, value.fields[:])) else relax.Tuple(fields)

    def _exposed(self, value: relax.Expr, output: bool) -> relax.Expr:
        """`value` under a name that is seen outside its block, where it is an output."""
        return self.builder.emit_output(value) if output and _is_local(value) else value

    def _is_natural(self, tree: list, wanted: Iterable[list[str]]) -> bool:
        return all(
            [self._natural_dtype(leaf) for leaf in leaves(branch)] == dtypes
            for branch, dtypes in zip(tree, wanted, strict=True)
        )

    def _field(self, value: relax.Expr, at: int, branch: Tree) -> relax.Expr:
        if isinstance(branch, Leaf) and branch.tensor in self.natural:
            return self.natural[branch.tensor]
        return self.builder.emit(relax.TupleGetItem(value, at))

    def _form(self, leaf: Leaf, value: relax.Expr, dtype: str, output: bool) -> relax.Expr:
        """`value`, which holds `leaf`, in `dtype`: itself, a cast made before, a folded constant, or a new cast."""
        if leaf.literal is not None and dtype != leaf.dtype:
            return fold(leaf.literal, dtype)
        if leaf.literal is not None or dtype == self._natural_dtype(leaf):
            return value
        assert leaf.tensor is not None
        known = self.converted.get((leaf.tensor, dtype))
        return known if known is not None else self._cast(leaf, value, dtype, output)

    def _cast(self, leaf: Leaf, value: relax.Expr, dtype: str, output: bool) -> relax.Expr:
        blocks = {block for node, block in leaf.uses if self._dtype(node) == dtype}
        new = relax.op.astype(value, dtype)
        self.builder.place = Place()
        is_output = (output or len(blocks) > 1) and self.builder.current_block_is_dataflow()
        cast = self.builder.emit_output(new) if is_output else self.builder.emit(new)
        assert leaf.tensor is not None
        self.converted[leaf.tensor, dtype] = cast
        source = "float32" if dtype == self.plan.amp else self.plan.amp
        self.casts.append(InsertedCast(self.function, leaf.name, source, dtype, leaf.elements))
        return cast


def _is_local(value: relax.Expr) -> bool:
    return isinstance(value, relax.DataflowVar)


def _same(new: relax.Expr, old: relax.Expr) -> bool:
    return identity(new) == identity(old)
