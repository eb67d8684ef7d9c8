"""What passes share: a mutator that replaces whole bindings, and what they ask about a function."""

from __future__ import annotations

from collections import Counter

import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, PyExprVisitor, mutator, visitor

from autocast.ir.views import identity, relax_functions


@visitor
class _UseCounter(PyExprVisitor):
    def __init__(self) -> None:
        super().__init__()
        self.read: dict[int, relax.Var] = {}
        self.counts: Counter[int] = Counter()

    def visit_var_(self, op: relax.Var) -> None:
        key = identity(op)
        self.read[key] = op
        self.counts[key] += 1

    visit_dataflow_var_ = visit_var_

    def visit_var_def_(self, var: relax.Var) -> None:
        """A definition is not a use."""

    visit_dataflow_var_def_ = visit_var_def_


def reads_of(expr: relax.Expr) -> Counter:
    """How often each variable is read in `expr`."""
    counter = _UseCounter()
    counter.visit_expr(expr)
    return Counter({var: counter.counts[key] for key, var in counter.read.items()})


@visitor
class _Bindings(PyExprVisitor):
    def __init__(self) -> None:
        super().__init__()
        self.bound: dict[relax.Var, relax.Expr] = {}
        self.users: dict[relax.Var, list[relax.Var]] = {}

    def visit_var_binding_(self, binding: relax.VarBinding) -> None:
        self.bound[binding.var] = binding.value
        for operand in _operands(binding.value):
            self.users.setdefault(operand, []).append(binding.var)
        super().visit_var_binding_(binding)


def _operands(value: relax.Expr) -> list[relax.Var]:
    if isinstance(value, relax.Call):
        return [operand for argument in value.args for operand in _operands(argument)]
    if isinstance(value, relax.Tuple):
        return [operand for item in value.fields for operand in _operands(item)]
    if isinstance(value, relax.TupleGetItem):
        return _operands(value.tuple_value)
    return [value] if isinstance(value, relax.Var) else []


def users_of(function: relax.Function) -> tuple[dict[relax.Var, relax.Expr], dict[relax.Var, list[relax.Var]]]:
    """What each variable of `function` is bound to, in order, and which variables are computed from it directly."""
    bindings = _Bindings()
    bindings.visit_expr(function.body)
    return bindings.bound, bindings.users


def parameters_of(function: relax.Function) -> frozenset[relax.Var]:
    """The arguments of `function` whose values never change between calls: those after its first `num_input`.

    What is computed from them alone, a packed weight say, is computed once. A function without the attribute
    `num_input` has none.
    """
    inputs = (function.attrs or {}).get("num_input")
    return frozenset() if inputs is None else frozenset(function.params[int(inputs) :])


@mutator
class _Replacer(PyExprMutator):
    def __init__(self, replaced: dict[relax.Var, relax.Expr]) -> None:
        super().__init__()
        self.replaced = replaced

    def visit_var_binding_(self, binding: relax.VarBinding) -> None:
        if binding.var not in self.replaced:
            super().visit_var_binding_(binding)


def replace_variables(expr: relax.Expr, replaced: dict[relax.Var, relax.Expr]) -> relax.Expr:
    """`expr` with other expressions in place of variables; the bindings of those, if it has any, go."""
    replacer = _Replacer(replaced)
    for var, other in replaced.items():
        replacer.set_var_remap(var, other)
    return replacer.visit_expr(expr)


class BindingRewriter(PyExprMutator):
    """A mutator that replaces whole bindings.

    Subclasses, decorated with `relax.expr_functor.mutator`, answer `rewrite(binding)` with a new value, or None to
    leave the binding as it is. `rewrite` sees the original binding; `self.new(expr)` gives an operand's rewritten form,
    and `self.emit(value)` binds an intermediate value. `self.parameters` are the function's constant arguments.
    """

    def __init__(self, mod: tvm.IRModule):
        super().__init__(mod)
        self.mod = mod
        self.parameters: frozenset[relax.Var] = frozenset()
        self.uses: Counter = Counter()
        self.values: dict[relax.Var, relax.Expr] = {}
        #: Where what is rewritten comes from (`ir.places`), for the variables that are made of it.
        self.span: tvm.ir.Span | None = None

    def enter(self, function: relax.Function) -> None:
        """Called with each function before it is rewritten."""

    def rewrite(self, binding: relax.VarBinding) -> relax.Expr | None:
        """The new value of `binding`, or None."""
        raise NotImplementedError

    def new(self, expr: relax.Expr) -> relax.Expr:
        """The rewritten form of `expr`, an expression of the original function."""
        return self.visit_expr(expr)

    def emit(self, value: relax.Expr, name: str = "") -> relax.Var:
        """Bind `value` to a new variable of the current block, at the place of the binding that is rewritten."""
        local = self.builder_.current_block_is_dataflow()
        return self._bound(value, relax.DataflowVar if local else relax.Var, name or ("lv" if local else "gv"))

    def visit_var_binding_(self, binding: relax.VarBinding) -> None:
        self.span = binding.var.span
        value = self.rewrite(binding)
        self.values[binding.var] = binding.value
        if value is None:
            super().visit_var_binding_(binding)
            return
        inside = isinstance(binding.var, relax.DataflowVar)
        if not (inside and isinstance(value, relax.Var)):
            value = self._bound(value, relax.DataflowVar if inside else relax.Var, binding.var.name)
        self.set_var_remap(binding.var, value)

    def _bound(self, value: relax.Expr, kind: type[relax.Var], name: str) -> relax.Var:
        value = self.builder_.normalize(value)
        var = kind(self.builder_.get_unique_name(name), value.ty, self.span)
        self.builder_.emit_normalized(relax.VarBinding(var, value))
        return var


def rewrite_functions(mod: tvm.IRModule, rewriter: type[BindingRewriter], *args: object) -> tvm.IRModule:
    """Rewrite every Relax function of `mod` with one `rewriter`, then remove what is no longer used."""
    mutated = rewriter(mod, *args)
    for var, function in relax_functions(mod):
        mutated.uses = reads_of(function.body)
        mutated.values = {}
        mutated.parameters = parameters_of(function)
        mutated.enter(function)
        mutated.builder_.update_func(var, mutated.visit_expr(function))
    return relax.transform.DeadCodeElimination()(mutated.builder_.get())
