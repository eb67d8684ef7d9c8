"""What the demonstrations run: a BERT, and tokens for it."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from autocast.policy import Policy
from autocast.testing.data import randint
from autocast.testing.models import build_transformer


@dataclass(frozen=True)
class Options:
    """What to run: the shape of the BERT, the shape of its input, the policy of its casts, and how often it is run."""

    layers: int = 1
    batch: int = 8
    sequence: int = 128
    policy: Policy = field(default_factory=Policy)
    hidden: int = 768
    heads: int = 12
    vocabulary: int = 30522
    rounds: int = 10
    threads: int = 0

    @property
    def dtype(self) -> str:
        """The AMP dtype."""
        return self.policy.dtype


def build_bert(options: Options) -> torch.nn.Module:
    """A `BertForMaskedLM` with seeded random weights, in evaluation mode."""
    import transformers

    transformers.logging.set_verbosity_error()
    config = transformers.BertConfig(
        num_hidden_layers=options.layers,
        hidden_size=options.hidden,
        num_attention_heads=options.heads,
        intermediate_size=4 * options.hidden,
        vocab_size=options.vocabulary,
        max_position_embeddings=max(512, options.sequence),
        architectures=["BertForMaskedLM"],
    )
    return build_transformer(config)


def draw_ids(options: Options, seed: int = 0) -> torch.Tensor:
    """Random tokens, (batch, sequence)."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return randint((options.batch, options.sequence), high=options.vocabulary)[0]
