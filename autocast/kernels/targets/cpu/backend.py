"""The kernels for vector and matrix units of x86 and ARM processors: a generator for each type of spec."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import tvm
from tvm import tirx

from autocast.kernels.backend import Backend, Generator
from autocast.kernels.specs.attention import Attention
from autocast.kernels.specs.convolutions import (
    Convolution,
    ConvolutionWeights,
    Pooling,
    PoolingGradient,
    WeightGradient,
)
from autocast.kernels.specs.layout import Lookup, Move, RowWrites
from autocast.kernels.specs.products import GroupedProduct, Product
from autocast.kernels.specs.program import Program
from autocast.kernels.specs.recurrent import Recurrence
from autocast.kernels.specs.reductions import Reduce, Scatter
from autocast.kernels.specs.rows import Rows
from autocast.kernels.targets.cpu.attention import blocking as attentions
from autocast.kernels.targets.cpu.attention.kernel import attention
from autocast.kernels.targets.cpu.convolutions import blocking as convolutions
from autocast.kernels.targets.cpu.convolutions.kernel import convolution
from autocast.kernels.targets.cpu.convolutions.pooling import pooling, pooling_gradient
from autocast.kernels.targets.cpu.convolutions.weight_gradient import weight_gradient
from autocast.kernels.targets.cpu.convolutions.weights import pack_weights
from autocast.kernels.targets.cpu.elementwise.kernel import elementwise_kernel
from autocast.kernels.targets.cpu.instruction_sets import InstructionSet, cores, instruction_set
from autocast.kernels.targets.cpu.layout.kernel import move
from autocast.kernels.targets.cpu.layout.lookup import lookup
from autocast.kernels.targets.cpu.layout.row_writes import row_writes
from autocast.kernels.targets.cpu.products import blocking as products
from autocast.kernels.targets.cpu.products.blocking import packs_rows_again
from autocast.kernels.targets.cpu.products.grouped import grouped_product
from autocast.kernels.targets.cpu.products.kernel import product
from autocast.kernels.targets.cpu.products.prepack import PackedWeight, pack_weight
from autocast.kernels.targets.cpu.recurrent.kernel import recurrence
from autocast.kernels.targets.cpu.recurrent.weights import RecurrentWeight, pack_recurrent_weight
from autocast.kernels.targets.cpu.reductions.kernel import reduce
from autocast.kernels.targets.cpu.reductions.scatter import scatter
from autocast.kernels.targets.cpu.rows.kernel import row_kernel
from autocast.kernels.targets.cpu.vector.streaming import streamed


def _rows(spec: Rows, target: tvm.target.Target, name: str) -> tirx.PrimFunc:
    return row_kernel(spec.program, spec.row_dims, target, name)


#: By the type of a spec, in which ways its generator may compute it.
_WAYS: Mapping[type, Callable[[Any, InstructionSet, int], Mapping[str, Any]]] = {
    Attention: attentions.ways_of,
    Convolution: convolutions.ways_of,
    Product: products.ways_of,
}


class Cpu(Backend):
    """Vectors of any width; 16-bit numbers are widened as they are loaded, products of bfloat16 paired or tiled."""

    generators: ClassVar[Mapping[type, Generator]] = {
        Attention: attention,
        Convolution: convolution,
        ConvolutionWeights: lambda spec, target, name: pack_weights(spec.convolution, target, name),
        WeightGradient: lambda spec, target, name: weight_gradient(spec.convolution, target, name),
        Pooling: pooling,
        PoolingGradient: lambda spec, target, name: pooling_gradient(spec.pooling, target, name),
        Product: product,
        GroupedProduct: grouped_product,
        PackedWeight: lambda spec, target, name: pack_weight(spec, instruction_set(target), name),
        Recurrence: recurrence,
        RecurrentWeight: pack_recurrent_weight,
        Rows: _rows,
        Reduce: reduce,
        Scatter: scatter,
        Move: move,
        Lookup: lookup,
        RowWrites: row_writes,
        Program: elementwise_kernel,
    }

    @property
    def multiplies(self) -> tuple[str, ...]:
        return ("bfloat16",) if instruction_set(self.target).bf16_dot else ()

    def ways(self, spec: Any) -> Mapping[str, Any]:
        ways_of = _WAYS.get(type(spec))
        return ways_of(spec, instruction_set(self.target), cores(self.target)) if ways_of else {}

    def prepacked(self, product: Product) -> PackedWeight | None:
        return PackedWeight.of(product, instruction_set(self.target))

    def widens_rows(self, product: Product) -> bool:
        return packs_rows_again(product, instruction_set(self.target), cores(self.target))

    def packed_recurrent(self, spec: Recurrence, stored: str) -> RecurrentWeight:
        return replace(RecurrentWeight.of(spec, instruction_set(self.target)), dtype=stored)

    def streams(self, results: Sequence[tuple[Sequence[Any], str]]) -> bool:
        return bool(streamed(results, instruction_set(self.target).lanes))
