"""The matrices that resize and average along axes whose sizes are known at run time only: computed where they are used.

Their rows are the outputs along the axis, their columns its pixels, as of those that `vision` and `pooling` make of
sizes that are known.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import relax
from tvm.relax import op

from autocast.ir import dtype_of
from autocast.operators.resizing import places, taps
from autocast.training.gradients.registry import Backward
from autocast.training.gradients.shapes import extent_of, known_shape

_Emit = Callable[[relax.Expr], relax.Var]


class _Numbers:
    """Numbers of float64 that are computed with as numpy's are: each operation emits one."""

    def __init__(self, emit: _Emit, value: relax.Expr) -> None:
        self.emit, self.value = emit, emit(value)

    def _made(self, operator: Callable[..., relax.Expr], *operands: Any) -> _Numbers:
        values = [one.value if isinstance(one, _Numbers) else relax.const(float(one), "float64") for one in operands]
        result = self.emit(operator(*values))
        return _Numbers(self.emit, op.astype(result, "float64") if dtype_of(result) == "bool" else result)

    def __add__(self, other: Any) -> _Numbers:
        return self._made(op.add, self, other)

    def __sub__(self, other: Any) -> _Numbers:
        return self._made(op.subtract, self, other)

    def __rsub__(self, other: Any) -> _Numbers:
        return self._made(op.subtract, other, self)

    def __mul__(self, other: Any) -> _Numbers:
        return self._made(op.multiply, self, other)

    def __truediv__(self, other: Any) -> _Numbers:
        return self._made(op.divide, self, other)

    def __floordiv__(self, other: Any) -> _Numbers:
        return _Numbers(self.emit, op.floor((self / other).value))

    def __neg__(self) -> _Numbers:
        return self * -1

    def __ge__(self, other: Any) -> _Numbers:
        return self._made(op.greater_equal, self, other)

    def __lt__(self, other: Any) -> _Numbers:
        return self._made(op.less, self, other)

    def __and__(self, other: _Numbers) -> _Numbers:
        return self * other

    __radd__, __rmul__ = __add__, __mul__

    def round(self) -> _Numbers:
        """The nearest whole numbers, even ones between two."""
        return self._made(op.round, self)

    def equals(self, other: _Numbers) -> _Numbers:
        """1 where they are equal, 0 elsewhere."""
        return self._made(op.equal, self, other)

    def at_least(self, least: float) -> _Numbers:
        """The larger ones of them and a number."""
        return self._made(op.maximum, self, least)

    def within(self, size: _Numbers) -> _Numbers:
        """The nearest places of an axis of `size`."""
        return self._made(op.minimum, self.at_least(0), size - 1)


class _Axis:
    """An axis of a call's data: its pixels as a row of numbers, and the outputs along it as a column."""

    def __init__(self, b: Backward, axis: int) -> None:
        self.emit, data = b.emit, b.call.args[0]
        self.extent, self.outputs = (_Numbers(b.emit, extent_of(of, [axis], "float64")) for of in (data, b.call))
        self.pixels, self.places = (self._counted(known_shape(of)[axis], at) for at, of in enumerate((data, b.call)))

    def _counted(self, count: Any, expanded: int) -> _Numbers:
        if isinstance(count, relax.Call):  # T.if_then_else, of which an argument would be a variable of its own
            numbers = op.cumsum(self.emit(op.ones([count], "int64")), 0) - relax.const(1, "int64")
        else:
            numbers = op.arange(0, count, 1, "int64")
        numbers = self.emit(op.astype(self.emit(numbers), "float64"))
        return _Numbers(self.emit, op.expand_dims(numbers, expanded))


def resizing(b: Backward, axis: int) -> relax.Expr | None:
    """The matrix of `image.resize2d` along an axis; None for a mode that places outputs otherwise."""
    along, attributes, outputs = _Axis(b, axis), b.call.attrs, known_shape(b.call)[axis]
    mode = str(attributes.coordinate_transformation_mode)
    if not isinstance(outputs, int) and mode == "pytorch_half_pixel":
        return None
    count = along.outputs.at_least(2) if mode == "align_corners" else along.outputs  # a single one is at 0 of any steps
    at = places(along.places, along.extent, count, mode, single=isinstance(outputs, int) and outputs == 1)
    if at is None:
        return None
    parts = [
        along.pixels.equals(pixel.within(along.extent)) * weight for pixel, weight in taps(at, along.extent, attributes)
    ]
    return _cast(sum(parts[1:], parts[0]), b)


def averages(b: Backward, axis: int) -> relax.Expr:
    """The matrix of adaptive pooling along an axis."""
    along = _Axis(b, axis)
    begin = along.places * along.extent // along.outputs
    end = -(-(along.places + 1) * along.extent // along.outputs)
    return _cast((along.pixels >= begin) * (along.pixels < end) / (end - begin), b)


def cut_windows(b: Backward, axis: int, window: int, stride: int, step: int, padding: tuple[int, int]) -> relax.Expr:
    """The matrix of averages of windows that end where the padding ends, which they count."""
    along = _Axis(b, axis)
    starts, end = along.places * stride, along.extent + sum(padding)
    taps = [starts + tap * step for tap in range(window)]
    counts = [tap < end for tap in taps]
    seen = [(along.pixels + padding[0]).equals(tap) for tap in taps]
    return _cast(sum(seen[1:], seen[0]) / sum(counts[1:], counts[0]), b)


def _cast(matrix: _Numbers, b: Backward) -> relax.Expr:
    return b.emit(op.astype(matrix.value, dtype_of(b.call.args[0])))
