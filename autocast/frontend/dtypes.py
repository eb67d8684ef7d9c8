"""Complete type information: a module whose inputs or parameters have no dtype gets them, and all that follows."""

from __future__ import annotations

from collections.abc import Mapping

import tvm
from tvm import relax
from tvm.relax.expr_functor import mutator

import type_hints
from autocast.errors import ImportModelError
from autocast.ir import FLOATS, all_bindings, op_name
from autocast.ir.places import PlacedMutator
from autocast.messages import check_kind


def with_dtypes(mod: tvm.IRModule, dtypes: Mapping[str, str]) -> tvm.IRModule:
    """`mod` with a dtype for each parameter of main, and for everything that is computed from them.

        main(a: R.Tensor((4,)), b: R.Tensor((4,))):         main(a: float32, b: float16):
            R.add(a, b)                                         R.add(a, R.astype(b, "float32"))

    Where the arguments of an operator must agree and do not, those that are narrower are cast to the widest.

    Parameters
    ----------
    mod : tvm.IRModule
        With a Relax function `main`, in A-normal form.
    dtypes : mapping of str to str
        The dtypes of main's parameters, by name; those that the module says may be left out, and must agree.

    Raises
    ------
    ImportModelError
        A name is no parameter, a dtype disagrees with the module's, or something is left without one.
    """
    check_kind("with_dtypes", mod, tvm.IRModule, ImportModelError, "a tvm.IRModule with a Relax function main")
    main = mod["main"]
    known = {param.name: _dtype(param) for param in main.params}
    if unknown := sorted(dtypes.keys() - known.keys()):
        raise ImportModelError(f"with_dtypes: main has no parameters {unknown}; it has {list(known)}")
    wrong = [
        f"{name} is {known[name]} and not {dtypes[name]}" for name in dtypes if known[name] not in (None, dtypes[name])
    ]
    missing = [
        param.name
        for param in main.params
        if isinstance(param.ty, relax.TensorType) and known[param.name] is None and param.name not in dtypes
    ]
    if wrong or missing:
        lacks = f"no dtype is given for {', '.join(missing)}" if missing else ""
        raise ImportModelError(
            f"with_dtypes: {'; '.join([*wrong, *filter(None, [lacks])])}. Expected the complete types of main's "
            f"parameters: {{{', '.join(f'{name!r}: ...' for name in missing or known)}}}"
        )
    if all(known[name] is not None for name in dtypes):
        return mod
    completed = _Completer(dtypes).function(main)
    for binding in all_bindings(completed.body):
        if isinstance(binding.var.ty, relax.TensorType) and _dtype(binding.var) is None:
            raise ImportModelError(
                f"with_dtypes: the dtype of %{binding.var.name} does not follow from those of main's parameters; "
                "expected a module whose calls of functions say what they return"
            )
    functions = {var: function for var, function in mod.functions.items() if var.name_hint != "main"}
    return tvm.IRModule(
        {**functions, tvm.ir.GlobalVar("main"): completed}, attrs=mod.attrs, global_infos=mod.global_infos
    )


def _dtype(var: relax.Expr) -> str | None:
    dtype = var.ty.dtype if isinstance(var.ty, relax.TensorType) else None
    return None if dtype is None or str(dtype) in ("", "void") else str(dtype)


@mutator
class _Completer(PlacedMutator):
    """Types everything again, from parameters with dtypes."""

    def __init__(self, dtypes: Mapping[str, str]) -> None:
        super().__init__()
        self.dtypes = dtypes

    def function(self, function: relax.Function) -> relax.Function:
        """`function` with the dtypes of its parameters."""
        params = []
        for param in function.params:
            new = param
            if param.name in self.dtypes:
                shape, rank = param.ty.shape, -1 if param.ty.shape is not None else param.ty.ndim
                type = relax.TensorType(shape, self.dtypes[param.name], ndim=rank)
                new = relax.Var(param.name, type, param.span)
                self.set_var_remap(param, new)
            params.append(new)
        self.builder_.begin_scope(params)
        body = self.visit_expr(function.body)
        self.builder_.end_scope()
        return relax.Function(params, body, None, function.is_pure, function.attrs, function.span)

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        """The call, with its narrower arguments cast to the widest dtype where they must agree."""
        if isinstance(call.ty, tvm.ir.PrimType):
            return call
        args = [self.visit_expr(arg) for arg in call.args]
        row = type_hints.table_row(op_name(call) or "")
        which = getattr(row.rule, "which", ()) if row is not None else ()
        found = {_dtype(field) for index in which if index < len(args) for field in _fields(args[index])}
        if len(found & set(FLOATS)) > 1:  # float32, or two of 16 bits that are both narrower than what holds them
            for index in filter(len(args).__gt__, which):
                args[index] = self._widened(args[index])
        return relax.Call(call.op, args, call.attrs, call.ty_args, call.span)

    def _widened(self, arg: relax.Expr) -> relax.Expr:
        if isinstance(arg, relax.Tuple):
            return relax.Tuple([self._widened(field) for field in arg.fields])
        return self.emit(relax.op.astype(arg, "float32")) if _dtype(arg) in FLOATS[1:] else arg


def _fields(arg: relax.Expr) -> list[relax.Expr]:
    return list(arg.fields) if isinstance(arg, relax.Tuple) else [arg]
