"""Keys and values of earlier tokens as transformers' models see them, while one is exported and while it generates."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from transformers import DynamicCache, PreTrainedModel
from transformers.cache_utils import Cache, CacheLayerMixin

from autocast.errors import ImportModelError


class _Layer(CacheLayerMixin):
    """Keys and values of one layer: buffers of the exported module, into which new ones are written."""

    is_compileable, is_sliding = True, False

    def __init__(self, keys: torch.Tensor, values: torch.Tensor, start: torch.Tensor) -> None:
        super().__init__()
        self.keys, self.values, self.start, self.is_initialized = keys, values, start, True

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        pass

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *_: Any, **__: Any) -> Any:
        places = torch.arange(key_states.shape[2]) + self.start
        kept = []
        for buffer, new in ((self.keys, key_states), (self.values, value_states)):
            buffer.index_copy_(2, places, new.to(buffer.dtype))
            kept.append(buffer.to(new.dtype))
        return tuple(kept)

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.keys.shape[2], 0

    def get_seq_length(self) -> Any:
        return self.start

    def get_max_length(self) -> int:
        return self.keys.shape[2]


class CachingStep(nn.Module):
    """A language model that reads tokens from `start` on, after those whose keys and values it keeps.

    The keys and values of `batch` sequences of at most `length` tokens are its buffers, stored as `dtype`.
    """

    def __init__(self, model: PreTrainedModel, batch: int, length: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.model = model
        self.names: list[tuple[str, str]] = []
        for number, heads in enumerate(_heads(model)):
            self.names.append((f"keys_{number}", f"values_{number}"))
            for name, (count, width) in zip(self.names[-1], heads, strict=True):
                self.register_buffer(name, torch.zeros(batch, count, length, width, dtype=dtype))

    def forward(
        self, input_ids: torch.Tensor, position_ids: torch.Tensor, attention_mask: torch.Tensor, start: torch.Tensor
    ) -> torch.Tensor:
        """Logits of what follows the last token, (batch, 1, vocabulary)."""
        layers = [_Layer(getattr(self, keys), getattr(self, values), start) for keys, values in self.names]
        outputs = self.model(
            input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            past_key_values=Cache(layers=layers),
            use_cache=True,
            logits_to_keep=1,
        )
        logits: torch.Tensor = outputs.logits
        return logits


def _heads(model: PreTrainedModel) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """(heads, width) of the keys, and of the values, of each layer: as they are for one token."""
    cache = DynamicCache(config=model.config.get_text_config(decoder=True))
    with torch.no_grad():
        model(torch.zeros(1, 1, dtype=torch.int64), past_key_values=cache, use_cache=True)
    kinds = sorted({type(layer).__name__ for layer in cache.layers if getattr(layer, "keys", None) is None})
    if kinds:
        raise ImportModelError(
            f"Generator: got {type(model).__name__}, whose state is not keys and values of attention alone "
            f"({', '.join(kinds)}); expected a model whose layers all attend. Import one step of it with from_torch"
        )
    return [(_shape(layer.keys), _shape(layer.values)) for layer in cache.layers]


def _shape(kept: torch.Tensor) -> tuple[int, int]:
    return kept.shape[1], kept.shape[3]


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
