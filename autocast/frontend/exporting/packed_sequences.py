"""Packed sequences of torch, and recurrent layers that are given them, as torch operators on the padded batch.

    pack_padded_sequence  ->  padded[mask]: as many rows as values say, in the order of torch's
    nn.LSTM and the like  ->  each direction forward through all steps; beyond its end, a sequence keeps its state
    pad_packed_sequence   ->  where(mask, padded, padding_value)

Who packed what is remembered by the tensors that torch's functions hand from one to the next.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch.fx.experimental.symbolic_shapes import statically_known_true

#: What opens or closes a gate in every dtype: sigmoid gives 1 or 0.
_SHUT = 1e4


@dataclass(frozen=True)
class Batch:
    """Sequences of `lengths` (B,), and which of the steps are theirs: `mask` (T, B)."""

    lengths: torch.Tensor
    mask: torch.Tensor

    def padded(self, rows: torch.Tensor) -> torch.Tensor:
        """Rows of packed sequences at their steps (T, B, channels), with zeros between."""
        empty = rows.new_zeros((*self.mask.shape, *rows.shape[1:]))
        return empty.masked_scatter(self.mask.reshape(*self.mask.shape, *(1 for _ in rows.shape[1:])), rows)

    def turned(self, x: torch.Tensor) -> torch.Tensor:
        """Each sequence of x (T, B, channels) from its end to its beginning."""
        steps = torch.arange(self.mask.shape[0], device=x.device)[:, None]
        places = torch.where(self.mask, self.lengths - 1 - steps, steps)
        return x.gather(0, places[..., None].expand(x.shape))

    def last(self, x: torch.Tensor) -> torch.Tensor:
        """The last step of each sequence of x: (B, channels)."""
        return x.gather(0, (self.lengths - 1)[None, :, None].expand(1, *x.shape[1:]))[0]

    def held(self, gates: torch.Tensor) -> torch.Tensor:
        """Gates of an LSTM, which beyond the end of a sequence let nothing in and keep the cell."""
        shut = torch.tensor([-_SHUT, _SHUT, 0.0, 0.0], dtype=gates.dtype, device=gates.device)
        return torch.where(self.mask[..., None], gates, shut.repeat_interleave(gates.shape[-1] // 4))


class PackedSequences:
    """What was packed while a module is exported."""

    def __init__(self) -> None:
        self._batches: dict[int, tuple[torch.Tensor, Batch]] = {}
        self._padded: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def __bool__(self) -> bool:
        return bool(self._batches)

    def batch(self, sizes: Any) -> Batch | None:
        """The batch that torch's `batch_sizes` are of; None where it is none, or something else."""
        if not isinstance(sizes, torch.Tensor):  # torch 2.11's compiler, in a branch, knows no `id` of what is none
            return None
        return self._batches[id(sizes)][1] if id(sizes) in self._batches else None

    def padded(self, rows: torch.Tensor, batch: Batch) -> torch.Tensor:
        """The padded batch of packed rows, those that packed them or others."""
        return self._padded[id(rows)][1] if id(rows) in self._padded else batch.padded(rows)

    def packed(self, padded: torch.Tensor, batch: Batch) -> torch.Tensor:
        """The rows of a padded batch, packed."""
        rows = padded[batch.mask]
        self._padded[id(rows)] = rows, padded
        return rows

    def pack(self, x: torch.Tensor, lengths: torch.Tensor, batch_first: bool) -> tuple[torch.Tensor, torch.Tensor]:
        """`torch._pack_padded_sequence`."""
        x = x.transpose(0, 1) if batch_first else x
        steps = x.shape[0]
        batch = Batch(lengths, torch.arange(steps, device=x.device)[:, None] < lengths.to(x.device))
        longest = lengths.max().item()
        torch._check(longest >= 1)
        torch._check(longest <= steps)
        sizes = batch.mask.sum(1)[:longest]
        self._batches[id(sizes)] = sizes, batch
        return self.packed(x, batch), sizes

    def pad(
        self, rows: torch.Tensor, sizes: torch.Tensor, batch_first: bool, padding_value: float, length: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """`torch._pad_packed_sequence` of what was packed here."""
        batch = self._batches[id(sizes)][1]
        x = self.padded(rows, batch)
        mask = batch.mask.reshape(*batch.mask.shape, *(1 for _ in x.shape[2:]))
        x = torch.where(mask, x, padding_value)
        if not statically_known_true(length <= x.shape[0]):
            more = length - x.shape[0]
            x = F.pad(x, (*(0 for _ in x.shape[1:] for _ in "lr"), 0, more), value=padding_value)
        x = x[:length]
        return x.transpose(0, 1) if batch_first else x, batch.lengths
