"""Operators that torch's tables do not split, or split into what computes something else, split by formulas of ours."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from unittest import mock

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._ops import OpOverload

from autocast.frontend.exporting.recurrent_layers import WHOLE
from autocast.frontend.splitting.embedding_bag_gradients import EMBEDDING_BAG_GRADIENTS
from autocast.frontend.splitting.foreach import FOREACH
from autocast.frontend.splitting.grid_sampling import GRID_SAMPLING

aten = torch.ops.aten


def _weight_norm_backward(g: Tensor, v: Tensor, scale: Tensor, norms: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """The adjoints of v and of the scale of w = scale * v / norms, which are those of v along all axes but one."""
    along = (g * v).sum([axis for axis in range(v.dim()) if axis != dim], keepdim=True) / norms
    return (g - v * (along / norms)) * (scale / norms), along


def _replication_pad_backward(adjoint: Tensor, x: Tensor, padding: Sequence[int]) -> Tensor:
    """Along each axis what is inside; its first and its last element get the sums of what is beyond, too."""
    for i in range(len(padding) // 2):
        axis, (before, after) = adjoint.dim() - 1 - i, padding[2 * i : 2 * i + 2]
        extent, along = x.shape[axis], [-1 if at == adjoint.dim() - 1 - i else 1 for at in range(adjoint.dim())]
        number = torch.arange(extent).reshape(along)
        inside = F.pad(adjoint, [*[0, 0] * i, -before, -after])
        for width, start, place in ((before, 0, 0), (after, before + extent, extent - 1)):
            if width > 0:
                beyond = adjoint.narrow(axis, start, width).sum(axis, keepdim=True)
                inside = inside + torch.where(number == place, beyond, 0.0)
        adjoint = inside
    return adjoint


def _cdist_backward(adjoint: Tensor, x: Tensor, y: Tensor, p: float, distances: Tensor) -> Tensor:
    """The adjoint of the rows `x`, from those of distances to the rows `y`; 0 from rows that are equal."""
    if p == 0:
        return torch.zeros(x.shape, dtype=x.dtype)
    apart = x.unsqueeze(-2) - y.unsqueeze(-3)
    adjoint, distances = adjoint.unsqueeze(-1), distances.unsqueeze(-1)
    if p == 1:
        return (adjoint * apart.sign()).sum(-2)
    if math.isinf(p):
        return torch.where(apart.abs() == distances, adjoint * apart.sign(), 0.0).sum(-2)
    equal = distances == 0
    share = torch.where(equal, 0.0, adjoint / torch.where(equal, 1.0, distances).pow(p - 1))
    if p == 2:
        return (share * apart).sum(-2)
    size = apart.abs()
    slope = torch.where(size == 0, 0.0, torch.where(size == 0, 1.0, size).pow(p - 1))
    return (share * slope * apart.sign()).sum(-2)


def _pdist_backward(adjoint: Tensor, x: Tensor, p: float, distances: Tensor) -> Tensor:
    """As of distances of all rows to all, which are those of each pair twice."""
    count = x.shape[0]
    if count < 2:
        return torch.zeros(x.shape, dtype=x.dtype)
    number = torch.arange(count)
    low, high = torch.minimum(number[:, None], number), torch.maximum(number[:, None], number)
    pair = (low * (2 * count - low - 1) // 2 + high - low - 1).clamp(0, count * (count - 1) // 2 - 1)
    adjoint, distances = (torch.where(low != high, of_pairs[pair], 0.0) for of_pairs in (adjoint, distances))
    return _cdist_backward(adjoint, x, x, p, distances)


def _multilabel_margin_loss(x: Tensor, labels: Tensor, reduction: int) -> tuple[Tensor, Tensor]:
    """The loss, and which classes are labels: those before the first -1. torch's table counts others as class 0."""
    rows, targets = torch.atleast_2d(x), torch.atleast_2d(labels)
    classes = rows.shape[1]
    number = torch.arange(classes)
    ends = torch.where(targets < 0, number, classes).amin(1, keepdim=True)
    given = number < ends
    of_class = given.unsqueeze(-1) & (targets.unsqueeze(-1) == number)
    is_label = of_class.any(1)
    chosen = rows.gather(1, torch.where(given, targets, 0))
    margins = torch.relu(1 - chosen.unsqueeze(-1) + rows.unsqueeze(1))
    counted = given.unsqueeze(-1) & ~is_label.unsqueeze(1)
    losses = torch.where(counted, margins, 0.0).sum((1, 2)) / classes
    loss = losses.mean() if reduction == 1 else losses.sum() if reduction == 2 else losses.reshape(x.shape[:-1])
    return loss, is_label.to(x.dtype).reshape(x.shape)


def _select_scatter(x: Tensor, source: Tensor, axis: int, index: Any) -> Tensor:
    """Of a number that a tensor holds, too: torch's table asks whether it is below 0."""
    size = x.shape[axis]
    place = torch.scalar_tensor(index, dtype=torch.int64)
    chosen = torch.arange(size) == torch.where(place < 0, place + size, place)
    chosen = chosen.reshape([-1 if i == axis % x.dim() else 1 for i in range(x.dim())])
    return torch.where(chosen, source.unsqueeze(axis), x)


def _binary_cross_entropy(x: Tensor, target: Tensor, weight: Tensor | None = None, reduction: int = 1) -> Tensor:
    """With logarithms of -100 at least, which have no gradient at 0: torch's table has 0 / 0 there. A sigmoid that came
    to 0 or 1 has none either."""
    likely = torch.where(x == 0, -100.0, torch.where(x == 0, 1.0, x).log().clamp(min=-100.0))
    unlikely = torch.where(x == 1, -100.0, torch.where(x == 1, 0.0, -x).log1p().clamp(min=-100.0))
    loss = (target - 1) * unlikely - target * likely
    loss = loss if weight is None else loss * weight
    return loss.mean() if reduction == 1 else loss.sum() if reduction == 2 else loss


def _sinc(x: Tensor) -> Tensor:
    """sin(pi x) / (pi x), 1 at 0 with a gradient of 0: torch's table divides by 0 there."""
    angle = math.pi * torch.where(x == 0, 1.0, x)
    return torch.where(x == 0, 1.0, angle.sin() / angle)


#: How operators are split, before what torch's tables say.
SPLITS: dict[OpOverload, Callable[..., Any]] = {
    aten._cdist_backward.default: _cdist_backward,
    aten._pdist_backward.default: _pdist_backward,
    aten._weight_norm_interface_backward.default: _weight_norm_backward,
    aten.binary_cross_entropy.default: _binary_cross_entropy,
    aten.multilabel_margin_loss_forward.default: _multilabel_margin_loss,
    aten.replication_pad1d_backward.default: _replication_pad_backward,
    aten.replication_pad2d_backward.default: _replication_pad_backward,
    aten.replication_pad3d_backward.default: _replication_pad_backward,
    aten.select_scatter.default: _select_scatter,
    aten.sinc.default: _sinc,
    **EMBEDDING_BAG_GRADIENTS,
    **FOREACH,
    **GRID_SAMPLING,
    **WHOLE,
}


@contextlib.contextmanager
def split_rightly() -> Iterator[None]:
    """While this is active, torch splits by our formula what it differentiates by a wrong one of its own."""
    operator = aten.multilabel_margin_loss_forward.default
    with mock.patch.dict(operator.py_kernels, {torch._C.DispatchKey.Autograd: _multilabel_margin_loss}):
        operator._dispatch_cache.clear()
        yield
    operator._dispatch_cache.clear()
