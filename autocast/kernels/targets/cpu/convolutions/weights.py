"""Weights of convolutions as the kernels read them: panels of features, in rows of words along k."""

from __future__ import annotations

import math
from dataclasses import dataclass

import tvm
from tvm import tirx
from tvm.script.ir_builder import tirx as T

from autocast.kernels.extents import Extent, i64
from autocast.kernels.specs.convolutions import Convolution
from autocast.kernels.targets.cpu.convolutions.blocking import Blocking, as_rows, choose_blocking
from autocast.kernels.targets.cpu.convolutions.depthwise import depthwise_shape, is_depthwise
from autocast.kernels.targets.cpu.instruction_sets import InstructionSet, cores, instruction_set
from autocast.kernels.targets.cpu.products.pack import Source, Strip, pack_strip
from autocast.kernels.targets.cpu.vector import llvm_ir, llvm_pack
from autocast.kernels.targets.cpu.vector.unit import VectorUnit, flat, importing, kernel_function


@dataclass(frozen=True)
class PackedWeights:
    """The layout of packed weights: word (k, feature) of a panel at `[panel, k, feature]`."""

    spec: Convolution
    blocking: Blocking
    isa: InstructionSet

    @property
    def channels(self) -> int:
        """Channels of a group."""
        return self.spec.channels // self.spec.groups

    @property
    def features(self) -> int:
        """Features of a group."""
        return self.spec.features // self.spec.groups

    @property
    def group_panels(self) -> int:
        """Panels of a group: none holds features of two."""
        return math.ceil(self.features / self.blocking.panel)

    @property
    def panels(self) -> int:
        """Panels of all groups."""
        return self.group_panels * self.spec.groups

    @property
    def words(self) -> int:
        """Words along k of a panel, of all kinds of outputs one after the other."""
        return sum(self.blocking.words(kind, self.channels) for kind in self.blocking.kinds())

    def runs(self) -> list[tuple[int, int, int]]:
        """(How many, elements of each, words of zeros after them) of runs of neighbouring weights, as they are packed.

        Where none ends within a word, they follow each other like one.
        """
        runs = []
        for kind in self.blocking.kinds():
            high, wide, run = self.blocking.loops(kind, self.channels)
            words = high * wide * math.ceil(run / self.blocking.per_word)
            runs.append((high * wide, run, self.blocking.words(kind, self.channels) - words))
        if any(run % self.blocking.per_word or zeros for _, run, zeros in runs):
            return runs
        return [(1, sum(count * run for count, run, _ in runs), 0)]

    @property
    def shape(self) -> tuple[int, int, int]:
        """The shape of the packed weights."""
        if is_depthwise(self.spec):
            return depthwise_shape(self.spec, self.isa)
        return (self.panels, max(1, self.words), self.blocking.panel)

    @property
    def word(self) -> str:
        """The dtype of a word."""
        return "int32" if self.blocking.pairs and not is_depthwise(self.spec) else "float32"


def pack_weights(spec: Convolution, target: tvm.target.Target, name: str) -> tirx.PrimFunc:
    """A destination-passing TIR function `name(weights, packed)`, fit for `relax.call_tir`.

    Weights have the shape `spec.weight_shape`, packed ones are panels of words: int32 for pairs of bfloat16 numbers,
    or float32.
    """
    isa = instruction_set(target)
    layout = _layout(spec, target)
    with kernel_function(name) as finished:
        weights = T.arg("weights", T.buffer(spec.weight_shape, spec.weight_dtype))
        packed = T.arg("packed", T.buffer(layout.shape, layout.word))
        compute = "float32" if layout.word == "float32" else "bfloat16"
        snippets = llvm_ir.conversions_and_accesses(isa) + llvm_pack.packing(isa, spec.weight_dtype, compute)
        with importing(snippets):
            packing = _Packing(layout, VectorUnit(isa), flat(weights), flat(packed))
            (packing.depthwise if is_depthwise(spec) else packing.emit)()
    return finished()


def _layout(spec: Convolution, target: tvm.target.Target) -> PackedWeights:
    spec, isa = as_rows(spec), instruction_set(target)
    return PackedWeights(spec, choose_blocking(spec, isa, cores(target)), isa)


