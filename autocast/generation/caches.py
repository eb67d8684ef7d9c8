"""Keys and values of earlier tokens as transformers' models see them, while one is exported and while it generates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from transformers import DynamicCache, PreTrainedModel
from transformers.cache_utils import Cache, CacheLayerMixin, EncoderDecoderCache
from transformers.modeling_outputs import CausalLMOutputWithPast

from autocast.errors import ImportModelError

#: What transformers calls a model's argument, and field of its results, for keys and values: `cache` since 5.24.
CACHE = "cache" if "cache" in CausalLMOutputWithPast.__dataclass_fields__ else "past_key_values"


class Kept(nn.Module):
    """The keys and values of each layer: buffers (batch, heads, length, width), which a step writes to.

    `shapes` has (heads, width) of the keys, and of the values, of each layer; they are stored as `dtype`.
    """

    def __init__(
        self,
        shapes: list[tuple[tuple[int, int], ...]],
        batch: int,
        length: int,
        dtype: torch.dtype,
        read_as: torch.dtype,
    ) -> None:
        super().__init__()
        self.read_as = read_as
        for number, of_layer in enumerate(shapes):
            for kind, (heads, width) in zip(("keys", "values"), of_layer, strict=True):
                self.register_buffer(f"{kind}_{number}", torch.zeros(batch, heads, length, width, dtype=dtype))

    def cache(self, start: torch.Tensor | int, *, whole: bool = True) -> Cache:
        """What the model reads and writes, from token `start` on.

        A layer that has written answers with all that is kept, or with what it wrote unless `whole`.
        """
        return cache_over(list(self.buffers()), start, self.read_as, whole=whole)


def cache_over(
    kept: Sequence[torch.Tensor], start: torch.Tensor | int, read_as: torch.dtype, *, whole: bool = True
) -> Cache:
    """The cache over keys and values of each layer in turn."""
    pairs = zip(kept[::2], kept[1::2], strict=True)
    return Cache(layers=[_Layer(pair, start, read_as, whole) for pair in pairs])


class _Layer(CacheLayerMixin):
    is_compileable, is_sliding = True, False

    def __init__(
        self, buffers: tuple[torch.Tensor, torch.Tensor], start: torch.Tensor | int, read_as: torch.dtype, whole: bool
    ) -> None:
        super().__init__()
        self.buffers, self.start, self.read_as, self.whole, self.is_initialized = buffers, start, read_as, whole, True
        self.keys, self.values = (buffer.to(read_as) for buffer in buffers)

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        pass

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *_: Any, **__: Any) -> Any:
        places = torch.arange(key_states.shape[2]) + self.start
        for buffer, new in zip(self.buffers, (key_states, value_states), strict=True):
            buffer.index_copy_(2, places, new.to(buffer.dtype))
        return tuple(buffer.to(self.read_as) for buffer in self.buffers) if self.whole else (key_states, value_states)

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.get_max_length(), 0

    def get_seq_length(self) -> Any:
        return self.start

    def get_max_length(self) -> int:
        return self.buffers[0].shape[2]


def shapes_kept(model: PreTrainedModel, start: int) -> tuple[list[Any], list[Any]]:
    """(heads, width) of the keys, and of the values, of each layer, as they are for the token `start`.

    Those of the tokens, and those of what an encoder made of its input, if there is one.
    """
    config = model.config.get_text_config(decoder=True)
    cache: Any = DynamicCache(config=config)
    token = torch.full((1, 1), start, dtype=torch.int64)
    inputs = {"input_ids": token}
    if model.config.is_encoder_decoder:
        cache = EncoderDecoderCache(cache, DynamicCache(config=config))
        inputs["decoder_input_ids"] = token
    with torch.no_grad():
        model(**inputs, **{CACHE: cache}, use_cache=True)
    caches = [cache.self_attention_cache, cache.cross_attention_cache] if model.config.is_encoder_decoder else [cache]
    of_tokens, of_source = ([_shapes(model, layer) for layer in one.layers] for one in [*caches, DynamicCache()][:2])
    return of_tokens, of_source


def _shapes(model: PreTrainedModel, layer: Any) -> tuple[tuple[int, int], ...]:
    if getattr(layer, "keys", None) is None:
        raise ImportModelError(
            f"Generator: got {type(model).__name__}, which keeps a {type(layer).__name__}; expected a model whose "
            "layers all keep keys and values of attention. Import one step of it with from_torch"
        )
    return tuple((kept.shape[1], kept.shape[3]) for kept in (layer.keys, layer.values))


class Filled(Cache):
    """What transformers' loop of generation asks of a cache that is not its own: how many tokens are in it, and to
    exchange sequences, whose first axis is that of the tensors `kept`."""

    def __init__(self, length: int, kept: list[torch.Tensor]) -> None:
        super().__init__(layers=[])
        self.length, self.kept, self.count = length, kept, 0

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self.count

    def get_max_cache_shape(self, layer_idx: int = 0) -> int:
        return self.length

    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        for tensor in self.kept:
            tensor[: len(beam_idx)] = tensor[beam_idx]

    @property
    def is_compileable(self) -> bool:
        return False
