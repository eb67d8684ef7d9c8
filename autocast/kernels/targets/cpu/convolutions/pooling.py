"""Pooling: the largest element or the mean of each window of NHWC data, a few vectors of channels at a time."""

from __future__ import annotations

import math
from collections.abc import Callable

import tvm
from tvm import tirx
from tvm.script.ir_builder import tirx as T

from autocast.kernels.extents import Extent, ceil_div, i64
from autocast.kernels.specs.convolutions import Pooling
from autocast.kernels.targets.cpu.convolutions.taps import image_shapes
from autocast.kernels.targets.cpu.instruction_sets import instruction_set
from autocast.kernels.targets.cpu.vector import llvm_ir, vector_math
from autocast.kernels.targets.cpu.vector.long_sums import add_block, corrected
from autocast.kernels.targets.cpu.vector.unit import VectorUnit, flat, importing, kernel_function

#: Elements of a window whose sum is in float32 alone.
_BLOCK_TAPS = 64

#: Vectors of channels that are pooled together: the processor works on all of them at once.
_VECTORS = 4


def pooling(spec: Pooling, target: tvm.target.Target, name: str) -> tirx.PrimFunc:
    """A destination-passing TIR function `name(data, out)` that computes `spec`, fit for `relax.call_tir`."""
    with kernel_function(name) as finished:
        _Generator(spec, VectorUnit(instruction_set(target))).emit()
    return finished()


def pooling_gradient(spec: Pooling, target: tvm.target.Target, name: str) -> tirx.PrimFunc:
    """A destination-passing TIR function `name(adjoint, data, gradient)`: the gradient of pooled data, in float32.

    `spec.out_dtype` is that of the adjoint. The first of equal largest elements of a window, or NaN, gets its adjoint.
    """
    with kernel_function(name) as finished:
        _GradientGenerator(spec, VectorUnit(instruction_set(target))).emit()
    return finished()


