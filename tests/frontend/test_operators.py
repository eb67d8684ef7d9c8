"""Every operator that can be imported against torch, one module for each family."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.nn import functional as F

from autocast.frontend import from_torch
from autocast.frontend.converters import CONVERTERS, TRUSTED
from autocast.frontend.decompose import decompose
from autocast.frontend.noise import NOISE
from tests.frontend.helpers import Calls, relative_error, runner

#: What torch says of operators of its own that have samples here.
pytestmark = [
    pytest.mark.filterwarnings(f"ignore:{text}:UserWarning")
    for text in (
        "The reduce argument of torch.scatter",
        r"index_reduce\(\) is in beta",
        r"var_mean\(\)",
    )
]

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


def _unary(name: str, positive: bool = False) -> Sample:
    operator = getattr(torch, name)
    return lambda x, p, i: operator(p if positive else x)


def _joined(parts: tuple[torch.Tensor, ...]) -> torch.Tensor:
    """Values and their places."""
    return torch.stack([part.float() for part in parts])


# x: (3, 4, 6) in (-2, 2); p: the same in (0.1, 0.9); i: int64 in -3..3
FAMILIES: dict[str, dict[str, Sample]] = {
    "elementwise": {
        **{name: _unary(name) for name in _ANYWHERE},
        **{name: _unary(name, positive=True) for name in _POSITIVE},
        "acosh": lambda x, p, i: torch.acosh(p + 1),
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
    "reductions": {
        "sum": lambda x, p, i: x.sum(),
        "sum of bools": lambda x, p, i: (x > 0).sum(dim=1),
        "sum keepdim": lambda x, p, i: x.sum((0, 2), keepdim=True),
        "mean": lambda x, p, i: x.mean(-1),
        "mean of all": lambda x, p, i: x.mean(),
        "max": lambda x, p, i: x.max(),
        "min": lambda x, p, i: x.min(),
        "amax": lambda x, p, i: x.amax((0, 1)),
        "amin": lambda x, p, i: x.amin(1, keepdim=True),
        "values of max": lambda x, p, i: x.max(1).values,
        "indices of max": lambda x, p, i: x.max(1, keepdim=True).indices,
        "argmax": lambda x, p, i: x.argmax(-1),
        "argmin": lambda x, p, i: x.argmin(1, keepdim=True),
        "prod": lambda x, p, i: p.prod(),
        "var": lambda x, p, i: x.var(-1),
        "var without correction": lambda x, p, i: x.var((1, 2), correction=0),
        "std": lambda x, p, i: x.std(-1),
        "any": lambda x, p, i: (x > 1.5).any(-1),
        "any of all": lambda x, p, i: (x > 1.5).any(),
        "all": lambda x, p, i: (x > -1.5).all(-1),
        "softmax": lambda x, p, i: x.softmax(1),
        "softmax in another type": lambda x, p, i: x.half().softmax(-1, dtype=torch.float32),
        "log_softmax": lambda x, p, i: x.log_softmax(-1),
        "logsumexp": lambda x, p, i: x.logsumexp(-1),
        "cumsum": lambda x, p, i: x.cumsum(1),
        "cumsum of bools": lambda x, p, i: (x > 0).cumsum(-1),
        "norm": lambda x, p, i: torch.linalg.vector_norm(x, dim=-1),
        **{
            f"norm {order}": lambda x, p, i, order=order: torch.linalg.vector_norm(x, order, dim=(0, 2))
            for order in (0, 1, 3, float("inf"), -float("inf"))
        },
        "any over axes": lambda x, p, i: (x > 1.5).any((0, 2)),
        "any of none": lambda x, p, i: x[:, :0].any(1),
        "smallest": lambda x, p, i: x.min(1).values,
        "indices of min": lambda x, p, i: x.min(-1).indices,
        "prod along an axis": lambda x, p, i: x.prod(1),
        "cumprod": lambda x, p, i: x.cumprod(1),
        "kthvalue": lambda x, p, i: x.kthvalue(2, dim=1).values,
        "indices of kthvalue": lambda x, p, i: x.kthvalue(3, keepdim=True).indices,
        "median": lambda x, p, i: x.median() + i.median(),
        "median along an axis": lambda x, p, i: x.median(1, keepdim=True).values + x.median(1)[1][:, None],
        "nanmedian": lambda x, p, i: x.nanmedian() + i.nanmedian(1).values,
        "bucketize": lambda x, p, i: torch.bucketize(x, torch.linspace(-1, 1, 5), out_int32=True),
        "searchsorted in rows": lambda x, p, i: torch.searchsorted(
            x, p[..., :2].contiguous(), sorter=x.argsort(-1), right=True
        ),
        "searchsorted": lambda x, p, i: torch.searchsorted(i.new_tensor([0, 1, 1, 2]), i, side="right"),
        "variance of one element": lambda x, p, i: torch.var_mean(x[:1], 0)[0].isnan(),
        "scalars": lambda x, p, i: _of_a_scalar(x[0, 0, 0]),
        "stable sort": lambda x, p, i: i.sort(dim=1, stable=True).indices,
        "topk": lambda x, p, i: x.topk(3, dim=-1).values,
        "indices of topk": lambda x, p, i: x.topk(2, dim=1, largest=False).indices,
        "sum of topk in any order": lambda x, p, i: x.topk(3, dim=1, sorted=False).values.sum(1),
        "histc": lambda x, p, i: torch.histc(x, 7, -1.0, 1.0),
        "histc between extremes": lambda x, p, i: torch.histc(x, 7) + torch.histc(x[0, 0, 0].expand(3), 7, 2, 2),
        "histc of integers": lambda x, p, i: torch.histc(i.float(), 4, 0, 3),
        "var_mean": lambda x, p, i: torch.var_mean(x, -1)[0] + torch.var_mean(x, (-1,), correction=0)[1],
        "std_mean": lambda x, p, i: torch.std_mean(x, (0, 2), keepdim=True)[0],
        "sort": lambda x, p, i: x.sort(dim=1, descending=True).values,
        "argsort": lambda x, p, i: x.argsort(dim=-1),
    },
    "movement": {
        "select": lambda x, p, i: x[:, -1],
        "select from the front": lambda x, p, i: x.select(2, 1),
        "slice": lambda x, p, i: x[:, 1:-1, ::2],
        "slice beyond the end": lambda x, p, i: x[:, -3:100],
        "index with negatives": lambda x, p, i: x[:, i[0, 0, :3]],
        "index with two": lambda x, p, i: x[i[0, :, 0] % 3, i[1, :, 1] - 1],
        "index_select": lambda x, p, i: x.index_select(-1, i[0, 0].abs()),
        "gather": lambda x, p, i: x.gather(1, i.abs()),
        "gather at fewer places": lambda x, p, i: x.gather(1, i[:2, :1, :3].abs()),
        "first places": lambda x, p, i: torch.nonzero_static(i > 0, size=50, fill_value=-7),
        "first places, cut off": lambda x, p, i: torch.nonzero_static(i > 0, size=5),
        "resize": lambda x, p, i: torch.ops.aten.resize(x, [5, 7]),
        "copies of views": lambda x, p, i: (
            torch.view_copy(x, (6, 12)) + torch.permute_copy(x, (0, -1, 1)).reshape(6, 12)
        ),
        "take_along_dim": lambda x, p, i: torch.take_along_dim(x, i.abs(), 2),
        "index on the last two axes": lambda x, p, i: x[:, i[0, :, :3], i[1, :, :3]],
        "index on axes apart": lambda x, p, i: x[i[0, :3, 0] % 3, :, i[1, :3, 1]],
        "index where a mask is true": lambda x, p, i: torch.ops.aten._unsafe_masked_index(
            x, i[0, :, :4].abs() < 2, [None, i[0, :, :4].abs() * 3, i[0, :, :4].abs()], 0.5
        ),
        "write by index": lambda x, p, i: x.index_put((torch.tensor([2, 0]),), p[:2]),
        "add by index": lambda x, p, i: x.index_put((i[0, 0] % 3,), p[:1].expand(6, 4, 6), accumulate=True),
        "write on the last two axes": lambda x, p, i: _written(x, (slice(None), [0, 3], [-1, 2]), 2.5),
        "write rows on the middle axis": lambda x, p, i: _written(x, (slice(None), torch.tensor([3, 1])), p[:, :2]),
        "write where a mask is true": lambda x, p, i: _written(x, i > 0, -1.0),
        "write a row where a mask is true": lambda x, p, i: _written(x, i[:, :, 0] > 0, p[0, 0]),
        "write where a mask of the middle axis is true": lambda x, p, i: _written(
            x, (slice(None), i[0, :, 0] > 0), 2.0
        ),
        "write others where a mask is true": lambda x, p, i: x.index_put((i.abs() < 4,), p.flatten()),
        "add rows where a mask is true": lambda x, p, i: x.index_put(
            (i[:, 0, 0].abs() < 4,), p[:, :1], accumulate=True
        ),
        "index_add": lambda x, p, i: x.index_add(1, i[0, 0, :4].abs(), p, alpha=2),
        "scatter_add": lambda x, p, i: x.scatter_add(1, i.abs(), p),
        "slice_scatter": lambda x, p, i: torch.slice_scatter(x, p[:, :2], 1, 1, 3),
        "slice_scatter to the end": lambda x, p, i: torch.slice_scatter(x, p[..., 2:], -1, -4),
        "slice_scatter with steps": lambda x, p, i: torch.slice_scatter(x, p[:, :2], 1, 0, 4, 2),
        "as_strided": lambda x, p, i: x.as_strided((5, 4, 3), (7, 6, 1), 2),
        "as_strided of a view": lambda x, p, i: x[:, 1:].transpose(0, 1).as_strided((3, 4), (5, 2), 3),
        "as_strided of what is not dense": lambda x, p, i: x.expand(2, *x.shape)[1].relu().mT.as_strided((7,), (3,)),
        "windows": lambda x, p, i: x.unfold(-1, 3, 2).sum(1),
        "windows of windows": lambda x, p, i: x.unfold(1, 2, 2).unfold(2, 2, 1),
        "windows of what is transposed": lambda x, p, i: x.mT.unfold(1, 2, 1),
        "select by a tensor": lambda x, p, i: x[i[0, 0, 0] % 3] + x[:, :, i[1, 0, 0] % 4][..., None],
        "embedding": lambda x, p, i: F.embedding(i.abs(), x[0]),
        **{
            f"bags of embeddings, {mode}": lambda x, p, i, mode=mode: (
                F.embedding_bag(i[0].abs(), x[0], mode=mode, padding_idx=1)
                + F.embedding_bag(i[1, 2].abs(), x[1], i[2, :, 0].sort()[0] * 0 + torch.tensor([0, 2, 2, 5]), mode=mode)
            )
            for mode in ("sum", "mean", "max")
        },
        "weighted bags of embeddings": lambda x, p, i: F.embedding_bag(
            i[0].abs(), x[0], mode="sum", per_sample_weights=p[0]
        ),
        "bags of embeddings with the last end": lambda x, p, i: F.embedding_bag(
            i[0, 0].abs(), x[0], torch.tensor([0, 3, 3, 6]), include_last_offset=True
        ),
        "scatter a product": lambda x, p, i: x.scatter(1, i[:, :1].abs(), p, reduce="multiply"),
        "scatter and multiply by a number": lambda x, p, i: x.scatter(1, i[:, :1].abs(), 2.0, reduce="multiply"),
        **{
            f"index_reduce {how}": lambda x, p, i, how=how: x.index_reduce(
                1, i[0, 0].abs(), p[:, [0, 1, 2, 3, 0, 1]], how
            )
            for how in ("mean", "prod", "amax", "amin")
        },
        "put": lambda x, p, i: x.put(torch.tensor([3, -1, 70]), p[0, 0, :3]),
        "add at flat places": lambda x, p, i: x.put(i % 72, p, accumulate=True),
        "masked_scatter": lambda x, p, i: x.masked_scatter(i[:, :, :1] > 0, p),
        "diagonal_scatter": lambda x, p, i: torch.diagonal_scatter(x, p[0, :, :2], -1, 0, 2),
        "as_strided_scatter": lambda x, p, i: torch.as_strided_scatter(x, p[0, :3, :2], (3, 2), (13, 5), 1),
        "as_strided_copy": lambda x, p, i: torch.as_strided_copy(x, (2, 3), (7, 4), 3),
        "scatter": lambda x, p, i: x.scatter(1, i[:, :1].abs(), p),
        "scatter a number": lambda x, p, i: x.scatter(1, i[:, :1].abs(), 9.0),
        "view": lambda x, p, i: x.view(2, -1, 3),
        "flatten": lambda x, p, i: x.flatten(1),
        "permute": lambda x, p, i: x.permute(2, 0, 1),
        "transpose": lambda x, p, i: x.transpose(-1, 0),
        "unsqueeze": lambda x, p, i: x.unsqueeze(-2),
        "squeeze leaves others": lambda x, p, i: x[:1].squeeze(0).squeeze(1),
        "expand": lambda x, p, i: x[:, :1].expand(-1, 5, -1),
        "repeat": lambda x, p, i: x.repeat(2, 1, 1, 2),
        "repeat_interleave": lambda x, p, i: x.repeat_interleave(2, dim=1),
        "cat": lambda x, p, i: torch.cat([x, p, x], -1),
        "cat of two types": lambda x, p, i: torch.cat([x, i]),
        "stack": lambda x, p, i: torch.stack([x, p], 1),
        "split": lambda x, p, i: x.split([1, 2, 3], -1)[2],
        "split into one part": lambda x, p, i: x.split([6], -1)[0],
        "split with parts without elements": lambda x, p, i: x.split([0, 4, 0, 2, 0], -1)[3],
        "chunk": lambda x, p, i: x.chunk(4, -1)[2],
        "unbind": lambda x, p, i: x.unbind(1)[-1],
        "unbind_copy": lambda x, p, i: torch.unbind_copy(x, -1)[2],
        "flip": lambda x, p, i: x.flip(0, 2),
        "roll": lambda x, p, i: x.roll(2, 1),
        "tril": lambda x, p, i: x.tril(1),
        "triu": lambda x, p, i: x.triu(-1),
        "pad": lambda x, p, i: F.pad(x, (1, 2, 0, 1), value=0.5),
        "new_full": lambda x, p, i: x.new_full((2, 6), 3.5) + x[0, :2],
        "full_like": lambda x, p, i: torch.full_like(x, 3) * x,
        "arange": lambda x, p, i: i + torch.arange(1, 13, 2),
    },
}


def _with_nan(x: torch.Tensor) -> torch.Tensor:
    return torch.where(x > 1, float("nan"), x)


def _of_a_scalar(x: torch.Tensor) -> torch.Tensor:
    """What torch reduces, scans and sorts along the one axis of a scalar."""
    values = (x.sum(0), x.mean(0), x.prod(0), x.max(0)[0], x.min(0)[0], x.cumsum(0), x.cumprod(0), x.sort()[0])
    places = (x.max(0)[1], x.sort(0)[1], x.kthvalue(1)[1], x.any(0), x.var(0, correction=0), x.norm(), x.squeeze(0))
    first = torch.zeros_like(x).long()
    at_first = (x.gather(0, first), x.scatter_add(0, first, x), x.scatter_reduce(0, first, 3 * x, "mean"))
    return torch.stack(
        [
            *values,
            *(place.float() for place in (*places, *x.topk(1))),
            *at_first,
            x.softmax(0),
            x.index_select(0, x.new_zeros(1).long()),
        ]
    )


def _written(x: torch.Tensor, places: object, values: torch.Tensor | float) -> torch.Tensor:
    result = x.clone()
    result[places] = values
    return result


def _flat(parts: tuple[torch.Tensor, ...]) -> torch.Tensor:
    return torch.cat([part.flatten() for part in parts])


IMAGES: dict[str, Sample] = {
    "conv2d": lambda x, w, b: F.conv2d(x, w, b, stride=2, padding=(1, 2)),
    "dilated": lambda x, w, b: F.conv2d(x, w, None, dilation=2, padding="same"),
    "grouped": lambda x, w, b: F.conv2d(x, w[:, :2], b, groups=2),
    "conv1d": lambda x, w, b: F.conv1d(x[:, :, 0], w[..., 0], b, padding=1),
    "transposed": lambda x, w, b: F.conv_transpose2d(x, w[:4], None, stride=2, output_padding=1),
    "transposed 1d": lambda x, w, b: F.conv_transpose1d(x[..., 0], w[:4, :, 0], stride=2, padding=1),
    "transposed 3d": lambda x, w, b: F.conv_transpose3d(x[None], w[:2].reshape(2, 1, 4, 3, 3), stride=2),
    "unbatched": lambda x, w, b: F.conv2d(x[0], w, b),
    "max_pool2d": lambda x, w, b: F.max_pool2d(x, 3, 2, 1),
    "max_pool2d ceil": lambda x, w, b: F.max_pool2d(x, 2, ceil_mode=True),
    "avg_pool2d": lambda x, w, b: F.avg_pool2d(x, 3, 2, 1),
    "avg_pool2d without padding": lambda x, w, b: F.avg_pool2d(x, 3, 2, 1, count_include_pad=False),
    "max_pool2d unbatched": lambda x, w, b: F.max_pool2d(x[0], 2),
    "max_pool3d": lambda x, w, b: F.max_pool3d(x[None], 2, (1, 2, 2), 1, dilation=(1, 2, 1), ceil_mode=True),
    "avg_pool3d": lambda x, w, b: F.avg_pool3d(x[None], 2, 2, (1, 0, 1), count_include_pad=False),
    "avg_pool3d unbatched": lambda x, w, b: F.avg_pool3d(x, (2, 3, 2), ceil_mode=True),
    "adaptive_avg_pool3d": lambda x, w, b: F.adaptive_avg_pool3d(x[None], (3, 2, None)),
    "adaptive_max_pool1d": lambda x, w, b: F.adaptive_max_pool1d(x[..., 0], 5),
    "adaptive_max_pool2d": lambda x, w, b: F.adaptive_max_pool2d(x, (3, 5)),
    "adaptive_max_pool3d": lambda x, w, b: F.adaptive_max_pool3d(x[None], (3, 2, 4)),
    "adaptive_avg_pool2d": lambda x, w, b: F.adaptive_avg_pool2d(x, (3, 2)),
    "adaptive_avg_pool1d": lambda x, w, b: F.adaptive_avg_pool1d(x[..., 0], 3),
    "group_norm": lambda x, w, b: F.group_norm(x, 2, b[:4], b[2:6]),
    "group_norm without weight": lambda x, w, b: F.group_norm(x, 2),
    "layer_norm with statistics": lambda x, w, b: _flat(torch.native_layer_norm(x, [8], None, b[:1].expand(8), 1e-5)),
    "group_norm with statistics": lambda x, w, b: _flat(torch.native_group_norm(x, b[:4], None, 2, 4, 72, 2, 1e-5)),
    "instance_norm": lambda x, w, b: F.instance_norm(x, weight=b[:4], bias=b[2:6]),
    "nearest exact": lambda x, w, b: F.interpolate(x, size=(13, 6), mode="nearest-exact"),
    "unfold": lambda x, w, b: F.unfold(x, 3, stride=2),
    "fold": lambda x, w, b: F.fold(F.unfold(x, 3, stride=2), (9, 8), 3, stride=2),
    "layer_norm": lambda x, w, b: F.layer_norm(x, (9, 8), eps=1e-3),
    "batch_norm": lambda x, w, b: F.batch_norm(x, b[:4], b[:4].abs() + 0.5, b[1:5], b[2:6], eps=1e-3),
    "batch_norm without weight": lambda x, w, b: F.batch_norm(x, b[:4], b[:4].abs() + 0.5),
    "rms_norm": lambda x, w, b: F.rms_norm(x, (8,), b[:1].expand(8)),
    "nearest": lambda x, w, b: F.interpolate(x, scale_factor=2),
    "nearest down": lambda x, w, b: F.interpolate(x, size=(4, 5)),
    "bilinear": lambda x, w, b: F.interpolate(x, size=(13, 6), mode="bilinear"),
    "bilinear aligned": lambda x, w, b: F.interpolate(x, size=(13, 6), mode="bilinear", align_corners=True),
    "bicubic": lambda x, w, b: F.interpolate(x, scale_factor=2, mode="bicubic"),
    **{
        f"{mode} by a scale that is not the ratio": lambda x, w, b, mode=mode: F.interpolate(
            x, scale_factor=(1.7, 0.6), mode=mode
        )
        for mode in ("bilinear", "bicubic")
    },
    "bilinear aligned, by a scale": lambda x, w, b: F.interpolate(
        x, scale_factor=1.7, mode="bilinear", align_corners=True
    ),
    "sampled beyond the borders": lambda x, w, b: F.grid_sample(
        x, 3 * w[:2, :, :, :2], mode="bicubic", padding_mode="reflection", align_corners=False
    ),
    "sampled at places": lambda x, w, b: F.grid_sample(x, w[:2, :, :, :2].tanh(), align_corners=False),
    "bicubic antialiased": lambda x, w, b: F.interpolate(x, size=(5, 11), mode="bicubic", antialias=True),
    "bilinear antialiased": lambda x, w, b: F.interpolate(x, scale_factor=0.6, mode="bilinear", antialias=True),
    "pixel_shuffle": lambda x, w, b: F.pixel_shuffle(x, 2),
    "addbmm": lambda x, w, b: torch.addbmm(x[0, 0, :, :4], x[0], x[1, :, :4].mT, beta=0.5, alpha=2),
    "addmm": lambda x, w, b: torch.addmm(b[:4], x[0, 0], x[1, 0].T[:, :4], beta=0.5, alpha=2),
    "baddbmm": lambda x, w, b: torch.baddbmm(x[0], x[0], x[1, :, :8], beta=2, alpha=0.5),
    "mm": lambda x, w, b: torch.mm(x[0, 0], x[0, 1].T),
    "bmm": lambda x, w, b: torch.bmm(x[0], x[1].transpose(1, 2)),
    "matmul": lambda x, w, b: x @ x[0, 0].T,
    "vector": lambda x, w, b: x @ b.repeat(2)[:8],
    "einsum": lambda x, w, b: torch.einsum("bchw,dcij->bdhw", x, w[:, :, :1, :1]),
    "linear": lambda x, w, b: F.linear(x, w.reshape(6, -1)[:, :8], b),
}


def _compare(samples: dict[str, Sample], inputs: tuple[torch.Tensor, ...]) -> dict[str, float]:
    module = Calls(lambda *args: tuple(sample(*args) for sample in samples.values())).eval()
    got = runner(from_torch(module, inputs))(*inputs)
    expected = module(*inputs)
    return {name: relative_error(a, b) for name, a, b in zip(samples, got, expected, strict=True)}


@pytest.mark.parametrize("family", FAMILIES)
def test_operators_compute_what_torch_computes(family: str) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(3, 4, 6, generator=generator) * 4 - 2
    p = torch.rand(3, 4, 6, generator=generator) * 0.8 + 0.1
    i = torch.randint(-3, 4, (3, 4, 6), generator=generator)
    errors = _compare(FAMILIES[family], (x, p, i))
    assert {name: error for name, error in errors.items() if not error <= 1e-5} == {}


@pytest.mark.parametrize("with_self", [True, False], ids=["with itself", "without"])
@pytest.mark.parametrize("reduction", ["sum", "prod", "mean", "amax", "amin"])
def test_scatter_reduces_as_torch_does(reduction: str, with_self: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    x, source = torch.randn(3, 4, generator=generator), torch.randn(5, 4, generator=generator)
    places = torch.randint(0, 3, (5, 4), generator=generator)
    module = Calls(
        lambda x, source, places: x.scatter_reduce(0, places, source, reduction, include_self=with_self)
    ).eval()
    model = from_torch(module, (x, source, places), fallback="error")
    assert relative_error(model(x, source, places), module(x, source, places)) <= 1e-6


def test_operators_of_images_and_products_compute_what_torch_computes() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2, 4, 9, 8, generator=generator)
    w = torch.randn(6, 4, 3, 3, generator=generator)
    b = torch.randn(6, generator=generator)
    errors = _compare(IMAGES, (x, w, b))
    assert {name: error for name, error in errors.items() if not error <= 1e-5} == {}


def test_every_operator_that_can_be_imported_has_a_sample() -> None:
    x, i = torch.rand(3, 4, 6), torch.ones(3, 4, 6, dtype=torch.int64)
    modules = [(samples, (x, x, i)) for samples in FAMILIES.values()]
    modules.append((IMAGES, (torch.rand(2, 4, 9, 8), torch.rand(6, 4, 3, 3), torch.rand(6))))
    seen = {
        "scaled_dot_product_attention.default",
        "sym_size.int",
        "full.default",
    }  # test_attention.py, test_dynamic.py
    seen |= set(NOISE)  # test_noise.py, and test_training_mode.py, as the next two
    seen |= {
        "_softmax.default",
        "_log_softmax.default",
    }  # the same converters as those of the operators that stay whole
    seen |= {
        f"{name}.default" for name in ("empty_permuted", "empty_strided", "new_empty_strided")
    }  # torch leaves their elements undefined
    seen |= {"empty.memory_format"}  # likewise
    seen |= {"copy.default", "_native_batch_norm_legit_functional.default"}
    for samples, inputs in modules:
        module = Calls(lambda *args, samples=samples: tuple(sample(*args) for sample in samples.values()))
        program = decompose(torch.export.export(module, inputs))
        seen |= {n.target.__name__ for n in program.graph.nodes if n.op == "call_function"}
    seen |= {f"_upsample_{how}2d_aa.default" for how in ("bicubic", "bilinear")}  # "bicubic antialiased", split further
    seen |= {
        "where.Scalar",
        "where.ScalarOther",
        "where.ScalarSelf",
        "rsub.Scalar",
    }  # what torch splits grid_sampler into
    seen |= {"gru.default", "lstm.default", "rnn.default"}  # test_recurrent.py
    seen |= {"_grouped_mm.default", "grouped_mm_fallback.default"}  # test_experts.py
    seen |= {"new_full.default", "unbind.int"}  # "ldexp" and "unbind_copy", split further
    seen |= {"scatter_reduce.two"}  # test_scatter_reduces_as_torch_does
    seen |= {"_unsafe_index.Tensor", "_unsafe_masked_index.default"}  # "index where a mask is true", "nearest exact"
    seen |= {"bitwise_left_shift.Tensor_Scalar", "bitwise_right_shift.Tensor"}  # as the others of them
    seen |= {"_embedding_bag.default"}  # with gradients
    seen |= {"norm.Scalar"}  # "dist", split further
    seen |= {name.replace(".Tensor", ".Scalar") for name in seen}  # the same converter
    assert (CONVERTERS.keys() | TRUSTED) - seen == set()
