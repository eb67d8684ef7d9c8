"""Calls of functions that are values, as calls of global functions by their names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from autocast.errors import UnsupportedError
from autocast.ir.copies import with_new_variables
from autocast.ir.groups import GROUPED, is_inlined_group, is_tir_group, without_attrs
from autocast.ir.lifting import CLOSURE, Functions
from autocast.ir.private import fits, private_functions
from autocast.ir.views import all_bindings, is_op

_INVOKE = ("relax.invoke_closure", "relax.invoke_pure_closure")


@dataclass(frozen=True)
class _Callable:
    """A function that is a value: a global one, and what is passed to it after the arguments of a call."""

    var: tvm.ir.GlobalVar
    captured: tuple[Any, ...] = ()


#: A function, or a tuple in which there is one, among expressions.
_Known: TypeAlias = "_Callable | list[Any]"


class FlatFunctions:
    """The functions of a module, none of them nested, as they are before calls are resolved."""

    def __init__(self, functions: Functions, inline_private: bool) -> None:
        self.functions = {name: function for name, (_, function) in functions.items()}
        self.private = private_functions(self.functions) if inline_private else frozenset()

    def rewritten(self, var: tvm.ir.GlobalVar, function: relax.Function) -> relax.Function:
        """A function that calls others by their names. What was a group is private, and nobody is left to call it."""
        if is_tir_group(function):
            return function
        if is_inlined_group(function):
            function = without_attrs(function, (*GROUPED, "global_symbol"))
        return _Resolver(self, var.name_hint).visit_expr(function)

    def is_inlined(self, function: relax.Function) -> bool:
        """Whether calls of a function are replaced by its body, whatever their arguments are."""
        return is_inlined_group(function) or returns_nothing(function) or self._returns_function(function, [])

    def _returns_function(self, function: relax.Function, callers: list[relax.Function]) -> bool:
        if _has_function(function.ret_ty):
            return True
        bound = {binding.var: binding.value for binding in all_bindings(function.body)}
        value: Any = function.body.body
        while isinstance(value, relax.Var) and value in bound:
            value = bound[value]
        if isinstance(value, relax.Call) and isinstance(value.op, tvm.ir.GlobalVar):
            callee = self.functions.get(value.op.name_hint)
            is_new = callee is not None and not any(callee.same_as(caller) for caller in callers)
            return is_new and self._returns_function(callee, [*callers, function])
        return is_op(value, "relax.make_closure")


def _has_function(type: Any) -> bool:
    if isinstance(type, tvm.ir.TupleType):
        return any(_has_function(field) for field in type.fields)
    return isinstance(type, relax.FuncType)


@mutator
class _Resolver(PyExprMutator):
    """Rewrites one function; `known` has the variables of the old one that hold functions."""

    def __init__(self, program: FlatFunctions, name: str) -> None:
        super().__init__()
        self.program = program
        self.known: dict[relax.Var, _Known] = {}
        self.inlining = [name]

    def visit_var_binding_(self, binding: relax.VarBinding) -> None:
        """Note what holds a function; call functions by their names."""
        var, value = binding.var, binding.value
        target = self._target(value)
        result = self._known(value) if target is None else self._called(*target)
        if result is None:
            super().visit_var_binding_(binding)
        elif isinstance(result, _Callable | list):
            self.known[var] = result
        elif isinstance(result, relax.Var):
            self.set_var_remap(var, result)
        else:
            self.set_var_remap(var, self.builder_.emit(result, var.name))

    def visit_var_(self, var: relax.Var) -> relax.Expr:
        """The new variable; for one that holds a function, an object that can be called at run time."""
        return self._object(self.known[var]) if var in self.known else super().visit_var_(var)

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        """A call, perhaps of what only the virtual machine will know."""
        op = self.visit_expr(call.op) if isinstance(call.op, relax.Var) else call.op
        if op.same_as(call.op) or isinstance(op.ty, relax.FuncType):
            return super().visit_call_(call)
        is_pure = isinstance(call.op.ty, relax.FuncType) and call.op.ty.purity
        invoke = relax.op.invoke_pure_closure if is_pure else relax.op.invoke_closure
        return invoke(op, relax.Tuple([self.visit_expr(arg) for arg in call.args]), call.ty)

    def _object(self, known: Any) -> relax.Expr:
        if isinstance(known, list):
            return relax.Tuple([self._object(value) for value in known])
        if not isinstance(known, _Callable):
            return known
        captured = relax.Tuple([self._object(value) for value in known.captured])
        return self.builder_.emit(relax.op.make_closure(known.var, captured))

    def _known(self, expr: Any) -> _Known | None:
        """The function that `expr` is, or the tuple that holds some; None for everything else."""
        if isinstance(expr, relax.Var):
            return self.known.get(expr)
        if isinstance(expr, tvm.ir.GlobalVar) and expr.name_hint in self.program.functions:
            return _Callable(expr)
        if is_op(expr, "relax.make_closure") and isinstance(expr.args[1], relax.Tuple):
            return _Callable(expr.args[0], self._values(expr.args[1].fields))
        if is_op(expr, "relax.call_pure_packed") and str(expr.args[0].global_symbol) == CLOSURE:
            return _Callable(expr.args[1], self._values(expr.args[2:]))
        if isinstance(expr, relax.Tuple) and any(self._known(value) is not None for value in expr.fields):
            return list(self._values(expr.fields))
        if isinstance(expr, relax.TupleGetItem):
            known = self._known(expr.tuple_value)
            item = known[expr.index] if isinstance(known, list) else None
            return item if isinstance(item, _Callable | list) else None
        return None

    def _values(self, exprs: Sequence[relax.Expr]) -> tuple[Any, ...]:
        known = ((self._known(expr), expr) for expr in exprs)
        return tuple(self.visit_expr(expr) if value is None else value for value, expr in known)

    def _target(self, value: Any) -> tuple[_Callable, Sequence[relax.Expr]] | None:
        """The global function that a call calls, and its arguments as the old function has them."""
        if not isinstance(value, relax.Call):
            return None
        callee, args = value.op, value.args
        if is_op(value, *_INVOKE):
            callee, args = value.args[0], value.args[1]
            if not isinstance(args, relax.Tuple):
                return None
            args = args.fields
        known = self._known(callee) if isinstance(callee, relax.Var | tvm.ir.GlobalVar) else None
        return (known, args) if isinstance(known, _Callable) else None

    def _called(self, callee: _Callable, args: Sequence[relax.Expr]) -> Any:
        """The value of a call: an expression, or the function that it returns."""
        values = (*self._values(args), *callee.captured)
        name = callee.var.name_hint
        function = self.program.functions[name]
        takes_function = any(isinstance(value, _Callable | list) for value in values)
        if not takes_function and not self.program.is_inlined(function):
            may_inline = name in self.program.private and name not in self.inlining
            if not may_inline or not fits(function, values):
                return relax.Call(callee.var, list(values))
        if name in self.inlining:
            raise UnsupportedError(
                f"@{name} calls itself, and takes or returns a function, returns nothing or is a group "
                f"({', '.join(GROUPED)}); "
                "expected functions that are known when the module is compiled. Pass tensors instead, or write the "
                "recursion without the function"
            )
        function = with_new_variables(function)
        bound = {}
        for param, value in zip(function.params, values, strict=True):
            if isinstance(value, _Callable | list):
                self.known[param] = value
            else:
                bound[param] = value
        body = _with_arguments(function, bound).body if bound else function.body
        self.inlining.append(name)
        for block in body.blocks:
            for binding in block.bindings:
                self.visit_binding(binding)
        self.inlining.pop()
        known = self._known(body.body)
        return self.visit_expr(body.body) if known is None else known


def _with_arguments(function: relax.Function, bound: Mapping[relax.Var, relax.Expr]) -> relax.Function:
    """`function` of the arguments `bound`. TVM forgets, of what branches give, sizes that no parameter has: one has."""
    sizes = {size for value in bound.values() for size in relax.analysis.tir_vars_in_type(value.ty)}
    params = [*function.params, relax.Var("sizes", relax.ShapeType([*sizes]))]
    whole = relax.Function(params, function.body, function.ret_ty, function.is_pure, function.attrs, function.span)
    return whole.bind_params(bound)


def returns_nothing(function: relax.Function) -> bool:
    """Whether a function returns `()`: the virtual machine has no register for that, when it is called."""
    return isinstance(function.ret_ty, tvm.ir.TupleType) and not function.ret_ty.fields
