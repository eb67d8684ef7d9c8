"""What casts cost on a target.

What the kernels of a target convert says it (`conversions.py`), so what a rule learns to take is priced by it.
"""

from __future__ import annotations

import math

import tvm
from tvm import relax

from autocast.ir import identity
from autocast.kernels.conversions import Conversions, conversions_of
from autocast.kernels.phases.prepare import SMALL
from autocast.kernels.storage import LOW
from autocast.kernels.targets import backend_of
from autocast.passes.casting.costs import CastCost


class KernelCosts:
    """A `CostModel`: what casts cost once the kernels of `target` are chosen."""

    def __init__(self, target: tvm.target.Target) -> None:
        self.backend = backend_of(target)
        # Calls and types are kept, so that no others get their identities.
        self.known: dict[int, tuple[relax.Call, Conversions]] = {}
        self.sizes: dict[int, tuple[relax.TensorType, int | None]] = {}

    def cast(
        self,
        producer: relax.Call | relax.Var | None,
        consumer: relax.Call | None,
        position: int,
        type: relax.TensorType,
        dtype: str,
    ) -> CastCost:
        """What a cast of a tensor of `type` to `dtype` costs between two calls; see `CostModel`."""
        key = id(type)
        if key not in self.sizes:
            self.sizes[key] = type, _size(type)
        size = self.sizes[key][1]
        if not size:  # there is nothing to convert, or no kernel takes what has no known shape
            return CastCost.KERNEL if size is None else CastCost.LOAD
        if isinstance(producer, relax.Var):  # converted before the first call
            if consumer is not None and (dtype in LOW or 4 * size <= SMALL):
                return CastCost.STORE
        elif producer is not None:
            writer = self.conversions(producer)
            if writer.stores if dtype in LOW else writer.computes and consumer is None:
                return CastCost.STORE
        if consumer is None:
            return CastCost.KERNEL
        reader = self.conversions(consumer)
        if dtype == "float32":
            converts = reader.widens(position)
        else:
            converts = dtype in reader.narrows(position) and not (reader.of_inputs and producer is not None)
        return CastCost.LOAD if converts else CastCost.KERNEL

    def conversions(self, call: relax.Call) -> Conversions:
        """What the kernel of `call` converts."""
        key = identity(call)
        known = self.known.get(key)
        if known is None:
            known = self.known[key] = call, conversions_of(call, self.backend)
        return known[1]


def _size(type: relax.TensorType) -> int | None:
    """The elements of a tensor, run-time dimensions counted as many; None where its shape is not known."""
    if not isinstance(type.shape, relax.ShapeExpr):
        return None
    return math.prod(dim.value if isinstance(dim, tvm.tirx.IntImm) else SMALL for dim in type.shape.values)
