"""Matrix products: from a `Product` to a TIR function that runs at the speed of the vector unit.

Every task (one a thread) owns a block of rows and panels of the output. It walks over groups of panels: packs those of
B into its own cache, then for each tile of rows multiplies the tile with every panel of the group. A is read where it
lies if its words are what the microkernel wants (rows along k, the dtype that is multiplied); otherwise, and for an
incomplete last tile, a few tiles of A are packed just before their use. Products of very few rows stream B instead.
"""

from __future__ import annotations

import math
from dataclasses import replace

import tvm
from tvm import tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T

from autocast.kernels.products.blocking import FEW_ROWS, choose_blocking, few_rows_blocking
from autocast.kernels.products.few_rows import FewRows
from autocast.kernels.products.pack import Source
from autocast.kernels.products.panels import PanelWalk, Task
from autocast.kernels.products.prepack import PackedWeight
from autocast.kernels.products.spec import Epilogue, Product
from autocast.kernels.products.tile import Output
from autocast.kernels.target import InstructionSet, cores, instruction_set
from autocast.kernels.vector import llvm_ir, llvm_pack, vector_math
from autocast.kernels.vector.unit import Extent, VectorUnit, ceil_div, flat, i64, rooted

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


class _Generator:
    def __init__(self, spec: Product, isa: InstructionSet, threads: int) -> None:
        self.spec, self.unit = spec, VectorUnit(isa)
        self.pairs = spec.multiplies_pairs(isa)
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
            spec = replace(spec, m=rows, a_batched=False)
        self.few_rows = (
            rows is not None and rows <= FEW_ROWS and (rows == 1 or not spec.transpose_a) and not spec.b_packed
        )
        self.blocking = (
            few_rows_blocking(spec, isa, threads)
            if self.few_rows
            else choose_blocking(spec, isa, threads, pairs=self.pairs, a_in_place=self.a_in_place)
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
        packed = PackedWeight.of(spec, self.unit.isa) if spec.b_packed else None
        b = T.arg("B", T.buffer(packed.shape, packed.packed_dtype) if packed else T.buffer(b_shape, spec.b_dtype))
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
        self.b_panels = flat(b, self.word, self.per_word) if packed else None
        self.b_panel_words = packed.words * packed.panel if packed else 0
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
        a_along_k = self.few_rows or not spec.transpose_a  # a single row is the same either way
        a_stride = self.k if a_along_k else self.m
        b_stride = self.k if spec.transpose_b else self.n
        part = Task(
            a=Source(self.a_flat, a_base, self.m, self.k, a_stride, a_along_k, self.pairs),
            b=Source(self.b_flat, b_base, self.n, self.k, b_stride, spec.transpose_b, self.pairs),
            output=Output(
                self.out_flat, T.bind(matrix * i64(self.m * self.n)), self.n, spec.epilogue, self.bias, self.residual
            ),
            a_words=self.a_words,
            a_words_base=T.bind(a_base // self.per_word),
            b_panels=self.b_panels,
            b_panel_words=self.b_panel_words,
            first_tile=T.bind(row_task * self.tiles // rows),
            last_tile=T.bind((row_task + 1) * self.tiles // rows),
            first_panel=T.bind(column_task * self.panels // columns),
            last_panel=T.bind((column_task + 1) * self.panels // columns),
        )
        (FewRows if self.few_rows else PanelWalk)(self.unit, blocking, part).emit()


def _product(extents: tuple[Extent, ...]) -> Extent:
    total: Extent = i64(1)
    for extent in extents:
        total = total * extent
    return total
