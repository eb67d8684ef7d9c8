"""Layers of keys and values, as transformers' models see them."""

from __future__ import annotations

from typing import Any

import torch
from transformers.cache_utils import CacheLayerMixin


class Attention(CacheLayerMixin):
    is_compileable, is_sliding = True, False

    def __init__(
        self, buffers: tuple[torch.Tensor, ...], start: torch.Tensor | int, read_as: torch.dtype, whole: bool
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


class Indexed(Attention):
    """A layer that chooses the tokens which it reads by keys of their own, (batch, length, width): sparse attention."""

    def __init__(
        self,
        buffers: tuple[torch.Tensor, ...],
        start: torch.Tensor | int,
        read_as: torch.dtype,
        whole: bool,
        index: torch.Tensor,
    ) -> None:
        super().__init__(buffers, start, read_as, whole)
        self.index = index

    def update_indexer(self, indexer_key_states: torch.Tensor) -> torch.Tensor:
        places = torch.arange(indexer_key_states.shape[1]) + self.start
        return self.index.index_copy_(1, places, indexer_key_states)
