"""Functions of torch that its export computes for the sizes of the example alone, written with others that it exports
for all."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any
from unittest import mock

import torch
import torch.nn.functional as F
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

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
    last = torch.full((), steps - 1, device=options.get("device"), dtype=torch.float64)
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


def _below(size: Any, offset: int, device: Any = None) -> torch.Tensor:
    """The places of a square on and below a diagonal that is at most one from its own, row by row, as torch finds them.

    How many these are has no smaller of two sizes in it, as in torch's own way: torch 2.15 splits such products into
    sums that `torch.export` does not read.
    """
    width = size + min(offset, 0)
    count = width * (width + 1) // 2
    if offset == 1:
        count = torch.sym_max(count + size - 1, 0)
    places = torch.arange(count, dtype=torch.float64, device=device) + max(offset, 0)
    rows = torch.floor(torch.sqrt(2 * places + 0.25) - 0.5)
    return torch.stack([rows - offset, places - (rows + 1) * rows * 0.5]).to(torch.int64)


def _above(size: Any, offset: int, device: Any = None) -> torch.Tensor:
    return size - 1 - _below(size, -offset, device).flip(1)


def _triangle(
    native: Callable[..., torch.Tensor],
    square: Callable[..., torch.Tensor],
    row: Any,
    col: Any,
    offset: int = 0,
    **how: Any,
) -> torch.Tensor:
    """The places of a triangle: of half a square as many as an expression of sizes says, else they are found."""
    if not _varies([row, col]):
        return native(row, col, offset, **how)
    dtype = how.get("dtype") or torch.int64
    if str(row) == str(col) and abs(offset) <= 1:
        return square(row, offset, how.get("device")).to(dtype)
    cut = torch.tril if native is torch.tril_indices else torch.triu
    return cut(torch.ones(row, col, dtype=torch.bool, device=how.get("device")), offset).nonzero().T.to(dtype)


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
    first, second = _above(count, 0 if with_replacement else 1)
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


_attend: Callable[..., torch.Tensor] = F.scaled_dot_product_attention


def _attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    *args: Any,
    **options: Any,
) -> torch.Tensor:
    """By a scale that is a plain number: of one that sizes say, the query has the rest. A mask that all queries share
    has a row for each, where values decide how many they are: torch asks whether they are one."""
    count = query.shape[-2]
    if attn_mask is not None and free_unbacked_symbols(count) and type(attn_mask.shape[-2]) is int:
        attn_mask = attn_mask.expand(*attn_mask.shape[:-2], count, -1)
    scale = options.pop("scale", None)
    if scale is None and _varies(query.shape[-1:]):
        scale = 1 / torch.sym_sqrt(query.shape[-1])
    if isinstance(scale, torch.SymFloat | torch.SymInt):
        query, scale = query * scale, 1.0
    return _attend(query, key, value, attn_mask, *args, scale=scale, **options)


def _attention_layer(*args: Any, **options: Any) -> Any:
    with mock.patch.object(F, "scaled_dot_product_attention", _attention):
        return F.multi_head_attention_forward(*args, **options)


def _take_along_dim(input: torch.Tensor, indices: torch.Tensor, dim: int | None = None) -> torch.Tensor:
    """Of tensors that are repeated to be of the same sizes, but along the axis."""
    if not _varies([*input.shape, *indices.shape]):
        return torch.take_along_dim(input, indices, dim)
    if dim is None:
        return input.flatten().gather(0, indices.flatten())
    axis = dim % input.dim()
    pairs = enumerate(zip(input.shape, indices.shape, strict=True))
    sizes = [-1 if at == axis else b if isinstance(a, int) and a == 1 else a for at, (a, b) in pairs]
    return input.expand(sizes).gather(axis, indices.expand(sizes))


def _multi_dot(*matrices: torch.Tensor) -> torch.Tensor:
    """In the order of products that is the fastest for the example's sizes."""
    sizes = [size for matrix in matrices for size in matrix.shape[:1]] + [matrices[-1].shape[-1]]
    extents = [size.node.hint or 1 if isinstance(size, torch.SymInt) else size for size in sizes]
    best = {(i, i + 1): (0, matrix) for i, matrix in enumerate(matrices)}
    for count in range(2, len(matrices) + 1):
        for begin in range(len(matrices) - count + 1):
            end = begin + count
            costs = {
                cut: best[begin, cut][0] + best[cut, end][0] + extents[begin] * extents[cut] * extents[end]
                for cut in range(begin + 1, end)
            }
            cut = min(costs, key=costs.__getitem__)
            best[begin, end] = costs[cut], best[begin, cut][1] @ best[cut, end][1]
    return best[0, len(matrices)][1]


