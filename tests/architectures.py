"""The eight architectures that every part is tested on: small, odd-sized, with seeded random weights."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import nn

from autocast import Model, from_torch

DYNAMIC_BATCH = {"batch": ("*", 0, 1, 8)}


class Architecture(NamedTuple):
    """A model in eval mode, example inputs (batch 2), and how to make its batch dynamic."""

    module: nn.Module
    args: tuple[torch.Tensor, ...]
    kwargs: dict[str, torch.Tensor]
    dynamic: dict[str, Any]

    def inputs(self, batch: int, seed: int = 1) -> tuple[tuple[torch.Tensor, ...], dict[str, torch.Tensor]]:
        """Fresh (args, kwargs) of another batch size."""
        generator = torch.Generator().manual_seed(seed)

        def fresh(example: torch.Tensor) -> torch.Tensor:
            axis = 1 if self.dynamic["batch"][1] == 1 else 0
            shape = [batch if i == axis else size for i, size in enumerate(example.shape)]
            if example.dtype is torch.int64:
                return torch.randint(0, int(example.max()) + 1, shape, generator=generator)
            return torch.randn(shape, generator=generator).to(example.dtype)

        return tuple(map(fresh, self.args)), {name: fresh(value) for name, value in self.kwargs.items()}

    def reference(self, *args: torch.Tensor, **kwargs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """What torch computes, flattened to a tuple of tensors."""
        with torch.no_grad():
            return flatten(self.module(*args, **kwargs))


def flatten(outputs: Any) -> tuple[torch.Tensor, ...]:
    """The tensors among nested outputs, in order."""
    if isinstance(outputs, torch.Tensor):
        return (outputs,)
    if hasattr(outputs, "to_tuple"):
        outputs = outputs.to_tuple()
    return tuple(tensor for item in outputs if item is not None for tensor in flatten(item))


def bert() -> Architecture:
    """BertForMaskedLM: sdpa attention, tied decoder."""
    from transformers import BertConfig, BertForMaskedLM

    config = BertConfig(
        vocab_size=101,
        hidden_size=48,
        num_hidden_layers=1,
        num_attention_heads=3,
        intermediate_size=80,
        max_position_embeddings=32,
    )
    return Architecture(BertForMaskedLM(config), (_ids(2, 13),), {}, DYNAMIC_BATCH)


def gpt2() -> Architecture:
    """GPT2LMHeadModel: causal sdpa attention, Conv1D projections, tied head."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=101, n_embd=48, n_layer=1, n_head=3, n_positions=32, bos_token_id=0, eos_token_id=0, use_cache=False
    )
    return Architecture(GPT2LMHeadModel(config), (_ids(2, 11),), {}, DYNAMIC_BATCH)


def llama() -> Architecture:
    """LlamaForCausalLM: rotary embedding, grouped heads, RMSNorm, SiLU gate."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=101,
        hidden_size=48,
        intermediate_size=72,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=32,
        use_cache=False,
    )
    return Architecture(LlamaForCausalLM(config), (_ids(2, 9),), {}, DYNAMIC_BATCH)


def t5() -> Architecture:
    """T5ForConditionalGeneration: encoder and decoder, relative positions, cross attention."""
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(
        vocab_size=101,
        d_model=40,
        d_kv=8,
        d_ff=56,
        num_layers=1,
        num_heads=5,
        use_cache=False,
        decoder_start_token_id=0,
    )
    kwargs = {"input_ids": _ids(2, 9), "decoder_input_ids": _ids(2, 5)}
    return Architecture(T5ForConditionalGeneration(config), (), kwargs, DYNAMIC_BATCH)


def vit() -> Architecture:
    """ViTForImageClassification: patches by a strided convolution, a class token."""
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(
        image_size=24,
        patch_size=8,
        hidden_size=48,
        num_hidden_layers=1,
        num_attention_heads=3,
        intermediate_size=80,
        num_labels=7,
    )
    return Architecture(ViTForImageClassification(config), (torch.randn(2, 3, 24, 24),), {}, DYNAMIC_BATCH)


def resnet() -> Architecture:
    """ResNetForImageClassification: convolutions, BatchNorm with statistics of its own, pooling."""
    from transformers import ResNetConfig, ResNetForImageClassification

    config = ResNetConfig(embedding_size=12, hidden_sizes=[24, 40], depths=[1, 2], layer_type="basic", num_labels=7)
    module = ResNetForImageClassification(config)
    for part in module.modules():
        if isinstance(part, nn.BatchNorm2d):
            part.running_mean.uniform_(-0.5, 0.5)
            part.running_var.uniform_(0.5, 1.5)
    return Architecture(module, (torch.randn(2, 3, 33, 29),), {}, DYNAMIC_BATCH)


def lstm() -> Architecture:
    """nn.LSTM: two layers, both directions; outputs the sequence and the last states."""
    module = nn.LSTM(input_size=11, hidden_size=13, num_layers=2, bidirectional=True, batch_first=True)
    return Architecture(module, (torch.randn(2, 7, 11),), {}, DYNAMIC_BATCH)


class UNet(nn.Module):
    """A U-Net with one level: GroupNorm, a strided convolution down, ConvTranspose2d up, a skip connection."""

    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Sequential(nn.Conv2d(3, 12, 3, padding=1), nn.GroupNorm(3, 12), nn.SiLU())
        self.down = nn.Sequential(nn.Conv2d(12, 20, 3, stride=2, padding=1), nn.GroupNorm(5, 20), nn.SiLU())
        self.up = nn.ConvTranspose2d(20, 12, 2, stride=2)
        self.leave = nn.Sequential(nn.Conv2d(24, 12, 3, padding=1), nn.GroupNorm(3, 12), nn.SiLU(), nn.Conv2d(12, 2, 1))

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        """(batch, 3, height, width) to (batch, 2, height, width); height and width even."""
        skip = self.enter(image)
        return self.leave(torch.cat([self.up(self.down(skip)), skip], dim=1))


def unet() -> Architecture:
    """A small U-Net."""
    return Architecture(UNet(), (torch.randn(2, 3, 18, 14),), {}, DYNAMIC_BATCH)


def _ids(*shape: int) -> torch.Tensor:
    return torch.randint(0, 101, shape)


def _seeded(build: Callable[[], Architecture]) -> Callable[[], Architecture]:
    def seeded() -> Architecture:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            architecture = build()
        architecture.module.eval().requires_grad_(False)
        return architecture

    seeded.__name__, seeded.__doc__ = build.__name__, build.__doc__
    return seeded


#: Name -> builder; each call builds anew.
ARCHITECTURES: dict[str, Callable[[], Architecture]] = {
    build.__name__: _seeded(build) for build in (bert, gpt2, llama, t5, vit, resnet, lstm, unet)
}


@cache
def imported(name: str, is_dynamic: bool = False) -> Model:
    """An architecture, imported once for all tests: that takes seconds, and nothing changes a model in place."""
    built = ARCHITECTURES[name]()
    dynamic = built.dynamic if is_dynamic else None
    return from_torch(built.module, built.args, example_kwargs=built.kwargs, dynamic=dynamic)


def trainable(name: str) -> Model:
    """An architecture as it is imported where its parameters require gradients."""
    model, parameters = imported(name), dict(ARCHITECTURES[name]().module.named_parameters(remove_duplicate=False))
    return model.replace(frozen=model.frozen - parameters.keys())
