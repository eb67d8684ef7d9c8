"""Matrix products: from a `Product` to a TIR function that runs at the speed of the vector or matrix unit.

Every task (one a thread) owns a block of rows and panels of the output. It walks over groups of panels: packs those of
B into its own cache, then for each tile of rows multiplies the tile with every panel of the group. A is read where it
lies if its words are what the microkernel wants (rows along k, the dtype that is multiplied); otherwise, and for an
incomplete last tile, a few tiles of A are packed just before their use. Products of very few rows stream B instead.
Where a matrix unit multiplies pairs of bfloat16, it walks in the same way: see `matrix`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import tvm
from tvm import tirx
from tvm.script.ir_builder import tirx as T

from autocast.kernels.extents import Extent, ceil_div, i64, quotient, remainder
from autocast.kernels.specs.products import Product
from autocast.kernels.targets.cpu.instruction_sets import InstructionSet, cores, instruction_set
from autocast.kernels.targets.cpu.products.blocking import (
    RULES,
    Blocking,
    Way,
    choose_blocking,
    few_rows_blocking,
    has_few_rows,
    multiplies_pairs,
)
from autocast.kernels.targets.cpu.products.few_rows import FewRows
from autocast.kernels.targets.cpu.products.matrix import MatrixWalk
from autocast.kernels.targets.cpu.products.pack import Source
from autocast.kernels.targets.cpu.products.panels import PanelWalk, Task
from autocast.kernels.targets.cpu.products.prepack import PackedWeight
from autocast.kernels.targets.cpu.products.tile import Output
from autocast.kernels.targets.cpu.vector import llvm_ir, llvm_pack, llvm_tiles
from autocast.kernels.targets.cpu.vector.finish import Finish, declare, functions_ir
from autocast.kernels.targets.cpu.vector.streaming import streamed
from autocast.kernels.targets.cpu.vector.unit import VectorUnit, flat, importing, kernel_function, shared_loop

#: The least output that is stored past the caches, such as the logits of a vocabulary. Those of 12 and 16 MiB were
#: faster in them, those of 50 MiB took 0.93 of the time, of 75 MiB 0.80 (Granite Rapids).
_FAR_BYTES = 24 << 20


def product(spec: Product, target: tvm.target.Target, name: str, way: Way = RULES) -> tirx.PrimFunc:
    """A destination-passing TIR function `name(A, B, *operands of the epilogue, out)` that computes `spec` on `target`.

    The function is fit for `relax.call_tir`, and its attribute `autocast.flops` says how many operations a call takes.
    The output may take the place of a tensor that the epilogue reads, where each element is computed once.
    """
    isa = instruction_set(target)
    with kernel_function(name) as finished:
        generator = _Generator(spec, isa, cores(target), way)
        problem = generator.emit()
    flops = 2 * _total((*problem.batch, problem.m, problem.n, problem.k))
    return finished().with_attrs({"autocast.in_place": generator.in_place(problem), "autocast.flops": flops})


def snippets(spec: Product, unit: VectorUnit, *, pairs: bool) -> str:
    """The LLVM functions that a kernel of `spec` calls."""
    compute = "bfloat16" if pairs else "float32"
    storages = sorted({spec.a_dtype, spec.b_dtype})
    return (
        functions_ir(spec.epilogue, unit)
        + llvm_ir.conversions_and_accesses(unit.isa)
        + "".join(llvm_pack.packing(unit.isa, storage, compute) for storage in storages)
        + (llvm_tiles.tiles_ir() if pairs and unit.isa.tiles else "")
    )


@dataclass(frozen=True)
class _Problem:
    """A product as the walks see it, which may differ from how its arguments are declared.

    Attributes
    ----------
    spec
        What is known of it when code is generated.
    m, n, k, batch
        Its extents; expressions where they are not known.
    a, b
        Flat views of the operands.
    """

    spec: Product
    m: Extent
    n: Extent
    k: Extent
    batch: tuple[Extent, ...]
    a: tirx.Buffer
    b: tirx.Buffer

    def folded(self) -> _Problem:
        """Batched rows times a shared matrix are one product with more rows."""
        spec = self.spec
        if spec.b_batched or not spec.a_batched or spec.transpose_a or spec.a_repeated:
            return self
        leading = (*spec.batch_dims, spec.m)
        rows = None if None in leading else math.prod(d for d in leading if d is not None)
        return replace(self, spec=replace(spec, m=rows, a_batched=False), m=_total((*self.batch, self.m)), batch=())

    def swapped(self) -> _Problem:
        """A matrix times a column is a row times the transposed matrix, and few rows are what is fast."""
        spec = self.spec
        if spec.n != 1 or spec.m == 1 or spec.b_packed or spec.epilogue.reads_columns:
            return self
        swapped = replace(
            spec,
            m=1,
            n=spec.m,
            a_dtype=spec.b_dtype,
            b_dtype=spec.a_dtype,
            transpose_a=False,
            transpose_b=not spec.transpose_a,
            a_batched=spec.b_batched,
            b_batched=spec.a_batched,
            a_repeated=spec.b_repeated,
            b_repeated=spec.a_repeated,
        )
        return replace(self, spec=swapped, m=1, n=self.m, a=self.b, b=self.a)

    def base(self, matrix: tirx.Expr, size: Extent, batched: bool, repeated: tuple[int, ...]) -> tirx.Expr:
        """Where an operand's part in the `matrix`-th product of the batch begins, if each part has `size` elements."""
        if not batched:
            return i64(0)
        if not repeated:
            return T.bind(matrix * i64(size))
        place: tirx.Expr = i64(0)
        for axis, extent in reversed(list(enumerate(self.batch))):
            if axis not in repeated:
                place = place + remainder(matrix, extent) * i64(size)
                size = size * extent
            matrix = T.bind(quotient(matrix, extent))
        return T.bind(place)


