"""Attention as one kernel that never stores the scores of more than a block of queries and keys.

A task owns the keys and values of one head: it packs them once, K as rows of words along its depth, V as words along
the keys. Then, for each panel of queries and each block of keys, it computes the scores transposed, queries in the
lanes of vectors:

    S' = K Q'                       keys x panel, a register tile at a time; Q' is packed by a transposition
    m, P' = max S', 2^(S' - m)      lane by lane, so that nothing is reduced across lanes
    O' = O' 2^(m_before - m) + V' P'

and at last transposes O' / sum P' into place. The softmax with a running maximum and sum is that of Milakov and
Gimelshein, "Online normalizer calculation for softmax" (2018); keeping it on chip between two products is
Dao et al., "FlashAttention" (2022).
"""

from __future__ import annotations

import math

import tvm
from tvm import tirx
from tvm.script.ir_builder import tirx as T

from autocast.kernels.extents import Extent, ceil_div, i32, i64
from autocast.kernels.specs.attention import Attention
from autocast.kernels.targets.cpu.attention.blocking import RULES, Way
from autocast.kernels.targets.cpu.attention.exponentials import softmax_ir
from autocast.kernels.targets.cpu.attention.few_queries import FewQueries
from autocast.kernels.targets.cpu.attention.generator import Generator
from autocast.kernels.targets.cpu.attention.panel import Head, Panel
from autocast.kernels.targets.cpu.attention.seen import SEEN_IR, hiding, seen_keys
from autocast.kernels.targets.cpu.products.matrix import Rows, pack_rows, tile_registers
from autocast.kernels.targets.cpu.products.pack import Strip, pack_strip
from autocast.kernels.targets.cpu.vector import llvm_ir, llvm_pack, llvm_tiles
from autocast.kernels.targets.cpu.vector.llvm_tiles import TILE
from autocast.kernels.targets.cpu.vector.unit import importing, kernel_function


def attention(spec: Attention, target: tvm.target.Target, name: str, way: Way = RULES) -> tirx.PrimFunc:
    """A destination-passing TIR function `name(*arguments, out)` that computes `spec` on `target`.

    The function is fit for `relax.call_tir`. Its attribute `autocast.flops` counts both products in full, masked keys
    included.
    """
    with kernel_function(name) as finished:
        _Tasks(spec, target, way).emit()
    return finished()


