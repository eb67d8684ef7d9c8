"""Functions that take tuples, numbers and shapes, as functions that take tensors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import tvm
import tvm_ffi
from tvm import relax, tirx
from tvm.relax.expr_functor import PyExprMutator, mutator

from autocast.errors import ImportModelError
from autocast.ir.groups import with_plain_main


def with_tensor_inputs(mod: tvm.IRModule) -> tvm.IRModule:
    """`mod`, whose `main` takes tensors alone.

    Before::                                            After::

        def main(                                           def main(
            t: R.Tuple(R.Tensor((2,)), R.Tensor((3,))),         t_0: R.Tensor((2,)), t_1: R.Tensor((3,)),
            s: R.Shape(["m", "n"]),                             s: R.Tensor((2,), "int64"),
            k: R.Prim("int64"),                                 k: R.Tensor((), "int64"),
            i: R.Prim("int64"),                                 i: R.Tensor((), "int64"),
            x: R.Tensor(("2 * k",)),                            x: R.Tensor(("x_0",)),
        ):                                                  ):
                                                                gv = R.tensor_to_shape(s)
                                                                s = R.match_cast(gv, R.Shape([m, n]))
                                                                gv = R.tensor_to_shape(R.reshape(k, [1]))
                                                                gv = R.match_cast(gv, R.Shape([k]))
                                                                gv = R.reshape(i, [1])
                                                                gv = R.maximum(R.concat([gv, -gv]), 0)
                                                                gv = R.tensor_to_shape(gv)
                                                                gv = R.match_cast(gv, R.Shape([p, q]))
                                                                x = R.match_cast(x, R.Tensor((2 * k,)))
                                                                t = (t_0, t_1)
            ...                                                 ...  # p - q in place of i

    Where functions call `main`, they call what it was.

    Raises
    ------
    ImportModelError
        It takes something else: objects, functions, numbers that are not whole.
    """
    main = mod["main"]
    if all(isinstance(param.ty, relax.TensorType) for param in main.params):
        return mod
    mod = with_plain_main(mod).clone()
    mod["main"] = _Arguments(mod["main"]).function()
    return relax.transform.DeadCodeElimination()(mod)


def flat(values: Iterable[Any]) -> Iterator[Any]:
    """The values of the tensors that stand for arguments: fields in place of tuples."""
    for value in values:
        if isinstance(value, tuple | list | tvm_ffi.Array) and not isinstance(value, tvm.runtime.ShapeTuple):
            yield from flat(value)
        else:
            yield value


@mutator
class _Fields(PyExprMutator):
    """Reads what is passed for the fields of tuples, by the variables of these, where the tuples' fields were read."""

    def __init__(self, fields: Mapping[relax.Var, Sequence[relax.Var]]) -> None:
        super().__init__()
        self.fields = fields

    def visit_var_binding_(self, binding: relax.VarBinding) -> None:
        """Know a variable by the field that it is."""
        value = binding.value
        read = self.visit_expr(value.tuple_value) if isinstance(value, relax.TupleGetItem) else None
        if isinstance(read, relax.Var) and read in self.fields and not isinstance(value.ty, tvm.ir.PrimType):
            self.set_var_remap(binding.var, self.fields[read][value.index])
        else:
            super().visit_var_binding_(binding)


