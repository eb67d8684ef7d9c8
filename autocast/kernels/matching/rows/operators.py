"""Translate Relax operators to steps of a row kernel's program: what each row operator computes, as a table."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import numpy as np
from tvm import relax

from autocast.ir import dims, is_op, number_of, op_name, shape_of, storage
from autocast.kernels.explain import Declined
from autocast.kernels.matching.clusters import Clusters
from autocast.kernels.matching.functions import operation
from autocast.kernels.matching.rows.space import EXACT, INTEGERS, Form, RowSpace, space_of
from autocast.kernels.matching.translate import Translation, is_rounded_load
from autocast.kernels.specs.program import operands_of
from autocast.kernels.storage import LOW
from autocast.operators import Kind, is_kind

_LARGEST = float(np.finfo("float32").max)


class RowTranslation(Translation):
    """The program of a set of bindings over one space; raises Declined where there is none.

    `value(var)` adds a member, after those that it is computed from.
    """

    def __init__(self, clusters: Clusters, members: Collection[relax.Var], space: RowSpace) -> None:
        super().__init__(clusters.bound, members, space.split)
        self.space = space
        #: For the step of a log_softmax, the step that is its exponential.
        self.exponentials: dict[int, int] = {}

    def computed(self, var: relax.Var) -> int:
        """The step that computes a member."""
        call = self.bound[var]
        if shape_of(var) is None:
            raise Declined("a dimension is not known")
        form = self.space.form(dims(var))
        if form is None:
            raise Declined("its result has another shape")
        name = op_name(call)
        if name in ROW_OPERATORS:
            if not space_of(call).same(self.space):
                raise Declined("it has other rows")
            return ROW_OPERATORS[name](self, call)
        if name in _FREE_OPERATORS:
            return _FREE_OPERATORS[name](self, call, form)
        return self.elementwise(var, call, form)

    def elementwise(self, var: relax.Var, call: relax.Expr, form: Form) -> int:
        """The step of an elementwise operator."""
        found = operation(call)
        if found is None:
            raise Declined("it is not elementwise")
        function, operands = found
        compares = is_kind(call, Kind.COMPARISON)
        if storage(var) != "float32" and not (storage(var) == "bool" and (compares or function.startswith("logical"))):
            raise Declined(f"it computes in {storage(var)}")
        steps = [self.constant(o) if isinstance(o, float) else self.read(o, form, integers=compares) for o in operands]
        integer = any(not isinstance(e, float) and storage(e) in INTEGERS for e in operands)
        if integer and not any(self._is_small(step) for step in steps):
            raise Declined("it compares integers that float32 may not tell apart")
        if function == "exp" and steps[0] in self.exponentials:
            return self.exponentials[steps[0]]
        return self.step(function, *steps)

    def leaf(self, expr: relax.Expr) -> int:
        """The step that reads what the program does not compute."""
        form = self.space.form(dims(expr))
        assert form is not None
        return self.read(expr, form)

    def whole(self, expr: relax.Expr) -> int:
        """The step of a tensor whose rows an operator works on."""
        return self.read(expr, Form.WHOLE)

    def read(self, expr: relax.Expr, form: Form, *, integers: bool = False) -> int:
        """The step of an operand of something that has `form`."""
        shape = shape_of(expr)
        if shape is None:
            raise Declined("it reads a tensor of unknown dimensions")
        if (number := number_of(expr)) is not None:
            return self.constant(number)
        expr = self.narrow(expr)
        if expr in self.steps:
            if (self.space.form(shape) is Form.BARE) != (form is Form.BARE):
                raise Declined("it reads one value for each row along another dimension")
            return self.steps[expr]
        value: Any = self.bound.get(expr) if isinstance(expr, relax.Var) else None
        if is_rounded_load(value, self.bound):
            return self.rounded(self.read(value.args[0], form), "float32", storage(expr))
        return self.stored(expr, form, integers=integers)

    def stored(self, expr: relax.Expr, form: Form, *, integers: bool) -> int:
        """The step of a tensor that is in memory, or of what needs none."""
        shape = dims(expr)
        value: Any = self.bound.get(expr) if isinstance(expr, relax.Var) else None
        if is_op(value, "relax.zeros", "relax.ones"):
            return self.constant(float(value.op.name.endswith("ones")))
        if is_op(value, "relax.full") and (number := number_of(value.args[1])) is not None:
            return self.constant(number)
        view = self.space.view(shape, form)
        if is_op(value, "relax.arange") and integers and self._counts_columns(value, view):
            return self.step("column")
        if storage(expr) not in ("float32", "bool", *LOW, *(INTEGERS if integers else ())):
            raise Declined(f"it reads {storage(expr)}")
        return self.load(expr, view)

    def narrow(self, expr: relax.Expr) -> relax.Expr:
        """What `expr` is the float32 form of, if it is that of a tensor in a low dtype."""
        value: Any = self.bound.get(expr) if isinstance(expr, relax.Var) else None
        return value.args[0] if is_widening(value) else expr

    def _counts_columns(self, arange: relax.Call, view: tuple) -> bool:
        """Whether an arange is 0, 1, 2... along a row of one dimension."""
        start, end, step = arange.args
        counts = self.space.row_dims == 1 and not self.space.is_split and all(dim == 1 for dim in view[:-1])
        length = self.space.shape[-1]
        ends = isinstance(length, int) and length <= EXACT and int(end) == length
        return counts and ends and int(start) == 0 and int(step) == 1

    def is_row_value(self, step: int) -> bool:
        """Whether a step is a number, or is read with one value for a row."""
        head, *rest = self.builder.steps[step]
        return head == "constant" or (head == "load" and all(dim == 1 for dim in rest[1][-self.space.row_dims :]))

    def _is_small(self, step: int) -> bool:
        """Whether a step is a number that float32 tells from its neighbours, or the number of a column."""
        head, *rest = self.builder.steps[step]
        return head == "column" or (head == "constant" and abs(rest[0]) < EXACT)

    def mean(self, step: int) -> int:
        """The mean of a row."""
        return self.step("divide", self.step("row_sum", step), self.step("length"))

    def centered(self, step: int) -> int:
        """A row less its mean."""
        return self.step("subtract", step, self.mean(step))

    def scaled(self, step: int, deviation_of: int, epsilon: float) -> int:
        """A row by the root of the mean square of another."""
        squares = self.mean(self.step("multiply", deviation_of, deviation_of))
        return self.step("multiply", step, self.step("rsqrt", self.step("add", squares, self.constant(epsilon))))

    def affine(self, step: int, call: relax.Call, scale: relax.Expr | None, offset: relax.Expr | None) -> int:
        """A row times `scale` plus `offset`, which lie along what `call` normalizes, or along its channels."""
        for function, vector in (("multiply", scale), ("add", offset)):
            if vector is not None:
                step = self.step(function, step, self._channels(call, vector))
        return step

    def _channels(self, call: relax.Call, vector: relax.Expr) -> int:
        """A vector with one element for each channel of a tensor whose channels are not its last dimension."""
        if not hasattr(call.attrs, "channel_axis"):
            return self.read(vector, Form.WHOLE)
        axis, rank = int(call.attrs.channel_axis) % len(self.space.shape), len(self.space.shape)
        vector = self.narrow(vector)
        if vector in self.steps or storage(vector) not in ("float32", *LOW):
            raise Declined("its scale or offset is computed in the same kernel")
        shape = (1,) * axis + dims(vector) + (1,) * (rank - axis - 1)
        return self.load(vector, self.space.view(shape, Form.WHOLE))


def is_widening(value: Any) -> bool:
    """Whether `value` is the float32 form of a tensor in a low dtype, which loads give for nothing."""
    return is_op(value, "relax.astype") and storage(value) == "float32" and storage(value.args[0]) in LOW


def _softmax_parts(t: RowTranslation, call: relax.Call) -> tuple[int, int, int]:
    """The row less its maximum, the exponential of that, and its sum."""
    data = t.whole(call.args[0])
    shifted = t.step("subtract", data, t.step("row_highest", data))
    weights = t.step("exp_nonpositive", shifted)
    return shifted, weights, t.step("row_sum", weights)


def _softmax(t: RowTranslation, call: relax.Call) -> int:
    _, weights, total = _softmax_parts(t, call)
    return t.step("multiply", weights, t.step("divide", t.constant(1.0), total))


def _log_softmax(t: RowTranslation, call: relax.Call) -> int:
    shifted, _, total = _softmax_parts(t, call)
    result = t.step("subtract", shifted, t.step("log", total))
    t.exponentials[result] = _softmax(t, call)
    return result


def _layer_norm(t: RowTranslation, call: relax.Call) -> int:
    """layer_norm, group_norm and instance_norm: they differ in what a row is."""
    attributes, (data, gamma, beta) = call.attrs, call.args
    centered = t.centered(t.whole(data))
    normalized = t.scaled(centered, centered, float(attributes.epsilon))
    return t.affine(normalized, call, gamma if attributes.scale else None, beta if attributes.center else None)


def _rms_norm(t: RowTranslation, call: relax.Call) -> int:
    data = t.whole(call.args[0])
    return t.affine(t.scaled(data, data, float(call.attrs.epsilon)), call, call.args[1], None)


def _variance(t: RowTranslation, call: relax.Call) -> int:
    """The mean square of what differs from the mean, as it was rounded, less the square of its own mean."""
    centered = t.centered(t.whole(call.args[0]))
    rest = t.mean(centered)
    finite = t.step("minimum", t.step("multiply", rest, rest), t.constant(_LARGEST))  # infinity less it is infinity
    variance = t.step("subtract", t.mean(t.step("multiply", centered, centered)), finite)
    return t.step("maximum", variance, t.constant(0.0))


def _sum(t: RowTranslation, call: relax.Call) -> int:
    data = t.whole(call.args[0])
    if (picked := _pick(t, data)) is not None:
        return picked
    return t.step("row_sum", data)


def _pick(t: RowTranslation, step: int) -> int | None:
    """What is left of a row that is zero everywhere but in the column that a row value names: no sweep is needed."""
    head, *operands = t.builder.steps[step]
    if head != "where" or t.builder.steps[operands[2]] != ("constant", 0.0):
        return None
    condition, value, _ = operands
    function, *sides = t.builder.steps[condition]
    columns = [side for side in sides if function == "equal" and t.builder.steps[side] == ("column",)]
    labels = [side for side in sides if function == "equal" and t.is_row_value(side)]
    if len(columns) != 1 or len(labels) != 1 or _scans(t, value):
        return None
    return t.step("row_pick", value, labels[0])


def _scans(t: RowTranslation, step: int) -> bool:
    row = t.builder.steps[step]
    return row[0] == "row_cumsum" or any(_scans(t, operand) for operand in operands_of(row))


def _cumsum(t: RowTranslation, call: relax.Call) -> int:
    if call.attrs.exclusive or (call.attrs.dtype is not None and str(call.attrs.dtype) not in ("float32", "void")):
        raise Declined("it is exclusive, or sums in another dtype")
    return t.step("row_cumsum", t.whole(call.args[0]))


def _reduction(function: str) -> Callable[[RowTranslation, relax.Call], int]:
    return lambda t, call: t.step(function, t.whole(call.args[0]))


#: Operators that need whole rows.
ROW_OPERATORS: dict[str, Callable[[RowTranslation, relax.Call], int]] = {
    "relax.nn.softmax": _softmax,
    "relax.nn.log_softmax": _log_softmax,
    "relax.nn.layer_norm": _layer_norm,
    "relax.nn.group_norm": _layer_norm,
    "relax.nn.instance_norm": _layer_norm,
    "relax.nn.rms_norm": _rms_norm,
    "relax.sum": _sum,
    "relax.mean": lambda t, call: t.mean(t.whole(call.args[0])),
    "relax.variance": _variance,
    "relax.std": lambda t, call: t.step("sqrt", _variance(t, call)),
    "relax.max": _reduction("row_maximum"),
    "relax.min": _reduction("row_minimum"),
    "relax.prod": _reduction("row_product"),
    "relax.argmax": _reduction("row_argmax"),
    "relax.argmin": _reduction("row_argmin"),
    "relax.cumsum": _cumsum,
}


def _astype(t: RowTranslation, call: relax.Call, form: Form) -> int:
    source, to = storage(call.args[0]), storage(call)
    if source not in ("float32", "bool", *LOW) or to not in ("float32", "bool", *LOW):
        raise Declined(f"it converts {source} to {to}")
    if is_widening(call) and call.args[0] not in t.steps:
        raise Declined("loads widen already")
    return t.rounded(t.read(call.args[0], form), source, to)


def _reshape(t: RowTranslation, call: relax.Call, form: Form) -> int:
    if call.args[0] not in t.steps or form is Form.WHOLE or t.space.form(dims(call.args[0])) in (None, Form.WHOLE):
        raise Declined("it changes more than the dimensions of row values")
    return t.steps[call.args[0]]


def _one_hot(t: RowTranslation, call: relax.Call, form: Form) -> int:
    labels, on, off = call.args
    axis, rank = int(call.attrs.axis), len(t.space.shape)
    if form is not Form.WHOLE or t.space.row_dims != 1 or axis not in (-1, rank - 1) or labels in t.steps:
        raise Declined("its labels are not those of rows")
    if storage(call) != "float32" or not isinstance(t.space.shape[-1], int) or t.space.shape[-1] > EXACT:
        raise Declined(f"it makes {storage(call)}, or rows of unknown length")
    label = t.read(labels, Form.BARE, integers=True)
    here = t.step("equal", t.step("column"), label)
    return t.step("where", here, t.constant(float(on.value)), t.constant(float(off.value)))


#: Operators that only say how values are seen or stored.
_FREE_OPERATORS: dict[str, Callable[[RowTranslation, relax.Call, Form], int]] = {
    "relax.astype": _astype,
    "relax.reshape": _reshape,
    "relax.one_hot": _one_hot,
    "relax.broadcast_to": lambda t, call, form: t.read(call.args[0], form),
}
