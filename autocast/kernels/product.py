"""Matrix products: from a `Product` to a TIR function that runs at the speed of the vector unit.

Every task (one a thread) owns a block of rows and panels of the output. It walks over groups of panels: packs those of
B into its own cache, then for each tile of rows multiplies the tile with every panel of the group. A is read where it
lies if its words are what the microkernel wants (rows along k, the dtype that is multiplied); otherwise, and for an
incomplete last tile, a few tiles of A are packed just before their use.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import tvm
from tvm import tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T

from autocast.kernels import llvm_ir, llvm_pack, vector_math
from autocast.kernels.product_blocking import Blocking, choose_blocking
from autocast.kernels.product_pack import Source, Strip, pack_strip
from autocast.kernels.product_spec import Epilogue, Product
from autocast.kernels.product_tile import Output, Sums, finish_rows, multiply_tile
from autocast.kernels.target import InstructionSet, cores, instruction_set
from autocast.kernels.vector_unit import Extent, VectorUnit, ceil_div, flat, i64, minimum, rooted

__all__ = ["Epilogue", "Product", "product"]


def product(spec: Product, target: tvm.target.Target, name: str) -> tirx.PrimFunc:
    """A destination-passing TIR function `name(A, B, [bias], [residual], out)` that computes `spec` on `target`.

    The function is fit for `relax.call_tir`. It has the attributes `op_pattern` = 8 (opaque: nothing is fused into it),
    `autocast.scheduled` (no schedule is wanted), `autocast.summed_axis` (A's axis of length k, which profiles multiply
    by the output's size to count operations) and `tirx.noalias`.
    """
    isa = instruction_set(target)
    with IRBuilder() as builder, T.prim_func(s_tir=True):
        T.func_attr({"global_symbol": name, "tirx.noalias": True, "op_pattern": 8, "autocast.scheduled": True})
        T.func_attr({"autocast.summed_axis": -2 if spec.transpose_a else -1})
        _Generator(spec, isa, cores(target)).emit()
    return rooted(builder.get())


@dataclass(frozen=True)
class _Task:
    """What one task owns: a matrix of the batch, tiles of its rows, panels of its columns (last ones excluded)."""

    a: Source
    b: Source
    output: Output
    a_words_base: tirx.Expr
    first_tile: tirx.Expr
    last_tile: tirx.Expr
    first_panel: tirx.Expr
    last_panel: tirx.Expr


class _Generator:
    def __init__(self, spec: Product, isa: InstructionSet, threads: int) -> None:
        self.spec, self.unit = spec, VectorUnit(isa)
        self.pairs = spec.compute_dtype == "bfloat16" and isa.bf16_dot
        self.word = "int32" if self.pairs else "float32"
        self.per_word = 2 if self.pairs else 1
        self.a_in_place = (
            not spec.transpose_a
            and spec.a_dtype == ("bfloat16" if self.pairs else "float32")
            and spec.k is not None
            and spec.k % self.per_word == 0
        )
        # Batched rows times a shared matrix are one product with more rows.
        self.folded = spec.a_batched and not spec.b_batched and not spec.transpose_a
        rows = spec.m
        if self.folded:
            leading = (*spec.batch_dims, spec.m)
            rows = None if None in leading else math.prod(d for d in leading if d is not None)
        folded_spec = spec if not self.folded else _unbatched(spec, rows)
        self.blocking: Blocking = choose_blocking(
            folded_spec, isa, threads, pairs=self.pairs, a_in_place=self.a_in_place
        )

    def emit(self) -> None:
        """Emit the function's arguments and body."""
        spec = self.spec
        runtime: dict[str, tirx.Var] = {}

        def extent(name: str, known: int | None) -> Extent:
            if known is not None:
                return known
            return runtime.setdefault(name, tirx.Var(name, "int64"))

        m, n, k = extent("m", spec.m), extent("n", spec.n), extent("k", spec.k)
        batch = tuple(extent(f"batch{i}", d) for i, d in enumerate(spec.batch_dims))
        a_shape = (batch if spec.a_batched else ()) + ((k, m) if spec.transpose_a else (m, k))
        b_shape = (batch if spec.b_batched else ()) + ((n, k) if spec.transpose_b else (k, n))
        a = T.arg("A", T.buffer(a_shape, spec.a_dtype))
        b = T.arg("B", T.buffer(b_shape, spec.b_dtype))
        bias = T.arg("bias", T.buffer((n,), spec.epilogue.bias)) if spec.epilogue.bias else None
        residual = None
        if spec.epilogue.residual:
            residual = T.arg("residual", T.buffer((*batch, m, n), spec.epilogue.residual))
        out = T.arg("out", T.buffer((*batch, m, n), spec.out_dtype))
        matrices: Extent = math.prod(batch) if all(isinstance(d, int) for d in batch) else _product(batch)
        self.m, self.n, self.k = (matrices * m if self.folded else m), n, k
        self.matrices: Extent = 1 if self.folded else matrices
        self.tiles = ceil_div(self.m, self.blocking.tile_rows)
        self.panels = ceil_div(n, self.blocking.panel)
        self.k_words = ceil_div(k, self.per_word)
        self.a_flat, self.b_flat, self.out_flat = flat(a), flat(b), flat(out)
        self.a_words = flat(a, self.word, self.per_word) if self.a_in_place else None
        self.bias = None if bias is None else flat(bias)
        self.residual = None if residual is None else flat(residual)
        with T.attr(tirx.const(0, "int32"), "pragma_import_llvm", self._llvm()):
            self._tasks()

    def _llvm(self) -> str:
        compute = "bfloat16" if self.pairs else "float32"
        storages = sorted({self.spec.a_dtype, self.spec.b_dtype})
        activation = self.spec.epilogue.activation
        math_ir = vector_math.math_ir(self.unit.lanes, (activation,)) if activation else ""
        return (
            math_ir
            + llvm_ir.conversions_and_accesses(self.unit.isa)
            + "".join(llvm_pack.packing(self.unit.isa, storage, compute) for storage in storages)
        )

    def _tasks(self) -> None:
        per_matrix = self.blocking.row_tasks * self.blocking.column_tasks
        tasks = self.matrices * per_matrix
        if isinstance(tasks, int) and tasks == 1:
            self._task(i64(0))
            return
        with T.parallel(0, i64(tasks)) as task:
            self._task(task)

    def _task(self, task: tirx.Expr) -> None:
        spec, blocking = self.spec, self.blocking
        rows, columns = blocking.row_tasks, blocking.column_tasks
        matrix = T.bind(task // (rows * columns))
        row_task = T.bind(task // columns % rows)
        column_task = T.bind(task % columns)
        a_base = T.bind(matrix * i64(self.m * self.k)) if spec.a_batched else i64(0)
        b_base = T.bind(matrix * i64(self.n * self.k)) if spec.b_batched else i64(0)
        a_stride = self.m if spec.transpose_a else self.k
        b_stride = self.k if spec.transpose_b else self.n
        part = _Task(
            a=Source(self.a_flat, a_base, self.m, self.k, a_stride, not spec.transpose_a, self.pairs),
            b=Source(self.b_flat, b_base, self.n, self.k, b_stride, spec.transpose_b, self.pairs),
            output=Output(
                self.out_flat, T.bind(matrix * i64(self.m * self.n)), self.n, spec.epilogue, self.bias, self.residual
            ),
            a_words_base=T.bind(a_base // self.per_word),
            first_tile=T.bind(row_task * self.tiles // rows),
            last_tile=T.bind((row_task + 1) * self.tiles // rows),
            first_panel=T.bind(column_task * self.panels // columns),
            last_panel=T.bind((column_task + 1) * self.panels // columns),
        )
        groups = ceil_div(part.last_panel - part.first_panel, blocking.panels)
        with T.serial(0, groups) as group:
            first = T.bind(part.first_panel + group * blocking.panels)
            count = T.bind(tirx.min(i64(blocking.panels), part.last_panel - first))
            self._panel_group(part, first, count)

    def _panel_group(self, task: _Task, first_panel: tirx.Expr, count: tirx.Expr) -> None:
        """All rows of the task times `count` panels from `first_panel` on."""
        blocking = self.blocking
        panel_words = blocking.k_words * blocking.panel
        packed = self.unit.scratch(blocking.panels * panel_words, self.word)
        one_block = isinstance(self.k_words, int) and self.k_words <= blocking.k_words
        if one_block:
            self._k_block(task, first_panel, count, packed, 0, self.k_words, None)
            return
        rows = T.bind((task.last_tile - task.first_tile) * blocking.tile_rows)
        partial = self.unit.scratch(rows * (blocking.panels * blocking.panel), "float32")
        with T.serial(0, rows * (blocking.panels * blocking.panel) // self.unit.lanes) as i:
            T.buffer_store(partial, self.unit.splat(0.0), [self.unit.ramp(i * self.unit.lanes)])
        with T.serial(0, i64(ceil_div(self.k_words, blocking.k_words))) as block:
            k_first = T.bind(block * blocking.k_words)
            k_words = T.bind(minimum(blocking.k_words, self.k_words - k_first))
            self._k_block(task, first_panel, count, packed, k_first, k_words, partial)
        row = T.bind(task.first_tile * blocking.tile_rows)
        valid = T.bind(tirx.min(rows, i64(self.m) - row))
        with T.serial(0, count) as panel:
            sums = Sums(partial, panel * rows * blocking.panel, blocking.panel)
            finish_rows(self.unit, task.output, sums, valid, row, (first_panel + panel) * blocking.panel)

    def _k_block(
        self,
        task: _Task,
        first_panel: tirx.Expr,
        count: tirx.Expr,
        packed: tirx.Buffer,
        k_first: Extent,
        k_words: Extent,
        partial: tirx.Buffer | None,
    ) -> None:
        """One block of k: pack the panels of B, then run over the tiles of A."""
        blocking = self.blocking
        panel_words = blocking.k_words * blocking.panel
        exact = isinstance(self.n, int) and self.n % blocking.panel == 0
        with T.serial(0, count) as panel:
            strip = Strip(packed, panel * panel_words, blocking.panel)
            column = (first_panel + panel) * blocking.panel
            pack_strip(self.unit, task.b, column, strip, k_first * self.per_word, k_words, exact=exact)

        def tile_by_panels(tile: tirx.Expr, a_word, valid: Extent) -> None:
            with T.serial(0, count) as panel:
                if partial is None:
                    stash = self.unit.scratch(blocking.tile_rows * blocking.panel, "float32")
                    sums = Sums(stash, 0, blocking.panel)
                else:
                    rows = (task.last_tile - task.first_tile) * blocking.tile_rows
                    at = (panel * rows + (tile - task.first_tile) * blocking.tile_rows) * blocking.panel
                    sums = Sums(partial, T.bind(at), blocking.panel)
                multiply_tile(
                    self.unit,
                    rows=blocking.tile_rows,
                    a_word=a_word,
                    b_buffer=packed,
                    b_offset=T.bind(panel * panel_words),
                    k_words=k_words,
                    sums=sums,
                    accumulate=partial is not None,
                )
                if partial is None:
                    column = T.bind((first_panel + panel) * blocking.panel)
                    finish_rows(self.unit, task.output, sums, valid, tile * blocking.tile_rows, column)

        if not self.a_in_place:
            self._packed_tiles(task, task.first_tile, task.last_tile, blocking.group, k_first, k_words, tile_by_panels)
            return
        a_words = self.a_words
        assert a_words is not None
        whole_tiles = self.m // blocking.tile_rows
        last_whole = T.bind(minimum(task.last_tile, whole_tiles))
        with T.serial(task.first_tile, last_whole) as tile:
            start = T.bind(task.a_words_base + tile * (blocking.tile_rows * self.k_words) + k_first)
            tile_by_panels(tile, lambda row, k: a_words[start + row * self.k_words + k], blocking.tile_rows)
        if not (isinstance(self.m, int) and self.m % blocking.tile_rows == 0):
            first = T.bind(tirx.max(task.first_tile, last_whole))
            self._packed_tiles(task, first, task.last_tile, 1, k_first, k_words, tile_by_panels)

    def _packed_tiles(
        self,
        task: _Task,
        first_tile: tirx.Expr,
        last_tile: tirx.Expr,
        group: int,
        k_first: Extent,
        k_words: Extent,
        tile_by_panels,
    ) -> None:
        """Tiles whose rows of A are packed, `group` tiles at a time, just before they are used."""
        blocking, lanes = self.blocking, self.unit.lanes
        height = blocking.tile_rows
        width = -(-group * height // lanes) * lanes
        exact = isinstance(self.m, int) and self.m % (group * height) == 0 and width == group * height
        with T.serial(0, ceil_div(last_tile - first_tile, group)) as g:
            first = T.bind(first_tile + g * group)
            strip = Strip(self.unit.scratch(blocking.k_words * width, self.word), 0, width)
            pack_strip(self.unit, task.a, first * height, strip, k_first * self.per_word, k_words, exact=exact)
            with T.serial(0, tirx.min(i64(group), last_tile - first)) as q:
                tile = T.bind(first + q)
                valid = T.bind(tirx.min(i64(height), i64(self.m) - tile * height))
                skip = T.bind(q * height)
                tile_by_panels(tile, lambda row, k: strip.buffer[skip + k * width + row], valid)


def _product(extents: tuple[Extent, ...]) -> Extent:
    total: Extent = i64(1)
    for extent in extents:
        total = total * extent
    return total


def _unbatched(spec: Product, rows: int | None) -> Product:
    from dataclasses import replace

    return replace(spec, m=rows, a_batched=False, b_batched=False, batch=1)
