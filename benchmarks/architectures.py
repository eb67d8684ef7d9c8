"""Inference of architectures that nobody tuned kernels for, in mixed precision, beside torch.autocast and compile.

python -m benchmarks.architectures [--only Swin] [--threads 1]
python -m benchmarks.architectures table        # measures nothing, and prints the table of docs/models_in.md
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import torch
import transformers

from benchmarks.candidates import Make, ours, peers
from benchmarks.harness import Case, run
from benchmarks.models import work
from benchmarks.timing import load
from benchmarks.workload import MODELS, Output, lstm, unet

#: The part of the best peer's time that no model may exceed.
TARGET = 0.85

NAME = "architectures"


class Example(NamedTuple):
    """What a model of transformers reads: tokens (batch, length) below a vocabulary, or numbers of a shape."""

    shape: tuple[int, ...]
    vocabulary: int = 0

    def tensor(self) -> torch.Tensor:
        """One of them, random."""
        return torch.randint(0, self.vocabulary, self.shape) if self.vocabulary else torch.randn(self.shape)


def made(
    kind: str, example: Example, *, inputs: int = 1, **config: Any
) -> tuple[torch.nn.Module, tuple[torch.Tensor, ...]]:
    """A model of transformers from its configuration, `kind` being its class, and what it reads.

    With two inputs the decoder reads tokens as the encoder does.
    """
    torch.manual_seed(0)
    cls = getattr(transformers, kind)
    module = cls(cls.config_class(**config)).eval()
    names = (module.main_input_name, "decoder_input_ids")[:inputs]
    return Output(module, names).eval(), tuple(example.tensor() for _ in names)


class Encoder(torch.nn.Module):
    """The encoder of a model that has a decoder, too."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.encoder = model.get_encoder()

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Its last states, (batch, length, width)."""
        return self.encoder(inputs, return_dict=False)[0]


def encoder(kind: str, example: Example, **config: Any) -> tuple[torch.nn.Module, tuple[torch.Tensor, ...]]:
    """The encoder alone."""
    torch.manual_seed(0)
    cls = getattr(transformers, kind)
    return Encoder(cls(cls.config_class(**config))).eval(), (example.tensor(),)


class Gru(torch.nn.GRU):
    """`torch.nn.GRU`, of whose outputs only the sequence is taken."""

    def forward(self, sequence: torch.Tensor) -> torch.Tensor:
        """(batch, length, input width) -> (batch, length, width)."""
        return super().forward(sequence)[0]


def gru(batch: int, length: int) -> tuple[torch.nn.Module, tuple[torch.Tensor, ...]]:
    """Two layers of width 256."""
    torch.manual_seed(0)
    return Gru(128, 256, 2, batch_first=True).eval(), (torch.randn(batch, length, 128),)


def _text(batch: int, length: int, vocabulary: int) -> Example:
    return Example((batch, length), vocabulary)


def _images(count: int, size: int = 224) -> Example:
    return Example((count, 3, size, size))


_QWEN2: dict[str, Any] = {
    "vocab_size": 151936,
    "hidden_size": 896,
    "intermediate_size": 4864,
    "num_hidden_layers": 12,
    "num_attention_heads": 14,
    "num_key_value_heads": 2,
    "tie_word_embeddings": True,
    "use_cache": False,
}
_LLAMA: dict[str, Any] = {
    "vocab_size": 32000,
    "hidden_size": 2048,
    "intermediate_size": 5632,
    "num_hidden_layers": 4,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "use_cache": False,
}
_MIXTRAL: dict[str, Any] = {
    "vocab_size": 32000,
    "hidden_size": 512,
    "intermediate_size": 1792,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "num_local_experts": 8,
    "use_cache": False,
}
_MINILM: dict[str, Any] = {
    "hidden_size": 384,
    "num_hidden_layers": 6,
    "num_attention_heads": 12,
    "intermediate_size": 1536,
}

#: Of each architecture a model of usual size, by name.
ARCHITECTURES: dict[str, Callable[[], tuple[torch.nn.Module, tuple[torch.Tensor, ...]]]] = {
    **{name: MODELS[name] for name in ("BERT-base, 8 x 128", "GPT-2 small, 1 x 512", "ViT-B/16, 4 images")},
    "ResNet-50, 4 images": MODELS["ResNet-50, 4 images"],
    "DistilBERT, 8 x 128": partial(made, "DistilBertForSequenceClassification", _text(8, 128, 30522)),
    "MiniLM-L6, 16 x 64": partial(made, "BertModel", _text(16, 64, 30522), **_MINILM),
    "ELECTRA-small, 8 x 128": partial(made, "ElectraForPreTraining", _text(8, 128, 30522)),
    "ALBERT-base, 4 x 128": partial(
        made,
        "AlbertModel",
        _text(4, 128, 30000),
        hidden_size=768,
        num_attention_heads=12,
        intermediate_size=3072,
    ),
    "OPT-125M, 1 x 256": partial(made, "OPTForCausalLM", _text(1, 256, 50272), use_cache=False),
    "Qwen2, 12 layers of 0.5B, 1 x 128": partial(made, "Qwen2ForCausalLM", _text(1, 128, 151936), **_QWEN2),
    "Llama, 4 layers of 1.1B, 1 x 128": partial(made, "LlamaForCausalLM", _text(1, 128, 32000), **_LLAMA),
    "Mixtral, 4 layers, 8 experts, 1 x 128": partial(made, "MixtralForCausalLM", _text(1, 128, 32000), **_MIXTRAL),
    "T5-small's encoder, 8 x 128": partial(encoder, "T5Model", _text(8, 128, 32128)),
    "BART-base, 2 x 128": partial(
        made,
        "BartModel",
        _text(2, 128, 50265),
        inputs=2,
        d_model=768,
        encoder_layers=6,
        decoder_layers=6,
        encoder_attention_heads=12,
        decoder_attention_heads=12,
        encoder_ffn_dim=3072,
        decoder_ffn_dim=3072,
        use_cache=False,
    ),
    "Whisper-tiny's encoder, 30 s": partial(
        encoder,
        "WhisperModel",
        Example((1, 80, 3000)),
        d_model=384,
        encoder_layers=4,
        decoder_layers=4,
        encoder_attention_heads=6,
        decoder_attention_heads=6,
        encoder_ffn_dim=1536,
        decoder_ffn_dim=1536,
    ),
    "Swin-T, 4 images": partial(made, "SwinForImageClassification", _images(4)),
    "ConvNeXt-T, 4 images": partial(made, "ConvNextForImageClassification", _images(4)),
    "MobileNet-v2, 4 images": partial(made, "MobileNetV2ForImageClassification", _images(4)),
    "SegFormer-B0, 2 images": partial(made, "SegformerForSemanticSegmentation", _images(2)),
    "CLIP's ViT-B/32, 8 images": partial(made, "CLIPVisionModel", _images(8)),
    "U-Net, 1 image": partial(unet, 1, 128),
    "GRU 2 layers, 32 x 64": partial(gru, 32, 64),
    "LSTM 2 layers, 4 x 16": partial(lstm, 4, 16, 2),
}


def cases(quick: bool) -> Iterator[Case]:
    """Every architecture in mixed precision; with `quick`, MiniLM alone."""
    for name, make in ARCHITECTURES.items():
        if quick and "MiniLM" not in name:
            continue
        flops, weights, output = work(make)
        yield Case(
            name,
            partial(ours, make, low=True),
            _peers(make, "image" in name),
            target=TARGET,
            dtype="bfloat16",
            flops=flops,
            bytes=weights / 2 + output,
        )


def _peers(make: Make, images: bool) -> dict[str, Any]:
    return peers(make, low=True, images=images)


def table() -> str:
    """What was measured, as Markdown: medians, ms, and their ratios, the best first."""
    rows = sorted(load(NAME)["cases"].items(), key=lambda row: row[1]["ratio"])
    lines = ["| | ours, ms | best peer, ms | which | ratio | of the roofline |", "|---|---|---|---|---|---|"]
    for name, row in rows:
        median, peer = row["median"], row["best peer"]
        cells = f"{median['ours']:.1f} | {median[peer]:.1f} | {peer.removeprefix('torch: ')}"
        lines.append(f"| {name} | {cells} | {row['ratio']:.2f} | {row['share of roofline']:.0%} |")
    mean = torch.tensor([row["ratio"] for _, row in rows]).log().mean().exp()
    return "\n".join([*lines, f"| geometric mean of {len(rows)} | | | | {mean:.2f} | |"])


if __name__ == "__main__":
    if sys.argv[1:] != ["table"]:
        run(NAME, __doc__, cases)
    print(table())
