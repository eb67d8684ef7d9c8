"""`Generator`: what transformers generates with, where each step of the model is one call of a compiled program."""

from __future__ import annotations

import copy
import threading
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import nn
from transformers import Cache, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput, CausalLMOutputWithPast, Seq2SeqLMOutput

from autocast import amp as mixed_precision
from autocast.errors import InputError
from autocast.frontend import from_torch
from autocast.generation.caches import CACHE, Filled
from autocast.generation.checks import (
    beside_tokens,
    check_at_once,
    check_batch,
    check_embeddings,
    check_features,
    check_first,
    check_is_free,
    check_later,
    check_not_streamed,
    check_one_length,
    check_one_piece,
    check_options,
    check_positions,
    check_room,
    check_tokens,
    not_beside,
    reads_ahead,
)
from autocast.generation.loop import Source, called_as, divided, has_its_own
from autocast.generation.prompts import of_source, read_by_torch, write
from autocast.generation.sources import features_of
from autocast.generation.steps import Limits, Step, steps_of
from autocast.generation.streams import streamed
from autocast.messages import check_kind, check_value, is_count, shown
from autocast.policy import as_policy
from autocast.runtime.executable import Executable
from autocast.runtime.tensors import from_tensor
from autocast.torch_target.asked import torch_dtype
from autocast.vm.compile import compile


