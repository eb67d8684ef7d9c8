"""Boxes: an operator of ours that torch runs, as how many are kept depends on the values."""

from __future__ import annotations

from typing import NamedTuple

import torch

from autocast.frontend.converters.recurrent import define
from autocast.torch_target.asked import Asked, Row, Value
from autocast.torch_target.layouts import channels_first, to_layout


def _corners(boxes: torch.Tensor, is_centred: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """The least and the largest coordinates, (..., 2) each."""
    first, last = boxes[..., :2], boxes[..., 2:]
    if is_centred:
        return first - last / 2, first + last / 2
    return torch.minimum(first, last), torch.maximum(first, last)


def _suppress(
    boxes: torch.Tensor,
    scores: torch.Tensor,
    most: torch.Tensor,
    overlap: torch.Tensor,
    least: torch.Tensor,
    centred: bool,
) -> torch.Tensor:
    """All classes of all images at once, a box of each at a time."""
    low, high = (edge.unsqueeze(1) for edge in _corners(boxes, centred))  # (batch, 1, boxes, 2)
    area = (high - low).prod(-1)
    waits = scores > least
    order = torch.full_like(scores, -1, dtype=torch.int64)
    for turn in range(min(max(int(most), 0), scores.shape[2])):
        found = waits.any(-1, keepdim=True)
        if not found.any():
            break
        best = scores.masked_fill(~waits, -torch.inf).argmax(-1, keepdim=True)
        best = torch.where(waits.gather(-1, best), best, waits.int().argmax(-1, keepdim=True))  # all scores are -inf
        order[..., turn] = torch.where(found, best, -1).squeeze(-1)
        where = best.unsqueeze(-1).expand(-1, -1, -1, 2)
        first, last = (edge.expand(*scores.shape, 2).gather(2, where) for edge in (low, high))
        shared = torch.minimum(high, last) - torch.maximum(low, first)
        both = shared.prod(-1)
        own = area.expand_as(scores).gather(-1, best)
        covered = area + own - both
        overlaps = (shared > 0).all(-1) & (area > 0) & (own > 0) & (covered > 0) & (both / covered > overlap)
        waits = (waits & ~overlaps).scatter(-1, best, False)
    return order


SUPPRESS = define(
    "suppress(Tensor boxes, Tensor scores, Tensor most, Tensor overlap, Tensor least, bool centred) -> Tensor",
    lambda boxes, scores, most, overlap, least, centred: torch.empty_like(scores, dtype=torch.int64),
    _suppress,
)


def _samples(x: torch.Tensor, axis: int, at: torch.Tensor) -> torch.Tensor:
    """What lies between two neighbours along an axis, the nearest beyond the first and the last."""
    last = x.shape[axis] - 1
    at = at.clamp(0, last)
    before = at.floor().long()
    part = (at - before).to(x.dtype).reshape([-1 if i == axis else 1 for i in range(x.ndim)])
    left, right = (x.index_select(axis, places) for places in (before, (before + 1).clamp(max=last)))
    return left * (1 - part) + right * part


def _roi_align(
    data: torch.Tensor, rois: torch.Tensor, size: list[int], scale: float, samples: int, aligned: bool, largest: bool
) -> torch.Tensor:
    """Of each bin of each region the mean, or the largest, of what its sample points are; 0 is outside of the image."""
    result = data.new_zeros((len(rois), data.shape[1], *size))
    for number, (image, *corners) in enumerate(rois.double()):
        first_x, first_y, last_x, last_y = (corner * scale for corner in corners)
        pixels, inside, counts = data[int(image.nan_to_num().clamp(0, len(data) - 1))], [], []
        for axis, (first, last) in enumerate(((first_y, last_y), (first_x, last_x)), 1):
            extent = last - first if aligned else (last - first).clamp(min=1)
            step = extent / size[axis - 1]
            count = samples if samples > 0 else max(int(step.ceil()), 0)
            points = (torch.arange(count, dtype=step.dtype, device=step.device) + 0.5) / max(count, 1)
            at = first + step * (torch.arange(size[axis - 1], device=step.device).unsqueeze(1) + points)
            counts.append(count)
            inside.append(((at >= -1) & (at <= data.shape[axis + 1])).reshape([-1, 1] if axis == 1 else [1, -1]))
            pixels = _samples(pixels, axis, at.flatten())
        if not all(counts):
            continue
        bins = torch.where(inside[0] & inside[1], pixels, 0).reshape(-1, size[0], counts[0], size[1], counts[1])
        result[number] = bins.amax((2, 4)) if largest else bins.mean((2, 4))
    return result


ROI_ALIGN = define(
    "roi_align(Tensor data, Tensor rois, int[] size, float scale, int samples, bool aligned, bool largest) -> Tensor",
    lambda data, rois, size, *_: data.new_empty((rois.shape[0], data.shape[1], *size)),
    _roi_align,
)


def _roi_pool(data: torch.Tensor, rois: torch.Tensor, size: list[int], scale: float) -> torch.Tensor:
    """The largest pixel of each bin of each region; of none 0."""
    result = data.new_zeros((len(rois), data.shape[1], *size))
    for number, (image, *corners) in enumerate(rois):
        first_x, first_y, last_x, last_y = ((corner * scale + 0.5).floor() for corner in corners)
        pixels, filled = data[int(image.nan_to_num().clamp(0, len(data) - 1))], []
        for axis, (first, last) in enumerate(((first_y, last_y), (first_x, last_x)), 1):
            extent, bins = pixels.shape[axis], torch.arange(size[axis - 1], device=data.device)
            step = (last - first + 1).clamp(min=1) / size[axis - 1]
            begin, end = (bins * step).floor() + first, ((bins + 1) * step).ceil() + first
            places = torch.arange(extent, device=data.device)
            within = (places >= begin.unsqueeze(1)) & (places < end.unsqueeze(1))  # (bins, places)
            shape = (1, *within.shape, 1) if axis == 1 else (1, 1, *within.shape)
            pixels = torch.where(within.reshape(shape), pixels.unsqueeze(axis), -torch.inf).amax(axis + 1)
            filled.append(within.any(1))
        result[number] = torch.where(filled[0].unsqueeze(1) & filled[1], pixels, 0)
    return result


ROI_POOL = define(
    "roi_pool(Tensor data, Tensor rois, int[] size, float scale) -> Tensor",
    lambda data, rois, size, _: data.new_empty((rois.shape[0], data.shape[1], *size)),
    _roi_pool,
)


def _aligned(asked: Asked) -> Value:
    attrs, layout = asked.attrs, str(asked.attrs.layout)
    data, size = channels_first(asked.wide(0), layout), [int(extent) for extent in attrs.pooled_size]
    options = (float(attrs.spatial_scale), int(attrs.sample_ratio), bool(attrs.aligned), str(attrs.mode) == "max")
    return asked.stored(to_layout(ROI_ALIGN(data, asked.wide(1), size, *options), "NCHW", layout))


def _pooled(asked: Asked) -> Value:
    size = [int(extent) for extent in asked.attrs.pooled_size]
    return asked.stored(ROI_POOL(asked.wide(0), asked.wide(1), size, float(asked.attrs.spatial_scale)))


def _suppressed(asked: Asked) -> Value:
    centred = bool(asked.attrs["centred"])
    return SUPPRESS(asked.wide(0), asked.wide(1), asked.args[2], asked.wide(3), asked.wide(4), centred)


def _decoded(asked: Asked) -> Value:
    """Boxes (batch, anchors, 4), of what a detector says about anchors; and scores, 0 where they are low."""
    attrs, (scores, offsets, anchors) = asked.attrs, (asked.wide(i) for i in range(3))
    x, y, width, height = (float(variance) for variance in attrs.variances)
    offsets = offsets.reshape([scores.size(0), scores.size(2), 4])
    left, top, right, bottom = (anchors[..., edge] for edge in range(4))
    centre_y = offsets[..., 1] * y * (bottom - top) + (top + bottom) * 0.5
    centre_x = offsets[..., 0] * x * (right - left) + (left + right) * 0.5
    half_y = torch.exp(offsets[..., 3] * height) * 0.5 * (bottom - top)
    half_x = torch.exp(offsets[..., 2] * width) * 0.5 * (right - left)
    boxes = torch.stack([centre_y - half_y, centre_x - half_x, centre_y + half_y, centre_x + half_x], -1)
    if attrs.clip:
        boxes = torch.clamp(boxes, 0, 1)
    if attrs.apply_softmax:
        scores = torch.softmax(scores, 1)
    scores = scores * (scores >= float(attrs.threshold)).to(scores.dtype)
    if not attrs.keep_background:
        scores = torch.cat([torch.zeros_like(scores[:, :1]), scores[:, 1:]], 1)
    return asked.stored(boxes), asked.stored(scores)


def _first(is_kept: Value, count: Value) -> tuple[Value, Value, Value]:
    """Of (batch, count) truth values the places of the true ones before those of others, which are the first of these,
    and how many there are."""
    order = torch.sort(torch.logical_not(is_kept).to(torch.int32), stable=True, dim=1)[1]
    total = is_kept.sum(1)
    return order, torch.arange(count) < total.unsqueeze(1), total.to(torch.int32)


def _moved(data: Value, order: Value, is_first: Value) -> Value:
    """Rows of `data` (batch, boxes, numbers) in another order, those that are not first -1."""
    moved = torch.gather(data, 1, order.unsqueeze(2).expand(data.shape))
    return torch.where(is_first.unsqueeze(2), moved, -1.0).to(data.dtype)


def _valid(asked: Asked) -> Value:
    """Boxes of enough score first, in their order, then -1: how many, they and where they were."""
    data, attrs = asked.args[0], asked.attrs
    is_valid = data[..., int(attrs.score_index)] > float(attrs.score_threshold)
    if int(attrs.id_index) >= 0:
        is_valid = torch.logical_and(is_valid, data[..., int(attrs.id_index)] >= 0)
    order, is_first, total = _first(is_valid, asked.shape_of(0)[1])
    return total, _moved(data, order, is_first), torch.where(is_first, order, -1).to(torch.int32)


def _shares(boxes: torch.Tensor, number: int) -> torch.Tensor:
    """Of boxes (count, 4), how much of what one of them and each cover both do."""
    low, high = _corners(boxes, False)
    area = (high - low).prod(1)
    both = (torch.minimum(high, high[number]) - torch.maximum(low, low[number])).clamp(min=0).prod(1)
    covered = area + area[number] - both
    return torch.where(covered <= 0, 0, both / covered)


class _Limits(NamedTuple):
    """What boxes are kept by: `relax.op.vision.non_max_suppression` has the names and meanings."""

    most: int
    overlap: float
    all_alike: bool
    top: int
    coordinate: int
    score: int
    class_: int
    sigma: float
    least: float

    def rivals(self, rows: torch.Tensor, number: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Which rows come after one and compete with it, and how much each shares with it."""
        after = torch.arange(len(rows), device=rows.device) > number
        if not self.all_alike and self.class_ >= 0:
            after &= rows[:, self.class_] == rows[number, self.class_]
        return after, _shares(rows[:, self.coordinate : self.coordinate + 4], number)

    def suppress(self, rows: torch.Tensor, places: torch.Tensor) -> None:
        """In rows by their scores, write -1 for what overlaps one before, and its place."""
        kept, scores = 0, rows[:, self.score].clone()
        for number in range(len(rows)):
            if not scores[number] > 0 or (self.most > 0 and kept >= self.most):
                places[number] = rows[number] = -1
                continue
            kept += 1
            after, share = self.rivals(rows, number)
            gone = after & (scores > 0) & (share >= self.overlap)
            scores[gone] = rows[gone, self.score] = -1
            places[gone] = -1

    def decay(self, rows: torch.Tensor, places: torch.Tensor) -> None:
        """Move the best first, again and again, and lower the scores of what shares with it; -1 for what is left."""
        kept, scores = 0, rows[:, self.score]
        for _ in range(min(self.most, len(rows)) if self.most > 0 else len(rows)):
            waits = (places >= 0) & (scores > self.least)
            waits[:kept] = False
            if not waits.any():
                break
            pair = [kept, int(scores.masked_fill(~waits, -torch.inf).argmax())]
            rows[pair], places[pair] = rows[pair[::-1]], places[pair[::-1]]
            after, share = self.rivals(rows, kept)
            after &= (places >= 0) & (scores > self.least)
            lower = after & (share < self.overlap)
            scores[lower] *= torch.exp(-0.5 / self.sigma * share[lower].square())
            places[(after & (share >= self.overlap)) | (lower & (scores <= self.least))] = -1
            kept += 1
        rows[kept:] = places[kept:] = -1


def _suppress_sorted(
    data: torch.Tensor, counts: torch.Tensor, whole: list[int], numbers: list[float]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Boxes by their scores, and where they were: -1 for what is suppressed. The numbers are those of `_Limits`."""
    most, all_alike, top, coordinate, score, class_ = whole
    overlap, sigma, least = numbers
    limits = _Limits(most, overlap, bool(all_alike), top, coordinate, score, class_, sigma, least)
    rows, places = torch.full_like(data, -1), torch.full(data.shape[:2], -1, device=data.device)
    for image, count in enumerate(counts.tolist()):
        order = torch.sort(data[image, :count, score], descending=True, stable=True)[1]
        order = order[:top] if top > 0 else order
        found = data[image, order]
        (limits.decay if sigma > 0 else limits.suppress)(found, order)
        rows[image, : len(order)], places[image, : len(order)] = found, order
    return rows, places


SUPPRESS_SORTED = define(
    "suppress_sorted(Tensor data, Tensor counts, int[] whole, float[] numbers) -> (Tensor, Tensor)",
    lambda data, *_: (torch.empty_like(data), data.new_empty(data.shape[:2], dtype=torch.int64)),
    _suppress_sorted,
)


def _suppressed_sorted(asked: Asked) -> Value:
    attrs, (data, counts, indices) = asked.attrs, asked.args
    whole = ("max_output_size", "force_suppress", "top_k", "coord_start", "score_index", "id_index")
    numbers = ("iou_threshold", "soft_nms_sigma", "score_threshold")
    both = SUPPRESS_SORTED(data, counts, [int(attrs[key]) for key in whole], [float(attrs[key]) for key in numbers])
    rows, places, count = both[0], both[1], asked.shape_of(0)[1]
    if attrs.return_indices:
        order, is_first, total = _first(places >= 0, count)
        where = torch.gather(places, 1, order).clamp(min=0)
        found = torch.where(is_first, torch.gather(indices, 1, where), -1).to(torch.int32), total.unsqueeze(1)
        return (rows, *found) if float(attrs.soft_nms_sigma) > 0 else found
    is_kept = rows[..., int(attrs.score_index)] >= 0
    return _moved(rows, *_first(is_kept, count)[:2]) if attrs.invalid_to_bottom else rows


ROWS: dict[str, Row] = {
    "vision.suppress": _suppressed,
    "vision.roi_align": _aligned,
    "vision.roi_pool": _pooled,
    "vision.multibox_transform_loc": _decoded,
    "vision.get_valid_counts": _valid,
    "vision.non_max_suppression": _suppressed_sorted,
}
