"""Generate kernels that move data: pieces of the result, each a strided view of an argument or filled with a number.

A piece is a nest of loops with a stride on either side. Neighbours that are contiguous on both sides are merged, which
leaves one of three forms: rows that are copied whole, matrices that are transposed in squares, and single elements.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import tvm
from tvm import tirx
from tvm.script.ir_builder import tirx as T

from autocast.kernels.extents import ceil_div, i64, minimum, quotient, remainder
from autocast.kernels.specs.layout import Axis, Move, Piece, interleaved, merged
from autocast.kernels.specs.program import Dim
from autocast.kernels.specs.sizes import Size, dimension, evaluated
from autocast.kernels.storage import BITS
from autocast.kernels.targets.cpu.instruction_sets import cores, instruction_set
from autocast.kernels.targets.cpu.layout.copies import COPY_IR, Memory, copy_element, copy_row
from autocast.kernels.targets.cpu.layout.squares import Square, square_for, square_ir
from autocast.kernels.targets.cpu.vector import llvm_ir
from autocast.kernels.targets.cpu.vector.streaming import streamed
from autocast.kernels.targets.cpu.vector.unit import VectorUnit, importing, kernel_function, shared_loop

#: Fewer bytes than this are moved by one core: waking another takes as long.
_PARALLEL_BYTES = 1 << 15

#: Leading loops are fused until there is this much work to share out.
_SHARES = 32

#: Bytes of a row that are copied at once, so that cores can share long rows.
_CHUNK_BYTES = 1 << 15

#: Elements on a side of the blocks in which small and large matrices are transposed, and when they are large.
_BLOCK, _LARGE_BLOCK, _LARGE = 64, 128, 1 << 20


def move(spec: Move, target: tvm.target.Target, name: str) -> tirx.PrimFunc:
    """A destination-passing TIR function `name(*arguments, out)` that moves as `spec` says on `target`."""
    with kernel_function(name) as finished:
        _Generator(spec, VectorUnit(instruction_set(target)), cores(target)).emit()
    return finished()


#: Work that can be shared out: how many shares there are, and what emits one.
Shares = tuple[Any, Callable[[tirx.Expr], None]]


class _Generator:
    def __init__(self, spec: Move, unit: VectorUnit, threads: int) -> None:
        self.spec, self.unit, self.threads = spec, unit, threads
        self.dims: dict[str, tirx.Var] = {}
        self.squares: set[Square] = set()
        self.far = bool(streamed([spec.out], unit.lanes))

    def value(self, size: Size) -> Any:
        """A size in the generated code; an int where it is known."""
        return evaluated(size, self.dims)

    def emit(self) -> None:
        """Emit the function's arguments and body."""
        spec = self.spec
        buffers = [T.arg(f"x{i}", self.buffer(*argument)) for i, argument in enumerate(spec.arguments)]
        out = T.arg("out", self.buffer(*spec.out))
        self.arguments, self.out = [Memory(buffer) for buffer in buffers], Memory(out)
        pieces = [merged(piece) for piece in spec.pieces]
        pieces = [piece for piece in pieces if all(axis.extent != 0 for axis in piece.axes)]
        work = [self.shares(piece) for piece in pieces]
        code = llvm_ir.conversions_and_accesses(self.unit.isa) + COPY_IR
        code += "".join(square_ir(square) for square in sorted(self.squares, key=lambda square: square.name))
        with importing(code):
            counts = {count for count, _ in work if isinstance(count, int)}
            if len(work) > 1 and len(counts) == 1 and all(isinstance(count, int) for count, _ in work):
                self.share(counts.pop(), spec.out, [emit for _, emit in work])
                return
            for piece, (count, emit) in zip(pieces, work, strict=True):
                self.share(count, (tuple(axis.extent for axis in piece.axes), spec.out[1]), [emit])
            if not work:
                T.evaluate(tirx.const(0, "int32"))

    def buffer(self, shape: tuple[Dim, ...], dtype: str) -> Any:
        sizes = [d if isinstance(d, int) else self.dims.setdefault(d, tirx.Var(d, "int64")) for d in shape]
        return T.buffer(sizes, dtype)

    def share(self, count: Any, moved: tuple[tuple, str], emitters: list[Callable[[tirx.Expr], None]]) -> None:
        """A loop over shares, parallel unless little is moved."""
        size = math.prod(dimension(dim) if isinstance(dim, str) else dim for dim in moved[0])
        small = isinstance(size, int) and size * BITS[moved[1]] // 8 < _PARALLEL_BYTES
        serial = small or (isinstance(count, int) and count == 1)
        with T.serial(0, i64(count)) if serial else shared_loop(count, streams=self.far) as index:
            for emit in emitters:
                emit(index)

    # ---- the three forms ----

    def shares(self, piece: Piece) -> Shares:
        """How a piece is moved."""
        if not piece.axes:
            return 1, lambda _: self.element(piece, i64(self.value(piece.read)), i64(self.value(piece.write)))
        inner = piece.axes[-1]
        if piece.source is not None and inner.write == 1:
            if inner.read == 1:
                return self.rows(piece)
            across = [i for i, axis in enumerate(piece.axes) if axis.read == 1]
            if across:
                return self.matrices(piece, across[0])
        return self.elements(piece)

    def rows(self, piece: Piece) -> Shares:
        """Copies of whole rows; long ones in chunks."""
        assert piece.source is not None
        source = self.arguments[piece.source]
        streams = self.streams(piece, *(axis.write for axis in piece.axes[:-1]))

        def copy(read: tirx.Expr, write: tirx.Expr, count: Any) -> None:
            copy_row(self.unit, source, read, self.out, write, count, streamed=streams)

        return self.chunked(piece, interleaved(piece.axes[:-1]), copy)

    def chunked(
        self, piece: Piece, axes: tuple[Axis, ...], body: Callable[[tirx.Expr, tirx.Expr, Any], None]
    ) -> Shares:
        """`body(read, write, count)` for the last loop of a piece inside `axes`, in chunks if it is long."""
        inner = piece.axes[-1]
        length, read_step, write_step = (self.value(size) for size in (inner.extent, inner.read, inner.write))
        chunk = _CHUNK_BYTES // (BITS[self.spec.out[1]] // 8)
        chunks = ceil_div(length, chunk) if not isinstance(length, int) or length >= 2 * chunk else 1

        def part(read: tirx.Expr, write: tirx.Expr, number: Any) -> None:
            if isinstance(chunks, int) and chunks == 1:
                body(read, write, length)
                return
            start = T.bind(number * chunk)
            count = T.bind(minimum(length - start, chunk))
            body(read + start * i64(read_step), write + start * i64(write_step), count)

        return self.nest(piece, axes, part, chunks)

    def matrices(self, piece: Piece, across: int) -> Shares:
        """Transposes in squares: the last loop strides over rows of the argument, loop `across` runs along them."""
        inner, other = piece.axes[-1], piece.axes[across]
        rows, columns = self.value(inner.extent), self.value(other.extent)
        assert piece.source is not None
        storage, result = self.spec.arguments[piece.source][1], self.spec.out[1]
        known = all(isinstance(extent, int) for extent in (rows, columns))
        bounds = (rows, columns) if known else (2 * self.unit.lanes, 2 * self.unit.lanes)
        square = square_for(self.unit.isa, storage, result, *bounds)
        if square is None:
            return self.elements(piece)
        places = (inner.extent, *(axis.write for axis in piece.axes[:-1]))
        square = replace(square, streamed=square.rows == self.per_line and self.streams(piece, *places))
        self.squares.add(square)
        outer = [axis for i, axis in enumerate(piece.axes[:-1]) if i != across]
        side = _LARGE_BLOCK if self.known_elements() >= _LARGE else _BLOCK
        high, wide = (side // step * step for step in (square.rows, square.size))
        blocks = ceil_div(rows, high), ceil_div(columns, wide)
        source = self.arguments[piece.source].bits

        def block(read: tirx.Expr, write: tirx.Expr, part: Any) -> None:
            i_first, j_first = T.bind(quotient(part, blocks[1]) * high), T.bind(remainder(part, blocks[1]) * wide)
            i_steps, j_steps = (
                step if isinstance(whole, int) and whole % tile == 0 else ceil_div(minimum(whole - first, tile), size)
                for whole, first, tile, size, step in (
                    (rows, i_first, high, square.rows, high // square.rows),
                    (columns, j_first, wide, square.size, wide // square.size),
                )
            )
            with T.serial(0, i64(i_steps)) as i, T.serial(0, i64(j_steps)) as j:
                # Squares at an edge overlap their neighbours: they write the same again.
                row = T.bind(minimum(i_first + i * square.rows, rows - square.rows))
                column = T.bind(minimum(j_first + j * square.size, columns - square.size))
                strides = self.value(inner.read), self.value(other.write)
                places = read + row * i64(strides[0]) + column, write + column * i64(strides[1]) + row
                T.evaluate(
                    tirx.call_extern(
                        "void",
                        square.name,
                        T.address_of(source[places[0]]),
                        i64(strides[0]),
                        T.address_of(self.out.bits[places[1]]),
                        i64(strides[1]),
                    )
                )

        if known:
            return self.nest(piece, tuple(outer), block, blocks[0] * blocks[1], fused=True)
        count, emit = self.nest(piece, tuple(outer), block, blocks[0] * blocks[1], fused=True)
        slow_count, slow_emit = self.elements(piece)
        fits = tirx.all(i64(rows) >= square.rows, i64(columns) >= square.size)

        def either(index: tirx.Expr) -> None:
            with T.If(fits):
                with T.Then():
                    emit(index)
                with T.Else():
                    slow_emit(index)

        return tirx.Select(fits, i64(count), i64(slow_count)), either

    @property
    def per_line(self) -> int:
        """Elements of the result in a cache line."""
        return 512 // BITS[self.spec.out[1]]

    def streams(self, piece: Piece, *places: Size) -> bool:
        """Whether a piece of a far result is stored past the caches: its start and `places` are those of lines."""
        aligned = all(isinstance(place, int) and place % self.per_line == 0 for place in (piece.write, *places))
        return self.far and aligned

    def known_elements(self) -> int:
        """The elements of the result, as far as they are known."""
        return math.prod(dim for dim in self.spec.out[0] if isinstance(dim, int))

    def elements(self, piece: Piece) -> Shares:
        """One element at a time, which LLVM makes vectors of where it can."""
        read_step, write_step = self.value(piece.axes[-1].read), self.value(piece.axes[-1].write)

        def row(read: tirx.Expr, write: tirx.Expr, count: Any) -> None:
            read, write = T.bind(read), T.bind(write)
            with T.serial(0, i64(count)) as i:
                self.element(piece, read + i * i64(read_step), write + i * i64(write_step))

        return self.chunked(piece, piece.axes[:-1], row)

    def element(self, piece: Piece, read: tirx.Expr, write: tirx.Expr) -> None:
        """Emit the move of one element."""
        if piece.source is None:
            T.buffer_store(self.out.bits, tirx.const(piece.bits, self.out.bits.dtype), [write])
        else:
            copy_element(self.unit, self.arguments[piece.source], read, self.out, write)

    # ---- loops ----

    def nest(
        self,
        piece: Piece,
        axes: tuple[Axis, ...],
        body: Callable[[tirx.Expr, tirx.Expr, Any], None],
        parts: Any,
        fused: bool = False,
    ) -> Shares:
        """Loops over `axes` and `parts` around `body(read, write, part)`, the leading ones fused to be shared out."""
        extents = [self.value(axis.extent) for axis in axes]
        lead = 0
        while lead < len(axes) and (fused or _known(math.prod(extents[:lead])) < _SHARES):
            lead += 1
        in_lead = not (isinstance(parts, int) and parts == 1)
        if in_lead and lead < len(axes):
            lead = len(axes)
        count = math.prod(extents[:lead], start=1) * parts

        def emit(index: tirx.Expr) -> None:
            part, rest = (remainder(index, parts), quotient(index, parts)) if in_lead else (0, index)
            read, write = i64(self.value(piece.read)), i64(self.value(piece.write))
            for axis, extent in zip(reversed(axes[:lead]), reversed(extents[:lead]), strict=True):
                step = remainder(rest, extent)
                read, write = self.moved(axis, step, read, write)
                rest = quotient(rest, extent)
            self.inner(axes[lead:], T.bind(read), T.bind(write), lambda r, w: body(r, w, part))

        return count, emit

    def inner(self, axes: tuple[Axis, ...], read: Any, write: Any, body: Callable[[Any, Any], None]) -> None:
        if not axes:
            body(read, write)
            return
        with T.serial(0, i64(self.value(axes[0].extent))) as step:
            self.inner(axes[1:], *self.moved(axes[0], step, read, write), body)

    def moved(self, axis: Axis, step: tirx.Expr, read: tirx.Expr, write: tirx.Expr) -> tuple[tirx.Expr, tirx.Expr]:
        """Where `step` steps along a loop lead."""
        return read + step * i64(self.value(axis.read)), write + step * i64(self.value(axis.write))


def _known(size: Any) -> int:
    """A size, or a guess of one that is known at run time."""
    return size if isinstance(size, int) else 4
