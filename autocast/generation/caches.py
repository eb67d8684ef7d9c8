"""Keys, values and states of earlier tokens as transformers' models see them, while one is exported and generates."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import shorten
from typing import Any, NamedTuple

import torch
from torch import nn
from transformers import DynamicCache, PreTrainedModel
from transformers.cache_utils import (
    Cache,
    EncoderDecoderCache,
)
from transformers.modeling_outputs import BaseModelOutput, CausalLMOutputWithPast

from autocast.errors import AutocastError, ImportModelError
from autocast.generation.attention import Attention, Indexed

#: What transformers calls a model's argument, and field of its results, for keys and values: `cache` since 5.24.
CACHE = "cache" if "cache" in CausalLMOutputWithPast.__dataclass_fields__ else "past_key_values"


#: Buffers of a layer's linear attention: convolutions' last inputs, and sums over all tokens.
STATES = ("conv", "recurrent")


class Layer(NamedTuple):
    """Shapes of what a layer keeps of a sequence: (heads, width) of keys and values, or none; states by their place;
    the width of the keys by which it chooses tokens, or 0."""

    pair: tuple[tuple[int, int], ...]
    conv: dict[int, tuple[int, ...]]
    recurrent: dict[int, tuple[int, ...]]
    indexer: int = 0

    @property
    def has_states(self) -> bool:
        return bool(self.conv or self.recurrent)


class Kept(nn.Module):
    """What the layers keep: buffers, which a step writes to.

    Keys and values are (batch, heads, length, width), stored as `dtype`; states, which are sums over all tokens or a
    few numbers, and keys that tokens are chosen by are stored as they are computed.
    """

    def __init__(self, layers: list[Layer], batch: int, length: int, dtype: torch.dtype, read_as: torch.dtype) -> None:
        super().__init__()
        self.layers, self.read_as = layers, read_as
        for number, layer in enumerate(layers):
            for kind, (heads, width) in zip(("keys", "values"), layer.pair, strict=False):
                self.register_buffer(f"{kind}_{number}", torch.zeros(batch, heads, length, width, dtype=dtype))
            if layer.indexer:
                self.register_buffer(f"index_{number}", torch.zeros(batch, length, layer.indexer, dtype=read_as))
            for kind in STATES:
                for place, shape in getattr(layer, kind).items():
                    self.register_buffer(f"{kind}_{number}_{place}", torch.zeros(batch, *shape, dtype=read_as))

    def cache(self, start: torch.Tensor | int, *, whole: bool = True) -> Cache:
        """What the model reads and writes, from token `start` on.

        A layer that has written answers with all that is kept, or with what it wrote unless `whole`.
        """
        return Cache(layers=[self._layer(number, start, whole) for number in range(len(self.layers))])

    def _layer(self, number: int, start: torch.Tensor | int, whole: bool) -> Any:
        layer = self.layers[number]
        pair = tuple(self.get_buffer(f"{kind}_{number}") for kind in ("keys", "values")) if layer.pair else ()
        if layer.pair and not layer.has_states:
            if layer.indexer:
                return Indexed(pair, start, self.read_as, whole, self.get_buffer(f"index_{number}"))
            return Attention(pair, start, self.read_as, whole)
        from autocast.generation import states  # versions of transformers whose layers keep such have what it imports

        conv, recurrent = (
            {place: self.get_buffer(f"{kind}_{number}_{place}") for place in getattr(layer, kind)} for kind in STATES
        )
        if layer.pair:
            return states.Both(Attention(pair, start, self.read_as, whole), conv, recurrent)
        return states.Linear(conv, recurrent) if layer.has_states else states.DummyLayer()

    def begin(self, attention_mask: torch.Tensor, start: torch.Tensor) -> None:
        """Zero states where the token before `start` is padding, or none."""
        before = attention_mask.index_select(1, (start - 1).clamp(min=0).reshape(1))[:, 0]
        goes_on = (before > 0) & (start > 0)
        for name, buffer in self.named_buffers():
            if name.startswith(STATES):
                buffer.copy_(torch.where(goes_on.reshape(-1, *[1] * (buffer.ndim - 1)), buffer, 0.0))


def cache_over(kept: Sequence[torch.Tensor], start: torch.Tensor | int, read_as: torch.dtype) -> Cache:
    """The cache over keys and values of each layer in turn."""
    return Cache(layers=[Attention(pair, start, read_as, True) for pair in zip(kept[::2], kept[1::2], strict=True)])


#: The layers of transformers' caches that keep nothing but what `Layer` says.
_KNOWN = (
    "DummyLayer",
    "DynamicIndexedLayer",
    "DynamicLayer",
    "DynamicSlidingWindowLayer",
    "LinearAttentionLayer",
    "LinearAttentionAndFullAttentionLayer",
    "LinearAttentionAndSlidingWindowAttentionLayer",
)


class Encoded(BaseModelOutput):
    """What an encoder made, whose type may have other fields, such as a mask: they are None."""

    def __getattr__(self, name: str) -> None:
        if name.startswith("__"):
            raise AttributeError(name)


class Found(NamedTuple):
    """What a model keeps of tokens, of what an encoder made of its input, and (length, width) of the latter."""

    of_tokens: list[Layer]
    of_source: list[Layer]
    encoded: tuple[int, int]

    @property
    def has_states(self) -> bool:
        return any(layer.has_states for layer in self.of_tokens)


def shapes_kept(model: PreTrainedModel, start: int, source: torch.Tensor | None) -> Found:
    """What the model keeps of the token `start`, and of one source, (1, ...), if it has an encoder: None is for two
    vectors that an encoder made of something."""
    try:
        return _found(model, torch.full((1, 1), start, dtype=torch.int64), source)
    except AutocastError:
        raise
    except Exception as error:  # of the kinds that the authors of models thought of
        raise ImportModelError(
            f"Generator: {type(model).__name__} does not run with a cache of transformers: {shorten(str(error), 160)}; "
            "expected one that keeps a DynamicCache. Import one step of it with from_torch"
        ) from error


def _found(model: PreTrainedModel, token: torch.Tensor, source: torch.Tensor | None) -> Found:
    with torch.no_grad():
        if not model.config.is_encoder_decoder:
            cache: Any = DynamicCache(config=model.config.get_text_config(decoder=True))
            model(input_ids=token, **{CACHE: cache}, use_cache=True)
            layers = list(cache.layers)
            # where a configuration is of an encoder, too, its count of layers may be the encoder's
            while layers and type(layers[-1]).__name__ == "DynamicLayer" and layers[-1].keys is None:
                layers.pop()
            if not layers:
                raise ValueError("it keeps nothing in one")
            return Found(_of_one_token(model, layers), [], (0, 0))
        cache = EncoderDecoderCache(DynamicCache(), DynamicCache())  # as many layers as the decoder has
        inputs: dict[str, Any] = {model.main_input_name: source}
        if source is None:
            width = type(model).get_encoder(model).config.hidden_size
            inputs = {"encoder_outputs": Encoded(last_hidden_state=torch.ones(1, 2, width, dtype=model.dtype))}
        outputs = model(**inputs, decoder_input_ids=token, **{CACHE: cache}, use_cache=True)
        encoded = outputs.encoder_last_hidden_state if source is not None else inputs["encoder_outputs"][0]
    caches = cache.self_attention_cache, cache.cross_attention_cache
    of_source = [_kept(model, layer) for layer in caches[1].layers]
    return Found(
        _of_one_token(model, caches[0].layers), of_source, (caches[1].layers[0].keys.shape[2], encoded.shape[-1])
    )


def _of_one_token(model: PreTrainedModel, layers: list[Any]) -> list[Layer]:
    """What layers keep that read one token; CPM-Ant, say, keeps a prompt of its own before it."""
    for layer in layers:
        count = 1 if getattr(layer, "keys", None) is None else layer.keys.shape[2]
        if count != 1:
            raise ImportModelError(
                f"Generator: got {type(model).__name__}, which keeps {count} keys of one token in a layer, expected "
                "one of each token. Import one step of it with from_torch"
            )
    return [_kept(model, layer) for layer in layers]


def _kept(model: PreTrainedModel, layer: Any) -> Layer:
    states = [getattr(layer, f"{kind}_states", None) for kind in STATES]
    conv, recurrent = (
        # earlier versions of transformers have tensors
        {
            place: tuple(state.shape[1:])
            for place, state in (kind if isinstance(kind, dict) else {}).items()
            if state is not None
        }
        for kind in states
    )
    pair = () if getattr(layer, "keys", None) is None else (layer.keys, layer.values)
    name = type(layer).__name__
    index, places = getattr(layer, "indexer_keys", None), getattr(layer, "indexer_position_ids", None)
    empty = not (pair or conv or recurrent or name == "DummyLayer")
    if name not in _KNOWN or empty or places is not None:
        raise ImportModelError(
            f"Generator: got {type(model).__name__}, which keeps {'nothing in ' if empty else ''}a {name}; expected a "
            "model whose layers keep keys and values of attention, or states of convolutions and recurrences, in their "
            "cache and no more. Import one step of it with from_torch"
        )
    shapes = tuple((kept.shape[1], kept.shape[3]) for kept in pair)
    return Layer(shapes, conv, recurrent, 0 if index is None else index.shape[-1])


class Filled(Cache):
    """What transformers' loop of generation asks of a cache that is not its own: how many tokens are in it, and to
    exchange sequences, whose first axis is that of the tensors `kept`."""

    def __init__(self, length: int, kept: list[torch.Tensor]) -> None:
        super().__init__(layers=[])
        self.length, self.kept, self.count = length, kept, 0
        #: What torch kept of the prompt, if it read that, until the next token.
        self.of_torch: Cache | None = None
        #: Whether torch encoded what the model reads.
        self.encoded = False

    def __bool__(self) -> bool:
        return True  # transformers asks so whether there is one, and a cache without layers has the length 0

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self.count

    def get_max_cache_shape(self, layer_idx: int = 0) -> int:
        return self.length

    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        for tensor in self.kept:
            tensor[: len(beam_idx)] = tensor[beam_idx]
        if self.of_torch is not None:
            self.of_torch.reorder_cache(beam_idx)

    @property
    def is_compileable(self) -> bool:
        return False
