"""Products of groups of rows: the walks of one matrix product, over rows whose number is known only at run time.

Every thread owns a part of the columns of all groups, as it is the sizes of groups that differ. A group without rows
reads nothing of its matrix; one of a single row, as in decoding, streams it.
"""

from __future__ import annotations

import math
from dataclasses import replace

import tvm
from tvm import tirx
from tvm.script.ir_builder import tirx as T

from autocast.kernels.extents import Extent, ceil_div, i64
from autocast.kernels.specs.epilogue import Epilogue
from autocast.kernels.specs.products import GroupedProduct, Product
from autocast.kernels.targets.cpu.instruction_sets import cores, instruction_set
from autocast.kernels.targets.cpu.products.blocking import (
    Blocking,
    choose_blocking,
    few_rows_blocking,
    has_few_rows,
    multiplies_pairs,
)
from autocast.kernels.targets.cpu.products.few_rows import FewRows
from autocast.kernels.targets.cpu.products.kernel import snippets
from autocast.kernels.targets.cpu.products.matrix import MatrixWalk
from autocast.kernels.targets.cpu.products.pack import Source
from autocast.kernels.targets.cpu.products.panels import PanelWalk, Task
from autocast.kernels.targets.cpu.products.tile import Output
from autocast.kernels.targets.cpu.vector.finish import Finish
from autocast.kernels.targets.cpu.vector.unit import VectorUnit, flat, importing, kernel_function


def grouped_product(spec: GroupedProduct, target: tvm.target.Target, name: str) -> tirx.PrimFunc:
    """A destination-passing TIR function `name(A, B, ends, out)` that computes `spec` on `target`."""
    isa = instruction_set(target)
    with kernel_function(name) as finished:
        rows = _Generator(spec, VectorUnit(isa), cores(target)).emit()
    return finished().with_attr("autocast.flops", 2 * rows * spec.n * spec.k)


class _Generator:
    def __init__(self, spec: GroupedProduct, unit: VectorUnit, threads: int) -> None:
        self.spec, self.unit = spec, unit
        self.any_rows = Product(None, spec.n, spec.k, spec.dtype, spec.dtype, spec.dtype, transpose_b=spec.transpose_b)
        self.pairs = multiplies_pairs(self.any_rows, unit.isa)
        self.per_word = 2 if self.pairs else 1
        wanted = "bfloat16" if self.pairs else "float32"
        self.in_place = spec.dtype == wanted and spec.k % self.per_word == 0
        self.threads = threads if spec.n * spec.k >= 1 << 14 else 1

    def emit(self) -> Extent:
        """Emit the function's arguments and body; how many rows A has."""
        spec, groups = self.spec, self.spec.groups
        m: Extent = tirx.Var("m", "int64") if spec.m is None else spec.m
        matrix = (spec.n, spec.k) if spec.transpose_b else (spec.k, spec.n)
        a = T.arg("A", T.buffer((m, spec.k), spec.dtype))
        b = T.arg("B", T.buffer((groups, *matrix), spec.dtype))
        ends = T.arg("ends", T.buffer((groups,), spec.ends_dtype))
        out = T.arg("out", T.buffer((m, spec.n), spec.dtype))
        words = flat(a, "int32" if self.pairs else "float32", self.per_word) if self.in_place else None
        a, b, out = flat(a), flat(b), flat(out)

        def end(group: tirx.Expr) -> tirx.Expr:
            """Where a group ends: no place that is wrong is beyond the rows."""
            return tirx.max(tirx.min(ends[group].astype("int64"), i64(m)), i64(0))

        with importing(snippets(self.any_rows, self.unit, pairs=self.pairs)):
            behind = T.bind(end(i64(groups - 1)))
            size = tvm.DataType(spec.dtype).itemsize
            with T.If(behind < i64(m)), T.Then():
                place = T.address_of(out[behind * spec.n])
                T.evaluate(tirx.call_extern("void", "memset", place, 0, (i64(m) - behind) * (spec.n * size)))
            with T.parallel(0, i64(self.threads * groups)) as task:
                part, group = T.bind(task // groups), T.bind(task % groups)
                first = T.bind(tirx.if_then_else(group > 0, end(tirx.max(group - 1, i64(0))), i64(0)))
                rows = T.bind(end(group) - first)
                with T.If(rows.equal(1)):
                    with T.Then():
                        self._rows(1, 1, first, part, group, a, words, b, out)
                    with T.Else(), T.If(rows > 1), T.Then():
                        self._rows(rows, m, first, part, group, a, words, b, out)
        return m

    def _rows(
        self,
        rows: Extent,
        most: Extent,
        first: tirx.Expr,
        part: tirx.Expr,
        group: tirx.Expr,
        a: tirx.Buffer,
        words: tirx.Buffer | None,
        b: tirx.Buffer,
        out: tirx.Buffer,
    ) -> None:
        """The `rows` rows (`most` at most) from the `first` on times the matrix of `group`, in some columns."""
        spec, n, k = self.spec, self.spec.n, self.spec.k
        product = replace(self.any_rows, m=1) if isinstance(rows, int) else self.any_rows
        few = has_few_rows(product, pairs=self.pairs)
        blocking = self._blocking(product, few=few)
        panels = ceil_div(n, blocking.panel)
        a_base = T.bind(first * k)
        b_stride = k if spec.transpose_b else n
        task = Task(
            a=Source(a, a_base, rows, k, k, True, self.pairs),
            b=Source(b, T.bind(group * (n * k)), n, k, b_stride, spec.transpose_b, self.pairs),
            output=Output(Finish(self.unit, Epilogue(), out), T.bind(first * n), n),
            a_words=words,
            a_words_base=T.bind(a_base // self.per_word),
            b_panels=None,
            b_panel_words=0,
            first_tile=i64(0),
            last_tile=T.bind(i64(ceil_div(rows, blocking.tile_rows))),
            first_panel=T.bind(part * panels // self.threads),
            last_panel=T.bind((part + 1) * panels // self.threads),
            most_tiles=ceil_div(most, blocking.tile_rows),
        )
        walk = FewRows if few else MatrixWalk if blocking.tiles else PanelWalk
        walk(self.unit, blocking, task).emit()

    def _blocking(self, product: Product, *, few: bool) -> Blocking:
        """Blocks of one task of several, which share the columns alone."""
        if few:
            return few_rows_blocking(product, self.unit.isa, 1)
        blocking = choose_blocking(product, self.unit.isa, 1, pairs=self.pairs, a_in_place=self.in_place)
        share = math.ceil(math.ceil(self.spec.n / blocking.panel) / self.threads)
        return replace(blocking, panels=min(blocking.panels, share))
