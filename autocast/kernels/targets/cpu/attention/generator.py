"""What the parts of an attention kernel share while its code is emitted: sizes, operands, and where they begin."""

from __future__ import annotations

import math

import tvm
from tvm import tirx
from tvm.script.ir_builder import tirx as T

from autocast.kernels.extents import Extent, i64, quotient, remainder
from autocast.kernels.specs.attention import Attention, OperandView
from autocast.kernels.specs.sizes import Size, known
from autocast.kernels.targets.cpu.attention.blocking import Way, choose_blocking, is_few, multiplies_pairs
from autocast.kernels.targets.cpu.instruction_sets import cores, instruction_set
from autocast.kernels.targets.cpu.products.pack import Source
from autocast.kernels.targets.cpu.vector.unit import VectorUnit, flat


class Generator:
    """The kernel of one spec, on one target. Making it begins the function: its arguments are declared.

    Attributes
    ----------
    pairs, compute, word, per_word
        Whether products take pairs of bfloat16; what is multiplied; the type that packed operands are stored in, and
        how many numbers one has.
    few
        Whether there are so few queries that keys and values are not worth packing.
    flats
        The arguments and the result, as one-dimensional buffers.
    queries, keys, leading
        Extents.
    seen
        Keys up to the last that any query of a task sees: `keys`, unless a mask says less.
    """

    def __init__(self, spec: Attention, target: tvm.target.Target, way: Way) -> None:
        self.spec, self.unit = spec, VectorUnit(instruction_set(target))
        isa = self.unit.isa
        self.pairs = multiplies_pairs(spec, isa)
        self.compute = "bfloat16" if self.pairs else "float32"
        self.word, self.per_word = ("int32", 2) if self.pairs else ("float32", 1)
        self.blocking = choose_blocking(spec, isa, cores(target), way)
        members = math.prod(spec.leading[len(spec.leading) - spec.shared :], start=1)
        self.few = is_few(known(spec.queries), known(members))
        self.sizes: dict[str, tirx.Var] = {}
        buffers = [T.arg(f"x{i}", T.buffer(self.shape(s), dtype)) for i, (s, dtype) in enumerate(spec.arguments)]
        buffers.append(T.arg("out", T.buffer(self.shape(spec.out[0]), spec.out[1])))
        scores = math.prod((*spec.leading, spec.queries, spec.keys), start=1)
        T.func_attr({"autocast.flops": self.size(scores * (2 * (spec.depth + spec.value_depth)))})
        self.flats = [flat(buffer) for buffer in buffers]
        self.queries, self.keys = self.unit.opaque(self.size(spec.queries)), self.unit.opaque(self.size(spec.keys))
        self.leading, self.seen = [self.size(extent) for extent in spec.leading], self.keys

    def size(self, size: Size) -> Extent:
        if isinstance(size, int):
            return size
        return sum(math.prod(self.sizes[name] for name in names) * i64(factor) for names, factor in size.terms)

    def shape(self, dims: tuple[int | str, ...]) -> tuple[Extent, ...]:
        return tuple(d if isinstance(d, int) else self.sizes.setdefault(d, tirx.Var(d, "int64")) for d in dims)

    def indices(self, position: tirx.Expr, extents: list[Extent]) -> list[tirx.Expr]:
        """The index along each of `extents` of the `position`-th combination."""
        indices: list[tirx.Expr] = []
        for extent in reversed(extents):
            indices.insert(0, T.bind(remainder(position, extent)))
            position = T.bind(quotient(position, extent))
        return indices

    def base(self, view: OperandView, indices: list[tirx.Expr]) -> tirx.Expr:
        """Where the matrix of `view` at leading `indices` begins."""
        base = i64(self.size(view.offset))
        for index, stride in zip(indices, view.leading, strict=False):
            if stride != 0:
                base = base + index * self.size(stride)
        return T.bind(base)

    def offset(self) -> tirx.Expr:
        """How many keys the first query sees, less one."""
        if self.spec.causal == "difference":
            return T.bind(tirx.abs(i64(self.keys) - i64(self.queries)))
        return i64(int(self.spec.causal or 0))

    def inverse(self, total: tirx.Expr) -> tirx.Expr:
        """1 / the sum of a query's probabilities, which is 0 where it sees no key."""
        total, zero, one = T.bind(total), tirx.const(0.0, "float32"), tirx.const(1.0, "float32")
        if self.spec.zero_empty:
            return T.bind(tirx.if_then_else(total == zero, zero, one / total))
        if isinstance(self.keys, int):
            return T.bind(one / total)
        return T.bind(tirx.if_then_else(i64(self.keys) == 0, zero, one / total))

    def source(self, view: OperandView, base: tirx.Expr, columns: Extent, k: Extent, *, along_k: bool) -> Source:
        return Source(self.flats[view.argument], base, columns, k, self.size(view.rows), along_k, self.pairs)
