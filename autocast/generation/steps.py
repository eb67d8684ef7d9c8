"""Steps of a language model as modules to export: what is kept is theirs, what a call brings is their input."""

from __future__ import annotations

import inspect
from typing import Any, NamedTuple

import torch
from torch import nn
from transformers import EncoderDecoderModel, PreTrainedModel, SpeechEncoderDecoderModel, VisionEncoderDecoderModel
from transformers.cache_utils import EncoderDecoderCache

from autocast.generation.caches import CACHE, Encoded, Kept, cache_over, shapes_kept

#: Models that are joined of an encoder and a decoder, which gets arguments that begin with `decoder_`.
_JOINED = (EncoderDecoderModel, SpeechEncoderDecoderModel, VisionEncoderDecoderModel)


class Limits(NamedTuple):
    """How many sequences, tokens of each, and tokens of what an encoder reads, there may be."""

    batch: int
    length: int
    source: int


class Step(NamedTuple):
    """A module, inputs to export it with, and which of their dimensions vary."""

    module: nn.Module
    inputs: tuple[torch.Tensor, ...]
    dynamic: dict[str, Any] | None


def steps_of(
    model: PreTrainedModel, limits: Limits, features: tuple[int, ...] | None, dtype: torch.dtype
) -> tuple[Step | None, Step]:
    """The step for several tokens, the first of all, and the one for each later token: with the same buffers.

    A model whose layers keep states reads its first tokens by the step for one, too. `features` is the shape of what
    an encoder reads if that is no tokens; torch reads features of many shapes, (), with the first tokens.
    """
    start = getattr(model.config, "decoder_start_token_id", None) or 0
    most = max(limits.length - 1, 1)  # tokens that are read at once, as one more is to follow
    several, reads = min(2, most), min(2, limits.source)

    def tokens(count: int) -> torch.Tensor:
        return torch.full((limits.batch, count), start, dtype=torch.int64)

    source = tokens(reads) if features is None else torch.zeros(limits.batch, *features, dtype=model.dtype)
    found = shapes_kept(model, start, None if features == () else source[:1])
    kept = Kept(found.of_tokens, limits.batch, limits.length, dtype, model.dtype)
    mask, first = torch.ones(limits.batch, limits.length, dtype=torch.int64), torch.tensor(0)
    if not model.config.is_encoder_decoder:
        module = _Decoder(model, kept).eval()
        places = [_positions(model, tokens(count)) for count in (several, 1)]
        one = Step(module, (tokens(1), places[1], mask, first), None)
        if found.has_states:
            return None, one
        vary = [("input_ids", 1, 1, most), ("position_ids", places[0].ndim - 1, 1, most)]
        return Step(module, (tokens(several), places[0], mask, first), {"tokens": vary} if most > 1 else None), one
    if features == ():
        of_next = tuple(Kept(found.of_source, limits.batch, reads, dtype, model.dtype).buffers())
        lengths = [(3 + number, 2, 1, limits.source) for number in range(len(of_next))]
        later = _Next(model, kept, False, found.encoded[1]).eval()
        return None, Step(later, (tokens(1), mask, first, *of_next), {"source": lengths} if reads > 1 else None)
    length, width = (limits.source if features is None else found.encoded[0]), found.encoded[1]
    of_source = Kept(found.of_source, limits.batch, length, dtype, model.dtype)
    dimensions: dict[str, tuple[int | str, ...]] = {"tokens": (most, "input_ids")}
    of_first: tuple[torch.Tensor, ...] = (source,)
    of_next = tuple(of_source.buffers())
    if features is None:  # with a mask of which there is one
        dimensions["source"] = (limits.source, "source", "source_mask")
        of_first = (source, torch.ones_like(source))
        of_next = (torch.ones(limits.batch, length, dtype=torch.int64), *of_next)
    return (
        Step(_First(model, kept, of_source).eval(), (tokens(several), mask, first, *of_first), _varying(**dimensions)),
        Step(_Next(model, kept, features is None, width).eval(), (tokens(1), mask, first, *of_next), None),
    )


def _positions(model: PreTrainedModel, tokens: torch.Tensor) -> torch.Tensor:
    """The positions of first tokens as transformers' loop tells the model, (batch, length): or several for each token,
    (kinds, batch, length), such as those in time, height and width of pictures."""
    if not hasattr(model, "_prepare_position_ids_for_generation"):  # of earlier versions
        return torch.arange(tokens.shape[1]).repeat(len(tokens), 1)
    places: torch.Tensor = model._prepare_position_ids_for_generation(
        tokens, {"attention_mask": torch.ones_like(tokens)}
    )
    return places.contiguous()


