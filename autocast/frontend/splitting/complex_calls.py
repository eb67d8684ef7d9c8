"""Operators of complex numbers that have no converter, split into others that have one: in parts, or by formulas.

torch's own decompositions of these end in operators of complex numbers again.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.utils import _pytree as pytree

aten = torch.ops.aten


def _in_parts(operator: OpOverload) -> Callable[..., Any]:
    """An operator that does the same to real and to imaginary parts: it moves, chooses or adds numbers.

    Whole numbers and truth values among its arguments are axes, places and masks.
    """

    def imaginary(value: Any) -> Any:
        is_number = isinstance(value, float) or (isinstance(value, Tensor) and value.is_floating_point())
        return _imaginary(value) if is_number or _is_complex(value) else value

    def split(*args: Any, **kwargs: Any) -> Any:
        parts = (operator(*pytree.tree_map(of, args), **pytree.tree_map(of, kwargs)) for of in (_real, imaginary))
        return pytree.tree_map(torch.complex, *parts)

    return split


def _real(value: Any) -> Any:
    return value.real if _is_complex(value) else value


def _imaginary(value: Any) -> Any:
    """Of a number, or of a tensor of numbers."""
    return value.imag if _is_complex(value) else value * 0


def _is_complex(value: Any) -> bool:
    return isinstance(value, complex) or (isinstance(value, Tensor) and value.is_complex())


def _divide(a: Any, b: Tensor) -> Tensor:
    """Scaled, as squares of what is divided by may overflow or vanish; by 0 both parts are divided."""
    if not _is_complex(b):
        return torch.complex(a.real / b, a.imag / b)
    scale = torch.maximum(b.real.abs(), b.imag.abs())
    real, imaginary = torch.where(scale == 0, 1.0, b.real / scale), torch.where(scale == 0, 0.0, b.imag / scale)
    inverse = torch.complex(real, -imaginary)
    return _divide(a * inverse, (real * real + imaginary * imaginary) * scale)


def _angle(z: Tensor) -> Tensor:
    return torch.atan2(z.imag, z.real)


def _logarithm(z: Tensor) -> Tensor:
    return torch.complex(z.abs().log(), _angle(z))


def _root(z: Tensor) -> Tensor:
    """The root in the right half of the plane; the larger of its parts is computed first, as it loses nothing."""
    larger = ((z.abs() + z.real.abs()) / 2).sqrt()
    smaller = torch.where(larger == 0, 0.0, z.imag / (2 * larger))
    is_right = z.real >= 0
    return torch.complex(
        torch.where(is_right, larger, smaller.abs()), torch.where(is_right, smaller, torch.copysign(larger, z.imag))
    )


def _power(z: Tensor, exponent: Any) -> Any:
    """A power with one of these exponents; torch computes others."""
    ways: dict[Any, Callable[[Tensor], Tensor]] = {
        -1: lambda z: _divide(1.0, z),
        0.5: _root,
        1: torch.clone,
        2: lambda z: z * z,
        3: lambda z: z * z * z,
    }
    return ways[exponent](z) if exponent in ways else NotImplemented


def _sine(z: Tensor) -> Tensor:
    return torch.complex(z.real.sin() * z.imag.cosh(), z.real.cos() * z.imag.sinh())


def _cosine(z: Tensor) -> Tensor:
    return torch.complex(z.real.cos() * z.imag.cosh(), -(z.real.sin() * z.imag.sinh()))


def _tanh(z: Tensor) -> Tensor:
    """Nothing in it overflows: (t (1 + tan^2) + i tan (1 - t^2)) / (1 + t^2 tan^2) with t the tanh of the real part."""
    t, tan = z.real.tanh(), z.imag.tan()
    below = 1 + (t * tan).square()
    return torch.complex(t * (1 + tan.square()) / below, tan * (1 - t.square()) / below)


def _sign(z: Tensor) -> Tensor:
    length = z.abs()
    return _divide(z, torch.where(length == 0, 1.0, length))


def _equal(a: Any, b: Any) -> Tensor:
    return torch.logical_and(torch.eq(_real(a), _real(b)), torch.eq(_imaginary(a), _imaginary(b)))


def _where(mask: Tensor, a: Tensor, b: Tensor) -> Tensor:
    return torch.complex(*(torch.where(mask, part(a), part(b)) for part in (_real, _imaginary)))


def _stack(tensors: list[Tensor], dim: int = 0) -> Tensor:
    dtype = functools.reduce(torch.promote_types, [tensor.dtype for tensor in tensors]).to_real()
    parts = ([part(tensor).to(dtype) for tensor in tensors] for part in (_real, _imaginary))
    return torch.complex(*(torch.stack(part, dim) for part in parts))


def _filled(z: Tensor, mask: Tensor, value: Any) -> Tensor:
    return torch.complex(z.real.masked_fill(mask, value.real), z.imag.masked_fill(mask, value.imag))


def _product_added(bias: Any, a: Tensor, b: Tensor, *, beta: Any = 1, alpha: Any = 1) -> Tensor:
    product = a @ b
    return (bias if beta == 1 else bias * beta) + (product if alpha == 1 else product * alpha)


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    product = x @ weight.t()
    return product if bias is None else product + bias


def _variance(z: Tensor, axes: Any = None, *, correction: Any = 1, keepdim: bool = False) -> Tensor:
    real, imaginary = (part.var(axes, correction=correction, keepdim=keepdim) for part in (z.real, z.imag))
    return real + imaginary


def _mean(z: Tensor, axes: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Any:
    if dtype not in (None, z.dtype):
        return NotImplemented
    return torch.complex(z.real.mean(axes, keepdim), z.imag.mean(axes, keepdim))


#: Operators that do the same to both parts.
_MOVES = (
    aten.as_strided.default,
    aten.cumsum.default,
    aten.diagonal.default,
    aten.embedding.default,
    aten.flip.default,
    aten.gather.default,
    aten.index.Tensor,
    aten.index_put.default,
    aten.index_select.default,
    aten.repeat.default,
    aten.roll.default,
    aten.scatter.src,
    aten.scatter_add.default,
    aten.select_scatter.default,
    aten.split_with_sizes.default,
    aten.sum.default,
    aten.tril.default,
    aten.triu.default,
    aten.unbind.int,
    aten.unfold.default,
)

#: How the calls of complex numbers are split that nothing converts.
COMPLEX: dict[OpOverload, Callable[..., Any]] = {
    **{operator: _in_parts(operator) for operator in _MOVES},
    aten.addmm.default: _product_added,
    aten.angle.default: _angle,
    aten.baddbmm.default: _product_added,
    aten.cos.default: _cosine,
    aten.cosh.default: lambda z: torch.complex(z.real.cosh() * z.imag.cos(), z.real.sinh() * z.imag.sin()),
    aten.div.Tensor: _divide,
    aten.dot.default: lambda a, b: (a * b).sum(),
    aten.eq.Scalar: _equal,
    aten.eq.Tensor: _equal,
    aten.isnan.default: lambda z: torch.logical_or(z.real.isnan(), z.imag.isnan()),
    aten.linalg_vector_norm.default: lambda z, *args, **kwargs: torch.linalg.vector_norm(z.abs(), *args, **kwargs),
    aten.linear.default: _linear,
    aten.log.default: _logarithm,
    aten.masked_fill.Scalar: _filled,
    aten.mean.default: _mean,
    aten.mean.dim: _mean,
    aten.mv.default: lambda a, b: (a @ b.unsqueeze(-1)).squeeze(-1),
    aten.ne.Scalar: lambda a, b: torch.logical_not(_equal(a, b)),
    aten.ne.Tensor: lambda a, b: torch.logical_not(_equal(a, b)),
    aten.pow.Tensor_Scalar: _power,
    aten.reciprocal.default: lambda z: _divide(1.0, z),
    aten.sgn.default: _sign,
    aten.sigmoid.default: lambda z: _divide(1.0, 1 + torch.exp(-z)),
    aten.sin.default: _sine,
    aten.sinh.default: lambda z: torch.complex(z.real.sinh() * z.imag.cos(), z.real.cosh() * z.imag.sin()),
    aten.sqrt.default: _root,
    aten.stack.default: _stack,
    aten.std.correction: lambda z, *args, **kwargs: _variance(z, *args, **kwargs).sqrt(),
    aten.t.default: lambda z: z.permute(1, 0),
    aten.tanh.default: _tanh,
    aten.var.correction: _variance,
    aten.vdot.default: lambda a, b: (a.conj() * b).sum(),
    aten.where.self: _where,
}
