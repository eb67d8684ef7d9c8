"""The models that are measured, from their configurations, with random weights: `MODELS` by name."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import transformers

Inputs = tuple[torch.Tensor, ...]


class Output(torch.nn.Module):
    """A Hugging Face model as a function from tensors to its first output."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        """Token ids (batch, length) or images (batch, channels, height, width) -> logits."""
        return self.model(*inputs, return_dict=False)[0]


def _made(build: Callable[[], torch.nn.Module], example: Callable[[], torch.Tensor]) -> tuple[torch.nn.Module, Inputs]:
    torch.manual_seed(0)
    return Output(build()).eval(), (example(),)


def _tokens(vocabulary: int, *shape: int) -> torch.Tensor:
    return torch.randint(0, vocabulary, shape)


def bert(layers: int, batch: int = 8, length: int = 128) -> tuple[torch.nn.Module, Inputs]:
    """BERT-base with a masked-LM head and this many layers."""
    config = transformers.BertConfig(num_hidden_layers=layers)
    return _made(lambda: transformers.BertForMaskedLM(config), partial(_tokens, 30522, batch, length))


def gpt2(batch: int, length: int) -> tuple[torch.nn.Module, Inputs]:
    """GPT-2 small with its LM head."""
    config: Any = transformers.GPT2Config(use_cache=False)
    return _made(lambda: transformers.GPT2LMHeadModel(config), partial(_tokens, 50257, batch, length))


def vit(batch: int) -> tuple[torch.nn.Module, Inputs]:
    """ViT-B/16 on images of 224 x 224."""
    config = transformers.ViTConfig()
    return _made(lambda: transformers.ViTForImageClassification(config), partial(torch.randn, batch, 3, 224, 224))


def resnet50(batch: int) -> tuple[torch.nn.Module, Inputs]:
    """ResNet-50 on images of 224 x 224."""
    config = transformers.ResNetConfig()
    return _made(lambda: transformers.ResNetForImageClassification(config), partial(torch.randn, batch, 3, 224, 224))


def in_training_mode(make: Callable[[], tuple[torch.nn.Module, Inputs]]) -> tuple[torch.nn.Module, Inputs]:
    """The module of `make` as it is trained: with the statistics of each batch."""
    module, inputs = make()
    return module.train(), inputs


#: Inference workloads by name.
MODELS: dict[str, Callable[[], tuple[torch.nn.Module, Inputs]]] = {
    "BERT-base 1 layer, 8 x 128": partial(bert, 1),
    "BERT-base, 8 x 128": partial(bert, 12),
    "BERT-base, 1 x 1": partial(bert, 12, 1, 1),
    "BERT-base, 1 x 16": partial(bert, 12, 1, 16),
    "GPT-2 small, 1 x 512": partial(gpt2, 1, 512),
    "ViT-B/16, 4 images": partial(vit, 4),
    "ResNet-50, 4 images": partial(resnet50, 4),
}

#: Training workloads by name: transformers without dropout, ResNet-50 with the statistics of each batch.
TRAINED: dict[str, Callable[[], tuple[torch.nn.Module, Inputs]]] = {
    "BERT-base 1 layer, 8 x 128": partial(bert, 1),
    "BERT-base, 8 x 128": partial(bert, 12),
    "GPT-2 small, 4 x 256": partial(gpt2, 4, 256),
    "ResNet-50, 4 images": partial(in_training_mode, partial(resnet50, 4)),
}
