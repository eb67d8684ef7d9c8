"""Nested functions as global ones, which take what they captured after their arguments."""

from __future__ import annotations

from collections.abc import Sequence

import tvm
from tvm import relax

from autocast.ir.copies import with_new_variables
from autocast.ir.views import relax_functions

#: Stands for `relax.make_closure` while functions are lifted: its result may keep the type of a function.
CLOSURE = "autocast.closure"


class Functions(dict[str, tuple[tvm.ir.GlobalVar, relax.Function]]):
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


def lift(mod: tvm.IRModule) -> Functions:
    """The functions of a module; nested ones are global, and take what they captured after their arguments."""
    functions = Functions(mod)
    for name, (var, function) in list(functions.items()):
        functions[name] = var, _with_body(function, _lifted(function.body, functions, name))
    return functions


def _with_body(function: relax.Function, body: relax.Expr) -> relax.Function:
    return relax.Function(function.params, body, function.ret_ty, function.is_pure, function.attrs, function.span)


def _lifted(sequence: relax.SeqExpr, functions: Functions, name: str) -> relax.SeqExpr:
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


def _closure(var: relax.Var, function: relax.Function, functions: Functions, name: str) -> relax.Expr:
    """A closure of a new global function that computes `function`, which is bound to `var`."""
    free = [one for one in relax.analysis.free_vars(function) if not one.same_as(var)]
    params = [*function.params, *free]
    sizes = relax.analysis.free_symbolic_vars(relax.Function(params, function.body, function.ret_ty, function.is_pure))
    captured: list[relax.Expr] = [one for one in free if one not in set(sizes)]  # kernels may take sizes as numbers
    params = [*function.params, *captured]
    if sizes:
        params.append(relax.Var("sizes", relax.ShapeType(sizes)))
        captured.append(relax.ShapeExpr(sizes))
    type = relax.Function(params, function.body, function.ret_ty, function.is_pure).ty
    new = functions.add(f"{name}_{var.name}", type)

    def closure(values: Sequence[relax.Expr]) -> relax.Expr:
        return relax.op.call_pure_packed(CLOSURE, new, *values, ty_args=var.ty)

    body = _lifted(function.body, functions, new.name_hint)
    itself = relax.BindingBlock([relax.VarBinding(var, _typed(closure(params[len(function.params) :]), var.ty))])
    body = _typed(relax.SeqExpr([itself, *body.blocks], body.body), body.ty)
    attrs = tvm.ir.DictAttrs({key: value for key, value in (function.attrs or {}).items() if key != "global_symbol"})
    lifted = relax.Function(params, body, function.ret_ty, function.is_pure, attrs)
    functions[new.name_hint] = new, with_new_variables(lifted)
    return _typed(closure(captured), var.ty)
