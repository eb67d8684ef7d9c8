"""Functions as the rest of the project knows them: global ones, called by their names, that nobody else compiles.

    Before                                              After

    def main(x, w):                                     def main(x, w):
        g = R.matmul(x, w)                                  g = R.matmul(x, w)
        def inner(y):                                       r = cls.main_inner(w, g)
            return R.add(y, g)                              a = R.nn.conv2d(r, w)
        r = inner(w)                                        return R.nn.relu(a)
        return cls.fused_conv2d_relu(r, w)
                                                        def main_inner(y, g):
    def fused_conv2d_relu(r, w):  # Composite = "dnnl"      return R.add(y, g)
        a = R.nn.conv2d(r, w)
        return R.nn.relu(a)

TVM's own pass for nested functions, `LambdaLift`, makes objects of them at run time, which neither casts nor gradients
nor memory plans can look into.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from autocast.errors import UnsupportedError
from autocast.ir.views import all_bindings, is_op, main_of, relax_functions

#: Attributes of functions that were set apart for a library or a later pass to compile as one kernel.
GROUPED = ("Primitive", "Composite", "Codegen")

_INVOKE = ("relax.invoke_closure", "relax.invoke_pure_closure")

#: Stands for `relax.make_closure` while functions are lifted: its result may keep the type of a function.
_CLOSURE = "autocast.closure"


def first_order(mod: tvm.IRModule) -> tvm.IRModule:
    """Make global functions of nested ones, and inline what takes or returns functions, or was grouped for others.

    Functions with an attribute of `GROUPED` are inlined whoever they were meant for: what they compute is said by their
    bodies, and here there are kernels for that. Groups of PrimFuncs alone stay what they are: `FuseTIR` makes one
    PrimFunc of each. What returns nothing is inlined, too. A function that is chosen at run time remains an object of
    the virtual machine.

    Raises
    ------
    UnsupportedError
        A function that calls itself takes or returns functions.
    """
    mod = _with_plain_main(mod)
    if not any(_needs_rewriting(function) for _, function in relax_functions(mod)):
        return mod
    functions = _lift(relax.transform.ToNonDataflow()(mod))
    program = _Program(functions)
    rest = {var: function for var, function in mod.functions.items() if not isinstance(function, relax.Function)}
    rewritten = {var: program.rewritten(var, function) for var, function in functions.values()}
    mod = tvm.IRModule({**rest, **rewritten}, attrs=mod.attrs, global_infos=mod.global_infos)
    # Where a type names a variable, as that of R.zeros(shape) does, TVM's pass would lose the variable.
    if not any(_names_a_variable(binding.var.ty) for _, f in relax_functions(mod) for binding in all_bindings(f.body)):
        mod = relax.transform.ConvertToDataflow(1)(mod)
    return relax.transform.DeadCodeElimination()(mod)


def _names_a_variable(ty: tvm.ir.Type) -> bool:
    if isinstance(ty, tvm.ir.TupleType):
        return any(map(_names_a_variable, ty.fields))
    return isinstance(ty, relax.TensorType) and isinstance(ty.shape, relax.Var)


def _with_plain_main(mod: tvm.IRModule) -> tvm.IRModule:
    """`mod`, whose `main` is no group: nobody calls it."""
    main = main_of(mod)
    if main is None or not _is_grouped(main):
        return mod
    mod = mod.clone()
    mod["main"] = _without_attrs(main, GROUPED)
    return mod


def _without_attrs(function: relax.Function, names: Sequence[str]) -> relax.Function:
    for name in names:
        function = function.without_attr(name) if name in (function.attrs or {}) else function
    return function


def _is_grouped(function: relax.Function) -> bool:
    return any(name in (function.attrs or {}) for name in GROUPED)


def _needs_rewriting(function: relax.Function) -> bool:
    if _is_grouped(function):
        return not is_tir_group(function)
    return _returns_nothing(function) or any(
        isinstance(binding.value, relax.Function) or is_op(binding.value, "relax.make_closure")
        for binding in all_bindings(function.body)
    )


def _is_inlined_group(function: relax.Function) -> bool:
    return _is_grouped(function) and not is_tir_group(function)


def _returns_nothing(function: relax.Function) -> bool:
    """Whether a function returns `()`: the virtual machine has no register for that, when it is called."""
    return isinstance(function.ret_ty, tvm.ir.TupleType) and not function.ret_ty.fields


def is_tir_group(function: relax.Function) -> bool:
    """Whether `FuseTIR` makes one PrimFunc of a function: it is marked for that, and calls PrimFuncs alone."""
    if "Primitive" not in (function.attrs or {}) or "Composite" in function.attrs:
        return False
    values = [binding.value for binding in all_bindings(function.body)]
    others = (relax.Tuple, relax.TupleGetItem, relax.Var)
    return any(is_op(value, "relax.call_tir") for value in values) and all(
        is_op(value, "relax.call_tir") or isinstance(value, others) for value in values
    )


# -- lifting -----------------------------------------------------------------------------------------


class _Functions(dict[str, tuple[tvm.ir.GlobalVar, relax.Function]]):
    """The Relax functions of a module by their names; `taken` has the names of the others."""

    def __init__(self, mod: tvm.IRModule) -> None:
        super().__init__((var.name_hint, (var, function)) for var, function in relax_functions(mod))
        self.taken = {var.name_hint for var in mod.get_global_vars()}

    def add(self, name: str, type: relax.FuncType) -> tvm.ir.GlobalVar:
        """A function to be defined, of a name like `name`."""
        unique, number = name, 0
        while unique in self.taken:
            number += 1
            unique = f"{name}_{number}"
        self.taken.add(unique)
        var = tvm.ir.GlobalVar(unique)
        relax.expr._update_type(var, type)
        return var


def _lift(mod: tvm.IRModule) -> _Functions:
    """The functions of a module; nested ones are global, and take what they captured after their arguments."""
    functions = _Functions(mod)
    for name, (var, function) in list(functions.items()):
        functions[name] = var, _with_body(function, _lifted(function.body, functions, name))
    return functions


def _with_body(function: relax.Function, body: relax.Expr) -> relax.Function:
    return relax.Function(function.params, body, function.ret_ty, function.is_pure, function.attrs, function.span)


def _lifted(sequence: relax.SeqExpr, functions: _Functions, name: str) -> relax.SeqExpr:
    blocks = []
    for block in sequence.blocks:
        bindings = []
        for binding in block.bindings:
            value = binding.value
            if isinstance(value, relax.Function):
                binding = relax.VarBinding(binding.var, _closure(binding.var, value, functions, name))
            elif isinstance(value, relax.If):
                branches = (_lifted(branch, functions, name) for branch in (value.true_branch, value.false_branch))
                binding = relax.VarBinding(binding.var, _typed(relax.If(value.cond, *branches), value.ty))
            bindings.append(binding)
        blocks.append(relax.BindingBlock(bindings))
    return _typed(relax.SeqExpr(blocks, sequence.body), sequence.ty)


def _typed(expr: relax.Expr, type: tvm.ir.Type) -> relax.Expr:
    relax.expr._update_type(expr, type)
    return expr


def _closure(var: relax.Var, function: relax.Function, functions: _Functions, name: str) -> relax.Expr:
    """A closure of a new global function that computes `function`, which is bound to `var`."""
    captured: list[relax.Expr] = [free for free in relax.analysis.free_vars(function) if not free.same_as(var)]
    params = [*function.params, *captured]
    sizes = relax.analysis.free_symbolic_vars(relax.Function(params, function.body, function.ret_ty, function.is_pure))
    if sizes:
        params.append(relax.Var("sizes", relax.ShapeType(sizes)))
        captured.append(relax.ShapeExpr(sizes))
    type = relax.Function(params, function.body, function.ret_ty, function.is_pure).ty
    new = functions.add(f"{name}_{var.name}", type)

    def closure(values: Sequence[relax.Expr]) -> relax.Expr:
        return relax.op.call_pure_packed(_CLOSURE, new, *values, ty_args=var.ty)

    body = _lifted(function.body, functions, new.name_hint)
    itself = relax.BindingBlock([relax.VarBinding(var, _typed(closure(params[len(function.params) :]), var.ty))])
    body = _typed(relax.SeqExpr([itself, *body.blocks], body.body), body.ty)
    attrs = tvm.ir.DictAttrs({key: value for key, value in (function.attrs or {}).items() if key != "global_symbol"})
    lifted = relax.Function(params, body, function.ret_ty, function.is_pure, attrs)
    functions[new.name_hint] = new, relax.utils.copy_with_new_vars(lifted)
    return _typed(closure(captured), var.ty)


# -- calling -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Callable:
    """A function that is a value: a global one, and what is passed to it after the arguments of a call."""

    var: tvm.ir.GlobalVar
    captured: tuple[Any, ...] = ()


#: A function, or a tuple in which there is one, among expressions.
_Known: TypeAlias = "_Callable | list[Any]"


class _Program:
    """The functions of a module, none of them nested, as they are before calls are resolved."""

    def __init__(self, functions: _Functions) -> None:
        self.functions = {name: function for name, (_, function) in functions.items()}

    def rewritten(self, var: tvm.ir.GlobalVar, function: relax.Function) -> relax.Function:
        """A function that calls others by their names. What was a group is private, and nobody is left to call it."""
        if is_tir_group(function):
            return function
        if _is_inlined_group(function):
            function = _without_attrs(function, (*GROUPED, "global_symbol"))
        return _Resolver(self, var.name_hint).visit_expr(function)

    def is_inlined(self, function: relax.Function) -> bool:
        """Whether calls of a function are replaced by its body, whatever their arguments are."""
        return _is_inlined_group(function) or _returns_nothing(function) or self._returns_function(function, [])

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

    def __init__(self, program: _Program, name: str) -> None:
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
        if is_op(expr, "relax.call_pure_packed") and str(expr.args[0].global_symbol) == _CLOSURE:
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
            return relax.Call(callee.var, list(values))
        if name in self.inlining:
            raise UnsupportedError(
                f"@{name} calls itself, and takes or returns a function, returns nothing or is a group "
                f"({', '.join(GROUPED)}); "
                "expected functions that are known when the module is compiled. Pass tensors instead, or write the "
                "recursion without the function"
            )
        function = relax.utils.copy_with_new_vars(function)
        bound = {}
        for param, value in zip(function.params, values, strict=True):
            if isinstance(value, _Callable | list):
                self.known[param] = value
            else:
                bound[param] = value
        body = function.bind_params(bound).body if bound else function.body
        self.inlining.append(name)
        for block in body.blocks:
            for binding in block.bindings:
                self.visit_binding(binding)
        self.inlining.pop()
        known = self._known(body.body)
        return self.visit_expr(body.body) if known is None else known
