"""Modules of one operator each: reductions, and what moves or looks up elements."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from tests.frontend.converters.operator_samples import Sample


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


# x: (3, 4, 6) in (-2, 2); p: the same in (0.1, 0.9); i: int64 in -3..3
MOVES: dict[str, dict[str, Sample]] = {
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
        "bucketize a number": lambda x, p, i: torch.bucketize(
            0.5, i.new_tensor([0.25, 0.5, 1.0], dtype=p.dtype) * p.max()
        ),
        "searchsorted of a number": lambda x, p, i: torch.searchsorted(i.new_tensor([0, 1, 1, 2]), 1, right=True),
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
        "write by indices apart": lambda x, p, i: _written(
            x, (torch.tensor([2, 0]), slice(None), i[0, 0, :2]), p[:2, :, 0]
        ),
        "add by indices apart": lambda x, p, i: torch.ops.aten.index_put(
            x, [torch.tensor([[1], [1]]), None, torch.tensor([3, 0, 3])], p[0, :, 0], True
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
        "masked_scatter_backward": lambda x, p, i: torch.ops.aten.masked_scatter_backward(
            x, i[:, :, :1] > 0, [*reversed(x.shape)]
        ),
        "diagonal_scatter": lambda x, p, i: torch.diagonal_scatter(x, p[0, :, :2], -1, 0, 2),
        "diagonal_scatter beside the matrix": lambda x, p, i: torch.diagonal_scatter(x, p[:, 0, :0], 9, 2, 1),
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
        "eye": lambda x, p, i: x @ torch.eye(300)[:6, :6] + torch.eye(4, 6),
    },
}
