"""The models that are measured, from their configurations, with random weights: tables of them by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import transformers

Inputs = tuple[torch.Tensor, ...]


class Output(torch.nn.Module):
    """A Hugging Face model as a function from tensors to its first output; `names` are those of its inputs."""

    def __init__(self, model: torch.nn.Module, names: Sequence[str] = ()) -> None:
        super().__init__()
        self.model = model
        self.names = names or (model.main_input_name,)

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        """Token ids (batch, length) or images (batch, channels, height, width) -> logits."""
        return self.model(**dict(zip(self.names, inputs, strict=True)), return_dict=False)[0]


def _made(build: Callable[[], torch.nn.Module], example: Callable[[], torch.Tensor]) -> tuple[torch.nn.Module, Inputs]:
    torch.manual_seed(0)
    return Output(build()).eval(), (example(),)


def _tokens(vocabulary: int, *shape: int) -> torch.Tensor:
    return torch.randint(0, vocabulary, shape)


def _image() -> torch.Tensor:
    return torch.randn(1, 3, 224, 224)


def bert(layers: int, batch: int = 8, length: int = 128) -> tuple[torch.nn.Module, Inputs]:
    """BERT-base with a masked-LM head and this many layers."""
    config = transformers.BertConfig(num_hidden_layers=layers)
    return _made(lambda: transformers.BertForMaskedLM(config), partial(_tokens, 30522, batch, length))


def gpt2(batch: int, length: int, layers: int = 12) -> tuple[torch.nn.Module, Inputs]:
    """GPT-2 small with its LM head and this many layers."""
    config: Any = transformers.GPT2Config(use_cache=False, n_layer=layers)
    return _made(lambda: transformers.GPT2LMHeadModel(config), partial(_tokens, 50257, batch, length))


def vit(batch: int, layers: int = 12) -> tuple[torch.nn.Module, Inputs]:
    """ViT-B/16 on images of 224 x 224, with this many layers."""
    config = transformers.ViTConfig(num_hidden_layers=layers)
    return _made(lambda: transformers.ViTForImageClassification(config), partial(torch.randn, batch, 3, 224, 224))


def resnet50(batch: int) -> tuple[torch.nn.Module, Inputs]:
    """ResNet-50 on images of 224 x 224."""
    config = transformers.ResNetConfig()
    return _made(lambda: transformers.ResNetForImageClassification(config), partial(torch.randn, batch, 3, 224, 224))


def resnet18(batch: int) -> tuple[torch.nn.Module, Inputs]:
    """ResNet-18 on images of 224 x 224."""
    config = transformers.ResNetConfig(
        hidden_sizes=[64, 128, 256, 512], depths=[2, 2, 2, 2], layer_type="basic", downsample_in_first_stage=False
    )
    return _made(lambda: transformers.ResNetForImageClassification(config), partial(torch.randn, batch, 3, 224, 224))


def swin() -> tuple[torch.nn.Module, Inputs]:
    """Swin-T on an image of 224 x 224."""
    return _made(lambda: transformers.SwinForImageClassification(transformers.SwinConfig()), _image)


def segformer() -> tuple[torch.nn.Module, Inputs]:
    """SegFormer-B0 on an image of 224 x 224."""
    return _made(lambda: transformers.SegformerForSemanticSegmentation(transformers.SegformerConfig()), _image)


def llama(batch: int, length: int, layers: int) -> tuple[torch.nn.Module, Inputs]:
    """A Llama of width 768 with grouped heads, its LM head and this many layers."""
    config: Any = transformers.LlamaConfig(
        vocab_size=32000,
        hidden_size=768,
        intermediate_size=2048,
        num_hidden_layers=layers,
        num_attention_heads=12,
        num_key_value_heads=4,
        use_cache=False,
    )
    return _made(lambda: transformers.LlamaForCausalLM(config), partial(_tokens, 32000, batch, length))


def t5(batch: int, length: int, layers: int) -> tuple[torch.nn.Module, Inputs]:
    """T5-small with this many layers in its encoder and in its decoder, which read texts of the same length."""
    config: Any = transformers.T5Config(num_layers=layers, use_cache=False, decoder_start_token_id=0)
    torch.manual_seed(0)
    module = Output(transformers.T5ForConditionalGeneration(config), ("input_ids", "decoder_input_ids")).eval()
    return module, (_tokens(32128, batch, length), _tokens(32128, batch, length))


class Lstm(torch.nn.LSTM):
    """`torch.nn.LSTM`, of whose outputs only the sequence is taken."""

    def forward(self, sequence: torch.Tensor) -> torch.Tensor:
        """(batch, length, input width) -> (batch, length, width)."""
        return super().forward(sequence)[0]


def lstm(batch: int, length: int, layers: int) -> tuple[torch.nn.Module, Inputs]:
    """An LSTM of width 512 with this many layers."""
    torch.manual_seed(0)
    return Lstm(256, 512, layers, batch_first=True).eval(), (torch.randn(batch, length, 256),)


class UNet(torch.nn.Module):
    """A U-Net of one level: convolutions with GroupNorm, down by a stride, up by a transposed one, a skip."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.enter, self.down = _normalized(3, width), _normalized(width, 2 * width, stride=2)
        self.up = torch.nn.ConvTranspose2d(2 * width, width, 2, stride=2)
        self.leave = torch.nn.Sequential(_normalized(2 * width, width), torch.nn.Conv2d(width, 3, 1))

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        """(batch, 3, height, width) to the same; height and width are even."""
        skip = self.enter(image)
        return self.leave(torch.cat([self.up(self.down(skip)), skip], dim=1))


def _normalized(channels: int, width: int, stride: int = 1) -> torch.nn.Module:
    convolution = torch.nn.Conv2d(channels, width, 3, stride, padding=1)
    return torch.nn.Sequential(convolution, torch.nn.GroupNorm(8, width), torch.nn.SiLU())


def unet(batch: int, size: int) -> tuple[torch.nn.Module, Inputs]:
    """A U-Net of 64 channels on images of `size` x `size`."""
    torch.manual_seed(0)
    return UNet(64).eval(), (torch.randn(batch, 3, size, size),)


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

#: One of each architecture that is tested, in a size that takes milliseconds: inference workloads by name.
ARCHITECTURES: dict[str, Callable[[], tuple[torch.nn.Module, Inputs]]] = {
    "BERT-base 1 layer, 8 x 128": partial(bert, 1),
    "GPT-2 small 1 layer, 1 x 256": partial(gpt2, 1, 256, 1),
    "Llama 2 layers, 1 x 256": partial(llama, 1, 256, 2),
    "T5-small 2 layers, 1 x 128": partial(t5, 1, 128, 2),
    "ViT-B/16 2 layers, 1 image": partial(vit, 1, 2),
    "ResNet-18, 1 image": partial(resnet18, 1),
    "LSTM 2 layers, 4 x 16": partial(lstm, 4, 16, 2),
    "U-Net, 1 image": partial(unet, 1, 128),
}
