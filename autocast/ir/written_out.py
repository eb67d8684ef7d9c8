"""Write out the tuples, shapes and numbers that operators take, wherever they were bound to variables."""

from __future__ import annotations

from collections import Counter

import tvm
from tvm import relax, tirx
from tvm.relax.expr_functor import PyExprMutator, mutator

from autocast.ir.rewriting import reads_of, replace_variables
from autocast.ir.views import all_bindings, is_tensor, op_name, relax_functions, with_functions


@mutator
class _Literals(PyExprMutator):
    def __init__(self, mod: tvm.IRModule, function: relax.Function) -> None:
        super().__init__(mod)
        self.matched = _matched_alone(function) if _finds_shapes(function) else frozenset()
        self.bound: relax.Var | None = None

    def visit_var_binding_(self, binding: relax.VarBinding) -> None:
        self.bound = binding.var
        super().visit_var_binding_(binding)
        self.bound = None

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        """The call of literals; a shape that it gives has sizes that are named."""
        call = super().visit_call_(call)
        if op_name(call) is not None and any(map(_is_unwritten, call.args)):
            operands = [self.literal(operand) for operand in call.args]
            call = self.builder_.normalize(relax.Call(call.op, operands, call.attrs, call.ty_args))
        if not _is_vague(call.ty) or self.bound in self.matched:
            return call
        sizes = [tirx.Var(f"size_{i}", "int64") for i in range(call.ty.ndim)]
        return self.builder_.match_cast(self.builder_.emit(call), relax.ShapeType(sizes))

    def literal(self, operand: relax.Expr) -> relax.Expr:
        """An operand of the new function, written out as far as it is known."""
        value = self.value(operand)
        if isinstance(value, relax.Tuple):
            return relax.Tuple([self.literal(field) for field in value.fields])
        if isinstance(value.ty, tvm.ir.TupleType):
            fields = range(len(value.ty.fields))
            return relax.Tuple([self.literal(self.builder_.emit(relax.TupleGetItem(operand, i))) for i in fields])
        if isinstance(value.ty, relax.ShapeType) and value.ty.values is not None:
            return relax.ShapeExpr(value.ty.values)
        return value if isinstance(value.ty, tvm.ir.PrimType) else operand

    def value(self, expr: relax.Expr) -> relax.Expr:
        """What `expr` is bound to, through variables that only rename it and fields of tuples that are written out."""
        while isinstance(expr, relax.Var):
            bound = self.lookup_binding(expr)
            if isinstance(bound, relax.TupleGetItem):
                whole = self.value(bound.tuple_value)
                bound = whole.fields[bound.index] if isinstance(whole, relax.Tuple) else None
            if bound is None or (_reads_inside(bound) and not isinstance(expr, relax.DataflowVar)):
                return expr
            expr = bound
        return expr


def _finds_shapes(function: relax.Function) -> bool:
    return any(_is_vague(binding.var.ty) for binding in all_bindings(function.body))


def _matched_alone(function: relax.Function) -> frozenset[relax.Var]:
    """The shapes that nothing but a `match_cast` reads, which names their sizes."""
    matched = Counter(b.value for b in all_bindings(function.body) if isinstance(b, relax.MatchCast))
    reads = reads_of(function.body)
    return frozenset(value for value, count in matched.items() if reads[value] == count and _is_vague(value.ty))


def _is_vague(ty: tvm.ir.Type) -> bool:
    """Whether it is the type of a shape of which only the number of sizes is known."""
    return isinstance(ty, relax.ShapeType) and ty.values is None and ty.ndim >= 0


def _is_unwritten(operand: relax.Expr) -> bool:
    """Whether `operand` is a variable that stands for more than a tensor, or a tuple that has such variables."""
    if isinstance(operand, relax.Tuple):
        return any(map(_is_unwritten, operand.fields))
    return isinstance(operand, relax.Var) and not is_tensor(operand)


def _reads_inside(value: relax.Expr) -> bool:
    """Whether `value`, a variable or a tuple of them, is known only in a dataflow block."""
    fields = value.fields if isinstance(value, relax.Tuple) else [value]
    return any(isinstance(field, relax.DataflowVar) for field in fields)


def write_out_literals(mod: tvm.IRModule) -> tvm.IRModule:
    """Give operators their tuples, shapes and numbers as literals, so that patterns need not follow variables.

    Before::                                After::

        t = (x, y)                              a = R.concat((x, y), axis=0)
        a = R.concat(t, axis=0)                 p0, p1 = pair[0], pair[1]
        b = R.stack(pair, axis=0)               b = R.stack((p0, p1), axis=0)
        s = R.shape([2, 16])                    c = R.reshape(x, R.shape([2, 16]))
        c = R.reshape(x, s)

    A type that was vague, because an operator's axes were in a variable, becomes exact. Sizes of a shape that only
    running tells get names where no `match_cast` gives them any, so that no type names a variable: TVM's passes lose
    the variables that types name.

        s = R.tensor_to_shape(x)                gv = R.tensor_to_shape(x)
        z = R.zeros(s, "float32")               s = R.match_cast(gv, R.Shape([size_0, size_1]))
                                                z = R.zeros(R.shape([size_0, size_1]), "float32")
    """
    functions = {var: _Literals(mod, function).visit_expr(function) for var, function in relax_functions(mod)}
    return relax.transform.DeadCodeElimination()(with_functions(mod, functions))


def with_named_sizes(function: relax.Function) -> relax.Function:
    """`function`, in which all sizes of shapes whose number is known have names: `function` itself where they have.

    Before::                                    After::

        def main(x, s: R.Shape(ndim=2)):            def main(x, s: R.Shape(ndim=2)):
            y: R.Tensor(s) = R.reshape(x, s)            named = R.match_cast(s, R.Shape([s_0, s_1]))
                                                        y: R.Tensor((s_0, s_1)) = R.reshape(x, R.shape([s_0, s_1]))
    """
    vague = [param for param in function.params if _is_vague(param.ty)]
    if not vague and not _finds_shapes(function):
        return function
    named = [_named(param) for param in vague]
    replaced = dict(zip(vague, (binding.var for binding in named), strict=True))
    body = replace_variables(function.body, replaced) if named else function.body
    body = relax.SeqExpr([relax.BindingBlock(named), *body.blocks], body.body) if named else body
    body = relax.BlockBuilder().normalize(body)
    whole = relax.Function(function.params, body, function.ret_ty, function.is_pure, function.attrs, function.span)
    (written,) = write_out_literals(tvm.IRModule({"main": whole})).functions.values()
    return written


def _named(param: relax.Var) -> relax.MatchCast:
    type = relax.ShapeType([tirx.Var(f"{param.name}_{i}", "int64") for i in range(param.ty.ndim)])
    return relax.MatchCast(relax.Var(param.name, type), param, type)