class _Tasks(Generator):
    """Emits the tasks of one kernel."""

    def emit(self) -> None:
        """Emit the function's body."""
        separate = len(self.leading) - self.spec.shared
        heads = math.prod(self.leading[:separate], start=1)
        with importing(self._llvm()):
            tasks = heads * (1 if self.few else self.blocking.query_tasks)
            if isinstance(tasks, int) and tasks == 1:
                self._task(i64(0), separate)
            else:
                with T.parallel(0, i64(tasks)) as task:
                    self._task(task, separate)

    def _llvm(self) -> str:
        isa, spec = self.unit.isa, self.spec
        packs = {(storage, self.compute) for storage in spec.storages} | {("float32", "float32")}
        packs |= {(spec.arguments[s.view.argument][1], "float32") for s in spec.steps if s.view is not None}
        return (
            softmax_ir(isa, self.compute)
            + SEEN_IR
            + (llvm_tiles.tiles_ir() if self.blocking.tiles else "")
            + llvm_ir.conversions_and_accesses(isa)
            + "".join(llvm_pack.packing(isa, storage, compute) for storage, compute in sorted(packs))
        )

    def _task(self, task: tirx.Expr, separate: int) -> None:
        blocking = self.blocking
        query_tasks = 1 if self.few else blocking.query_tasks
        part = T.bind(task % query_tasks)
        indices = self.indices(T.bind(task // query_tasks), self.leading[:separate])
        group = self.leading[separate:]
        self.seen = self._seen(indices, separate)
        if self.few:
            self._few_queries(indices, group)
            return
        with tile_registers(self.unit, blocking.tiles):
            self._panels(indices, group, part)

    def _panels(self, indices: list[tirx.Expr], group: list[Extent], part: tirx.Expr) -> None:
        """Emit code for one task's part of the panels of queries of a group of heads that share keys and values."""
        spec, blocking = self.spec, self.blocking
        head = self._packed(indices)
        panels = ceil_div(self.queries, blocking.panel)
        first = T.bind(i64(part * panels) // blocking.query_tasks)
        last = T.bind((part + 1) * panels // blocking.query_tasks)
        with T.serial(0, i64(math.prod(group, start=1))) as member:
            every = indices + self.indices(member, group)
            query = self.source(spec.query, self.base(spec.query, every), self.queries, spec.depth, along_k=True)
            steps = [(step, None if step.view is None else self.base(step.view, every)) for step in spec.steps]
            result = self.base(spec.result, every)
            with T.serial(0, last - first) as panel:
                Panel(self, head, query, steps, result, T.bind((first + panel) * blocking.panel)).emit()

    def _seen(self, indices: list[tirx.Expr], separate: int) -> Extent:
        """Keys up to the last that any query sees: counted where keys are many, and the same for all of a group."""
        seen = self.keys
        for step in self.spec.steps:
            view = hiding(self.spec, step)
            if view is None or any(view.leading[separate:]) or (self.blocking.one_block and not self.few):
                continue
            rows, mask = self.queries if view.rows != 0 else 1, self.flats[view.argument]
            seen = seen_keys(mask, self.base(view, indices), rows, self.size(view.rows), seen)
        return seen

    def _few_queries(self, indices: list[tirx.Expr], group: list[Extent]) -> None:
        """Emit code for all queries of the heads that share keys and values, one by one."""
        spec, rows = self.spec, []
        for member in range(math.prod(int(extent) for extent in group)):
            every = indices + self.indices(i64(member), group)
            bases = [None if step.view is None else self.base(step.view, every) for step in spec.steps]
            query, result = self.base(spec.query, every), self.base(spec.result, every)
            for number in range(int(self.queries)):
                starts = (
                    start + number * i64(self.size(view.rows))
                    for start, view in ((query, spec.query), (result, spec.result))
                )
                first, out = (T.bind(start) for start in starts)
                rows.append((first, number, bases, out))
        FewQueries(self, indices, rows).emit()

    def _packed(self, indices: list[tirx.Expr]) -> Head:
        """Emit code that packs K and V of one head."""
        spec, unit, blocking = self.spec, self.unit, self.blocking
        depth_words = -(-spec.depth // self.per_word)
        width = -(-depth_words // unit.lanes) * unit.lanes
        # What is allocated may be hoisted before `self.seen` is known, so sizes are those of the arguments.
        keys_stored = self.size(spec.keys)
        # Tiles may read the rows after the last key, and the columns after the last of V; nothing is made of them.
        k_size = (keys_stored + blocking.score_rows) * width
        k_packed = unit.scratch(k_size, self.word)
        k_words = T.decl_buffer((k_size,), "int32", data=k_packed.data)
        keys = self.source(spec.key, self.base(spec.key, indices), self.seen, spec.depth, along_k=True)
        with T.serial(0, i64(self.seen)) as key:
            start = T.bind(keys.base + key * keys.stride)
            for vector in range(width // unit.lanes):
                skip = vector * unit.lanes * self.per_word
                count = spec.depth - skip
                part = count < unit.lanes * self.per_word
                arguments = [T.address_of(keys.view[start + skip])] + ([i32(count)] if part else [])
                words = tirx.call_extern(f"int32x{unit.lanes}", keys.snippet("words", part), *arguments)
                T.buffer_store(k_words, words, [unit.ramp(key * width + vector * unit.lanes)])
        return Head(k_packed, width, depth_words, *self._packed_values(indices))

    def _packed_values(self, indices: list[tirx.Expr]) -> tuple[tirx.Buffer, int]:
        """Emit code that packs V of one head: words, and how many of them are in a row."""
        spec, unit, blocking = self.spec, self.unit, self.blocking
        values = self.source(spec.value, self.base(spec.value, indices), spec.value_depth, self.seen, along_k=False)
        words, words_stored = (ceil_div(keys, self.per_word) for keys in (self.seen, self.size(spec.keys)))
        if blocking.tiles:
            width = -(-spec.value_depth // blocking.value_rows) * blocking.value_rows
            packed = unit.scratch(ceil_div(words_stored, TILE) * (TILE * width), self.word)
            pack_rows(unit, values, 0, width, words, 0, Rows(packed, 0, TILE, width * TILE))
            return packed, width
        width = -(-spec.value_depth // unit.lanes) * unit.lanes
        packed = unit.scratch(words_stored * width + blocking.value_rows, self.word)
        exact = spec.value_depth % unit.lanes == 0
        pack_strip(unit, values, 0, Strip(packed, 0, width), 0, words, exact=exact)
        return packed, width
