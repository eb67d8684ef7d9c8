"""Functions of torch that its export computes for the sizes of the example alone, written with others that it exports
for all."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import _refs as refs

from autocast.errors import ImportModelError


def _varies(sizes: Sequence[Any]) -> bool:
    return any(isinstance(size, torch.SymInt) for size in sizes)


def _one(value: Any) -> Any:
    return value[0] if isinstance(value, tuple | list) else value


def _max_pool1d(
    input: torch.Tensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:
    if return_indices or not _varies(input.shape):
        native: Callable[..., Any] = F.max_pool1d
        return native(input, kernel_size, stride, padding, dilation, ceil_mode, return_indices)
    steps = kernel_size if stride is None or stride == () else stride
    window = ((1, _one(kernel_size)), (1, _one(steps)), (0, _one(padding)), (1, _one(dilation)))
    return F.max_pool2d(input.unsqueeze(-2), *window, ceil_mode).squeeze(-2)


def _cdist(x1: torch.Tensor, x2: torch.Tensor, p: float = 2.0, compute_mode: Any = None) -> torch.Tensor:
    """By differences, as torch computes it of up to 25 rows: of more by products, unless it is told."""
    if _varies((*x1.shape, *x2.shape)) and compute_mode in (None, "use_mm_for_euclid_dist_if_necessary"):
        compute_mode = "donot_use_mm_for_euclid_dist"
    return torch.cdist(x1, x2, p, compute_mode or "use_mm_for_euclid_dist_if_necessary")


def _linspace(start: Any, end: Any, steps: Any, **options: Any) -> torch.Tensor:
    """From both ends to the middle, as torch computes it."""
    if not _varies([steps]):
        return torch.linspace(start, end, steps, **options)
    dtype = options.get("dtype") or torch.get_default_dtype()
    places = torch.arange(steps, device=options.get("device"), dtype=torch.float64)
    last = places[-1:]
    step = (end - start) / last
    numbers = torch.where(places < steps // 2, start + step * places, end - step * (last - places))
    return torch.where(places == 0, start, numbers).to(dtype)


def _affine_grid(theta: torch.Tensor, size: Sequence[Any], align_corners: bool | None = None) -> torch.Tensor:
    """The products of each matrix with the places of a picture's elements, from -1 to 1."""
    if not _varies(size):
        return F.affine_grid(theta, list(size), align_corners)
    lines = [_linspace(-1, 1, count, dtype=theta.dtype, device=theta.device) for count in size[2:]]
    if not align_corners:
        lines = [line * ((count - 1) / count) for line, count in zip(lines, size[2:], strict=True)]
    places = torch.meshgrid(*lines, indexing="ij")
    rows = torch.stack([*reversed(places), torch.ones_like(places[0])], -1).reshape(1, math.prod(size[2:]), -1)
    return (rows @ theta.mT).reshape(size[0], *size[2:], theta.shape[1])


def _logspace(start: Any, end: Any, steps: Any, base: float = 10.0, **options: Any) -> torch.Tensor:
    if not _varies([steps]):
        return torch.logspace(start, end, steps, base, **options)
    dtype = options.pop("dtype", None) or torch.get_default_dtype()
    return torch.pow(base, _linspace(start, end, steps, dtype=torch.float64, **options)).to(dtype)


def _triangle(
    native: Callable[..., torch.Tensor],
    written: Callable[..., torch.Tensor],
    row: Any,
    col: Any,
    offset: int = 0,
    **how: Any,
) -> torch.Tensor:
    """The places of a triangle: of half a square as many as an expression of sizes says, else they are found."""
    if not _varies([row, col]):
        return native(row, col, offset, **how)
    if str(row) == str(col) and abs(offset) <= 1:
        return written(row, col, offset, **how)
    cut = torch.tril if native is torch.tril_indices else torch.triu
    return cut(torch.ones(row, col, dtype=torch.bool), offset).nonzero().T.to(how.get("dtype", torch.int64))


def combinations(input: torch.Tensor, r: int = 2, with_replacement: bool = False) -> torch.Tensor:
    """Of one or two elements each: how many more there are torch has no expression of sizes for."""
    if r == 1:
        return input[:, None]
    if r != 2:
        raise ImportModelError(
            f"from_torch: torch.combinations has r={r} of a dimension that varies; expected 1 or 2. Try the places as "
            "an input, or a size that does not vary"
        )
    count = input.shape[0]
    first, second = refs.triu_indices(count, count, 0 if with_replacement else 1)
    return torch.stack([input[first], input[second]], 1)


def _kron(input: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Every element of a tensor times the whole of another."""
    if not _varies([*input.shape, *other.shape]):
        return torch.kron(input, other)
    rank = max(input.dim(), other.dim())
    shapes = [[1] * (rank - x.dim()) + list(x.shape) for x in (input, other)]
    left = input.reshape([size for pair in zip(shapes[0], [1] * rank, strict=True) for size in pair])
    right = other.reshape([size for pair in zip([1] * rank, shapes[1], strict=True) for size in pair])
    return (left * right).reshape([a * b for a, b in zip(*shapes, strict=True)])


def _one_hot(tensor: torch.Tensor, num_classes: Any = -1) -> torch.Tensor:
    if not _varies([num_classes]):
        return F.one_hot(tensor, num_classes)
    return (tensor[..., None] == torch.arange(num_classes, device=tensor.device)).long()


def _tensor_split(input: torch.Tensor, parts: Any, dim: int = 0) -> Any:
    """As many parts as a number says: the first ones are longer by one element, if need be."""
    count = input.shape[dim]
    if not isinstance(parts, int) or not _varies([count]):
        return torch.tensor_split(input, parts, dim)
    ends = [count // parts * i + torch.sym_min(count % parts, i) for i in range(parts + 1)]
    return tuple(input.narrow(dim, begin, end - begin) for begin, end in itertools.pairwise(ends))


def _pad(input: torch.Tensor, pad: Sequence[Any], mode: str = "constant", value: Any = None) -> torch.Tensor:
    if isinstance(value, torch.SymFloat | torch.SymInt) and mode == "constant":
        return torch.constant_pad_nd(input, pad, value)
    return F.pad(input, pad, mode, value)


def _attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *args: Any, **options: Any) -> torch.Tensor:
    """By a scale that is a plain number: of one that sizes say, the query has the rest."""
    scale = options.pop("scale", None)
    if scale is None and _varies(query.shape[-1:]):
        scale = 1 / torch.sym_sqrt(query.shape[-1])
    if isinstance(scale, torch.SymFloat | torch.SymInt):
        query, scale = query * scale, 1.0
    native: Callable[..., torch.Tensor] = F.scaled_dot_product_attention
    return native(query, key, value, *args, scale=scale, **options)


#: Functions, as a module calls them, and what is called instead.
VARYING: Mapping[Any, Callable[..., Any]] = {
    **dict.fromkeys((torch.max_pool1d, F.max_pool1d), _max_pool1d),
    **dict.fromkeys((torch.tensor_split, torch.Tensor.tensor_split), _tensor_split),
    torch.cdist: _cdist,
    torch.kron: _kron,
    torch.linspace: _linspace,
    torch.logspace: _logspace,
    torch.tril_indices: partial(_triangle, torch.tril_indices, refs.tril_indices),
    torch.triu_indices: partial(_triangle, torch.triu_indices, refs.triu_indices),
    F.affine_grid: _affine_grid,
    F.one_hot: _one_hot,
    F.pad: _pad,
    F.scaled_dot_product_attention: _attention,
}