class _Generator:
    def __init__(self, spec: Pooling, unit: VectorUnit) -> None:
        self.spec, self.unit = spec, unit
        self.vectors = min(_VECTORS, math.ceil(spec.channels / unit.lanes))
        self.block = self.vectors * unit.lanes

    def emit(self) -> None:
        """Emit the function's arguments, and a task for each row of outputs and block of channels."""
        spec, unit = self.spec, self.unit
        shape, out_shape = image_shapes(spec)
        data = T.arg("data", T.buffer((*shape, spec.channels), spec.data_dtype))
        out = T.arg("out", T.buffer((*out_shape, spec.channels), spec.out_dtype))
        self.data, self.out = flat(data), flat(out)
        snippets = llvm_ir.conversions_and_accesses(unit.isa) + vector_math.math_ir(unit.lanes, ("maximum",))
        with importing(snippets):
            self.shape = [unit.opaque(extent) for extent in shape]
            self.out_shape = [unit.opaque(extent) for extent in out_shape]
            rows, blocks = i64(self.out_shape[1]), math.ceil(spec.channels / self.block)
            with T.parallel(0, i64(self.out_shape[0]) * rows * blocks) as task:
                line = T.bind(tirx.truncdiv(task, i64(blocks)))
                image = T.bind(tirx.truncdiv(line, rows))
                self._row(image, T.bind(line - image * rows), T.bind((task - line * blocks) * self.block))

    def _row(self, image: tirx.Expr, row: tirx.Expr, channel: tirx.Expr) -> None:
        """A row of outputs, of a block of channels."""
        channels = self.spec.channels
        first_y, high = self._taps(0, row)
        with T.serial(0, i64(self.out_shape[2])) as column:
            first_x, wide = self._taps(1, column)
            size = self._size(row, column, high, wide)
            begin = T.bind(((image * self.shape[1] + first_y) * self.shape[2] + first_x) * channels + channel)
            place = T.bind(((image * self.out_shape[1] + row) * self.out_shape[2] + column) * channels + channel)
            if channels % self.block == 0:
                self._window(begin, place, high, wide, size, None)
            else:
                with T.If(channel + self.block <= channels):
                    with T.Then():
                        self._window(begin, place, high, wide, size, None)
                    with T.Else():
                        self._window(begin, place, high, wide, size, T.bind(i64(channels) - channel))

    def _taps(self, axis: int, index: tirx.Expr) -> tuple[tirx.Expr, tirx.Expr]:
        """Where the data in the window of output `index` begins along an axis, and how many elements there are."""
        spec, extent = self.spec, i64(self.shape[axis + 1])
        if spec.adaptive is not None:
            outputs = i64(spec.adaptive[axis])
            first = T.bind(tirx.truncdiv(index * extent, outputs))
            return first, T.bind(tirx.truncdiv((index + 1) * extent + outputs - 1, outputs) - first)
        step = spec.dilation[axis]
        start = T.bind(index * spec.strides[axis] - spec.padding[axis])
        skipped = T.bind(tirx.truncdiv(tirx.max(-start, i64(0)) + (step - 1), i64(step)))
        beyond = tirx.truncdiv(tirx.max(extent - start, i64(0)) + (step - 1), i64(step))
        count = tirx.max(tirx.min(i64(spec.window[axis]), beyond) - skipped, i64(0))
        return T.bind(start + skipped * step), T.bind(count)

    def _window(
        self,
        begin: tirx.Expr,
        place: tirx.Expr,
        high: tirx.Expr,
        wide: tirx.Expr,
        size: tirx.Expr,
        valid: tirx.Expr | None,
    ) -> None:
        """One output, a mean of `size` elements, of a block of channels, of which `valid` exist."""
        spec, unit, lanes = self.spec, self.unit, self.unit.lanes
        largest = spec.kind == "max"
        steps = (1, 1) if spec.adaptive else spec.dilation
        result, total, lost = (T.alloc_buffer((self.block,), "float32") for _ in range(3))
        places = [(vector * lanes, T.ramp(vector * lanes, 1, lanes)) for vector in range(self.vectors)]
        counts: list[Extent | None] = [None if valid is None else T.bind(valid - skip) for skip, _ in places]

        def clear(*buffers: tirx.Buffer) -> None:
            for buffer in buffers:
                for _, at in places:
                    T.buffer_store(buffer, unit.splat(-math.inf if largest else 0.0), [at])

        def combine(y: tirx.Expr, x: tirx.Expr) -> None:
            element = T.bind(begin + (y * (steps[0] * self.shape[2]) + x * steps[1]) * spec.channels)
            for (skip, at), count in zip(places, counts, strict=True):
                value = unit.load(self.data, element + skip, count)
                kept = vector_math.call("maximum", value, result[at]) if largest else value + result[at]
                T.buffer_store(result, kept, [at])

        def stored(value: Callable[[tirx.Expr], tirx.Expr]) -> None:
            factor = None if largest else self._factor(size)
            for (skip, at), count in zip(places, counts, strict=True):
                unit.store(self.out, place + skip, value(at) if largest else value(at) * factor, count)

        if largest or self._most_taps() <= 2 * _BLOCK_TAPS:
            clear(result)
            with T.serial(0, high) as y, T.serial(0, wide) as x:
                combine(y, x)
            stored(lambda at: result[at])
            return
        clear(total, lost)
        rows = T.bind(tirx.max(tirx.truncdiv(i64(_BLOCK_TAPS), tirx.max(wide, i64(1))), i64(1)))
        with (
            T.serial(0, tirx.truncdiv(high + rows - 1, rows)) as down,
            T.serial(0, i64(ceil_div(wide, _BLOCK_TAPS))) as right,
        ):
            clear(result)
            first_y, first_x = T.bind(down * rows), T.bind(right * _BLOCK_TAPS)
            last_y, last_x = tirx.min(high, first_y + rows), tirx.min(wide, first_x + _BLOCK_TAPS)
            with T.serial(first_y, T.bind(last_y)) as y, T.serial(first_x, T.bind(last_x)) as x:
                combine(y, x)
            for _, at in places:
                add_block(unit, total, lost, at, result[at])
        stored(lambda at: corrected(unit, total[at], lost[at]))

    def _most_taps(self) -> float:
        """The most elements that a window has."""
        spec = self.spec
        if spec.adaptive is None:
            return math.prod(spec.window)
        extents = zip((spec.height, spec.width), spec.adaptive, strict=True)
        return math.prod(math.inf if extent is None else -(-extent // outputs) + 1 for extent, outputs in extents)

    def _size(self, row: tirx.Expr, column: tirx.Expr, high: tirx.Expr, wide: tirx.Expr) -> tirx.Expr:
        """The number of elements of a window that sees `high` x `wide` of the data: padding counts if asked for.

        What is beyond the padding never counts; only windows whose number is rounded up reach so far.
        """
        spec = self.spec
        if not spec.count_include_pad or spec.adaptive is not None:
            return T.bind(tirx.max(high * wide, i64(1)))
        if not spec.ceil_mode:
            return i64(math.prod(spec.window))
        counts = []
        for axis, index in enumerate((row, column)):
            step, end = spec.dilation[axis], i64(self.shape[axis + 1]) + (spec.padding[axis] + spec.padding[axis + 2])
            beyond = tirx.truncdiv(end - index * spec.strides[axis] + (step - 1), i64(step))
            counts.append(tirx.max(tirx.min(i64(spec.window[axis]), beyond), i64(1)))
        return T.bind(counts[0] * counts[1])

    def _factor(self, size: tirx.Expr) -> tirx.Expr:
        """What makes a mean of a window's sum."""
        return T.bind(self.unit.splat(tirx.const(1.0, "float32") / size.astype("float32")))


class _GradientGenerator(_Generator):
    """Each task adds up the adjoints of all windows of an image, for one vector of channels."""

    def emit(self) -> None:
        """Emit the function's arguments, and a task for each image and vector of channels."""
        spec, unit = self.spec, self.unit
        shape, out_shape = image_shapes(spec)
        adjoint = T.arg("adjoint", T.buffer((*out_shape, spec.channels), spec.out_dtype))
        data = T.arg("data", T.buffer((*shape, spec.channels), spec.data_dtype))
        gradient = T.arg("gradient", T.buffer((*shape, spec.channels), "float32"))
        self.adjoint, self.data, self.out = flat(adjoint), flat(data), flat(gradient)
        snippets = llvm_ir.conversions_and_accesses(unit.isa) + vector_math.math_ir(unit.lanes, ("isnan", "maximum"))
        with importing(snippets):
            self.shape = [unit.opaque(extent) for extent in shape]
            self.out_shape = [unit.opaque(extent) for extent in out_shape]
            blocks = math.ceil(spec.channels / unit.lanes)
            with T.parallel(0, i64(self.shape[0]) * blocks) as task:
                image = T.bind(tirx.truncdiv(task, i64(blocks)))
                channel = T.bind((task - image * blocks) * unit.lanes)
                if spec.channels % unit.lanes == 0:
                    self._image(image, channel, None)
                else:
                    self._image(image, channel, T.bind(i64(spec.channels) - channel))

    def _image(self, image: tirx.Expr, channel: tirx.Expr, valid: tirx.Expr | None) -> None:
        unit, channels = self.unit, self.spec.channels
        height, width = i64(self.shape[1]), i64(self.shape[2])
        first = T.bind(image * height * width * channels + channel)
        with T.serial(0, height * width) as pixel:
            unit.store(self.out, first + pixel * channels, unit.splat(0.0), valid)
        unit.fence(self.out)
        with T.serial(0, i64(self.out_shape[1])) as row:
            first_y, high = self._taps(0, row)
            with T.serial(0, i64(self.out_shape[2])) as column:
                first_x, wide = self._taps(1, column)
                begin = T.bind(first + (first_y * width + first_x) * channels)
                place = T.bind(((image * self.out_shape[1] + row) * self.out_shape[2] + column) * channels + channel)
                size = self._size(row, column, high, wide)
                self._spread(begin, T.bind(unit.load(self.adjoint, place, valid)), high, wide, size, valid)

    def _spread(
        self,
        begin: tirx.Expr,
        adjoint: tirx.Expr,
        high: tirx.Expr,
        wide: tirx.Expr,
        size: tirx.Expr,
        valid: tirx.Expr | None,
    ) -> None:
        """Add the adjoint of one window of `size` elements to what is in it; `left` is what no element has got yet."""
        spec, unit = self.spec, self.unit
        steps = (1, 1) if spec.adaptive else spec.dilation
        at = T.ramp(0, 1, unit.lanes)
        largest, left = (T.alloc_buffer((unit.lanes,), "float32") for _ in range(2))

        def elements(emit: Callable[[tirx.Expr], None]) -> None:
            with T.serial(0, high) as y, T.serial(0, wide) as x:
                emit(T.bind(begin + (y * (steps[0] * self.shape[2]) + x * steps[1]) * spec.channels))

        def find(element: tirx.Expr) -> None:
            value = vector_math.call("maximum", unit.load(self.data, element, valid), largest[at])
            T.buffer_store(largest, value, [at])

        def give(element: tirx.Expr) -> None:
            value = T.bind(unit.load(self.data, element, valid))
            wins = tirx.any(value >= largest[at], vector_math.call("isnan", value) > unit.splat(0.0))
            part = T.bind(tirx.Select(wins, left[at], unit.splat(0.0)))
            unit.store(self.out, element, unit.load(self.out, element, valid) + part, valid)
            T.buffer_store(left, left[at] - part, [at])

        def share(element: tirx.Expr) -> None:
            unit.store(self.out, element, unit.load(self.out, element, valid) + left[at], valid)

        if spec.kind == "max":
            T.buffer_store(largest, unit.splat(-math.inf), [at])
            T.buffer_store(left, adjoint, [at])
            elements(find)
            elements(give)
            return
        T.buffer_store(left, adjoint * self._factor(size), [at])
        elements(share)
