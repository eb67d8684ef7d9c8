"""Replace operators that only move data, with the casts and the moves next to them, by generated kernels."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import tvm
from tvm import relax
from tvm.relax.expr_functor import mutator

from autocast.ir import FLOATS, dims, is_op, op_name, shape_of, storage
from autocast.ir.rewriting import rewrite_functions, users_of
from autocast.kernels.backend import Backend
from autocast.kernels.explain import Declined, explain
from autocast.kernels.matching.kernel_rewriter import KernelRewriter
from autocast.kernels.matching.layout.pieces import JOINS, Part, copied, operands
from autocast.kernels.matching.layout.views import VIEWS, View, part_of_split, whole
from autocast.kernels.matching.translate import is_rounded_load
from autocast.kernels.specs.layout import MODES, Lookup, Move, Piece
from autocast.kernels.specs.sizes import DimensionNames, named_in, strides_of
from autocast.kernels.storage import BITS, LOW, computes

#: What selects slices of a table by their numbers, and what cuts a tensor into several results.
LOOKUPS, SPLITS = ("relax.take",), ("relax.split",)

#: Results of fewer elements than this are left to be fused with what reads them.
_SMALL = 256


@mutator
class _Layout(KernelRewriter):
    def enter(self, function: relax.Function) -> None:
        self.bound, self.users = users_of(function)
        self.absorbed: set[relax.Var] = set()
        self.lowered: dict[relax.Var, tuple[Move | Lookup, list[relax.Expr], str]] = {}
        # Backwards: what a reader does not absorb is then looked at by itself.
        for var, value in reversed(self.bound.items()):
            if is_op(value, *LOOKUPS) and var not in self.absorbed:
                self.look_up(var, value)
            if (looked_up := self.narrowed_lookup(var, value)) is not None:
                self.look_up(var, looked_up)
                if var in self.lowered:
                    self.absorbed.add(value.args[0])
                    continue
            if var in self.absorbed or not self.moves(value) or is_op(value, "relax.reshape"):
                continue
            chain = self.chain(value)
            self.absorbed |= chain
            try:
                self.worthwhile(var, value)
                self.lowered[var] = self.kernel_of(var, value)
            except Declined as declined:
                self.absorbed -= chain
                explain("layout", var, str(declined), taken=False)

    def rewrite(self, binding: relax.VarBinding) -> relax.Expr | None:
        if binding.var not in self.lowered:
            return None
        spec, arguments, kind = self.lowered[binding.var]
        shape, dtype = spec.out
        kernel = self.kernel(spec, lambda number: f"{kind}{number}_{'x'.join(map(str, shape))}_{dtype}")
        explain("layout", binding.var, "", taken=True)
        return self.call(kernel, arguments, [binding.var])[0]

    def moves(self, value: Any) -> bool:
        """Whether a binding only moves data, in a way that kernels know."""
        return op_name(value) in VIEWS or op_name(value) in JOINS or self.split_of(value) is not None

    def split_of(self, value: Any) -> relax.Call | None:
        """The split of which `value` is a part."""
        if isinstance(value, relax.TupleGetItem) and isinstance(value.tuple_value, relax.Var):
            split = self.bound.get(value.tuple_value)
            return split if is_op(split, *SPLITS) else None
        return None

    def moved(self, value: relax.Expr) -> list[relax.Expr]:
        split = self.split_of(value)
        return operands(value if split is None else split)

    def chain(self, value: relax.Expr) -> set[relax.Var]:
        """The views that only `value` reads, directly or through others of them."""
        found: set[relax.Var] = set()
        for operand in self.moved(value):
            producer = self.value_of(operand)
            single = self.uses[operand] == 1 and self.moves(producer) and op_name(producer) not in JOINS
            if single and isinstance(operand, relax.DataflowVar):
                found |= {operand} | self.chain(producer)
        return found

    def worthwhile(self, var: relax.Var, value: relax.Expr) -> None:
        """Decline what others do better."""
        if shape_of(value) is None or any(shape_of(operand) is None for operand in self.moved(value)):
            raise Declined("a shape is not known")
        if any(storage(expr) not in BITS for expr in (var, *self.moved(value))):
            raise Declined(f"elements of {storage(var)} have no whole number of bytes")
        size = 1
        for dim in dims(var):
            size = size * dim if isinstance(dim, int) else _SMALL
        if size < _SMALL and not self.converts(var, value):
            raise Declined("it is small")
        readers = [self.bound.get(reader) for reader in self.users.get(var, [])]
        computed = bool(readers) and all(computes(reader) for reader in readers)
        if is_op(value, "relax.broadcast_to") and computed and not self.absorbs(value):
            raise Declined("what reads it broadcasts by itself")
        if is_op(value, "relax.astype") and not self.absorbs(value):
            raise Declined("it moves nothing, and elementwise kernels convert")
        if is_op(value, "relax.astype") and storage(var) == "float32" and computed:
            raise Declined("what reads it widens by itself")

    def converts(self, var: relax.Var, value: relax.Expr) -> bool:
        """Whether what is moved to `var` is converted on the way: fused with what reads it, the cast would be left."""
        if storage(var) != storage(value) or (is_op(value, "relax.astype") and self.absorbs(value)):
            return True
        looks_up = is_op(value, *LOOKUPS)
        operands = [operand for operand in self.moved(value) if isinstance(operand, relax.Var)]
        return any(
            is_op(self.bound.get(operand), "relax.astype") and (looks_up or self.is_seen(operand))
            for operand in operands
        )

    def is_seen(self, expr: relax.Expr) -> bool:
        """Whether `expr` is looked through: only views read it, or it rounds what is in memory."""
        if not isinstance(expr, relax.Var):
            return False
        return expr in self.absorbed or is_rounded_load(self.bound.get(expr), self.bound)

    def absorbs(self, value: relax.Expr) -> bool:
        return any(operand in self.absorbed for operand in self.moved(value) if isinstance(operand, relax.Var))

    # ---- views and pieces ----

    def view(self, expr: relax.Expr, names: DimensionNames) -> View:
        """What `expr` is, as a view of what no kernel absorbs."""
        if self.is_seen(expr):
            try:
                return self.own_view(self.bound[expr], names)
            except Declined:
                self.absorbed -= {expr} | self.chain(self.bound[expr])
        return whole(expr, names)

    def own_view(self, value: relax.Expr, names: DimensionNames) -> View:
        split = self.split_of(value)
        (operand,) = self.moved(value)
        view = self.view(operand, names)
        if split is not None:
            return part_of_split(view, split, value.index, names)
        return VIEWS[value.op.name](view, value, names)

    def parts(self, value: relax.Expr, names: DimensionNames) -> list[Part]:
        writes = strides_of(names.sizes(dims(value)))
        if op_name(value) in JOINS:
            views = [self.view(operand, names) for operand in self.moved(value)]
            return JOINS[value.op.name](views, value, writes, names)
        return [copied(self.own_view(value, names), writes)]

    def kernel_of(self, var: relax.Var, value: relax.Expr) -> tuple[Move, list[relax.Expr], str]:
        """The kernel that computes `value`, its arguments and what to call it."""
        names = DimensionNames()
        arguments: list[relax.Expr] = []
        pieces: list[Piece] = []
        for view, piece in self.parts(value, names):
            if view is None:
                pieces.append(piece)
                continue
            if view.dtype != storage(var):
                raise Declined(f"it reads {view.dtype} and writes {storage(var)}")
            known = [i for i, argument in enumerate(arguments) if argument.same_as(view.tensor)]
            if not known:
                arguments.append(view.tensor)
            pieces.append(replace(piece, source=known[0] if known else len(arguments) - 1))
        tensors = [(tuple(names.dim(dim) for dim in dims(tensor)), storage(tensor)) for tensor in (*arguments, var)]
        if not _named(pieces) <= {dim for shape, _ in tensors for dim in shape}:
            raise Declined("a dimension is none of the tensors that are left")
        kind = "part" if self.split_of(value) is not None else value.op.name.rpartition(".")[2]
        return Move(tuple(tensors[:-1]), tuple(pieces), tensors[-1]), arguments, kind

    # ---- lookups ----

    def narrowed_lookup(self, var: relax.Var, value: Any) -> relax.Call | None:
        """The take that only `value` reads, which narrows its result to `var`."""
        if (
            not is_op(value, "relax.astype")
            or not isinstance(value.args[0], relax.DataflowVar)
            or storage(var) not in LOW
        ):
            return None
        call = self.bound.get(value.args[0])
        is_alone = is_op(call, *LOOKUPS) and storage(call) == "float32" and self.uses[value.args[0]] == 1
        return call if is_alone else None

    def look_up(self, var: relax.Var, call: relax.Call) -> None:
        """Choose the kernel of a take, which also narrows or widens what it reads."""
        table, numbers = call.args
        try:
            if shape_of(table) is None or shape_of(numbers) is None or str(call.attrs.mode) not in MODES:
                raise Declined("a shape is not known, or what is out of range becomes NaN")
            if storage(table) not in BITS or not storage(numbers).startswith(("int", "uint")):
                raise Declined(f"it looks up {storage(table)} by {storage(numbers)}")
            self.worthwhile(var, call)
        except Declined as declined:
            explain("layout", var, str(declined), taken=False)
            return
        cast = self.bound.get(table) if isinstance(table, relax.DataflowVar) else None
        if cast is not None and is_op(cast, "relax.astype") and {storage(table), storage(cast.args[0])} <= {*FLOATS}:
            self.absorbed |= {table} if self.uses[table] == 1 else set()
            table = cast.args[0]
        names = DimensionNames()
        tensors = [(tuple(names.dim(dim) for dim in dims(tensor)), storage(tensor)) for tensor in (table, numbers, var)]
        axis = int(call.attrs.axis or 0) % len(dims(table))
        spec = Lookup(tensors[0], tensors[1], tensors[2], axis, str(call.attrs.mode))
        self.lowered[var] = spec, [table, numbers], "take"


def _named(pieces: list[Piece]) -> set[str]:
    """The run-time dimensions that pieces are made of."""
    sizes = [size for piece in pieces for axis in piece.axes for size in (axis.extent, axis.read, axis.write)]
    sizes += [size for piece in pieces for size in (piece.read, piece.write)]
    return named_in(sizes)


def lower_layout(mod: tvm.IRModule, backend: Backend) -> tvm.IRModule:
    """Rewrite operators that only move data to kernels, a chain of views to one.

    Before::                                                After::

        a: bf16 = R.astype(x, "bfloat16")                       c = R.call_tir(permute_dims0_8x12x128x64_bfloat16, x)
        b: bf16 = R.reshape(a, R.shape([8, 128, 12, 64]))
        c: bf16 = R.permute_dims(b, [0, 2, 1, 3])
    """
    return rewrite_functions(mod, _Layout, backend)
