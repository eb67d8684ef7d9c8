"""Replace softmax, normalizations and reductions over rows, with their elementwise neighbours, by generated kernels."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import tvm
from tvm import relax, tirx
from tvm.relax.expr_functor import mutator

from autocast.ir import is_constant, is_op, op_name, shape_of
from autocast.kernels.explain import explain
from autocast.kernels.graph.canonicalize import same_shape
from autocast.kernels.graph.operators import LOW
from autocast.kernels.graph.rewriting import BindingRewriter, dims, rewrite_functions, storage, users_of
from autocast.kernels.rows.kernel import REDUCTIONS, RowKernel, row_kernel
from autocast.kernels.vector.expression import OPERATORS, Tree

#: Operators that work on rows, and the function of `RowKernel` that computes them.
_ROW_OPERATORS = {
    "relax.nn.softmax": "softmax",
    "relax.nn.log_softmax": "log_softmax",
    "relax.nn.layer_norm": "layer_norm",
    "relax.nn.rms_norm": "rms_norm",
    "relax.sum": "sum",
    "relax.mean": "mean",
    "relax.max": "max",
    "relax.min": "min",
}


@dataclass
class _Group:
    """A row operator and what its kernel computes around it; `end` is what the kernel defines."""

    call: relax.Call
    function: str
    end: relax.Var
    space: tuple
    arguments: list[relax.Expr] = field(default_factory=list)
    before: Tree = ()
    parameters: tuple[Tree, ...] = ()
    after: Tree = ("result",)


@mutator
class _Rows(BindingRewriter):
    def __init__(self, mod: tvm.IRModule, target: tvm.target.Target):
        super().__init__(mod)
        self.target = target
        self.kernels: dict[RowKernel, tvm.ir.GlobalVar] = {}

    def enter(self, function: relax.Function) -> None:
        self.bound, self.users = users_of(function)
        self.groups: dict[relax.Var, _Group] = {}
        self.taken: set[relax.Var] = set()
        for var, value in self.bound.items():
            name = op_name(value)
            if name not in _ROW_OPERATORS or var in self.taken:
                continue
            reason = _declined(value)
            explain("row kernel", var, reason or "", taken=reason is None)
            if reason is None:
                group = self.group(var, value)
                self.groups[group.end] = group

    def rewrite(self, binding: relax.VarBinding) -> relax.Expr | None:
        group = self.groups.get(binding.var)
        return None if group is None else self.lowered(group)

    def value_of(self, expr: relax.Expr) -> Any:
        """What `expr` is bound to in this function; None for a parameter, and for what is no variable."""
        return self.bound.get(expr) if isinstance(expr, relax.Var) else None

    def group(self, var: relax.Var, call: relax.Call) -> _Group:
        group = _Group(call, _ROW_OPERATORS[call.op.name], var, dims(call.args[0]))
        group.before = self.tree(group, call.args[0])
        group.parameters = tuple(self.tree(group, operand) for operand in call.args[1:])
        while group.function not in REDUCTIONS and storage(group.end) == "float32":
            readers = self.users.get(group.end, [])
            if len(readers) != 1 or self.uses[group.end] != 1 or readers[0] not in self.bound:
                break
            if not self.extended(group, readers[0], self.bound[readers[0]]):
                break
        return group

    def extended(self, group: _Group, reader: relax.Var, value: relax.Expr) -> bool:
        """Let the kernel of `group` compute `reader` too, if it can."""
        name = op_name(value)
        if reader in self.taken or not same_shape(shape_of(reader), group.space):
            return False
        if name == "relax.astype" and storage(reader) in LOW:
            group.end = reader
        elif name in OPERATORS and all(self.is_leaf(group, e) or e.same_as(group.end) for e in value.args):
            operands = [group.after if e.same_as(group.end) else self.tree(group, e) for e in value.args]
            group.after, group.end = (OPERATORS[name], *operands), reader
        else:
            return False
        self.taken.add(reader)
        return True

    def tree(self, group: _Group, expr: relax.Expr) -> Tree:
        """`expr` as far as only this kernel reads it; the rest are arguments."""
        value = self.value_of(expr)
        if is_constant(expr) and not dims(expr):
            return ("constant", float(expr.value.numpy()))
        if is_op(value, "relax.astype") and storage(expr) == "float32" and storage(value.args[0]) in LOW:
            expr = value.args[0]
        elif (
            op_name(value) in OPERATORS
            and self.uses[expr] == 1
            and expr not in self.groups
            and expr not in self.taken
            and storage(expr) == "float32"
            and same_shape(dims(expr), group.space)
            and all(self.is_leaf(group, operand) for operand in value.args)
        ):
            return (OPERATORS[value.op.name], *[self.tree(group, operand) for operand in value.args])
        for index, known in enumerate(group.arguments):
            if known.same_as(expr):
                return ("load", index)
        group.arguments.append(expr)
        return ("load", len(group.arguments) - 1)

    def is_leaf(self, group: _Group, expr: relax.Expr) -> bool:
        """Whether a kernel over the rows of `group.space` can read `expr`."""
        shape = shape_of(expr)
        if shape is None or len(shape) > len(group.space) or not _is_simple(shape):
            return False
        if is_constant(expr):
            return not shape and storage(expr) == "float32"
        value = self.value_of(expr)
        if is_op(value, "relax.astype") and storage(value.args[0]) in LOW:
            expr = value.args[0]
        if not shape or shape[-1] == 1:
            return storage(expr) == "float32"
        whole = group.space[len(group.space) - len(shape) :]
        broadcasts = all(dim == 1 or same_shape((dim,), (full,)) for dim, full in zip(shape, whole, strict=True))
        return broadcasts and shape[-1] != 1 and storage(expr) in ("float32", *LOW)

    def lowered(self, group: _Group) -> relax.Expr:
        names: dict[tirx.Var, str] = {}

        def named(shape: tuple) -> tuple:
            return tuple(d if isinstance(d, int) else names.setdefault(d, f"d{len(names)}") for d in shape)

        arguments = tuple((named(dims(argument)), storage(argument)) for argument in group.arguments)
        attributes = group.call.attrs
        spec = RowKernel(
            arguments=arguments,
            space=named(group.space),
            function=group.function,
            before=group.before,
            parameters=group.parameters,
            after=group.after,
            out=(named(dims(group.end)), storage(group.end)),
            epsilon=float(attributes.epsilon) if group.function.endswith("norm") else 0.0,
        )
        if spec not in self.kernels:
            name = f"{group.function}{len(self.kernels)}_{'x'.join(map(str, spec.space))}_{spec.out[1]}"
            function = row_kernel(spec, self.target, name).without_attr("global_symbol")
            self.kernels[spec] = self.builder_.add_func(function, name)
        out_type = relax.TensorType(dims(group.end), storage(group.end))
        return relax.call_tir(self.kernels[spec], [self.new(argument) for argument in group.arguments], out_type)


def _declined(call: relax.Call) -> str | None:
    """Why no row kernel computes `call`; None where one does."""
    shapes = [shape_of(operand) or () for operand in call.args]
    if not all(shapes):
        return "a shape is not known, or the operand is a scalar"
    if any(not _is_simple(shape) for shape in shapes):
        return "a dimension is computed from others"
    if storage(call.args[0]) != "float32" or storage(call) != "float32":
        return f"it computes in {storage(call.args[0])}"
    if any(dim == 0 for dim in shapes[0]) or shapes[0][-1] == 1:
        return "its rows are empty, or of one element"
    last = len(shapes[0]) - 1
    attributes = call.attrs
    if call.op.name in ("relax.nn.softmax", "relax.nn.log_softmax"):
        axes = [int(attributes.axis)]
    elif call.op.name.startswith("relax.nn."):
        axes = [int(axis) for axis in attributes.axes]
        if call.op.name == "relax.nn.layer_norm" and not (attributes.center and attributes.scale):
            return "it has no scale or no offset"
    else:
        axes = [int(axis) for axis in attributes.axis] if attributes.axis is not None else list(range(last + 1))
    return None if axes in ([-1], [last]) else "it is not over the last axis"


def _is_simple(shape: tuple) -> bool:
    return all(isinstance(dim, int | tirx.Var) for dim in shape)


def lower_rows(mod: tvm.IRModule, target: tvm.target.Target) -> tvm.IRModule:
    """Rewrite row operators, and elementwise operators that only they read or that only read them, to kernels.

    Before::                                       After::

        a: f32 = R.add(R.multiply(s, 0.125), m)        p: bf16 = R.call_tir(softmax0_8x12x128x128_bfloat16, (s, m))
        b: f32 = R.nn.softmax(a)
        p: bf16 = R.astype(b, "bfloat16")

    What the kernels read is widened as it is loaded, so casts to float32 before them vanish too.
    """
    return rewrite_functions(mod, _Rows, target)
