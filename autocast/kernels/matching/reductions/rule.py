"""Replace reductions, with the elementwise operators that only they read, by generated kernels."""

from __future__ import annotations

from dataclasses import dataclass

import tvm
from tvm import relax
from tvm.relax.expr_functor import mutator

from autocast.ir import dims, is_op, op_name, same_shape, shape_of, storage
from autocast.ir.rewriting import rewrite_functions, users_of
from autocast.kernels.backend import Backend
from autocast.kernels.explain import explain
from autocast.kernels.matching.kernel_rewriter import KernelRewriter
from autocast.kernels.matching.translate import Translation, declined
from autocast.kernels.specs.reductions import Reduce
from autocast.kernels.storage import LOW

#: Operators and the function that combines elements; means, variances and deviations are sums that are divided.
FUNCTIONS = {
    "relax.sum": "row_sum",
    "relax.collapse_sum_to": "row_sum",
    "relax.collapse_sum_like": "row_sum",
    "relax.mean": "row_sum",
    "relax.variance": "row_sum",
    "relax.std": "row_sum",
    "relax.max": "row_maximum",
    "relax.min": "row_minimum",
    "relax.prod": "row_product",
}
_MEANS = ("relax.mean", "relax.variance", "relax.std")
_DEVIATIONS = ("relax.variance", "relax.std")

#: The most operators before a reduction that its kernel computes: it computes eight vectors at a time.
_MEMBERS = 8

#: The most reductions of one sweep.
_SWEEP = 4


@dataclass
class _Group:
    """A reduction, the operators before it that its kernel computes, and what it defines."""

    call: relax.Call
    axes: tuple[int, ...]
    members: set[relax.Var]
    end: relax.Var

    @property
    def data(self) -> relax.Expr:
        """What is reduced."""
        return self.call.args[0]

    @property
    def name(self) -> str:
        """The operator's."""
        return str(op_name(self.call))

    @property
    def deviates(self) -> bool:
        """Whether it needs the mean first."""
        return self.name in _DEVIATIONS


class _Translation(Translation):
    def sees_through(self, operand: relax.Expr, view: tuple) -> bool:
        """Results lack the extents that are reduced, so arguments must say those that only running tells."""
        return all(isinstance(dim, int) or any(same_shape((dim,), (own,)) for own in dims(operand)) for dim in view)