def _gradient(
    input: torch.Tensor, *, spacing: Any = 1, dim: int | Sequence[int] | None = None, edge_order: int = 1
) -> Any:
    """Differences of neighbours, where these are as far from each other as numbers say."""
    axes = range(input.dim()) if dim is None else [dim] if isinstance(dim, int) else dim
    steps = spacing if isinstance(spacing, list | tuple) else [spacing] * len(axes)
    if not _varies([input.shape[axis] for axis in axes]) or any(isinstance(step, torch.Tensor) for step in steps):
        return torch.gradient(input, spacing=spacing, dim=dim, edge_order=edge_order)

    def along(axis: int, step: float) -> torch.Tensor:
        middle = (input.narrow(axis, 2, input.shape[axis] - 2) - input.narrow(axis, 0, input.shape[axis] - 2)) / 2
        weights = (-1.0, 1.0) if edge_order == 1 else (-1.5, 2.0, -0.5)
        first = sum(weight * input.narrow(axis, at, 1) for at, weight in enumerate(weights))
        last = sum(-weight * input.narrow(axis, input.shape[axis] - 1 - at, 1) for at, weight in enumerate(weights))
        return torch.cat([first, middle, last], axis) / step

    return tuple(along(axis % input.dim(), step) for axis, step in zip(axes, steps, strict=True))


def _frequencies(native: Callable[..., torch.Tensor], n: Any, d: float = 1.0, **options: Any) -> torch.Tensor:
    """Of a Fourier transform, of half of one where that is what `native` returns."""
    if not _varies([n]):
        return native(n, d, **options)
    options["dtype"] = options.get("dtype") or torch.get_default_dtype()
    if native is torch.fft.rfftfreq:
        return torch.arange(n // 2 + 1, **options) / (n * d)
    numbers = torch.arange(n, **options)
    return torch.where(numbers < (n + 1) // 2, numbers, numbers - n) / (n * d)


def _tensordot(a: torch.Tensor, b: torch.Tensor, dims: Any = 2, out: torch.Tensor | None = None) -> torch.Tensor:
    """As `einsum` computes it, which asks no size whether it is 1."""
    if out is not None or isinstance(dims, torch.Tensor) or not _varies([*a.shape, *b.shape]):
        return torch.tensordot(a, b, dims, out=out)
    of_a, of_b = (range(-dims, 0), range(dims)) if isinstance(dims, int) else dims
    of_b = [axis % b.dim() for axis in of_b]
    summed = {axis: at % a.dim() for at, axis in zip(of_a, of_b, strict=True)}
    left = list(range(a.dim()))
    right = [summed.get(axis, a.dim() + axis) for axis in range(b.dim())]
    kept = [axis for axis in (*left, *right) if axis not in summed.values()]
    return torch.einsum(a, left, b, right, kept)


def _fill_diagonal_(input: torch.Tensor, fill_value: Any, wrap: bool = False) -> torch.Tensor:
    """By a mask of the diagonal."""
    if wrap or input.dim() != 2 or not _varies(input.shape):
        return input.fill_diagonal_(fill_value, wrap)
    rows, columns = (torch.arange(size, device=input.device) for size in input.shape)
    return input.masked_fill_(rows[:, None] == columns, fill_value)


#: Functions, as a module calls them, and what is called instead.
VARYING: Mapping[Any, Callable[..., Any]] = {
    **dict.fromkeys((torch.max_pool1d, F.max_pool1d), _max_pool1d),
    **dict.fromkeys((torch.tensor_split, torch.Tensor.tensor_split), _tensor_split),
    **dict.fromkeys((torch.take_along_dim, torch.Tensor.take_along_dim), _take_along_dim),
    torch.Tensor.fill_diagonal_: _fill_diagonal_,
    torch.cdist: _cdist,
    torch.chain_matmul: _multi_dot,
    torch.fft.fftfreq: partial(_frequencies, torch.fft.fftfreq),
    torch.fft.rfftfreq: partial(_frequencies, torch.fft.rfftfreq),
    torch.gradient: _gradient,
    torch.kron: _kron,
    torch.linalg.multi_dot: lambda tensors: _multi_dot(*tensors),
    torch.linspace: _linspace,
    torch.logspace: _logspace,
    torch.tensordot: _tensordot,
    torch.tril_indices: partial(_triangle, torch.tril_indices, _below),
    torch.triu_indices: partial(_triangle, torch.triu_indices, _above),
    F.affine_grid: _affine_grid,
    F.one_hot: _one_hot,
    F.pad: _pad,
    F.multi_head_attention_forward: _attention_layer,
    F.scaled_dot_product_attention: _attention,
}
