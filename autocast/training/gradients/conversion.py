"""Changes of dtype, and tensors that are made of shapes and numbers."""

from __future__ import annotations

from tvm.relax import op

from autocast.ir import dtype_of
from autocast.training.gradients.registry import Adjoint, Backward, gradient, not_differentiable, zero_gradient


def _astype(b: Backward) -> list[Adjoint]:
    dtype = dtype_of(b.call.args[0])
    return [b.adjoint if dtype_of(b.adjoint) == dtype else op.astype(b.adjoint, dtype)]


def _full(b: Backward) -> list[Adjoint]:
    total, dtype = op.sum(b.adjoint), dtype_of(b.call.args[-1])
    return [*[None] * (len(b.call.args) - 1), total if dtype_of(b.adjoint) == dtype else op.astype(total, dtype)]


_MADE = "made of a shape, not of values"
_ROUNDS = "rounds to integers, whose slope is zero: train in floating point and quantize afterwards"

_MADE_OF_SHAPES = (
    *("zeros", "zeros_like", "ones", "ones_like", "eye", "eye_like", "arange", "hamming_window", "one_hot"),
    *("shape_to_tensor", "tensor_to_shape"),
)

RULES = (
    gradient("relax.astype", _astype, why="the adjoint in the dtype that it had"),
    gradient("relax.wrap_param", _astype, why="the adjoint in the dtype that it had"),
    gradient("relax.full", _full, why="the sum of the adjoint"),
    gradient("relax.full_like", _full, why="the sum of the adjoint"),
    *(zero_gradient(f"relax.{name}", why=_MADE) for name in _MADE_OF_SHAPES),
    zero_gradient("relax.multinomial_from_uniform", why="draws integers"),
    not_differentiable("relax.quantize", why=_ROUNDS),
    not_differentiable("relax.dequantize", why=_ROUNDS),
)