@mutator
class _Reductions(KernelRewriter):
    def enter(self, function: relax.Function) -> None:
        self.bound, self.users = users_of(function)
        self.position = {var: number for number, var in enumerate(self.bound)}
        self.block = {b.var: number for number, block in enumerate(function.body.blocks) for b in block.bindings}
        #: Reductions of one sweep by what the first of them defines, and what the others of that sweep are then.
        self.sweeps: dict[relax.Var, list[_Group]] = {}
        self.results: dict[relax.Var, relax.Expr] = {}
        self.reads: dict[relax.Var, list[relax.Expr]] = {}
        for var, value in self.bound.items():
            if op_name(value) not in FUNCTIONS:
                continue
            reason = _declined(value)
            explain("reductions", var, reason or "", taken=reason is None)
            if reason is None:
                group = _Group(value, axes_of(value), self.members(value.args[0]), self.end(var, value))
                alone: list[_Group] = []
                sweep = next((sweep for sweep in self.sweeps.values() if self.may_join(group, sweep)), alone)
                sweep.append(group)
                self.sweeps.setdefault(sweep[0].end, sweep)

    def members(self, data: relax.Expr) -> set[relax.Var]:
        """The elementwise operators of the shape of `data` that are read only on the way to it."""
        found: set[relax.Var] = set()
        waiting = [data]
        while waiting:
            expr = waiting.pop(0)
            value = self.bound.get(expr) if isinstance(expr, relax.DataflowVar) else None
            if value is None or self.uses[expr] != 1 or len(found) == _MEMBERS:
                continue
            if same_shape(shape_of(expr), dims(data)) and declined(expr, value) is None:
                found.add(expr)
                waiting += [operand for operand in value.args if isinstance(operand, relax.Var)]
        return found

    def end(self, var: relax.Var, call: relax.Call) -> relax.Var:
        """The variable that the kernel of a reduction defines: its low form, where nothing else is read."""
        reader = self.only_user(var) if isinstance(var, relax.DataflowVar) else None
        if reader is None or not is_op(self.bound[reader], "relax.astype") or is_op(call, "relax.std"):
            return var
        return reader if storage(reader) in LOW else var

    def may_join(self, group: _Group, sweep: list[_Group]) -> bool:
        """Whether the sweep of another reduction computes `group` too: both read a tensor of the shape they reduce."""
        first = sweep[0]
        shape = dims(group.data)
        if any(other.deviates for other in sweep) or len(sweep) == _SWEEP or group.axes != first.axes:
            return False
        if not same_shape(dims(first.data), shape) or self.block[group.end] != self.block[first.end]:
            return False
        reads, others = self.read_by(group), self.read_by(first)
        if not any(a.same_as(b) and same_shape(shape_of(a), shape) for a in reads for b in others):
            return False
        if group.deviates:
            return len(sweep) == 1 and first.name == "relax.mean" and self.is_stored(group) and self.is_stored(first)
        known = all(self.position.get(argument, -1) < self.position[first.end] for argument in reads)
        alike = FUNCTIONS[group.name] == FUNCTIONS[first.name], (group.name in _MEANS) == (first.name in _MEANS)
        return known and all(alike)

    def read_by(self, group: _Group) -> list[relax.Expr]:
        """The arguments of the kernel of `group` alone."""
        if group.end not in self.reads:
            self.reads[group.end] = self.translation([group]).arguments
        return self.reads[group.end]

    def is_stored(self, group: _Group) -> bool:
        """Whether lines of what is reduced are read as they are, so that one sweep finds mean and variance of them."""
        leading = group.axes == tuple(range(len(group.axes))) and len(group.axes) < len(dims(group.data))
        return leading and len(self.translation([group]).builder.steps) == 1

    def translation(self, groups: list[_Group]) -> Translation:
        """A program that computes what `groups` reduce."""
        members = {member for group in groups for member in group.members}
        translation = _Translation(self.bound, members, dims(groups[0].data))
        for group in groups:
            translation.value(group.data)
        return translation

    def rewrite(self, binding: relax.VarBinding) -> relax.Expr | None:
        sweep = self.sweeps.get(binding.var)
        if sweep is None:
            return self.results.get(binding.var)
        translation = self.translation(sweep)
        if not any(group.deviates for group in sweep):
            steps = [translation.value(group.data) for group in sweep]
            results = self.reduced(sweep, translation, steps, [group.end for group in sweep])
        elif self.is_stored(sweep[0]):
            results = self.moments(sweep, translation)
        else:
            results = [self.deviation(sweep[0], translation)]
        results = [
            relax.op.sqrt(self.emit(result)) if group.name == "relax.std" else result
            for group, result in zip(sweep, results, strict=True)
        ]
        self.results.update((group.end, result) for group, result in zip(sweep[1:], results[1:], strict=True))
        return results[0]

    def moments(self, sweep: list[_Group], translation: Translation) -> list[relax.Expr]:
        """The variance of a stored tensor in one sweep, after its mean if the sweep has both.

        Squares are those of the differences from the mean of some lines, which is near that of all.
        """
        group = sweep[-1]
        start = translation.builder.load(0, translation.named(_kept(group)))
        offset = translation.step("subtract", translation.value(group.data), start)
        mean = sweep[0].end if len(sweep) > 1 else relax.Var("mean", relax.TensorType(dims(group.end), "float32"))
        steps = [offset, translation.step("multiply", offset, offset)]
        return self.reduced(sweep, translation, steps, [mean, group.end], moments=True)[-len(sweep) :]

    def deviation(self, group: _Group, translation: Translation) -> relax.Expr:
        """The variance of what is computed, or not in lines: the mean of the squares of what differs from the mean.

        The mean was rounded, so what differs from it has a mean too.
        """
        mean, rest, square = (relax.Var(name, relax.TensorType(_kept(group), "float32")) for name in ("m", "d", "s"))
        (average,) = self.reduced([group], translation, [translation.value(group.data)], [mean])
        translation = self.translation([group])
        translation.arguments.append(self.emit(average))
        view = translation.named(_kept(group))
        load = translation.builder.load(translation.builder.argument(view, "float32"), view)
        centered = translation.step("subtract", translation.value(group.data), load)
        steps = [centered, translation.step("multiply", centered, centered)]
        off, squares = map(self.emit, self.reduced([group], translation, steps, [rest, square]))
        opposite = self.emit(relax.op.negative(off))  # fused, as the square alone may be infinite
        variance = self.emit(relax.op.ewise_fma(opposite, off, squares))
        variance = self.emit(relax.op.maximum(variance, relax.const(0.0, "float32")))
        variance = self.emit(relax.op.reshape(variance, dims(group.end)))
        return relax.op.astype(variance, storage(group.end)) if storage(group.end) in LOW else variance

    def reduced(
        self,
        sweep: list[_Group],
        translation: Translation,
        steps: list[int],
        ends: list[relax.Var],
        *,
        moments: bool = False,
    ) -> list[relax.Expr]:
        """Tensors like `ends`: the results of a kernel that reduces steps of a program."""
        outputs = [(step, translation.named(dims(end)), storage(end)) for step, end in zip(steps, ends, strict=True)]
        program, group = translation.builder.finish(outputs), sweep[0]
        spec = Reduce(program, group.axes, FUNCTIONS[group.name], group.name in _MEANS, moments)
        names = "_".join(dict.fromkeys(group.name.rpartition(".")[2] for group in sweep))
        space, axes = "x".join(map(str, program.space)), "_".join(map(str, group.axes))
        kernel = self.kernel(spec, lambda number: f"{names}{number}_{space}_over_{axes}_{storage(ends[0])}")
        return self.call(kernel, translation.arguments, ends)


