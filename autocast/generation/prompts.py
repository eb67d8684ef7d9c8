"""Prompts that torch reads, as they have pictures besides tokens, say: later steps go on from what it kept."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from transformers import DynamicCache, PreTrainedModel
from transformers.cache_utils import Cache, EncoderDecoderCache

from autocast.generation.caches import CACHE, STATES


def read_by_torch(
    model: PreTrainedModel, inputs: Mapping[str, Any], cache: Cache | None = None
) -> tuple[torch.Tensor, Cache]:
    """Logits of what follows the last token, (batch, 1, vocabulary), and what torch keeps, in `cache` or a new one."""
    if cache is None and model.config.is_encoder_decoder:
        cache = EncoderDecoderCache(DynamicCache(), DynamicCache())
    elif cache is None:
        cache = DynamicCache(config=model.config.get_text_config(decoder=True))
    outputs = type(model).forward(model, **inputs, **{CACHE: cache}, use_cache=True, return_dict=True)
    return outputs.logits[:, -1:], cache


def write(cache: Cache, kept: Mapping[str, torch.Tensor], count: int) -> bool:
    """Put what torch kept of `count` tokens where later steps look for it: of some sequences, the first ones.

    A layer with a window has the last of its keys and values alone: the places before them are masked. False where a
    layer keeps something else than one key of each token.
    """
    if isinstance(cache, EncoderDecoderCache):
        cache = cache.self_attention_cache
    for name, buffer in kept.items():
        kind, number, *place = name.rsplit(".", 1)[-1].split("_")
        layer = cache.layers[int(number)]
        if kind in STATES:
            state = getattr(layer, f"{kind}_states")[int(place[0])]
            buffer[: len(state)] = state
            continue
        new = layer.indexer_keys if kind == "index" else getattr(layer, kind)
        if new is None or layer.get_seq_length() != count or new.shape[-2] > count:
            return False
        buffer[: len(new)].narrow(-2, count - new.shape[-2], new.shape[-2]).copy_(new)
    return True


def of_source(cache: Cache, dtype: torch.dtype) -> list[torch.Tensor]:
    """Keys and values that torch kept of what an encoder made, of each layer in turn."""
    layers = cache.cross_attention_cache.layers
    return [kept.to(dtype) for layer in layers for kept in (layer.keys, layer.values)]
