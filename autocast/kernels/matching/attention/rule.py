"""Replace attention, with the moves of data on either side of it, by generated kernels."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

import tvm
from tvm import relax
from tvm.relax.expr_functor import mutator

from autocast.ir import dims, is_op, number_of, shape_of, storage
from autocast.ir.rewriting import rewrite_functions, users_of
from autocast.kernels.backend import Backend
from autocast.kernels.explain import Declined, explain
from autocast.kernels.matching.attention.operands import (
    Operand,
    aligned,
    broadcast,
    count,
    look_through,
    one_stride,
    whole,
    written_through,
)
from autocast.kernels.matching.attention.pattern import Graph, GraphStep, Match, match
from autocast.kernels.matching.kernel_rewriter import KernelRewriter
from autocast.kernels.specs.attention import Attention, OperandView, Step
from autocast.kernels.specs.sizes import DimensionNames, FactorNames, known, named_in
from autocast.kernels.storage import LOW

_STORAGES = ("float32", *LOW)


@dataclass
class _Site:
    """Where a kernel goes: it defines `end`, after `moves` of the result."""

    found: Match
    end: relax.Var
    moves: list[relax.Call] = field(default_factory=list)
    zero_empty: bool = False
    spec: Attention | None = None
    arguments: list[relax.Expr] = field(default_factory=list)


@mutator
class _Attention(KernelRewriter):
    def enter(self, function: relax.Function) -> None:
        self.graph = Graph(*users_of(function), self.uses)
        self.sites: dict[relax.Var, _Site] = {}
        for var, value in self.graph.bound.items():
            try:
                found = match(self.graph, var, value)
                if found is None:
                    continue
                site = self.site(found)
            except Declined as reason:
                explain("attention", var, str(reason), taken=False)
                continue
            explain("attention", var, f"up to {site.end.name}", taken=True)
            self.sites[site.end] = site

    def rewrite(self, binding: relax.VarBinding) -> relax.Expr | None:
        site = self.sites.get(binding.var)
        if site is None or site.spec is None:
            return None
        shape, dtype = site.spec.out
        kernel = self.kernel(site.spec, lambda number: f"attention{number}_{'x'.join(map(str, shape))}_{dtype}")
        return self.call(kernel, site.arguments, [site.end])[0]

    def site(self, found: Match) -> _Site:
        """The kernel for `found` and for as many readers of its result as it can write for."""
        site = _Site(found, found.result)
        self.describe(site)
        while (reader := self.graph.only_user(site.end)) is not None:
            longer = self.extended(site, reader)
            if longer is None:
                break
            try:
                self.describe(longer)
            except Declined:
                break
            site = longer
        return site

    def extended(self, site: _Site, reader: relax.Var) -> _Site | None:
        """The site with `reader` as its end, if that moves, narrows or masks what is read."""
        value = self.graph.value_of(reader)
        if is_op(value, "relax.permute_dims", "relax.reshape"):
            return _Site(site.found, reader, [*site.moves, value], site.zero_empty)
        if is_op(value, "relax.astype") and storage(site.end) == "float32" and storage(reader) in LOW:
            return _Site(site.found, reader, site.moves, site.zero_empty)
        if is_op(value, "relax.where") and value.args[1].same_as(site.end) and number_of(value.args[2]) == 0:
            masks = [step for step in site.found.steps if step.tensor is not None]
            if len(site.found.steps) == 2 and len(masks) == 1 and self.has_rows_of(value.args[0], masks[0]):
                return _Site(site.found, reader, site.moves, True)
        return None

    def has_rows_of(self, rows: relax.Expr, mask: GraphStep) -> bool:
        """Whether `rows` says which rows of `mask` let something pass: have an element that is true, or not -inf."""
        passed: list[str] = []
        while (value := self.graph.value_of(rows)) is not None and not rows.same_as(mask.tensor):
            if is_op(value, "relax.max"):
                last = len(dims(value.args[0])) - 1
                if [int(axis) % (last + 1) for axis in value.attrs.axis or ()] != [last]:
                    return False
            elif is_op(value, "relax.not_equal") and number_of(value.args[1]) == float("-inf"):
                return (
                    mask.kind == "add"
                    and passed.count("relax.max") == 1
                    and self.graph.widened(value.args[0]).same_as(self.graph.widened(mask.tensor))
                )
            elif not is_op(value, "relax.astype", "relax.reshape"):
                return False
            passed.append(value.op.name)
            rows = value.args[0]
        keeps = mask.kind == "keep" and mask.value == float("-inf")
        return keeps and passed.count("relax.max") == 1 and rows.same_as(mask.tensor)

    # ---- the kernel's specification ----

    def describe(self, site: _Site) -> None:
        """Set the specification and the arguments of a site; raises Declined where it has none."""
        # Factors see through more reshapes; but a kernel that reads `2 * b` rows alone does not know `b`.
        for names in (FactorNames(), DimensionNames()):
            with suppress(Declined):
                return self.specify(site, self.read_where_stored, names)
        return self.specify(site, whole, DimensionNames())

    def read_where_stored(self, expr: relax.Expr, names: DimensionNames) -> Operand:
        return look_through(expr, self.graph.bound, names)

    def specify(
        self, site: _Site, view: Callable[[relax.Expr, DimensionNames], Operand], names: DimensionNames
    ) -> None:
        """Do so with operands that are looked at by `view`, and dimensions that have `names`."""
        found = site.found
        factors = (found.query, found.key, found.value)
        if any(shape_of(factor) is None for factor in factors):
            raise Declined("a shape is not known")
        if any(dim == 0 for factor in factors for dim in dims(factor)):
            raise Declined("an operand is empty")
        if any(storage(factor) not in _STORAGES for factor in factors):
            raise Declined("its operands are no floats")
        if storage(site.end) not in _STORAGES:
            raise Declined(f"it answers {storage(site.end)}")
        query, key, value = (view(factor, names) for factor in factors)
        result = written_through(site.end, site.moves, dims(found.result), names)
        if found.heads_second_last:
            order = (0, 2, 1, 3)
            query, key, value, result = (_permuted(operand, order) for operand in (query, key, value, result))
        if found.key_transposed:
            last = len(key.axes) - 1
            key = _permuted(key, (*range(last - 1), last, last - 1))
        leading = [count(axis) for axis in result.axes[:-2]]
        query, key, value = (
            broadcast(o, [*leading, *(count(axis) for axis in o.axes[-2:])]) for o in (query, key, value)
        )
        queries, keys = count(query.axes[-2]), count(key.axes[-2])
        tensors = [None if step.tensor is None else _tensor(step, view, names) for step in found.steps]
        operands = [query, key, value, *(tensor for tensor in tensors if tensor is not None), result]
        extents, strides = aligned([[a for axis in o.axes[:-2] for a in axis] for o in operands])
        arguments: list[relax.Expr] = []
        views = []
        for operand, own in zip(operands, strides, strict=True):
            last_one = operand is result
            places = [i for i, argument in enumerate(arguments) if argument.same_as(operand.tensor)]
            if not last_one and not places:
                arguments.append(operand.tensor)
            place = len(arguments) if last_one else (places or [len(arguments) - 1])[0]
            rows, columns = (one_stride(axis) for axis in operand.axes[-2:])
            views.append(OperandView(place, operand.offset, own, rows, columns))
            if columns != 1 and count(operand.axes[-1]) != 1:
                raise Declined("what it reads or writes is not contiguous along its last axis")
        depth, value_depth = known(count(query.axes[-1])), known(count(value.axes[-1]))
        if depth is None or value_depth is None:
            raise Declined("the depth of its heads is known at run time only")
        rest = iter(views[3:-1])
        steps = tuple(Step(step.kind, step.value, None if step.tensor is None else next(rest)) for step in found.steps)
        spec = Attention(
            arguments=tuple(
                (tuple(names.dim(dim) for dim in dims(argument)), storage(argument)) for argument in arguments
            ),
            out=(tuple(names.dim(dim) for dim in dims(site.end)), storage(site.end)),
            leading=extents,
            queries=queries,
            keys=keys,
            depth=depth,
            value_depth=value_depth,
            query=views[0],
            key=views[1],
            value=views[2],
            result=views[-1],
            steps=steps,
            causal=found.causal,
            zero_empty=site.zero_empty,
        )
        bound = {dim for shape, _ in (*spec.arguments, spec.out) for dim in shape if isinstance(dim, str)}
        used = [*extents, queries, keys]
        used += [size for view in views for size in (view.offset, *view.leading, view.rows)]
        if named_in(used) - bound:
            raise Declined("a run-time dimension is none of what it reads")
        site.spec, site.arguments = spec, arguments


def _tensor(step: GraphStep, view: Callable[[relax.Expr, DimensionNames], Operand], names: DimensionNames) -> Operand:
    """A step's tensor, as large as the scores."""
    if shape_of(step.tensor) is None or storage(step.tensor) not in (*_STORAGES, "bool"):
        raise Declined(f"its bias or mask is {storage(step.tensor)}")
    return broadcast(view(step.tensor, names), names.sizes(step.space))


def _permuted(operand: Operand, order: tuple[int, ...]) -> Operand:
    return Operand(operand.tensor, tuple(operand.axes[axis] for axis in order), operand.offset)


def lower_attention(mod: tvm.IRModule, backend: Backend) -> tvm.IRModule:
    """Rewrite attention to one kernel that reads heads where projections wrote them.

    Before::                                               After::

        q = R.reshape(R.split(qkv, 3, axis=2)[0], ...)         y: bf16 = R.call_tir(
        s: f32 = R.nn.softmax(R.matmul(q', k') * 0.125)            attention0_8x128x768_bfloat16, (qkv,))
        o: bf16 = R.matmul(R.astype(s, "bfloat16"), v')
        y = R.reshape(R.permute_dims(o, [0, 2, 1, 3]))

    Scores and their softmax are float32; probabilities for the second product are bfloat16 where Q, K and V are.
    """
    return rewrite_functions(mod, _Attention, backend)