class _Generator:
    def __init__(self, spec: Product, isa: InstructionSet, threads: int, way: Way) -> None:
        self.spec, self.unit, self.threads, self.way = spec, VectorUnit(isa), threads, way
        self.pairs = multiplies_pairs(spec, isa)
        self.word, self.per_word = ("int32", 2) if self.pairs else ("float32", 1)
        self.packed = PackedWeight.of(spec, isa) if spec.b_packed else None

    def emit(self) -> _Problem:
        """Emit the function's arguments and body; the problem that it solves."""
        problem = self._arguments().folded().swapped()
        with importing(snippets(self.spec, self.unit, pairs=self.pairs)):
            if problem.spec.m is not None:
                self._tasks(problem)
                return problem
            with T.If(i64(problem.m).equal(1)):
                with T.Then():
                    self._tasks(replace(problem, spec=replace(problem.spec, m=1), m=1))
                with T.Else():
                    self._tasks(problem)
        return problem

    def in_place(self, problem: _Problem) -> list[list[int]]:
        """Which result may take which argument's place: a tensor of the epilogue's, unless rows are computed twice."""
        if problem.spec.m is None or has_few_rows(problem.spec, pairs=self.pairs):
            return []
        operands = enumerate(self.spec.epilogue.operands, start=2)
        return [[0, number] for number, operand in operands if not operand.per_column]

    def _arguments(self) -> _Problem:
        spec = self.spec
        runtime: dict[str, tirx.Var] = {}

        def extent(name: str, known: int | None) -> Extent:
            if known is not None:
                return known
            return runtime.setdefault(name, tirx.Var(name, "int64"))

        m, n, k = extent("m", spec.m), extent("n", spec.n), extent("k", spec.k)
        batch = tuple(extent(f"batch{i}", d) for i, d in enumerate(spec.batch_dims))

        def leading(batched: bool, repeated: tuple[int, ...]) -> tuple[Extent, ...]:
            return tuple(1 if axis in repeated else d for axis, d in enumerate(batch)) if batched else ()

        a_shape = leading(spec.a_batched, spec.a_repeated) + ((k, m) if spec.transpose_a else (m, k))
        b_shape = leading(spec.b_batched, spec.b_repeated) + ((n, k) if spec.transpose_b else (k, n))
        b_dtype = spec.b_dtype
        if self.packed is not None:
            b_shape, b_dtype = self.packed.shape, self.packed.packed_dtype
        a = T.arg("A", T.buffer(a_shape, spec.a_dtype))
        b = T.arg("B", T.buffer(b_shape, b_dtype))
        operands = declare(spec.epilogue, (*batch, m, n))
        out = T.arg("out", T.buffer((*batch, m, n), spec.out_dtype))
        problem = _Problem(spec, m, n, k, batch, flat(a), flat(b))
        self.finish = Finish(self.unit, spec.epilogue, flat(out), tuple(map(flat, operands)), self._streams())
        in_place = spec.a_dtype == ("bfloat16" if self.pairs else "float32") and not spec.transpose_a
        whole_words = spec.k is not None and spec.k % self.per_word == 0
        self.a_words = flat(a, self.word, self.per_word) if in_place and whole_words else None
        self.b_panels = None if self.packed is None else flat(b, self.word, self.per_word)
        return problem

    def _streams(self) -> bool:
        """Whether the output is stored past the caches: it is far, and takes no operand's place."""
        spec, lanes = self.spec, self.unit.lanes
        known = all(isinstance(dim, int) for dim in (*spec.batch_dims, spec.m, spec.n))
        if not known or not spec.n or spec.n % lanes or not all(x.per_column for x in spec.epilogue.operands):
            return False
        shape = [dim for dim in (*spec.batch_dims, spec.m, spec.n) if dim is not None]
        return bool(streamed([(shape, spec.out_dtype)], lanes, _FAR_BYTES))

    def _tasks(self, problem: _Problem) -> None:
        spec, isa = problem.spec, self.unit.isa
        few_rows = has_few_rows(spec, pairs=self.pairs)
        if few_rows:
            blocking = few_rows_blocking(spec, isa, self.threads)
        else:
            in_place = self.a_words is not None
            blocking = choose_blocking(spec, isa, self.threads, pairs=self.pairs, a_in_place=in_place, way=self.way)
        tasks = _total(problem.batch) * (blocking.row_tasks * blocking.column_tasks)
        walk = FewRows if few_rows else MatrixWalk if blocking.tiles else PanelWalk
        if isinstance(tasks, int) and tasks == 1:
            walk(self.unit, blocking, self._task(problem, blocking, i64(0))).emit()
            return
        with shared_loop(tasks, streams=self.finish.streamed) as task:
            walk(self.unit, blocking, self._task(problem, blocking, task)).emit()

    def _task(self, problem: _Problem, blocking: Blocking, task: tirx.Expr) -> Task:
        spec, m, n, k = problem.spec, problem.m, problem.n, problem.k
        rows, columns = blocking.row_tasks, blocking.column_tasks
        tiles, panels = ceil_div(m, blocking.tile_rows), ceil_div(n, blocking.panel)
        matrix = T.bind(task // (rows * columns))
        row_task = T.bind(task // columns % rows)
        column_task = T.bind(task % columns)
        a_base = problem.base(matrix, m * k, spec.a_batched, spec.a_repeated)
        b_base = problem.base(matrix, n * k, spec.b_batched, spec.b_repeated)
        a_along_k = spec.m == 1 or not spec.transpose_a  # a single row is the same either way
        a_stride = k if a_along_k else m
        b_stride = k if spec.transpose_b else n
        return Task(
            a=Source(problem.a, a_base, m, k, a_stride, a_along_k, self.pairs),
            b=Source(problem.b, b_base, n, k, b_stride, spec.transpose_b, self.pairs),
            output=Output(self.finish, T.bind(matrix * i64(m * n)), n),
            a_words=self.a_words,
            a_words_base=T.bind(a_base // self.per_word),
            b_panels=self.b_panels,
            b_panel_words=0 if self.packed is None else self.packed.words * self.packed.panel,
            first_tile=T.bind(row_task * tiles // rows),
            last_tile=T.bind((row_task + 1) * tiles // rows),
            first_panel=T.bind(column_task * panels // columns),
            last_panel=T.bind((column_task + 1) * panels // columns),
        )


def _total(extents: tuple[Extent, ...]) -> Extent:
    return math.prod(extents[1:], start=extents[0]) if extents else 1