class _Packing:
    def __init__(self, layout: PackedWeights, unit: VectorUnit, weights: tirx.Buffer, packed: tirx.Buffer) -> None:
        self.layout, self.unit, self.weights, self.packed = layout, unit, weights, packed
        self.spec, self.blocking = layout.spec, layout.blocking

    def depthwise(self) -> None:
        """Weights of a depthwise convolution: a row of channels for each tap."""
        spec, unit, lanes = self.spec, self.unit, self.unit.lanes
        _, taps, row = self.layout.shape
        ordered = unit.scratch(taps * row, spec.weight_dtype)
        to, source = _bits(ordered), _bits(self.weights)
        with T.serial(0, i64(taps)) as tap:
            with T.serial(0, i64(row)) as channel:
                T.buffer_store(
                    to, source[tirx.min(channel, i64(spec.channels - 1)) * taps + tap], [tap * row + channel]
                )
            with T.serial(0, i64(row // lanes)) as vector:
                at = T.bind(tap * row + vector * lanes)
                unit.store(self.packed, at, unit.load(ordered, at))

    def emit(self) -> None:
        """One task for each panel: its weights in the order of k, then packed into words."""
        layout, unit, panel_size = self.layout, self.unit, self.blocking.panel
        per_feature = math.prod(self.spec.kernel) * layout.channels
        with T.parallel(0, i64(layout.panels)) as panel:
            group = T.bind(panel // layout.group_panels)
            first = T.bind((panel - group * layout.group_panels) * panel_size)
            count: Extent = panel_size
            if layout.features % panel_size:
                count = T.bind(tirx.min(i64(panel_size), i64(layout.features) - first))
            view, base = self.weights, T.bind((group * layout.features + first) * per_feature)
            if math.prod(self.spec.kernel) > 1 or self.spec.transposed:
                view, base = self._ordered(group, first, count), i64(0)
            words = unit.scratch((layout.words + unit.lanes) * panel_size, layout.word)
            word = element = 0
            for count_of_runs, run, zeros in layout.runs():
                run_words = math.ceil(run / self.blocking.per_word)
                with T.serial(0, i64(count_of_runs)) as index:
                    at = T.bind(base + element + index * run)
                    source = Source(view, at, count, run, per_feature, along_k=True, pairs=self.blocking.pairs)
                    # What is written beyond a run is overwritten by the next.
                    strip = Strip(words, T.bind((index * run_words + word) * panel_size), panel_size)
                    pack_strip(unit, source, 0, strip, 0, run_words, exact=isinstance(count, int))
                word += count_of_runs * run_words
                for beyond in range(zeros):
                    for vector in range(panel_size // unit.lanes):
                        at = (word + beyond) * panel_size + vector * unit.lanes
                        T.buffer_store(words, T.broadcast(tirx.const(0, layout.word), unit.lanes), [unit.ramp(at)])
                word += zeros
                element += count_of_runs * run
            size = layout.words * panel_size
            addresses = T.address_of(self.packed[panel * size]), T.address_of(words[i64(0)])
            T.evaluate(tirx.call_extern("handle", "memcpy", *addresses, i64(size * 4)))

    def _ordered(self, group: tirx.Expr, first: tirx.Expr, count: Extent) -> tirx.Buffer:
        """Weights of `count` features of a group, feature by feature, in the order in which a pixel is summed."""
        spec, layout = self.spec, self.layout
        (high, wide), channels = spec.kernel, layout.channels
        per_feature = high * wide * channels
        ordered = self.unit.scratch(self.blocking.panel * per_feature, spec.weight_dtype)
        to, source = _bits(ordered), _bits(self.weights)
        with T.serial(0, i64(count)) as feature:
            element = 0
            for row, column in self.blocking.kinds():
                if row.count * column.count == 0:
                    continue
                with T.serial(0, i64(row.count)) as i, T.serial(0, i64(column.count)) as j:
                    y, x = row.kernel_first + i * row.kernel_step, column.kernel_first + j * column.kernel_step
                    at = T.bind(feature * per_feature + element + (i * column.count + j) * channels)
                    with T.serial(0, i64(channels)) as channel:
                        outer, inner = (
                            (group * channels + channel, layout.features)
                            if spec.transposed
                            else (group * layout.features + first + feature, channels)
                        )
                        place = outer * inner + (first + feature if spec.transposed else channel)
                        T.buffer_store(to, source[place * (high * wide) + y * wide + x], [at + channel])
                element += row.count * column.count * channels
        return ordered


def _bits(view: tirx.Buffer) -> tirx.Buffer:
    """The same memory as integers: elements are moved, not converted."""
    return T.decl_buffer(view.shape, "uint32" if str(view.dtype) == "float32" else "uint16", data=view.data)
