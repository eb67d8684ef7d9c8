"""What `benchmarks.convergence` trains: small models, on this project's own documentation and on drawn letters."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
import transformers

from autocast.training.losses import CrossEntropy
from autocast.training.optimizers import SGD, AdamW, Optimizer
from autocast.training.schedules import Cosine
from benchmarks.workload import Output

DOCS = Path(__file__).resolve().parent.parent / "docs"

#: (input, labels), the arguments of one step.
Batch = tuple[torch.Tensor, torch.Tensor]

#: Tokens of a sequence, samples of a batch, pixels along a side of an image.
LENGTH, BATCH, IMAGE = 32, 16, 24

#: The part of the tokens that BERT is to guess, as in its paper.
_MASKED = 0.15

#: Gradients are clipped to this norm. Without it single steps of GPT-2 have gradients a hundred times as large as those
#: around them, and two float32 runs that differ in rounding alone end apart.
CLIP_NORM = 1.0
_IGNORED = CrossEntropy().ignore_index


@dataclass(frozen=True)
class Workload:
    """A model, its data and its optimizer, for both sides.

    Attributes
    ----------
    build : function
        Makes the torch module; its weights come from torch's global generator.
    draw : function
        A batch, from a generator and whether it is for training (or held out).
    optimizer, torch_optimizer
        The same one: ours, and torch's for a list of parameters.
    peak : float
        The highest learning rate: reached after a tenth of the steps, then a cosine down to 0.
    """

    build: Callable[[], torch.nn.Module]
    draw: Callable[[torch.Generator, bool], Batch]
    optimizer: Optimizer
    torch_optimizer: Callable[[Any], torch.optim.Optimizer]
    peak: float

    def module(self, seed: int) -> torch.nn.Module:
        """The module in training mode, with the weights of a seed."""
        torch.manual_seed(seed)
        return Output(self.build()).train()

    def batch(self, seed: int, step: int, *, train: bool = True) -> Batch:
        """The batch of a step: the same for both sides and all precisions."""
        return self.draw(torch.Generator().manual_seed((seed << 20) + step), train)

    def schedule(self, steps: int) -> Cosine:
        """The learning rates of a run of so many steps."""
        return Cosine(self.peak, warmup=steps // 10, steps=steps)


@cache
def _text() -> tuple[torch.Tensor, int]:
    """The documentation of this project: characters as indices, and how many different ones there are."""
    text = "\n".join(path.read_text(encoding="utf-8") for path in sorted(DOCS.glob("*.md")))
    text = "".join(character for character in text if character.isascii())
    alphabet = sorted(set(text))
    index = {character: number for number, character in enumerate(alphabet)}
    return torch.tensor([index[character] for character in text]), len(alphabet)


def _windows(generator: torch.Generator, train: bool) -> torch.Tensor:
    """(batch, length + 1) characters; the last tenth of the text is held out."""
    text, _ = _text()
    border = len(text) * 9 // 10
    low, high = (0, border - LENGTH - 1) if train else (border, len(text) - LENGTH - 1)
    starts = torch.randint(low, high, (BATCH, 1), generator=generator)
    return text[starts + torch.arange(LENGTH + 1)]


def _next_characters(generator: torch.Generator, train: bool) -> Batch:
    windows = _windows(generator, train)
    return windows[:, :-1].contiguous(), windows[:, 1:].contiguous()


def _masked_characters(generator: torch.Generator, train: bool) -> Batch:
    labels = _windows(generator, train)[:, :-1].contiguous()
    masked = torch.rand(labels.shape, generator=generator) < _MASKED
    mask = _text()[1]  # one index more than there are characters
    return labels.masked_fill(masked, mask), labels.masked_fill(~masked, _IGNORED)


@cache
def _letters(train: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Drawn capital letters, (count, 1, 24, 24): shifted, turned, of several sizes, in noise; and which they are."""
    from PIL import Image, ImageDraw, ImageFont

    generator = torch.Generator().manual_seed(int(train))
    count = 4096 if train else 512
    labels = torch.randint(0, 26, (count,), generator=generator)
    jitter = torch.rand((count, 4), generator=generator)
    images = torch.empty(count, 1, IMAGE, IMAGE)
    fonts = [ImageFont.load_default(size) for size in range(12, 19)]
    for number, (label, (size, x, y, angle)) in enumerate(zip(labels.tolist(), jitter.tolist(), strict=True)):
        image = Image.new("L", (IMAGE, IMAGE))
        place = (IMAGE / 2 + 6 * x - 3, IMAGE / 2 + 6 * y - 3)
        ImageDraw.Draw(image).text(place, chr(65 + label), 255, fonts[int(size * len(fonts))], anchor="mm")
        image = image.rotate(40 * angle - 20, Image.Resampling.BILINEAR)
        images[number, 0] = torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8).view(IMAGE, IMAGE) / 255
    images += 0.3 * torch.randn(images.shape, generator=generator)
    return images, labels


def _some_letters(generator: torch.Generator, train: bool) -> Batch:
    images, labels = _letters(train)
    chosen = torch.randint(0, len(labels), (2 * BATCH,), generator=generator)
    return images[chosen], labels[chosen]


def _gpt2() -> torch.nn.Module:
    config = transformers.GPT2Config(
        vocab_size=_text()[1], n_embd=64, n_layer=2, n_head=2, n_positions=LENGTH, bos_token_id=0, eos_token_id=0
    )
    config.resid_pdrop = config.embd_pdrop = config.attn_pdrop = 0.0
    config.use_cache = False
    return transformers.GPT2LMHeadModel(config)


def _bert() -> torch.nn.Module:
    config = transformers.BertConfig(
        vocab_size=_text()[1] + 1,
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=256,
        max_position_embeddings=LENGTH,
    )
    return transformers.BertForMaskedLM(config)


def _resnet() -> torch.nn.Module:
    config = transformers.ResNetConfig(
        num_channels=1, embedding_size=16, hidden_sizes=[16, 32], depths=[1, 1], layer_type="basic", num_labels=26
    )
    return transformers.ResNetForImageClassification(config)


_ADAMW = (AdamW(weight_decay=0.01), partial(torch.optim.AdamW, weight_decay=0.01))
_SGD = (SGD(momentum=0.9), partial(torch.optim.SGD, lr=0.0, momentum=0.9))

#: By name. BERT has dropout, whose masks are not torch's, so its curves agree in the mean only.
WORKLOADS = {
    "GPT-2, characters": Workload(_gpt2, _next_characters, *_ADAMW, peak=3e-3),
    "BERT, masked characters, dropout": Workload(_bert, _masked_characters, *_ADAMW, peak=2e-3),
    "ResNet, letters, batch statistics": Workload(_resnet, _some_letters, *_SGD, peak=0.05),
}
