"""Replace reductions, with the elementwise operators that only they read, by generated kernels."""

from __future__ import annotations

from dataclasses import dataclass

import tvm
from tvm import relax
from tvm.relax.expr_functor import mutator

from autocast.ir import is_op, op_name, shape_of
from autocast.kernels.explain import explain
from autocast.kernels.graph.canonicalize import same_shape
from autocast.kernels.graph.operators import LOW
from autocast.kernels.graph.rewriting import BindingRewriter, dims, rewrite_functions, storage, users_of
from autocast.kernels.graph.translate import Translation, declined
from autocast.kernels.reductions.kernel import Reduce, reduce

#: Operators and the function that combines elements; means, variances and deviations are sums that are divided.
_FUNCTIONS = {
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


@dataclass
class _Group:
    """A reduction, the operators before it that its kernel computes, and what it defines."""

    call: relax.Call
    axes: tuple[int, ...]
    members: set[relax.Var]
    end: relax.Var


@mutator
class _Reductions(BindingRewriter):
    def __init__(self, mod: tvm.IRModule, target: tvm.target.Target):
        super().__init__(mod)
        self.target = target
        self.kernels: dict[Reduce, tvm.ir.GlobalVar] = {}

    def enter(self, function: relax.Function) -> None:
        self.bound, self.users = users_of(function)
        self.groups: dict[relax.Var, _Group] = {}
        for var, value in self.bound.items():
            if op_name(value) not in _FUNCTIONS:
                continue
            reason = _declined(value)
            explain("reductions", var, reason or "", taken=reason is None)
            if reason is None:
                group = _Group(value, _axes(value), self.members(value.args[0]), self.end(var, value))
                self.groups[group.end] = group

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
        readers = self.users.get(var, [])
        if len(readers) == 1 and self.uses[var] == 1 and isinstance(var, relax.DataflowVar):
            cast = self.bound[readers[0]]
            if is_op(cast, "relax.astype") and storage(readers[0]) in LOW and not is_op(call, "relax.std"):
                return readers[0]
        return var

    def rewrite(self, binding: relax.VarBinding) -> relax.Expr | None:
        group = self.groups.get(binding.var)
        if group is None:
            return None
        data = group.call.args[0]
        if not is_op(group.call, *_DEVIATIONS):
            return self.reduced(group, Translation(self.bound, group.members, dims(data)), group.end)
        kept = tuple(1 if axis in group.axes else dim for axis, dim in enumerate(dims(data)))
        mean = relax.Var("mean", relax.TensorType(kept, "float32"))
        mean = self.emit(self.reduced(group, Translation(self.bound, group.members, dims(data)), mean))
        translation = Translation(self.bound, group.members, dims(data))
        step = translation.value(data)
        translation.arguments.append(mean)
        argument = translation.builder.argument(translation.named(kept), "float32")
        centered = translation.step("subtract", step, translation.builder.load(argument, translation.named(kept)))
        square = translation.step("multiply", centered, centered)
        result = self.reduced(group, translation, group.end, square)
        return relax.op.sqrt(self.emit(result)) if is_op(group.call, "relax.std") else result

    def reduced(self, group: _Group, translation: Translation, out: relax.Var, step: int | None = None) -> relax.Expr:
        """A call of the kernel that reduces a step of a program to a tensor like `out`."""
        step = translation.value(group.call.args[0]) if step is None else step
        program = translation.builder.finish([(step, translation.named(dims(out)), storage(out))])
        name = op_name(group.call)
        assert name is not None
        spec = Reduce(program, group.axes, _FUNCTIONS[name], name in _MEANS)
        if spec not in self.kernels:
            title = f"{name.rpartition('.')[2]}{len(self.kernels)}_{'x'.join(map(str, program.space))}"
            title += f"_over_{'_'.join(map(str, group.axes))}_{storage(out)}"
            function = reduce(spec, self.target, title).without_attr("global_symbol")
            self.kernels[spec] = self.builder_.add_func(function, title)
        out_type = relax.TensorType(dims(out), storage(out))
        return relax.call_tir(self.kernels[spec], [self.new(argument) for argument in translation.arguments], out_type)


def _axes(call: relax.Call) -> tuple[int, ...]:
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
    return None if _axes(call) else "it is over no axes"


def lower_reductions(mod: tvm.IRModule, target: tvm.target.Target) -> tvm.IRModule:
    """Rewrite reductions over any axes to kernels, which compute the elementwise operators that only they read.

    Before::                                        After::

        a: f32 = R.astype(x, "float32")                 c: bf16 = R.call_tir(sum0_8x128x768_over_0_1_bfloat16, (x, y))
        b: f32 = R.sum(R.multiply(a, y), [0, 1])
        c: bf16 = R.astype(b, "bfloat16")

    Variances are two of them: the mean, and the mean of the squares of what differs from it.
    """
    return rewrite_functions(mod, _Reductions, target)
