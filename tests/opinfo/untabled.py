"""Calls of modules that torch's table lacks, or has with few of their options: as people write them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import product
from typing import Any, NamedTuple

import torch
from torch import nn


class Call(NamedTuple):
    """A module and what it is called with."""

    module: nn.Module
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any] = {}


def _numbers(*shape: int) -> torch.Tensor:
    return torch.randn(shape)


def _indices(count: int, *shape: int) -> torch.Tensor:
    return torch.randint(0, count, shape)


def _dropouts() -> Iterator[Call]:
    kinds = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout)
    for kind, shape in product(kinds, ((2, 3, 5), (2, 3, 4, 5), (2, 3, 2, 4, 5))):
        yield Call(kind(0.25), (_numbers(*shape),))


def _embedding_bags() -> Iterator[Call]:
    offsets = torch.tensor([0, 2, 2, 6])
    for mode in ("sum", "mean", "max"):
        for options in ({}, {"padding_idx": 0}, {"include_last_offset": True}, {"max_norm": 1.0}):
            if "include_last_offset" not in options:
                yield Call(nn.EmbeddingBag(9, 4, mode=mode, **options), (_indices(9, 3, 5),))
            ends = torch.tensor([0, 2, 2, 7]) if "include_last_offset" in options else offsets
            yield Call(nn.EmbeddingBag(9, 4, mode=mode, **options), (_indices(9, 7), ends))
    weights = {"per_sample_weights": torch.rand(3, 5)}
    yield Call(nn.EmbeddingBag(9, 4, mode="sum"), (_indices(9, 3, 5).int(),), weights)
    yield Call(nn.EmbeddingBag(9, 4, mode="sum"), (_indices(9, 7), offsets), {"per_sample_weights": torch.rand(7)})


def _attentions() -> Iterator[Call]:
    query, memory = _numbers(2, 5, 8), _numbers(2, 7, 8)
    seen = torch.ones(5, 7, dtype=torch.bool).triu(2)
    padded = torch.arange(7) >= torch.tensor([[7], [4]])
    floats = _numbers(4, 5, 7)
    masks: tuple[dict[str, Any], ...] = (
        {},
        {"attn_mask": seen},
        {"attn_mask": seen, "key_padding_mask": padded},
        {"attn_mask": floats, "need_weights": False},
        {"key_padding_mask": padded, "average_attn_weights": False},
        {"attn_mask": floats, "key_padding_mask": torch.zeros(2, 7).masked_fill(padded, -torch.inf)},
    )
    for options, mask in product(({}, {"add_zero_attn": True}, {"add_bias_kv": True}, {"bias": False}), masks):
        yield Call(nn.MultiheadAttention(8, 2, batch_first=True, **options), (query, memory, memory), mask)
    for mask in masks:
        inputs = (query.transpose(0, 1), _numbers(7, 2, 6), _numbers(7, 2, 4))
        yield Call(nn.MultiheadAttention(8, 2, kdim=6, vdim=4), inputs, mask)
    causal = {"attn_mask": nn.Transformer.generate_square_subsequent_mask(5), "is_causal": True}
    yield Call(nn.MultiheadAttention(8, 2, batch_first=True), (query, query, query), causal)
    yield Call(nn.MultiheadAttention(8, 2, batch_first=True), (query, query, query), {**causal, "need_weights": False})


def _transformers() -> Iterator[Call]:
    sizes: dict[str, Any] = {"d_model": 8, "nhead": 2, "dim_feedforward": 16, "dropout": 0.0, "batch_first": True}
    source, target = _numbers(2, 7, 8), _numbers(2, 5, 8)
    padded = torch.arange(7) >= torch.tensor([[7], [4]])
    causal = nn.Transformer.generate_square_subsequent_mask(5)
    for first, activation, masks in product((False, True), ("relu", "gelu"), (False, True)):
        layer = {"norm_first": first, "activation": activation, **sizes}
        known = {"tgt_mask": causal, "memory_key_padding_mask": padded} if masks else {}
        told = {"tgt_is_causal": True} if masks and first else {}
        encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(**layer), 2, nn.LayerNorm(8))
        yield Call(encoder, (source,), {"src_key_padding_mask": padded} if masks else {})
        decoder = nn.TransformerDecoder(nn.TransformerDecoderLayer(**layer), 2, nn.LayerNorm(8))
        yield Call(decoder, (target, source), {**known, **told})
        whole = nn.Transformer(num_encoder_layers=1, num_decoder_layers=1, **layer)
        yield Call(whole, (source, target), {**known, "src_key_padding_mask": padded} if masks else {})
    bits = torch.ones(5, 5, dtype=torch.bool).triu(1)
    yield Call(nn.TransformerDecoder(nn.TransformerDecoderLayer(**sizes), 1), (target, source), {"tgt_mask": bits})
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(**sizes), 1)
    yield Call(encoder, (target,), {"mask": causal, "is_causal": True})


def _recurrent() -> Iterator[Call]:
    for kind, batch_first, bidirectional in product((nn.RNN, nn.GRU, nn.LSTM), (False, True), (False, True)):
        layer = kind(4, 6, num_layers=2, batch_first=batch_first, bidirectional=bidirectional)
        state = _numbers(4 if bidirectional else 2, 3 if batch_first else 5, 6)
        yield Call(layer, (_numbers(3, 5, 4), (state, state + 1) if kind is nn.LSTM else state))
        yield Call(layer, (_numbers(3, 1, 4),))
    yield Call(nn.LSTM(4, 6, proj_size=3, batch_first=True), (_numbers(2, 5, 4),))
    yield Call(nn.GRU(4, 6, num_layers=2, dropout=0.5), (_numbers(5, 2, 4),))


def _recurrent_cells() -> Iterator[Call]:
    for kind, bias in product((nn.RNNCell, nn.GRUCell, nn.LSTMCell), (True, False)):
        state = (_numbers(3, 6), _numbers(3, 6)) if kind is nn.LSTMCell else _numbers(3, 6)
        yield Call(kind(4, 6, bias=bias), (_numbers(3, 4), state))
        yield Call(kind(4, 6, bias=bias), (_numbers(3, 4),))


def _losses() -> Iterator[Call]:
    x, y, z = _numbers(5, 4), _numbers(5, 4), _numbers(5, 4)
    signs, classes, chances = torch.tensor([1.0, -1, 1, -1, 1]), _indices(4, 5), torch.rand(5, 4).softmax(-1)
    weight = torch.rand(4)
    options: tuple[dict[str, Any], ...] = ({}, {"label_smoothing": 0.1}, {"weight": weight, "ignore_index": 1})
    for reduction in ("mean", "sum", "none"):
        how = {"reduction": reduction}
        yield Call(nn.TripletMarginLoss(**how), (x, y, z))
        yield Call(nn.TripletMarginLoss(margin=2.0, swap=True, p=1, **how), (x, y, z))
        distance = nn.TripletMarginWithDistanceLoss(distance_function=nn.PairwiseDistance(), swap=True, **how)
        yield Call(distance, (x, y, z))
        yield Call(nn.CosineEmbeddingLoss(margin=0.2, **how), (x, y, signs))
        yield Call(nn.HingeEmbeddingLoss(**how), (x, signs[:, None].expand(5, 4)))
        yield Call(nn.MarginRankingLoss(0.5, **how), (x[:, 0], y[:, 0], signs))
        yield Call(nn.MultiLabelMarginLoss(**how), (x, torch.tensor([[1, 2, -1, 0]]).expand(5, 4).contiguous()))
        yield Call(nn.MultiMarginLoss(p=2, weight=weight, **how), (x, classes))
        yield Call(nn.GaussianNLLLoss(full=True, **how), (x, y, torch.rand(5, 1)))
        yield Call(nn.PoissonNLLLoss(log_input=False, full=True, **how), (x.abs(), y.abs()))
        yield Call(nn.KLDivLoss(log_target=True, **how), (x.log_softmax(-1), y.log_softmax(-1)))
        yield Call(nn.BCEWithLogitsLoss(weight, pos_weight=weight, **how), (x, chances))
        yield Call(nn.BCELoss(weight, **how), (x.sigmoid(), chances))
        yield Call(nn.HuberLoss(delta=0.5, **how), (x, y))
        yield Call(nn.SmoothL1Loss(beta=0.0, **how), (x, y))
        yield Call(nn.CTCLoss(**how), (_numbers(6, 2, 4).log_softmax(-1), _indices(3, 2, 3) + 1, (6, 5), (3, 2)))
        for option in options:
            yield Call(nn.CrossEntropyLoss(**option, **how), (x, classes))
            yield Call(nn.CrossEntropyLoss(**option, **how), (_numbers(2, 4, 3, 3), _indices(4, 2, 3, 3)))
        yield Call(nn.CrossEntropyLoss(weight, label_smoothing=0.1, **how), (x, chances))


def _distances() -> Iterator[Call]:
    for keep, p in product((False, True), (1.0, 2.0, 3.0)):
        yield Call(nn.PairwiseDistance(p, keepdim=keep), (_numbers(5, 4), _numbers(5, 4)))
    yield Call(nn.CosineSimilarity(), (_numbers(5, 4, 3), _numbers(5, 4, 3)))
    yield Call(nn.CosineSimilarity(dim=-1), (_numbers(5, 4), _numbers(1, 4)))


def _rearranged() -> Iterator[Call]:
    image = _numbers(2, 8, 6, 6)
    yield Call(nn.PixelShuffle(2), (image,))
    yield Call(nn.PixelUnshuffle(3), (image,))
    yield Call(nn.ChannelShuffle(4), (image,))
    yield Call(nn.Flatten(1, -2), (image,))
    yield Call(nn.Unflatten(1, (2, 4)), (image,))
    yield Call(nn.Identity(), (image,))
    for options in ({"padding": 1}, {"stride": 2}, {"dilation": 2, "padding": 1}):
        columns = nn.Unfold((3, 2), **options)
        yield Call(columns, (image,))
        yield Call(nn.Fold((6, 6), (3, 2), **options), (columns(image),))


def _resized() -> Iterator[Call]:
    shapes = {"nearest": (2, 3, 5), "linear": (2, 3, 5), "bilinear": (2, 3, 4, 5), "bicubic": (2, 3, 4, 5)}
    sizes: tuple[dict[str, Any], ...] = ({"scale_factor": 1.7}, {"scale_factor": 0.6}, {"size": 9})
    for (mode, shape), size in product(shapes.items(), sizes):
        yield Call(nn.Upsample(mode=mode, **size), (_numbers(*shape),))
        if mode != "nearest":
            yield Call(nn.Upsample(mode=mode, align_corners=True, **size), (_numbers(*shape),))
    yield Call(nn.Upsample(size=(3, 5, 7), mode="trilinear"), (_numbers(1, 2, 4, 4, 4),))
    yield Call(nn.UpsamplingBilinear2d(scale_factor=2), (_numbers(2, 3, 4, 5),))
    yield Call(nn.UpsamplingNearest2d(size=(7, 3)), (_numbers(2, 3, 4, 5),))


class _Unpooled(nn.Module):
    """What was pooled, back at the places of the maxima."""

    def __init__(self, rank: int, **options: Any) -> None:
        super().__init__()
        self.pool = getattr(nn, f"MaxPool{rank}d")(**options, return_indices=True)
        self.back = getattr(nn, f"MaxUnpool{rank}d")(**options)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        pooled, places = self.pool(x)
        return self.back(pooled, places, output_size=x.shape)


def _unpooled() -> Iterator[Call]:
    for rank in (1, 2, 3):
        yield Call(_Unpooled(rank, kernel_size=2), (_numbers(2, 3, *(5, 4, 6)[:rank]),))
        yield Call(_Unpooled(rank, kernel_size=3, stride=2, padding=1), (_numbers(2, 3, *(5, 6, 7)[:rank]),))


def _softmaxes() -> Iterator[Call]:
    yield Call(nn.AdaptiveLogSoftmaxWithLoss(8, 12, [3, 7]), (_numbers(6, 8), _indices(12, 6)))
    yield Call(nn.AdaptiveLogSoftmaxWithLoss(8, 12, [5], head_bias=True), (_numbers(6, 8), _indices(12, 6)))


def _others() -> Iterator[Call]:
    yield Call(nn.RReLU(), (_numbers(3, 4),))
    yield Call(nn.Hardsigmoid(), (4 * _numbers(3, 40),))
    yield Call(nn.CrossMapLRN2d(3), (_numbers(2, 5, 4, 4),))
    yield Call(nn.Bilinear(3, 4, 5), (_numbers(2, 6, 3), _numbers(2, 6, 4)))
    yield Call(nn.Embedding(9, 4, padding_idx=0, scale_grad_by_freq=True), (_indices(9, 3, 5),))
    yield Call(nn.Embedding(9, 4, max_norm=1.0), (_indices(9, 3, 5),))
    for norm in (nn.BatchNorm2d(3, momentum=None), nn.BatchNorm2d(3, affine=False), nn.BatchNorm2d(3, eps=0.1)):
        yield Call(norm, (_numbers(4, 3, 2, 5),))
    yield Call(nn.BatchNorm2d(3, track_running_stats=False), (_numbers(4, 3, 2, 5),))
    yield Call(nn.InstanceNorm2d(3, affine=True, track_running_stats=True), (_numbers(4, 3, 2, 5),))
    yield Call(nn.LazyLinear(3), (_numbers(2, 4),))
    yield Call(nn.LazyBatchNorm2d(), (_numbers(4, 3, 2, 5),))
    yield Call(nn.LazyInstanceNorm1d(affine=True), (_numbers(4, 3, 5),))
    for wrap in (nn.utils.parametrizations.weight_norm, nn.utils.parametrizations.spectral_norm, nn.utils.weight_norm):
        yield Call(wrap(nn.Linear(4, 3)), (_numbers(2, 4),))
        yield Call(wrap(nn.Conv1d(4, 3, 2)), (_numbers(2, 4, 5),))
    yield Call(nn.utils.parametrizations.orthogonal(nn.Linear(4, 4)), (_numbers(2, 4),))


#: Names -> calls.
UNTABLED: dict[str, Callable[[], Iterator[Call]]] = {
    "Dropouts": _dropouts,
    "EmbeddingBags": _embedding_bags,
    "Attentions": _attentions,
    "Transformers": _transformers,
    "Recurrent": _recurrent,
    "RecurrentCells": _recurrent_cells,
    "Losses": _losses,
    "Distances": _distances,
    "Rearranged": _rearranged,
    "Resized": _resized,
    "Unpooled": _unpooled,
    "AdaptiveSoftmaxes": _softmaxes,
    "Others": _others,
}
