"""What stands in the place of parts of a model while transformers' loop generates with it."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput

from autocast.generation.caches import CACHE, Filled


def called_as(forward: Callable[..., Any], read: Callable[..., Any]) -> Callable[..., Any]:
    """`read`, which says that it takes what `forward` of a model takes: transformers' loop asks."""

    def called(*args: Any, **kwargs: Any) -> Any:
        return read(*args, **kwargs)

    signature = inspect.signature(forward)
    called.__signature__ = signature.replace(parameters=list(signature.parameters.values())[1:])  # type: ignore[attr-defined]
    return called


def divided(divide: Callable[..., Any], model: PreTrainedModel, seek_outputs: Any, **options: Any) -> Any:
    """What `divide` makes of results without the keys and values, which are the generator's."""
    if not isinstance(seek_outputs, torch.Tensor):
        seek_outputs = type(seek_outputs)(**{name: part for name, part in seek_outputs.items() if name != CACHE})
    return divide(model, seek_outputs, **options)


def has_its_own(*_: Any, **__: Any) -> None:
    """In the place of what makes a cache, or asks of one that is given more than `Filled` is."""


class Source(nn.Module):
    """In the place of an encoder: leaves what is to be encoded to the program for the first tokens, which begin.

    What is no input of that program, such as what a model embeds by itself, torch encodes.
    """

    def __init__(self, encoder: nn.Module, name: str, filled: Filled) -> None:
        super().__init__()
        self.encoder, self.name, self.filled = encoder, name, filled

    def forward(self, **kwargs: Any) -> Any:  # transformers looks for this name
        """Features as they are; tokens as int64 (batch, length, 1)."""
        self.filled.count = 0
        read = kwargs.get(self.name)
        self.filled.encoded = read is None
        if read is None:
            return self.encoder(**kwargs)
        return BaseModelOutput(last_hidden_state=read[..., None] if self.name == "input_ids" else read)
