"""Modules of one operator each, of numbers: elementwise, scans, places, complex numbers, arithmetic."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.nn import functional as F

Sample = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]

_ANYWHERE = (
    *(
        "abs",
        "atan",
        "asinh",
        "ceil",
        "cos",
        "cosh",
        "erf",
        "exp",
        "exp2",
        "expm1",
        "floor",
        "isfinite",
        "isinf",
        "isnan",
    ),
    *("neg", "relu", "round", "sigmoid", "sign", "sin", "sinh", "square", "tan", "tanh", "trunc"),
)
_POSITIVE = ("acos", "asin", "atanh", "log", "log2", "log10", "log1p", "reciprocal", "rsqrt", "sqrt")


def _joined(parts: tuple[torch.Tensor, ...]) -> torch.Tensor:
    """Values and their places."""
    return torch.stack([part.float() for part in parts])


def _with_nan(x: torch.Tensor) -> torch.Tensor:
    return torch.where(x > 1, float("nan"), x)


def _written(x: torch.Tensor, real: torch.Tensor) -> torch.Tensor:
    """Complex numbers, with others and real ones written into parts."""
    result = torch.zeros_like(x)
    result[:, :1, -2:] = x[:, 1:2, :2]
    result[..., 1::2] = real[..., 1::2]
    return result


def _unary(name: str, positive: bool = False) -> Sample:
    operator = getattr(torch, name)
    return lambda x, p, i: operator(p if positive else x)


# x: (3, 4, 6) in (-2, 2); p: the same in (0.1, 0.9); i: int64 in -3..3
NUMBERS: dict[str, dict[str, Sample]] = {
    "elementwise": {
        **{name: _unary(name) for name in _ANYWHERE},
        **{name: _unary(name, positive=True) for name in _POSITIVE},
        "acosh": lambda x, p, i: torch.acosh(p + 1),
        "functions of integers": lambda x, p, i: torch.sin(i) + torch.exp(i) + torch.sigmoid(i) + 1 / (i.abs() + 1),
        "functions of booleans": lambda x, p, i: torch.cos(i > 0) + torch.erf(i > 1),
        "gelu": lambda x, p, i: F.gelu(x),
        "gelu tanh": lambda x, p, i: F.gelu(x, approximate="tanh"),
        "silu": lambda x, p, i: F.silu(x),
        "relu6": lambda x, p, i: F.relu6(x * 4),
        "hardtanh": lambda x, p, i: F.hardtanh(x, -0.5, 0.7),
        "leaky_relu": lambda x, p, i: F.leaky_relu(x, 0.3),
        "elu": lambda x, p, i: F.elu(x, 0.7),
        "celu": lambda x, p, i: F.celu(x, 0.7),
        "selu": lambda x, p, i: F.selu(x),
        "mish": lambda x, p, i: F.mish(x),
        "rrelu in evaluation": lambda x, p, i: F.rrelu(x, 0.1, 0.5),
        "softplus": lambda x, p, i: F.softplus(x, beta=2.0),
        "hardsigmoid": lambda x, p, i: F.hardsigmoid(x),
        "hardtanh of integers": lambda x, p, i: F.hardtanh(i * 3, -1, 2),
        "hardswish": lambda x, p, i: F.hardswish(x),
        "clamp": lambda x, p, i: x.clamp(-0.5, 0.5),
        "clamp from below": lambda x, p, i: x.clamp(min=-0.5),
        "clamp integers": lambda x, p, i: i.clamp(max=1),
    },
    "special": {
        **{
            name: lambda x, p, i, name=name: getattr(torch.special, name)(x)
            for name in (
                *(
                    "bessel_j0",
                    "bessel_j1",
                    "erfc",
                    "erfcx",
                    "i0",
                    "i0e",
                    "i1",
                    "i1e",
                    "log_ndtr",
                    "modified_bessel_i0",
                ),
                *("modified_bessel_i1", "spherical_bessel_j0"),
            )
        },
        **{
            name: lambda x, p, i, name=name: getattr(torch.special, name)(p)
            for name in ("bessel_y0", "bessel_y1", "digamma", "erfinv", "gammaln", "ndtri")
        },
        "multigammaln": lambda x, p, i: torch.special.multigammaln(p + 1, 3),
        "polygamma": lambda x, p, i: torch.special.polygamma(0, p) + torch.special.polygamma(3, p),
        "zeta": lambda x, p, i: (
            torch.special.zeta(p + 1, p) + torch.special.zeta(2.5, p) + torch.special.zeta(p + 1, 3)
        ),
        "copysign": lambda x, p, i: torch.copysign(p, x) + torch.copysign(x, -1.0) + torch.copysign(i, x),
        "signbit": lambda x, p, i: torch.signbit(x) ^ torch.signbit(i) ^ torch.signbit(i > 0),
        "nextafter": lambda x, p, i: torch.nextafter(x, p) - x,
        "frexp": lambda x, p, i: torch.stack([part.float() for part in torch.frexp(x)]),
    },
    "scans and distances": {
        "cummax": lambda x, p, i: _joined(torch.cummax(_with_nan(x), 1)).nan_to_num(7.0),
        "cummin of integers": lambda x, p, i: _joined(torch.cummin(i, -1)),
        "logcumsumexp": lambda x, p, i: torch.logcumsumexp(x * 9, 2),
        "mode": lambda x, p, i: _joined(torch.mode(i, 2)),
        "cdist": lambda x, p, i: torch.cdist(x, p) + torch.cdist(x, p, p=1.0) + torch.cdist(x, p, p=3.0),
        "pdist": lambda x, p, i: F.pdist(x[0]) + F.pdist(x[1], float("inf")) + F.pdist(x[2], 0),
        "dist": lambda x, p, i: torch.dist(x, p, 3),
        "lerp of pixels side by side": lambda x, p, i: torch.lerp(
            x[None].to(memory_format=torch.channels_last), p[None], 0.3
        ),
        "bilinear": lambda x, p, i: F.bilinear(x, p, p[:, :, :6].reshape(2, 6, 6), x[0, 0, :2]),
    },
    "places of maxima": {
        "max_pool2d": lambda x, p, i: _joined(F.max_pool2d(x, 3, 2, 1, return_indices=True)),
        "max_pool2d dilated": lambda x, p, i: _joined(
            F.max_pool2d(x[None], 2, 1, 1, 2, ceil_mode=True, return_indices=True)
        ),
        "max_pool3d": lambda x, p, i: _joined(F.max_pool3d(x[None], (1, 3, 2), return_indices=True)),
        "adaptive_max_pool2d": lambda x, p, i: _joined(F.adaptive_max_pool2d(x, (3, 4), return_indices=True)),
        "adaptive_max_pool3d": lambda x, p, i: _joined(F.adaptive_max_pool3d(x[None], (2, 3, 4), return_indices=True)),
        "max_pool2d backwards": lambda x, p, i: torch.ops.aten.max_pool2d_with_indices_backward(
            p[None, :, :2, :3], x[None], [2, 2], [2, 2], [0, 0], [1, 1], False, i[None, :, :2, :3].abs()
        ),
        "max_pool3d backwards": lambda x, p, i: torch.ops.aten.max_pool3d_with_indices_backward(
            *(p[None, None, :1, :2, :3], x[None, None], [2, 2, 2], [2, 2, 2], [0] * 3, [1] * 3, False),
            i[None, None, :1, :2, :3].abs(),
        ),
        "adaptive_max_pool2d backwards": lambda x, p, i: torch.ops.aten.adaptive_max_pool2d_backward(
            p[None, :, :2, :3], x[None], i[None, :, :2, :3].abs()
        ),
        "adaptive_max_pool3d backwards": lambda x, p, i: torch.ops.aten.adaptive_max_pool3d_backward(
            p[None, None, :1, :2, :3], x[None, None], i[None, None, :1, :2, :3].abs()
        ),
        "max_unpool2d": lambda x, p, i: F.max_unpool2d(*F.max_pool2d(x[None], 2, return_indices=True), 2),
        "average pooling by another divisor": lambda x, p, i: F.avg_pool2d(x, 2, 1, 1, divisor_override=3),
        "the same with windows beyond the border": lambda x, p, i: F.avg_pool2d(
            x, 3, 2, 1, ceil_mode=True, divisor_override=5
        ),
        "the same of volumes, with a window left out": lambda x, p, i: F.avg_pool3d(
            x[None], 2, 3, 1, ceil_mode=True, divisor_override=5
        ),
        "fractional_max_pool2d": lambda x, p, i: _joined(
            F.fractional_max_pool2d(x, (2, 3), (1, 3), _random_samples=p[:1, :3, :2], return_indices=True)
        ),
        "fractional_max_pool3d": lambda x, p, i: _joined(
            F.fractional_max_pool3d(
                x.reshape(2, 1, 3, 3, 4), (1, 1, 2), (2, 2, 2), _random_samples=p[:2, :1, :3], return_indices=True
            )
        ),
    },
    "complex": {
        "pairs": lambda x, p, i: torch.view_as_real(torch.view_as_complex(torch.stack([x, p], -1))),
        "product": lambda x, p, i: torch.view_as_real(torch.complex(x, p) * torch.complex(p[:1], x[:1])),
        "product with real numbers": lambda x, p, i: torch.view_as_real(x * torch.complex(p, x)),
        "absolute": lambda x, p, i: torch.complex(x, p).abs(),
        "polar": lambda x, p, i: torch.view_as_real(torch.polar(p, x)),
        "from real numbers": lambda x, p, i: torch.view_as_real(i.to(torch.complex64)),
        "slices": lambda x, p, i: torch.view_as_real(torch.complex(x, p)[:, 1:, -3:]),
        "written slices": lambda x, p, i: torch.view_as_real(_written(torch.complex(x, p), p)),
        "sums with real numbers and others": lambda x, p, i: torch.view_as_real(
            torch.sub(torch.complex(x, p)[:, :1] + p + 2j, torch.complex(p, x), alpha=2) - 1.5
        ),
        "products and quotients with numbers": lambda x, p, i: torch.view_as_real(-(x * 2j) * torch.complex(p, x) / p),
        "exponential": lambda x, p, i: torch.view_as_real(torch.exp(torch.complex(x, p))),
        "products of matrices": lambda x, p, i: torch.view_as_real(torch.complex(x, p) @ torch.complex(p, x).mT),
        "product of two matrices": lambda x, p, i: torch.view_as_real(
            torch.complex(x, p)[0] @ torch.complex(p, x)[1].mT
        ),
        "axes": lambda x, p, i: torch.view_as_real(
            torch.cat([torch.complex(x, p).unsqueeze(-1).squeeze(-1)[:, -1, :], p[:, 0]], -1)
        ),
        "sum along axes": lambda x, p, i: torch.view_as_real(
            torch.complex(x, p).sum((0, -2), keepdim=True) + torch.complex(p, x).sum()
        ),
        "fft": lambda x, p, i: torch.view_as_real(torch.fft.fft(x)),
        "angles of what has no imaginary part": lambda x, p, i: torch.atan2(
            torch.fft.rfft(x).imag[..., ::3], torch.fft.rfft(x).real[..., ::3]
        ),
        "fft of complex": lambda x, p, i: torch.view_as_real(torch.fft.fft2(torch.complex(x, p), dim=(0, 2))),
        "fft of more and of less": lambda x, p, i: torch.view_as_real(
            torch.fft.fft2(torch.complex(x, p), (9, 2), dim=(1, 2), norm="ortho")
        ),
        "ifft": lambda x, p, i: torch.view_as_real(torch.fft.ifftn(torch.complex(x, p))),
        "rfft": lambda x, p, i: torch.view_as_real(torch.fft.rfftn(x, norm="forward")),
        "irfft": lambda x, p, i: torch.fft.irfft(torch.complex(x, p), 7, dim=1),
        "irfft of an even number": lambda x, p, i: torch.fft.irfft2(torch.complex(x, p)),
        "stft": lambda x, p, i: torch.view_as_real(
            torch.stft(x.flatten(1), 8, 3, window=p[0, 0, :].repeat(2)[:8], return_complex=True)
        ),
    },
    "arithmetic": {
        "add alpha": lambda x, p, i: torch.add(x, p, alpha=3),
        "sub alpha": lambda x, p, i: torch.sub(x, p, alpha=0.5),
        "rsub": lambda x, p, i: 2.0 - x,
        "rsub alpha": lambda x, p, i: torch.rsub(x, p, alpha=2),
        "mul": lambda x, p, i: x * p,
        "integer and float": lambda x, p, i: i * x,
        "integer and number": lambda x, p, i: i + 0.5,
        "divide integers": lambda x, p, i: i / 2,
        "floor division": lambda x, p, i: i // 2,
        "divide floor": lambda x, p, i: torch.div(x, 0.3, rounding_mode="floor"),
        "divide trunc": lambda x, p, i: torch.div(i, 2, rounding_mode="trunc"),
        "remainder": lambda x, p, i: torch.remainder(i, 3),
        "power 2": lambda x, p, i: x**2,
        "power 3": lambda x, p, i: p**3,
        "power 0.5": lambda x, p, i: p**0.5,
        "power of tensors": lambda x, p, i: torch.pow(p, x),
        "power of a number": lambda x, p, i: torch.pow(2.0, x),
        "maximum": lambda x, p, i: torch.maximum(x, p),
        "minimum": lambda x, p, i: torch.minimum(x, p),
        "atan2": lambda x, p, i: torch.atan2(x, p),
        "compare": lambda x, p, i: (x < p) | (i >= 1),
        "compare integers with a number": lambda x, p, i: i > 0.5,
        "compare with another": lambda x, p, i: ((x >= p) ^ (x > p)) & ((x <= p) | (x != p) | (i <= 1) | (i < 2)),
        "clamp by a tensor": lambda x, p, i: x.clamp(max=p),
        "fmod": lambda x, p, i: torch.fmod(x, 0.7),
        "fmod of tensors": lambda x, p, i: torch.fmod(x, p),
        "logaddexp": lambda x, p, i: torch.logaddexp(x, p),
        "fmax and fmin": lambda x, p, i: torch.fmax(_with_nan(x), p) + torch.fmin(p, _with_nan(x)),
        "hypot": lambda x, p, i: torch.hypot(x, p),
        "hypot of extremes": lambda x, p, i: torch.hypot(x * 1e30, x.clamp(min=0) * 1e-30).sign(),
        "shifts": lambda x, p, i: (torch.tensor(5) << i * 9) + (i >> i.abs()) + (i >> 70) + (i << 2),
        "shifts by name": lambda x, p, i: torch.bitwise_left_shift(i, i) + torch.bitwise_right_shift(i * 99, 2),
        "round to decimals": lambda x, p, i: x.round(decimals=2) + (x * 100).round(decimals=-1),
        "angle": lambda x, p, i: x.angle(),
        "ldexp": lambda x, p, i: torch.ldexp(x, i),
        "of numbers and tensors": lambda x, p, i: 7 % p + (-7 % (i.abs() + 1)) + (3 << i.abs()) + (100 >> i.abs()),
        "bits of numbers and tensors": lambda x, p, i: torch.bitwise_and(5, i) + torch.bitwise_xor(True, i > 0),
        "remainder of tensors": lambda x, p, i: torch.remainder(x, p),
        "product of booleans": lambda x, p, i: (x > 0) * (p > 0.5) + (i > 2),
        "detach": lambda x, p, i: x.detach() * 2,
        "bitwise": lambda x, p, i: (i & 3) ^ (i | 4),
        "exclusive or with a number": lambda x, p, i: (i ^ 3) + ((x > 0) ^ True),
        "rsub in a decomposition": lambda x, p, i: F.grid_sample(
            x[:, None], torch.stack([x, 2 * x], -1), padding_mode="reflection", align_corners=False
        ),
        "not": lambda x, p, i: ~(x > 0),
        "invert": lambda x, p, i: ~i,
        "logical": lambda x, p, i: torch.logical_xor(torch.logical_and(x, i), torch.logical_or(i, p)),
        "logical not": lambda x, p, i: torch.logical_not(i),
        "where": lambda x, p, i: torch.where(x > 0, x, 0.25),
        "where of two numbers": lambda x, p, i: torch.where(x > 0, 2.5, -1.0),
        "fill with what a tensor holds": lambda x, p, i: x + torch.full((6,), i[0, 0, 0].item()),
        "where of two types": lambda x, p, i: torch.where(x > 0, x, i),
        "masked_fill": lambda x, p, i: x.masked_fill(i > 0, -3.0),
        "to": lambda x, p, i: (x > 0).to(torch.int64) + i.to(torch.float32).to(torch.int64),
    },
}
