"""What the benchmarks run: BERT-base with a masked-LM head on 8 sentences of 128 tokens, random weights."""

from __future__ import annotations

import torch
import transformers

BATCH, LENGTH = 8, 128


class MaskedLanguageModel(torch.nn.Module):
    """BertForMaskedLM as a function from token ids to logits."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.bert = transformers.BertForMaskedLM(transformers.BertConfig(num_hidden_layers=layers)).eval()

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        """Token ids (batch, length) int64 -> logits (batch, length, 30522)."""
        return self.bert(input_ids, return_dict=False)[0]


def bert(layers: int) -> tuple[MaskedLanguageModel, torch.Tensor]:
    """A BERT-base with this many layers, and one batch of token ids (8, 128)."""
    model = MaskedLanguageModel(layers).eval()
    return model, torch.randint(0, 30522, (BATCH, LENGTH), generator=torch.Generator().manual_seed(0))
