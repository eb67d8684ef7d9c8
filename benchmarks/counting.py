"""Counting casts between float32 and a low precision: in Relax modules, and in what torch.autocast runs."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import tvm
from torch.utils._python_dispatch import TorchDispatchMode
from tvm import relax

from autocast.ir import dtype_of, is_op, relax_functions, static_shape

BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
_TORCH_FLOATS = {torch.float32: 4, torch.bfloat16: 2, torch.float16: 2}


@dataclass(frozen=True)
class Casts:
    """How many casts there are, and the MiB that they read and write."""

    count: int
    mebibytes: float


def bindings(mod: tvm.IRModule) -> int:
    """The number of bindings in all Relax functions of a module."""
    return sum(len(block.bindings) for _, f in relax_functions(mod) for block in f.body.blocks)


def casts_in(mod: tvm.IRModule) -> Casts:
    """The casts between floating-point dtypes in a module with static shapes."""
    count, moved = 0, 0
    for _, function in relax_functions(mod):
        for block in function.body.blocks:
            for binding in block.bindings:
                if not is_op(binding.value, "relax.astype"):
                    continue
                source, result = dtype_of(binding.value.args[0]), dtype_of(binding.var)
                shape = static_shape(binding.var)
                if source in BYTES and result in BYTES and source != result and shape is not None:
                    count += 1
                    moved += math.prod(shape) * (BYTES[source] + BYTES[result])
    return Casts(count, moved / 2**20)


class CastCounter(TorchDispatchMode):
    """Counts the copies from one floating-point dtype to another that run inside the `with` block."""

    def __init__(self) -> None:
        super().__init__()
        self.count, self.moved = 0, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if func is torch.ops.aten._to_copy.default:
            dtypes = {args[0].dtype, result.dtype}
            if len(dtypes) == 2 and dtypes <= _TORCH_FLOATS.keys():
                self.count += 1
                self.moved += result.numel() * sum(_TORCH_FLOATS[dtype] for dtype in dtypes)
        return result


def torch_autocast_casts(module: torch.nn.Module, *inputs: torch.Tensor) -> Casts:
    """The casts that `torch.autocast` makes while a module runs once in bfloat16."""
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16), CastCounter() as counter:
        module(*inputs)
    return Casts(counter.count, counter.moved / 2**20)


def to_mixed_precision(mod: tvm.IRModule) -> tvm.IRModule:
    """TVM's own pass, float16 with float32 outputs: the only low precision that it knows."""
    return relax.transform.ToMixedPrecision(out_dtype="float32")(mod)