def _varying(**dimensions: tuple[int | str, ...]) -> dict[str, Any] | None:
    """`from_torch`'s `dynamic`: by name the largest size, if it is above 1, and the inputs whose second axis it is."""
    return {
        name: [(one, 1, 1, largest) for one in inputs]
        for name, (largest, *inputs) in dimensions.items()
        if largest != 1
    } or None


class _Decoder(nn.Module):
    """A model that reads tokens alone.

    It is told their positions if its forward names them, as transformers' loop does; else it counts by itself.
    """

    def __init__(self, model: PreTrainedModel, kept: Kept) -> None:
        super().__init__()
        self.model, self.kept = model, kept
        self.names_positions = "position_ids" in inspect.signature(model.forward).parameters

    def forward(
        self, input_ids: torch.Tensor, position_ids: torch.Tensor, attention_mask: torch.Tensor, start: torch.Tensor
    ) -> Any:
        """Logits of what follows the last token, (batch, 1, vocabulary)."""
        self.kept.begin(attention_mask, start)
        attends = any(layer.pair for layer in self.kept.layers)
        return self.model(
            input_ids,
            attention_mask=attention_mask if attends else None,
            use_cache=True,
            logits_to_keep=1,
            **({"position_ids": position_ids} if self.names_positions else {}),
            **{CACHE: self.kept.cache(start)},
        ).logits


def _places(model: PreTrainedModel, tokens: torch.Tensor, start: torch.Tensor) -> dict[str, torch.Tensor]:
    """The positions of tokens where a joined model's decoder would take them from a table, by a count that is a number.

    RoBERTa's decoders count by themselves, past padding.
    """
    if not isinstance(model, _JOINED) or not any(n.endswith("position_ids") for n, _ in model.decoder.named_buffers()):
        return {}
    if any(hasattr(module, "create_position_ids_from_input_ids") for module in model.decoder.modules()):
        return {}
    return {"decoder_position_ids": (torch.arange(tokens.shape[1]) + start).expand(tokens.shape)}


class _First(nn.Module):
    """A model that encodes a source before it decodes: it keeps what its layers made of the source, too."""

    def __init__(self, model: PreTrainedModel, kept: Kept, of_source: Kept) -> None:
        super().__init__()
        self.model, self.kept, self.of_source = model, kept, of_source

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        start: torch.Tensor,
        source: torch.Tensor,
        source_mask: torch.Tensor | None = None,
    ) -> Any:
        """Logits of what follows the last token, (batch, 1, vocabulary)."""
        cache = EncoderDecoderCache(self.kept.cache(start), self.of_source.cache(0, whole=False))
        outputs = self.model(
            **{self.model.main_input_name: source},
            **({} if source_mask is None else {"attention_mask": source_mask}),
            decoder_input_ids=input_ids,
            decoder_attention_mask=attention_mask,
            **_places(self.model, input_ids, start),
            use_cache=True,
            **{CACHE: cache},
        )
        return outputs.logits[:, -1:]


class _Next(nn.Module):
    """The same for later tokens: what is kept of the source is an input, as no call changes it any more.

    It is read with a mask if it is `masked`, which comes first; `width` is how wide it is.
    """

    def __init__(self, model: PreTrainedModel, kept: Kept, masked: bool, width: int) -> None:
        super().__init__()
        self.model, self.kept, self.masked, self.width = model, kept, masked, width

    def forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor, start: torch.Tensor, *of_source: torch.Tensor
    ) -> Any:
        """Logits of what follows the last token, (batch, 1, vocabulary)."""
        length = of_source[-1].shape[2]
        # nobody reads more than its shape
        encoded = torch.zeros(len(input_ids), length, self.width, dtype=self.kept.read_as)
        read = cache_over(of_source[self.masked :], length, self.kept.read_as)
        outputs = self.model(
            encoder_outputs=Encoded(last_hidden_state=encoded),
            **({"attention_mask": of_source[0]} if self.masked else {}),
            decoder_input_ids=input_ids,
            decoder_attention_mask=attention_mask,
            **_places(self.model, input_ids, start),
            use_cache=True,
            **{CACHE: EncoderDecoderCache(self.kept.cache(start), read)},
        )
        return outputs.logits[:, -1:]
