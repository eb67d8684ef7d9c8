"""Numbers at the ends of a dtype's range, and how results at them are compared with torch's."""

from __future__ import annotations

import torch

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}

_AT_INFINITY = "torch's vectors answer NaN at infinity (float16's with AVX512-FP16 alone), where the limit is infinity"
_LARGE_QUOTIENT = "torch answers NaN where its quotient is too large for float32; the remainder is exact here"
_OVERFLOW = "torch overflows where exp(x) does, at 88.7; cosh(x) and sinh(x), which are half of it, at 89.4"

#: (function, dtype): why some results are infinite or NaN on one side only.
DIFFERENCES: dict[tuple[str, str], str] = {
    **{(name, dtype): _OVERFLOW for name in ("cosh", "sinh") for dtype in ("float32", "bfloat16")},
    **{("gelu", dtype): _AT_INFINITY for dtype in DTYPES},
    ("power 0.5", "float16"): "torch answers infinity for -infinity in float16, and NaN, as here, in float32",
    ("power -0.5", "float16"): "torch answers 0 for -infinity in float16, and NaN, as here, in float32",
    **{
        (name, dtype): _LARGE_QUOTIENT
        for name in ("mod", "floor_mod", "fmod", "remainder")
        for dtype in ("float32", "bfloat16")
    },
}


def values(dtype: str) -> torch.Tensor:
    """NaN, zero, subnormal, tiny, ordinary, huge and infinite numbers of both signs; 51 of them."""
    limits = torch.finfo(DTYPES[dtype])
    smallest = limits.smallest_normal * limits.eps
    sizes = [
        0.0,
        smallest,
        3 * smallest,
        limits.tiny / 2,
        limits.tiny,
        limits.tiny * 1.5,
        1e-4,
        0.3,
        0.5,
        1.0,
        1.5,
        2.0,
    ]
    sizes += [2.5, 3.0, 7.3, 8.5, 20.0, 89.0, 104.0, 300.0, 1000.5, 2.0**15, limits.max / 4, limits.max, float("inf")]
    numbers = torch.tensor([*sizes, *(-size for size in sizes), float("nan")], dtype=torch.float64)
    return numbers.to(DTYPES[dtype])


def pairs(dtype: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Every value with every other."""
    every = values(dtype)
    return tuple(grid.reshape(-1).contiguous() for grid in torch.meshgrid(every, every, indexing="ij"))


def wrong(name: str, got: torch.Tensor, expected: torch.Tensor, operands: tuple[torch.Tensor, ...]) -> list[str]:
    """Where a result is not what torch says, up to its rounding and that of what is added, or to a known reason."""
    if not expected.dtype.is_floating_point:
        differs = got.to(expected.dtype) != expected
    else:
        limits, wide = torch.finfo(expected.dtype), expected.double()
        finite = [torch.where(x.isfinite(), x.double().abs(), 0) for x in operands if x.dtype.is_floating_point]
        # Sums are as exact as what is added; of a product, or a function that grows, the result is larger.
        size = torch.stack([wide.abs(), *(x.clamp(max=4e4) for x in finite)]).amax(0)
        # Tiny numbers are 0 where torch's polynomials, or the instruction that narrows to bfloat16, take them for it.
        near = (got.double() - wide).abs() <= 8 * limits.eps * size + 2 * limits.smallest_normal
        differs = ~((got.double() == wide) | (got.isnan() & wide.isnan()) | (near & wide.isfinite() & got.isfinite()))
    dtype = str(operands[0].dtype).removeprefix("torch.")
    if (name, dtype) in DIFFERENCES:
        differs &= got.isfinite() & expected.isfinite()
    places = differs.nonzero().flatten()[:4].tolist()
    return [f"{name}({', '.join(str(float(x[i])) for x in operands)}) = {got[i]}, not {expected[i]}" for i in places]
