"""Constant weights, packed once into the panels that the microkernel reads."""

from __future__ import annotations

import math
from dataclasses import dataclass

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from autocast.kernels.extents import i64
from autocast.kernels.specs.products import Product
from autocast.kernels.targets.cpu.instruction_sets import InstructionSet
from autocast.kernels.targets.cpu.products.blocking import multiplies_pairs, panel_vectors
from autocast.kernels.targets.cpu.products.pack import Source, Strip, pack_strip
from autocast.kernels.targets.cpu.vector import llvm_ir, llvm_pack
from autocast.kernels.targets.cpu.vector.unit import VectorUnit, flat, importing, kernel_function


@dataclass(frozen=True)
class PackedWeight:
    """The panels that a (k, n) weight is packed into.

    Attributes
    ----------
    n, k
        Columns of the weight, and the dimension that is summed.
    dtype
        What the weight is stored in before.
    transpose
        Whether it is stored as (n, k).
    pairs
        Whether a word is a pair of bfloat16 along k, or a float32 number.
    panel
        Columns of a panel.
    lanes
        Float32 numbers in a vector.
    """

    n: int
    k: int
    dtype: str
    transpose: bool
    pairs: bool
    panel: int
    lanes: int

    @staticmethod
    def of(spec: Product, isa: InstructionSet) -> PackedWeight | None:
        """How the B of `spec` is packed for `isa`; None where that takes more memory than it took before."""
        if spec.n is None or spec.k is None or spec.b_batched:
            return None
        pairs = multiplies_pairs(spec, isa)
        if spec.b_dtype != "float32" and not pairs:
            return None
        panel = panel_vectors(spec.n, isa) * isa.lanes
        return PackedWeight(spec.n, spec.k, spec.b_dtype, spec.transpose_b, pairs, panel, isa.lanes)

    @property
    def packed_dtype(self) -> str:
        """The dtype of the packed tensor."""
        return "bfloat16" if self.pairs else "float32"

    @property
    def words(self) -> int:
        """Words along k of a panel: whole vectors of them, as they are packed."""
        return math.ceil(self.k / (self.lanes * self.per_word)) * self.lanes

    @property
    def per_word(self) -> int:
        """Elements along k in a word."""
        return 2 if self.pairs else 1

    @property
    def shape(self) -> tuple[int, int, int]:
        """The shape of the packed tensor: panels, words along k, and the numbers in a word of all columns."""
        return math.ceil(self.n / self.panel), self.words, self.panel * self.per_word


def pack_weight(spec: PackedWeight, isa: InstructionSet, name: str) -> tirx.PrimFunc:
    """A destination-passing TIR function `name(weight, packed)`, in parallel over the panels."""
    unit = VectorUnit(isa)
    with kernel_function(name) as finished:
        stored = (spec.n, spec.k) if spec.transpose else (spec.k, spec.n)
        weight = T.arg("weight", T.buffer(stored, spec.dtype))
        packed = T.arg("packed", T.buffer(spec.shape, spec.packed_dtype))
        stride = spec.k if spec.transpose else spec.n
        source = Source(flat(weight), i64(0), spec.n, spec.k, stride, spec.transpose, spec.pairs)
        words = flat(packed, "int32" if spec.pairs else "float32", spec.per_word)
        snippets = llvm_ir.conversions_and_accesses(isa) + llvm_pack.packing(isa, spec.dtype, spec.packed_dtype)
        with importing(snippets), T.parallel(0, i64(spec.shape[0])) as panel:
            strip = Strip(words, T.bind(panel * (spec.words * spec.panel)), spec.panel)
            exact = spec.n % spec.panel == 0
            pack_strip(unit, source, panel * spec.panel, strip, 0, spec.words, exact=exact, padded=True)
    return finished()