def _kept(group: _Group) -> tuple:
    """The shape of a reduction's result, with 1 in the place of what is reduced."""
    return tuple(1 if axis in group.axes else dim for axis, dim in enumerate(dims(group.data)))


def axes_of(call: relax.Call) -> tuple[int, ...]:
    """The axes that a reduction is over, in order."""
    shape = dims(call.args[0])
    if call.op.name.startswith("relax.collapse_sum"):
        target = (1,) * (len(shape) - len(dims(call))) + dims(call)
        new = len(shape) - len(dims(call))
        return tuple(
            axis
            for axis, (dim, kept) in enumerate(zip(shape, target, strict=True))
            if axis < new or not same_shape((dim,), (kept,))
        )
    axes = call.attrs.axis
    return tuple(sorted({int(axis) % len(shape) for axis in (range(len(shape)) if axes is None else axes)}))


def _declined(call: relax.Call) -> str | None:
    """Why no kernel computes `call`; None where one does."""
    data = call.args[0]
    if not shape_of(data) or shape_of(call) is None:
        return "a shape is not known, or the operand is a scalar"
    if storage(data) not in ("float32", *LOW) or storage(call) != "float32":
        return f"it reduces {storage(data)} to {storage(call)}"
    if any(isinstance(dim, int) and dim == 0 for dim in dims(data)):
        return "it has no elements"
    return None if axes_of(call) else "it is over no axes"


def lower_reductions(mod: tvm.IRModule, backend: Backend) -> tvm.IRModule:
    """Rewrite reductions over any axes to kernels, which compute the elementwise operators that only they read.

    Before::                                        After::

        a: f32 = R.astype(x, "float32")                 c: bf16 = R.call_tir(sum0_8x128x768_over_0_1_bfloat16, (x, y))
        b: f32 = R.sum(R.multiply(a, y), [0, 1])
        c: bf16 = R.astype(b, "bfloat16")

    One sweep computes two sums, or a mean and a variance, of the same tensor. The variance of what is not stored takes
    two: the mean, and the mean of the squares of what differs from it.
    """
    return rewrite_functions(mod, _Reductions, backend)