class _Arguments:
    """Makes the arguments of a function of tensors."""

    def __init__(self, old: relax.Function) -> None:
        self.old = old
        self.names = {param.name for param in old.params}
        self.sizes = {size for param in old.params for size in relax.analysis.tir_vars_in_type(param.ty)}
        self.tensors: list[relax.Var] = []
        self.tuples: list[relax.VarBinding] = []
        self.fields: dict[relax.Var, list[relax.Var]] = {}
        self.numbers: dict[relax.Var, tirx.Expr] = {}
        self.builder = relax.BlockBuilder()

    def function(self) -> relax.Function:
        """What the old function computes, of tensors. Numbers may say sizes of tensors, and tuples have any of them."""
        old, ends = self.old, [0]
        self.builder._begin_binding_block()
        for param in old.params:
            self._bind(param)
            ends.append(len(self.tensors))
        params = self._sized()
        for binding in self.tuples:
            self.builder.emit_normalized(binding)
        body = _Fields(self.fields).visit_expr(old.body)
        body = relax.SeqExpr([self.builder._end_block(), *body.blocks], body.body)
        relax.expr._update_type(body, old.body.ty)
        new = relax.Function([*params, *self.numbers], body, old.ret_ty, old.is_pure, old.attrs)
        new = new.bind_symbolic_vars(self.numbers)
        count = (old.attrs or {}).get("num_input")
        return new if count is None else new.with_attr("num_input", ends[int(count)])

    def _bind(self, var: relax.Var) -> None:
        """Make `var` a tensor that is passed, or bind it to what is made of such tensors."""
        if isinstance(var.ty, relax.TensorType):
            self.tensors.append(var)
        elif isinstance(var.ty, tvm.ir.TupleType):
            fields = [relax.Var(self._name(f"{var.name}_{i}"), type) for i, type in enumerate(var.ty.fields)]
            for field in fields:
                self._bind(field)
            self.fields[var] = fields
            self.tuples.append(relax.VarBinding(var, self.builder.normalize(relax.Tuple(fields))))
        elif isinstance(var.ty, relax.ShapeType):
            count = var.ty.ndim if var.ty.ndim >= 0 else tirx.Var(f"{var.name}_ndim", "int64")
            self._match(var, relax.op.tensor_to_shape(self._passed(var, [count], "int64")))
        elif isinstance(var.ty, tvm.ir.PrimType) and "float" not in str(var.ty):
            self._bind_number(var)
        else:
            raise ImportModelError(
                f"from_relax: the input {var.name!r} is a {var.ty}, expected tensors, or what can be made of them: "
                "tuples, whole numbers and shapes. "
                + (
                    f"Take it as a tensor, R.Tensor((), '{var.ty}'), or give it a value: "
                    f"main.bind_params({{'{var.name}': tvm.tirx.const(0.5, '{var.ty}')}})"
                    if isinstance(var.ty, tvm.ir.PrimType)
                    else "Compute it in main"
                )
            )

    def _name(self, name: str) -> str:
        """A name that no argument has."""
        while name in self.names:
            name += "_"
        self.names.add(name)
        return name

    def _bind_number(self, var: relax.Var) -> None:
        """Make `var` a size, or a difference of two: TVM takes sizes to be no less than 0, which numbers may be."""
        dtype = str(var.ty)
        value = self.builder.emit(relax.op.astype(relax.op.reshape(self._passed(var, [], dtype), [1]), "int64"))
        if var in self.sizes:
            self._match(relax.Var(var.name, relax.ShapeType([var])), relax.op.tensor_to_shape(value))
            return
        parts = [tirx.Var(f"{var.name}_{sign}", "int64") for sign in ("above", "below")]
        both = relax.op.maximum(relax.op.concat([value, relax.op.negative(value)]), relax.const(0, "int64"))
        self._match(relax.Var(var.name, relax.ShapeType(parts)), relax.op.tensor_to_shape(both))
        if dtype == "bool":
            self.builder.emit_normalized(relax.VarBinding(var, tirx.NE(*parts)))
        else:
            self.numbers[var] = (parts[0] - parts[1]).astype(dtype)

    def _passed(self, var: relax.Var, shape: list[int], dtype: str) -> relax.Var:
        """The tensor that is passed for `var`."""
        self.tensors.append(relax.Var(var.name, relax.TensorType(shape, dtype)))
        return self.tensors[-1]

    def _match(self, var: relax.Var, shape: relax.Expr) -> None:
        """Bind `var`, a shape, to `shape`, whose sizes are those that the type says, if it says any."""
        if var.ty.values is None:
            self.builder.emit_normalized(relax.VarBinding(var, self.builder.normalize(shape)))
        else:
            self.builder.emit_normalized(relax.MatchCast(var, self.builder.emit(shape), var.ty))

    def _sized(self) -> list[relax.Var]:
        """What is passed for `tensors`, whose sizes numbers and shapes may say."""
        types = [tensor.ty for tensor in self.tensors]
        known = {size for type in types for size in relax.analysis.definable_tir_vars_in_type(type)}
        params = []
        for tensor in self.tensors:
            if known.issuperset(relax.analysis.tir_vars_in_type(tensor.ty)):
                params.append(tensor)
                continue
            sizes = [
                size
                if known.issuperset(tirx.analysis.undefined_vars(size))
                else tirx.Var(f"{tensor.name}_{i}", "int64")
                for i, size in enumerate(tensor.ty.shape.values)
            ]
            params.append(relax.Var(tensor.name, relax.TensorType(sizes, tensor.ty.dtype)))
            self.builder.emit_normalized(relax.MatchCast(tensor, params[-1], tensor.ty))
        return params
