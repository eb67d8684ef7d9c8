"""Layers that keep states of convolutions and recurrences, as transformers' models see them."""

from __future__ import annotations

import torch
from transformers.cache_utils import DummyLayer, LinearAttentionLayer

from autocast.generation.attention import Attention

__all__ = ["Both", "DummyLayer", "Linear"]


class Linear(LinearAttentionLayer):
    """States by their place in the layer, of which there always are earlier ones: zeros before the first token."""

    def __init__(self, conv: dict[int, torch.Tensor], recurrent: dict[int, torch.Tensor]) -> None:
        LinearAttentionLayer.__init__(self, number_of_states=1 + max((*conv, *recurrent)))
        for place, state in conv.items():
            self.conv_states[place], self.conv_kernel_size[place] = state, state.shape[-1]
            self.is_conv_states_initialized[place] = True
        for place, state in recurrent.items():
            self.recurrent_states[place], self.is_recurrent_states_initialized[place] = state, True
        self.has_previous_state = dict.fromkeys(range(self.number_of_states), True)


class Both(Attention, Linear):
    """A layer of attention that keeps such states, too."""

    def __init__(self, attention: Attention, conv: dict[int, torch.Tensor], recurrent: dict[int, torch.Tensor]) -> None:
        Attention.__init__(self, attention.buffers, attention.start, attention.read_as, attention.whole)
        Linear.__init__(self, conv, recurrent)