class Generator:
    """A language model of transformers that generates text on our kernels.

    It is compiled twice: for the first tokens, however many, and for the one token of every later step. Both programs
    have the same parameters and write to the same keys and values in place, so a step reads each weight once.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        A model in eval mode that generates text and reads tokens, such as LlamaForCausalLM, features, such as Whisper,
        or both, such as LlavaForConditionalGeneration.
    max_batch : int
        How many sequences it generates at once, at most. Fewer are padded to as many.
    max_length : int
        How many tokens a sequence has at most, its prompt among them.
    max_source : int, optional
        How many tokens an encoder reads, or makes of features, at most; `max_length` where it is missing.
    amp : str, optional
        The dtype of AutoCast, "bfloat16" or "float16", which keys and values are stored in, too. Without it, and
        without a policy, all is computed as the model is stored.
    policy : Policy or str, optional
        What AutoCast goes by, instead of `amp`, which stands for a policy of that dtype.

    Attributes
    ----------
    prompt, step : Executable
        The program for first tokens and the one for later tokens: to be profiled, say. A model that keeps states has
        one program, which reads its prompt token by token.

    Raises
    ------
    ImportModelError
        The model cannot be exported, reads something else, or keeps something else than keys, values and states.
    InputError
        An argument is of another type or out of range, or the model is in training mode.
    PolicyError
        `amp` is none of the dtypes, `policy` is no policy, or both are given.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        max_batch: int = 1,
        max_length: int = 1024,
        max_source: int | None = None,
        amp: str | None = None,
        policy: Any = None,
    ) -> None:
        check_kind("Generator", model, PreTrainedModel, InputError, "a model of transformers, such as LlamaForCausalLM")
        self.limits = Limits(max_batch, max_length, max_length if max_source is None else max_source)
        for name, value in zip(("max_batch", "max_length", "max_source"), self.limits, strict=True):
            check_value("Generator", name, value, partial(is_count, least=1), InputError, "a whole number, 1 or more")
        self._features = features_of(model)
        if model.training:
            raise InputError("Generator: got a model in training mode, expected one in eval mode; call model.eval()")
        check_positions(model, self.limits, self._features is None)
        chosen = None if amp is None and policy is None else as_policy(policy, dtype=amp)
        dtype = model.dtype if chosen is None or chosen.preset == "mp0" else torch_dtype(chosen.dtype)

        def compiled(step: Step) -> Executable:
            imported = from_torch(step.module, step.inputs, dynamic=step.dynamic)
            return compile(imported if chosen is None else mixed_precision.autocast(imported, policy=chosen))

        first, later = steps_of(model, self.limits, self._features, dtype)
        self._ahead = reads_ahead(model)
        if first is not None and model.config.is_encoder_decoder and self._features is None:
            check_first(model, first)
        self.step = compiled(later)
        self.prompt = self.step if first is None or self._ahead else compiled(first)
        self._start(model)

    def _start(self, model: PreTrainedModel) -> None:
        """Make what each generator has of its own: one state of both programs, and a way into transformers' loop."""
        self._lock = threading.Lock()
        #: The thread that generates.
        self._generating: int | None = None
        if self.step is not self.prompt:
            self.step.share(self.prompt)
        state = self.step.state.items()  # in which a model may have more that it changes, such as factors of positions
        self._kept = {name: from_tensor(kept, "torch") for name, kept in state if name.startswith("kept.")}
        self._filled = Filled(self.limits.length, list(self._kept.values()))
        #: What the prompt has besides tokens; and what of such was found to be all in keys and values.
        self._beside: frozenset[str] = frozenset()
        self._known: set[frozenset[str]] = set()
        #: What torch kept of what an encoder made, for later steps.
        self._source: list[torch.Tensor] = []
        self._torch = copy.copy(model)
        self._replaced: dict[str, Any] = {
            "forward": self._decode if model.config.is_encoder_decoder else called_as(type(model).forward, self._read),
            "get_encoder": self._encoder,
            "_prepare_cache_for_generation": has_its_own,
        }
        if hasattr(model, "_postprocess_outputs"):  # Whisper's, which divides keys and values by sequence
            self._replaced["_postprocess_outputs"] = partial(divided, type(model)._postprocess_outputs, model)
        self._torch.__dict__ |= self._replaced

    def fork(self) -> Generator:
        """Another generator of the same code and weights, in the same memory, with keys and values of its own.

        Both can generate at once, in two threads or token by token; a Generator by itself does one after the other.
        """
        other = object.__new__(type(self))
        other.limits, other._features, other._ahead = self.limits, self._features, self._ahead
        other.step = self.step.fork()
        other.prompt = other.step if self.prompt is self.step else self.prompt.fork()
        other._start(self._torch)
        return other

    def __copy__(self) -> Generator:
        """`fork`: no two generators write to the same keys and values."""
        return self.fork()

    def __getstate__(self) -> dict[str, Any]:
        """Pickled and copied deeply as its model and its two programs, with keys and values of its own."""
        model = copy.copy(self._torch)
        for name in self._replaced:
            del model.__dict__[name]
        kept = {name: getattr(self, name) for name in ("limits", "_features", "_ahead", "prompt", "step")}
        return kept | {"model": model}

    def __setstate__(self, state: dict[str, Any]) -> None:
        model = state.pop("model")
        vars(self).update(state)
        self._start(model)

    def generate(
        self, inputs: torch.Tensor | None = None, attention_mask: torch.Tensor | None = None, **options: Any
    ) -> Any:
        """Continue sequences, or answer them, as `model.generate` of transformers does.

        Parameters
        ----------
        inputs : torch.Tensor
            Prompts, or what the encoder reads: int64 (batch, length), where shorter prompts are padded on the left; or
            features as the model's processor makes them, such as Whisper's (batch, mels, frames). It may have the
            model's name for it: `input_ids`, `input_features`, `pixel_values`.
        attention_mask : torch.Tensor, optional
            1 for tokens and 0 for padding, (batch, length); where it is missing `pad_token_id` in prompts is padding,
            as for transformers, unless sequences end with it.
        **options
            Such as `max_new_tokens`, `do_sample`, `temperature`, `eos_token_id`, `stopping_criteria`, `streamer`: those
            of transformers that need the logits of each new token, and nothing else of the model. And what the model
            reads besides, such as `pixel_values`, or `inputs_embeds` in the place of tokens: torch reads that.

        Returns
        -------
        torch.Tensor
            Prompts and what follows them, int64; or what transformers makes with `return_dict_in_generate`.

        Raises
        ------
        InputError
            There are more sequences, beams or tokens than the generator was made for, a token is none of the model's,
            or an option asks for something else than tokens.
        """
        name = self._torch.main_input_name
        inputs = options.pop(name, inputs)
        check_options(self._torch, options, self._features)
        beside = beside_tokens(self._torch, options)
        if inputs is None and "inputs_embeds" in beside:
            name, inputs = "inputs_embeds", options.pop("inputs_embeds")
            check_embeddings(self._torch, inputs)
        elif self._features is None:
            check_tokens(self._torch, inputs, attention_mask)
        else:
            check_features(self._torch, inputs, self._features)
        check_batch(len(inputs), self.limits)
        read = 1
        if self._features is None and self._torch.config.is_encoder_decoder:
            check_room("source", inputs.shape[1], "max_source", self.limits.source)
        elif self._features is None:
            read = inputs.shape[1]
        asked = read + int(options.get("max_new_tokens") or 0)
        check_room("prompt", max(asked, options.get("max_length") or 0), "max_length", self.limits.length)
        if attention_mask is not None:
            options["attention_mask"] = attention_mask
        check_is_free(self._generating)
        with self._lock, torch.no_grad():
            self._generating, self._beside = threading.get_ident(), beside
            self._filled.count, self._filled.encoded = 0, False
            try:
                return self._torch.generate(**{name: inputs}, **options | {CACHE: self._filled, "use_cache": True})
            finally:
                self._generating = self._filled.of_torch = None

    def __repr__(self) -> str:
        model, (batch, length, _) = type(self._torch).__name__, self.limits
        return f"Generator({model}; up to {batch} sequences of {length} tokens)"

    def stream(
        self, inputs: torch.Tensor | None = None, attention_mask: torch.Tensor | None = None, **options: Any
    ) -> Iterator[torch.Tensor]:
        """What `generate` does, token by token: an int64 tensor (batch,) for each step, as soon as it is known.

        Where nobody reads on, it ends after the next token. A sound must be no longer than what the encoder reads.
        """
        check_not_streamed(options)
        if self._features is not None:
            check_features(self._torch, inputs := options.pop(self._torch.main_input_name, inputs), self._features)
            if self._features:
                check_one_piece(inputs.shape[-1], self._features[-1])
        return streamed(partial(self.generate, inputs, attention_mask, **options))

    def _read(self, cache: Cache | None = None, past_key_values: Cache | None = None, **inputs: Any) -> Any:
        """A step of a model without an encoder, as transformers' loop asks for it."""
        inputs = {name: value for name, value in inputs.items() if name not in ("use_cache", "return_dict")}
        mask, position_ids = inputs.get("attention_mask"), inputs.get("position_ids")
        tokens = inputs["input_ids"] if inputs.get("input_ids") is not None else inputs["inputs_embeds"]
        kept = past_key_values if cache is None else cache
        if self._beside and kept is None:
            raise not_beside(self._torch, self._beside)
        mask, start = self._room(kept, tokens, mask)
        if self._by_torch:
            check_at_once(start, tokens.shape[1])
        if self._by_torch and start == 0:
            logits, self._filled.of_torch = read_by_torch(self._torch, inputs)
            if not write(self._filled.of_torch, self._kept, self._filled.count):
                raise not_beside(self._torch, self._beside)
            return CausalLMOutputWithPast(logits=logits, **{CACHE: self._filled})
        logits = self._computed(tokens, position_ids, mask, start)
        self._compare(logits, inputs)
        return CausalLMOutputWithPast(logits=logits, **{CACHE: self._filled})

    @property
    def _by_torch(self) -> bool:
        """Whether torch reads the prompt."""
        return bool(self._beside) or self._ahead or self._features == () or self._filled.encoded

    def _compare(self, logits: torch.Tensor, inputs: dict[str, Any]) -> None:
        """Check the logits of the first later token after a prompt that has what none had before."""
        if self._by_torch and self._beside not in self._known:
            expected, _ = read_by_torch(self._torch, inputs, self._filled.of_torch)
            check_later(self._torch, logits, expected, self._filled.kept[0].dtype, self._beside)
            self._known.add(self._beside)
        self._filled.of_torch = None

    def _encoder(self) -> nn.Module:
        """What transformers' loop encodes by: the model's, or what leaves that to the program for the first tokens."""
        encoder = type(self._torch).get_encoder(self._torch)
        return encoder if self._by_torch else Source(encoder, self._torch.main_input_name, self._filled)

    def _computed(
        self, tokens: torch.Tensor, position_ids: torch.Tensor | None, mask: torch.Tensor, start: int
    ) -> torch.Tensor:
        """Logits of what follows the last of `tokens`, which are read from `start` on."""
        rows, count = tokens.shape
        if position_ids is None:
            position_ids = (mask.cumsum(-1) - 1).clamp(min=0)[:rows, start : self._filled.count]
        tokens, places = self._padded(tokens), self._padded(position_ids, position_ids.ndim - 2)
        if self.prompt is not self.step and count > 1:
            logits = self.prompt(tokens, places, mask, torch.tensor(start))
        else:
            for at in range(count):
                here = slice(at, at + 1)
                logits = self.step(tokens[:, here], places[..., here], mask, torch.tensor(start + at))
        return logits[:rows]

    def _decode(
        self,
        decoder_input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        decoder_attention_mask: torch.Tensor | None = None,
        encoder_outputs: BaseModelOutput | None = None,
        cache: Cache | None = None,
        past_key_values: Cache | None = None,
        **inputs: Any,
    ) -> Seq2SeqLMOutput:
        """A step of a model with an encoder, which runs with the first tokens: `encoder_outputs` is what it reads."""
        if decoder_attention_mask is not None and not bool(decoder_attention_mask.all()):
            raise InputError(
                "Generator.generate: got prompts of different lengths for the decoder, expected as many tokens in each;"
                " generate one after the other"
            )
        mask, start = self._room(past_key_values if cache is None else cache, decoder_input_ids, decoder_attention_mask)
        given = [self._padded(decoder_input_ids), mask, torch.tensor(start)]
        if self._by_torch:
            inputs |= {"decoder_input_ids": decoder_input_ids, "encoder_outputs": encoder_outputs}
            logits = self._answered(given, inputs, attention_mask)
            return Seq2SeqLMOutput(logits=logits, **{CACHE: self._filled})
        source = inputs[self._torch.main_input_name] if encoder_outputs is None else encoder_outputs[0]
        masks = []
        if self._features is None:
            source = source[..., 0]
            masks = [torch.ones_like(source) if attention_mask is None else attention_mask]
        if start == 0:
            logits = self.prompt(*given, *map(self._padded, (source, *masks)))
        else:
            masks = [nn.functional.pad(one, (0, self.limits.source - one.shape[1])) for one in masks]
            read = (kept for name, kept in self.prompt.state.items() if name not in self.step.state)
            logits = self.step(*given, *map(self._padded, masks), *(from_tensor(kept, "torch") for kept in read))
        return Seq2SeqLMOutput(logits=logits[: len(decoder_input_ids)], **{CACHE: self._filled})

    def _answered(self, given: list[Any], inputs: dict[str, Any], mask: torch.Tensor | None) -> torch.Tensor:
        """Logits of what follows `given` tokens, the first of which torch reads, with what is to be encoded."""
        inputs = {name: value for name, value in inputs.items() if name not in ("use_cache", "return_dict")}
        inputs |= {"attention_mask": mask}
        if self._features == ():
            check_one_length(mask)
        if self._filled.count == inputs["decoder_input_ids"].shape[1]:
            logits, kept = read_by_torch(self._torch, inputs)
            if not write(kept, self._kept, self._filled.count):
                raise not_beside(self._torch, self._beside)
            read = of_source(kept, self._filled.kept[0].dtype)
            length = read[0].shape[2]
            check_room("source", length, "max_source", self.limits.source)
            if self._features is None:  # of tokens, with a mask, in as many places as there may be
                masks = torch.ones(len(logits), length, dtype=torch.int64) if mask is None else mask
                read = [nn.functional.pad(one, (0, 0, 0, self.limits.source - length)) for one in read]
                read.insert(0, nn.functional.pad(masks, (0, self.limits.source - length)))
            self._filled.of_torch, self._source = kept, list(map(self._padded, read))
            return logits
        logits = self.step(*given, *self._source)[: len(inputs["decoder_input_ids"])]
        self._compare(logits, inputs)
        return logits

    def _room(self, filled: Cache | None, tokens: torch.Tensor, mask: torch.Tensor | None) -> tuple[torch.Tensor, int]:
        """Count `tokens` as kept: which of all places are read from now on, and the first that is new.

        Without a cache, what is kept is read anew: transformers leaves it out where a sequence grows past the positions
        that Phi-3 rotates by other factors.
        """
        if filled is not None and filled is not self._filled:
            raise InputError(f"Generator: got the cache {shown(filled)}, expected none: it has its own")
        if filled is None:
            self._filled.count = 0
        (batch, count), start = tokens.shape[:2], self._filled.count
        check_batch(batch, self.limits)
        self._filled.count += count
        check_room("prompt", self._filled.count, "max_length", self.limits.length)
        whole = torch.ones(self.limits.batch, self.limits.length, dtype=torch.int64)
        if mask is not None:  # transformers leaves out one of ones alone
            whole[:batch, : self._filled.count] = mask
        return whole, start

    def _padded(self, tensor: torch.Tensor, axis: int = 0) -> torch.Tensor:
        """The tensor with a row for each sequence that there may be: copies of the last."""
        if tensor.shape[axis] == self.limits.batch:
            return tensor.contiguous()
        return tensor.index_select(axis, torch.arange(self.limits.batch).clamp(max=tensor.shape[axis] - 1))
