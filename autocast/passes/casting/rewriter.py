"""Write the solution into the module: each binding with the dtypes its node was given, and a cast where two sides
disagree.

What needs no change is taken over as it is, variable and all.
"""

from __future__ import annotations

import tvm
import tvm_ffi
from tvm import relax

from autocast.ir import Bound, Reading, identity, is_constant, with_captured
from autocast.ir.nodes import binding_of, typed_call, variable
from autocast.passes.casting.forms import Forms, is_local, same
from autocast.passes.casting.leaves import Leaf, Tree
from autocast.passes.casting.plan import END, CallPlan, CastPlan, ClosurePlan, IfPlan, MatchPlan, ModulePlan, NoPlan
from autocast.passes.casting.results import with_out_dtype
from autocast.passes.casting.solver import LOW


class CastRewriter:
    """Applies an assignment (`low[node]`) to the module that a plan was read from."""

    def __init__(self, plan: ModulePlan, low: list[bool]) -> None:
        self.plan, self.low = plan, low
        self.builder = relax.BlockBuilder()
        self.forms = Forms(plan, low, self.builder)
        self.scope = self.block = -1
        self.in_last_block = False

    def rewrite(self, reading: Reading) -> tvm.IRModule:
        """The module with its casts."""
        self.reading, mod = reading, reading.mod
        functions = dict(mod.functions.items())
        for global_var, function in self.plan.functions:
            new = self._function(global_var.name_hint, function)
            if not tvm_ffi.structural_equal(new.ret_ty, function.ret_ty):
                # Another result, which nobody here calls for: the name has the type of its function.
                del functions[global_var]
                global_var = tvm.ir.GlobalVar(global_var.name_hint)
                relax.expr._update_type(global_var, new.ty)
            functions[global_var] = new
        return tvm.IRModule(functions, attrs=mod.attrs, global_infos=mod.global_infos)

    def _function(self, name: str, function: relax.Function) -> relax.Function:
        params = self.reading.params(function)
        self.forms.enter_function(name, params)
        self.builder.begin_scope(params)
        body = self._sequence(function.body)
        self.builder.end_scope()
        results = self.plan.results[identity(function.body)]
        same_type = all(leaf.dtype == self.forms.dtype(node) for leaf, node in results)
        ret_ty = function.ret_ty if same_type else None
        return relax.Function(function.params, body, ret_ty, function.is_pure, function.attrs)

    def _sequence(self, sequence: relax.SeqExpr) -> relax.SeqExpr:
        blocks = []
        results = self.plan.results[identity(sequence)]
        scope = self.plan.scopes[identity(sequence)]
        old = self.reading.blocks(sequence)
        count = len(old)
        body = None
        for number, (block, bindings) in enumerate(old):
            if isinstance(block, relax.DataflowBlock):
                self.builder._begin_dataflow_block()
            else:
                self.builder._begin_binding_block()
            for bound in bindings:
                self.scope, self.block, self.in_last_block = scope, number, number == count - 1
                self._binding(bound)
            if number == count - 1:
                body = self.forms.use(sequence.body, results, output=True)
            blocks.append(self.builder._end_block())
            if count > 1:
                self.forms.leave_block()
        if body is None:
            self.builder._begin_binding_block()
            body = self.forms.use(sequence.body, results, output=True)
            block = self.builder._end_block()
            blocks = [block] if len(block.bindings) else []
        return self.builder.normalize(relax.SeqExpr(blocks, body))

    # -- bindings --------------------------------------------------------------------------------

    def _binding(self, bound: Bound) -> None:
        binding, var, key, value, *_ = bound
        plan = self.plan.bindings.get(key)
        if isinstance(plan, CallPlan):
            self._call(bound, plan)
        elif isinstance(plan, CastPlan):
            self._existing_cast(var, value, plan)
        elif isinstance(plan, NoPlan):
            self._rename(var, self.forms.renamed(value.args[0]), None)
        elif isinstance(plan, MatchPlan):
            self._match_cast(binding, plan)
        elif isinstance(plan, IfPlan):
            self._if(var, value, plan)
        elif isinstance(plan, ClosurePlan):
            self._closure(binding, value, plan)
        else:
            self._alias(binding)

    def _call(self, bound: Bound, plan: CallPlan) -> None:
        binding, var, key, call, op_key, operands, keys = bound
        forms = self.forms
        args = list(map(forms.argument, operands, keys, plan.demands))
        attrs = self._out_dtype(call, plan) if plan.free_result else None
        op = forms.variables.get(op_key)  # what is called may be a variable
        if attrs is None and (op is None or identity(op) == op_key) and list(map(identity, args)) == keys:
            self.builder.emit_normalized(binding)
            new = var
        else:
            new = self._emit(bound, plan, call.op if op is None else op, args, attrs or call.attrs)
        if plan.stored is not None:
            # The rule asks for another precision than the operator stores: the cast that follows it is the result.
            new = forms.form(plan.stored, new, forms.dtype(plan.result_node), not is_local(var))
        forms.name(var, new, key)

    def _emit(
        self, bound: Bound, plan: CallPlan, op: relax.Expr, args: list[relax.Expr], attrs: tvm.ir.Attrs | None
    ) -> relax.Var:
        """Bind a call of other arguments. Where its type is what it was its variable stays, and with it every binding
        that only reads such ones.
        """
        var, call, tree = bound.var, bound.value, self.plan.trees[bound.key]
        leaf = tree if plan.stored is None else plan.stored
        if not isinstance(leaf, Leaf):
            new_call = self.builder.normalize(typed_call(None, op, args, attrs, call.ty_args))
            if tree is not None or not isinstance(var.ty, relax.ShapeType):
                return self.forms.emit(new_call, var)
        else:
            # TVM was asked which dtype such a call has, and nothing else of its type is another.
            dtype = self.forms.dtype(leaf.node)
            new_call = typed_call(plan.alike.computed.type_in(dtype), op, args, attrs, call.ty_args)
            if plan.stored is not None or dtype != leaf.dtype:
                var = variable(type(var), var.name, leaf.type_in(dtype), var.span)
        self.builder.emit_normalized(binding_of(var, new_call))
        return var

    def _out_dtype(self, call: relax.Call, plan: CallPlan) -> tvm.ir.Attrs | None:
        """New attributes where the result must be stored in another dtype than the call's attributes say."""
        wanted = self.forms.dtype(plan.result_node)
        operand = self.forms.dtype(plan.demands[0][0][1])
        current = str(call.attrs.out_dtype or "")
        if wanted == (current or operand):
            return None
        return with_out_dtype(call, None if wanted == operand else wanted)

    def _existing_cast(self, var: relax.Var, cast: relax.Expr, plan: CastPlan) -> None:
        source, target = plan.source, plan.target
        value = self.forms.renamed(cast.args[0] if isinstance(cast, relax.Call) else cast)
        if target.literal is not None:
            self.forms.variables[identity(var)] = target.literal
        elif target.tensor is source.tensor:
            self._keep_widening(value, plan)
            self._rename(var, value, target)
        elif self.low[source.node] and target.tensor is not None and set(target.tensor.consumers) != {LOW}:
            # It is stored low, and not everybody rounds it again: a name keeps the author's rounding, should AutoCast
            # be asked again.
            known = self.forms.natural.get(target.tensor)
            self.forms.name(var, self.forms.emit_rounded(value, var, self.plan.amp) if known is None else known)
        else:
            self._rename(var, self.forms.form(source, value, self.plan.amp, output=not is_local(var)), target)

    def _keep_widening(self, value: relax.Expr, plan: CastPlan) -> None:
        """Leave a widening cast where it is, if somebody needs it in this block."""
        wanted = {block for node, block in plan.target.uses if not self.low[node]}
        if plan.block is not None and (plan.block in wanted or (END in wanted and self.in_last_block)):
            self.forms.form(plan.target, value, "float32", END in wanted)

    def _match_cast(self, binding: relax.MatchCast, plan: MatchPlan) -> None:
        value = self.forms.use(binding.value, plan.demands)
        var, natural = binding.var, self.forms.natural_type(binding.ty, self.plan.trees[identity(binding.var)])
        if not tvm_ffi.structural_equal(natural, var.ty):
            var = type(var)(var.name, natural)
        self.builder.emit_normalized(relax.MatchCast(var, value, natural))
        self.forms.name(binding.var, var)

    def _if(self, var: relax.Var, value: relax.If, plan: IfPlan) -> None:
        for leaf, node in plan.hoisted:
            self.forms.cast_outside(leaf, node)
        outside, branches = self.forms.visible(), []
        for branch in (value.true_branch, value.false_branch):
            branches.append(self._sequence(branch))
            self.forms.forget_since(outside)
        self.forms.name(var, self.forms.emit(relax.If(self.forms.renamed(value.cond), *branches), var))

    def _closure(self, binding: relax.VarBinding, function: relax.Function, plan: ClosurePlan) -> None:
        """A nested function that captures what stands now for what it captured, in the dtypes of before."""
        captured = {}
        for old, demands in plan.captured:
            new = self.forms.use(old, demands)
            if not same(new, old):
                captured[old] = new if isinstance(new, relax.Var) else self.forms.bind(new)
        if captured:
            binding = relax.VarBinding(binding.var, with_captured(function, captured))
        self.builder.emit_normalized(binding)
        self.forms.name(binding.var, binding.var)

    def _alias(self, binding: relax.Binding) -> None:
        """Bindings that rename, group or project keep the dtypes of their value."""
        var, value = binding.var, binding.value
        new = self.forms.renamed(value)
        if is_constant(value) and self._is_only_folded(self.plan.trees[identity(var)]):
            self.forms.variables[identity(var)] = value
        elif is_constant(value) or same(new, value):
            self.builder.emit_normalized(binding)
            self.forms.name(var, var)
        elif isinstance(value, relax.Var):
            self._rename(var, new, self.plan.trees[identity(var)])
        else:
            self.forms.name(var, self.forms.emit(new, var))

    def _is_only_folded(self, literal: Tree) -> bool:
        """Whether all who use a literal want it in its other dtype: they take it folded, and its name is not needed."""
        if not isinstance(literal, Leaf) or not literal.uses:
            return False
        return all(self.forms.dtype(node) != literal.dtype for node, _ in literal.uses)

    def _rename(self, var: relax.Var, value: relax.Expr, tree: Tree) -> None:
        """Let `value` stand for `var`; after a dataflow block it, or its cast, needs a name that is seen there."""
        if is_local(value) and not is_local(var):
            if isinstance(tree, Leaf) and self._is_only_converted_later(tree):
                other = "float32" if self.low[tree.node] else self.plan.amp
                self.forms.form(tree, value, other, True)
            else:
                value = self.forms.expose(value, var.name)
        self.forms.name(var, value)

    def _is_only_converted_later(self, leaf: Leaf) -> bool:
        """Whether all who use a tensor after this block, and there are some, want it in its other dtype."""
        if leaf.tensor is None or leaf.scope != self.scope:
            return False
        later = {self.low[node] for node, block in leaf.uses if block != self.block}
        return later == {not self.low[leaf.node]}
