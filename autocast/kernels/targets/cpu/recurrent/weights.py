"""Recurrent weights, packed once, so that the sums of a unit's gates lie together.

Columns of the product are vectors of units, each with a vector for every gate, one after the other:

    i0..i15  f0..f15  g0..g15  o0..o15  i16..i31  f16..f31 ...

Behind the last unit, columns hold anything. A step back multiplies the adjoints of all gates by the weight as it is
stored, so its columns are units.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import tvm
from tvm import tirx
from tvm.script.ir_builder import tirx as T

from autocast.kernels.extents import i64
from autocast.kernels.specs.products import Product
from autocast.kernels.specs.recurrent import Recurrence
from autocast.kernels.targets.cpu.instruction_sets import InstructionSet, instruction_set
from autocast.kernels.targets.cpu.products.blocking import multiplies_pairs, panel_vectors
from autocast.kernels.targets.cpu.products.pack import Source, Strip, pack_strip
from autocast.kernels.targets.cpu.vector import llvm_ir, llvm_pack
from autocast.kernels.targets.cpu.vector.unit import VectorUnit, flat, importing, kernel_function


@dataclass(frozen=True)
class RecurrentWeight:
    """The panels that a recurrent weight of shape (gates * hidden, hidden) is packed into.

    Attributes
    ----------
    gates, hidden
        Matrices of the weight, and its columns.
    dtype
        How it is stored before.
    pairs
        Whether a word is a pair of bfloat16 along what is summed, or a float32 number.
    backward
        Whether a step multiplies by it from the left: the adjoints of all gates.
    panel, lanes
        Columns of a panel, and of a vector.
    """

    gates: int
    hidden: int
    dtype: str
    pairs: bool
    backward: bool
    panel: int
    lanes: int

    @staticmethod
    def of(spec: Recurrence, isa: InstructionSet) -> RecurrentWeight:
        """How the weight of `spec` is packed for `isa`."""
        columns = math.ceil(spec.hidden / isa.lanes) * isa.lanes * (1 if spec.backward else spec.gates)
        pairs = multiplies_pairs(Product(None, columns, spec.operand, spec.weight_dtype, spec.weight_dtype), isa)
        panel = panel_vectors(columns, isa) * isa.lanes
        return RecurrentWeight(spec.gates, spec.hidden, spec.weight_dtype, pairs, spec.backward, panel, isa.lanes)

    @property
    def per_word(self) -> int:
        """Elements in a word."""
        return 2 if self.pairs else 1

    @property
    def gates_of_unit(self) -> int:
        """Sums that a unit has."""
        return 1 if self.backward else self.gates

    @property
    def vectors(self) -> int:
        """Vectors of columns that hold sums of units."""
        return math.ceil(self.hidden / self.lanes) * self.gates_of_unit

    @property
    def k(self) -> int:
        """How many products are summed."""
        return self.hidden * (self.gates if self.backward else 1)

    @property
    def words(self) -> int:
        """Words along k of a panel: whole vectors of them, as they are packed."""
        return math.ceil(self.k / (self.lanes * self.per_word)) * self.lanes

    @property
    def panels(self) -> int:
        """How many panels there are."""
        return math.ceil(self.vectors * self.lanes / self.panel)

    @property
    def columns(self) -> int:
        """Columns of all panels."""
        return self.panels * self.panel

    @property
    def packed_dtype(self) -> str:
        """The dtype of the packed tensor."""
        return "bfloat16" if self.pairs else "float32"

    @property
    def shape(self) -> tuple[int, int, int]:
        """The shape of the packed tensor: panels, words along k, and the numbers in a word of all columns."""
        return self.panels, self.words, self.panel * self.per_word


def pack_recurrent_weight(spec: RecurrentWeight, target: tvm.target.Target, name: str) -> tirx.PrimFunc:
    """A destination-passing TIR function `name(weight, packed)`, in parallel over the panels."""
    isa = instruction_set(target)
    unit = VectorUnit(isa)
    with kernel_function(name) as finished:
        weight = T.arg("weight", T.buffer((spec.gates * spec.hidden, spec.hidden), spec.dtype))
        packed = T.arg("packed", T.buffer(spec.shape, spec.packed_dtype))
        stored = flat(weight)
        words = flat(packed, "int32" if spec.pairs else "float32", spec.per_word)
        snippets = llvm_ir.conversions_and_accesses(isa) + llvm_pack.packing(isa, spec.dtype, spec.packed_dtype)
        across = spec.panel // spec.lanes
        with importing(snippets), T.parallel(0, i64(spec.panels)) as panel, T.serial(0, i64(across)) as place:
            vector = T.bind(panel * across + place)
            with T.If(vector < spec.vectors), T.Then():
                matrix = T.bind(vector % spec.gates_of_unit * (spec.hidden * spec.hidden))
                column = T.bind(vector // spec.gates_of_unit * spec.lanes)
                source = Source(stored, matrix, spec.hidden, spec.k, spec.hidden, not spec.backward, spec.pairs)
                at = T.bind(panel * (spec.words * spec.panel) + place * spec.lanes)
                strip = Strip(words, at, spec.lanes, row=spec.panel)
                pack_strip(unit, source, column, strip, 0, spec.words, exact=spec.hidden % spec.lanes == 0)
    return finished()
