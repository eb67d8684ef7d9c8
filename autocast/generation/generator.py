"""`Generator`: what transformers generates with, where each step of the model is one call of a compiled program."""

from __future__ import annotations

import copy
import threading
from collections.abc import Iterator
from functools import partial
from queue import SimpleQueue
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.generation.streamers import BaseStreamer
from transformers.modeling_outputs import BaseModelOutput, CausalLMOutputWithPast, Seq2SeqLMOutput

from autocast import amp as mixed_precision
from autocast.errors import ImportModelError, InputError
from autocast.frontend import from_torch
from autocast.generation.caches import CACHE, Filled
from autocast.generation.steps import Limits, Step, steps_of
from autocast.messages import check_kind, check_value, is_count, shown
from autocast.runtime.executable import Executable
from autocast.runtime.tensors import from_tensor
from autocast.runtime.workers import Worker
from autocast.torch_target.asked import torch_dtype
from autocast.vm.compile import compile

#: Options of transformers that ask for what a step does not give, and why.
_NOT_GIVEN = {
    "assistant_model": "a step gives the logits of its last token alone",
    "prompt_lookup_num_tokens": "a step gives the logits of its last token alone",
    "output_attentions": "a step gives logits alone",
    "output_hidden_states": "a step gives logits alone",
    "cache_implementation": "the generator has keys and values of its own",
    "cache": "the generator has keys and values of its own",
    "past_key_values": "the generator has keys and values of its own",
    "inputs_embeds": "a step reads tokens",
    "decoder_inputs_embeds": "a step reads tokens",
    "encoder_outputs": "the program for the first tokens encodes",
}


class Generator:
    """A language model of transformers that generates text on our kernels.

    It is compiled twice: for the first tokens, however many, and for the one token of every later step. Both programs
    have the same parameters and write to the same keys and values in place, so a step reads each weight once.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        A model in eval mode that reads tokens and generates text, such as LlamaForCausalLM.
    max_batch : int
        How many sequences it generates at once, at most. Fewer are padded to as many.
    max_length : int
        How many tokens a sequence has at most, its prompt among them.
    max_source : int, optional
        How many tokens an encoder reads at most; `max_length` where it is missing.
    amp : str, optional
        The dtype of AutoCast, "bfloat16" or "float16", which keys and values are stored in, too. Without it all is
        computed as the model is stored.
    policy : Policy or str, optional
        What AutoCast goes by.

    Attributes
    ----------
    prompt, step : Executable
        The program for first tokens and the one for later tokens: to be profiled, say.

    Raises
    ------
    ImportModelError
        The model cannot be exported, reads no tokens, or keeps something else than keys and values.
    InputError
        An argument is of another type or out of range, or the model is in training mode.
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
        if not model.can_generate() or model.main_input_name != "input_ids":
            raise ImportModelError(
                f"Generator: got {type(model).__name__}, expected a model that reads tokens and generates text, such "
                "as LlamaForCausalLM; import what else there is with autocast.from_torch"
            )
        if model.training:
            raise InputError("Generator: got a model in training mode, expected one in eval mode; call model.eval()")
        _check_positions(model, self.limits)
        dtype = model.dtype if amp is None else torch_dtype(amp)

        def compiled(step: Step) -> Executable:
            imported = from_torch(step.module, step.inputs, dynamic=step.dynamic)
            return compile(imported if amp is None else mixed_precision.autocast(imported, dtype=amp, policy=policy))

        self.prompt, self.step = map(compiled, steps_of(model, self.limits, dtype))
        self._start(model)

    def _start(self, model: PreTrainedModel) -> None:
        """Make what each generator has of its own: one state of both programs, and a way into transformers' loop."""
        self._lock = threading.Lock()
        self.step.share(self.prompt)
        self._torch = copy.copy(model)
        self._torch.__dict__ |= {
            "forward": self._decode if model.config.is_encoder_decoder else self._read,
            "get_encoder": _Source,
        }

    def fork(self) -> Generator:
        """Another generator of the same code and weights, in the same memory, with keys and values of its own.

        Both can generate at once, in two threads or token by token; a Generator by itself does one after the other.
        """
        other = object.__new__(type(self))
        other.limits, other.prompt, other.step = self.limits, self.prompt.fork(), self.step.fork()
        other._start(self._torch)
        return other

    def generate(self, input_ids: torch.Tensor, attention_mask: torch.Tensor | None = None, **options: Any) -> Any:
        """Continue sequences, or answer them, as `model.generate` of transformers does.

        Parameters
        ----------
        input_ids : torch.Tensor
            Prompts, or what the encoder reads: int64 (batch, length). Shorter prompts are padded on the left.
        attention_mask : torch.Tensor, optional
            1 for tokens and 0 for padding, (batch, length); all are tokens where it is missing.
        **options
            Such as `max_new_tokens`, `do_sample`, `temperature`, `eos_token_id`, `stopping_criteria`, `streamer`: those
            of transformers that need the logits of each new token, and nothing else of the model.

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
        self._check(input_ids, attention_mask, options)
        encodes, read = self._torch.config.is_encoder_decoder, input_ids.shape[1]
        if encodes:
            _check_room("source", read, "max_source", self.limits.source)
        asked = (1 if encodes else read) + int(options.get("max_new_tokens") or 0)
        _check_room("prompt", max(asked, options.get("max_length") or 0), "max_length", self.limits.length)
        if attention_mask is None:
            attention_mask = torch.ones_like(input_ids)
        with self._lock, torch.no_grad():
            filled = Filled(self.limits.length, [from_tensor(kept, "torch") for kept in self.step.state.values()])
            return self._torch.generate(
                input_ids, attention_mask=attention_mask, **options | {CACHE: filled, "use_cache": True}
            )

    def _check(self, input_ids: Any, attention_mask: Any, options: dict[str, Any]) -> None:
        """InputError unless the prompts are tokens of the model, as many as there may be, and `options` can be kept."""
        where = "Generator.generate"
        check_kind(where, input_ids, torch.Tensor, InputError, "token numbers, int64 (batch, length)")
        got = f"{where}: input_ids are {input_ids.dtype} {list(input_ids.shape)}, expected"
        if input_ids.ndim != 2 or input_ids.dtype != torch.int64 or not input_ids.numel():
            raise InputError(f"{got} torch.int64 (batch, length), one token at least; try input_ids.long()[None]")
        if len(input_ids) > self.limits.batch:
            raise InputError(f"{got} at most {self.limits.batch} sequences; make the generator with a larger max_batch")
        tokens = self._torch.get_input_embeddings().num_embeddings
        low, high = map(int, input_ids.aminmax())
        if low < 0 or high >= tokens:
            raise InputError(
                f"{where}: input_ids has the token {low if low < 0 else high}, expected 0 to {tokens - 1}, which the "
                "model knows; use the tokenizer of the model"
            )
        if attention_mask is not None and tuple(getattr(attention_mask, "shape", ())) != tuple(input_ids.shape):
            raise InputError(
                f"{where}: attention_mask is {shown(attention_mask)}, expected 1 or 0 for each of the tokens, "
                f"{list(input_ids.shape)}"
            )
        if options.get("use_cache") is False:
            raise InputError(f"{where}: got use_cache=False, expected True: keys and values are always kept")
        config = options.get("generation_config") or self._torch.generation_config
        for name, why in _NOT_GIVEN.items():
            if options.get(name, getattr(config, name, None)):
                raise InputError(f"{where}: got {name}, and {why}; leave it out, or use model.generate of transformers")

    def __repr__(self) -> str:
        model, (batch, length, _) = type(self._torch).__name__, self.limits
        return f"Generator({model}; up to {batch} sequences of {length} tokens)"

    def stream(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor | None = None, **options: Any
    ) -> Iterator[torch.Tensor]:
        """What `generate` does, token by token: an int64 tensor (batch,) for each step, as soon as it is known.

        Where nobody reads on, it ends after the next token.
        """
        failed: list[BaseException] = []

        def run(_: threading.Event) -> None:
            try:
                self.generate(input_ids, attention_mask, streamer=queue, **options)
            except BaseException as error:  # raised where the tokens are read
                failed.append(error)
                queue.end()

        worker = Worker(run)
        queue = _Queue(worker.stopping)
        worker.start()
        try:
            yield from iter(queue.tokens.get, None)
        finally:
            worker.stopping.set()
        if failed:
            raise failed[0]

    def _read(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        **options: Any,
    ) -> CausalLMOutputWithPast:
        """A step of a model without an encoder, as transformers' loop asks for it."""
        filled, mask, start = self._room(options.get(CACHE), input_ids, attention_mask)
        if position_ids is None:
            position_ids = (mask.cumsum(-1) - 1).clamp(min=0)[: len(input_ids), int(start) : filled.count]
        program = self.step if input_ids.shape[1] == 1 else self.prompt
        logits = program(self._padded(input_ids), self._padded(position_ids), mask, start)
        return CausalLMOutputWithPast(logits=logits[: len(input_ids)], **{CACHE: filled})

    def _decode(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        decoder_input_ids: torch.Tensor | None = None,
        decoder_attention_mask: torch.Tensor | None = None,
        encoder_outputs: BaseModelOutput | None = None,
        **options: Any,
    ) -> Seq2SeqLMOutput:
        """A step of a model with an encoder, which runs with the first tokens: `encoder_outputs` is what it reads."""
        assert decoder_input_ids is not None and encoder_outputs is not None
        source = encoder_outputs[0][..., 0]
        source_mask = torch.ones_like(source) if attention_mask is None else attention_mask
        filled, mask, start = self._room(options.get(CACHE), decoder_input_ids, decoder_attention_mask)
        tokens = self._padded(decoder_input_ids)
        if int(start) == 0:
            logits = self.prompt(self._padded(source), self._padded(source_mask), tokens, mask, start)
        else:
            whole = nn.functional.pad(source_mask, (0, self.limits.source - source_mask.shape[1]))
            of_source = (kept for name, kept in self.prompt.state.items() if name not in self.step.state)
            logits = self.step(self._padded(whole), tokens, mask, start, *(from_tensor(t, "torch") for t in of_source))
        return Seq2SeqLMOutput(logits=logits[: len(decoder_input_ids)], **{CACHE: filled})

    def _room(
        self, filled: Filled | None, tokens: torch.Tensor, mask: torch.Tensor | None
    ) -> tuple[Filled, torch.Tensor, torch.Tensor]:
        """Count `tokens` as kept: which of all places are read from now on, and the first that is new."""
        if not isinstance(filled, Filled):
            raise InputError(f"Generator: got the cache {shown(filled)}, expected none: it has its own")
        (batch, count), start = tokens.shape, filled.count
        if batch > self.limits.batch:
            raise InputError(
                f"Generator.generate: {batch} sequences with their beams, expected at most {self.limits.batch}; make "
                "the generator with a larger max_batch"
            )
        filled.count += count
        _check_room("prompt", filled.count, "max_length", self.limits.length)
        whole = torch.ones(self.limits.batch, self.limits.length, dtype=torch.int64)
        if mask is not None:  # transformers leaves out one of ones alone
            whole[:batch, : filled.count] = mask
        return filled, whole, torch.tensor(start)

    def _padded(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor with a row for each sequence that there may be: copies of the last."""
        tensor = tensor.expand(self.limits.batch, -1) if len(tensor) == 1 else tensor
        return torch.cat([tensor, tensor[-1:].expand(self.limits.batch - len(tensor), -1)]).contiguous()


def _check_positions(model: PreTrainedModel, limits: Limits) -> None:
    """InputError where the model has learned fewer positions than a sequence may have."""
    count = getattr(model.config, "max_position_embeddings", None) or 0
    learned = any(
        # OPT's and BART's tables have two rows more
        module.num_embeddings in (count, count + 2) and module is not model.get_input_embeddings()
        for module in model.modules()
        if isinstance(module, nn.Embedding)
    )
    asked = max(limits.length, limits.source if model.config.is_encoder_decoder else 0)
    if learned and asked > count:
        raise InputError(
            f"Generator: got sequences of up to {asked} tokens, expected at most {count}: the model has as many "
            f"positions. Make it with max_length={count}"
        )


def _check_room(what: str, asked: int, limit: str, most: int) -> None:
    if asked > most:
        raise InputError(
            f"Generator.generate: {asked} tokens with the {what}, expected at most {most}; make the generator with a "
            f"larger {limit}"
        )


class _Source(nn.Module):
    """In the place of an encoder: leaves what is to be encoded to the program for the first tokens."""

    def forward(self, input_ids: torch.Tensor, **_: Any) -> BaseModelOutput:
        """The tokens, int64 (batch, length, 1)."""
        return BaseModelOutput(last_hidden_state=input_ids[..., None])


class _Queue(BaseStreamer):
    """Tokens on their way to another thread; None after the last. transformers puts the prompt first."""

    def __init__(self, stopping: threading.Event) -> None:
        self.tokens: SimpleQueue[torch.Tensor | None] = SimpleQueue()
        self._stopping = stopping
        self._prompt = True

    def put(self, value: torch.Tensor) -> None:
        if self._stopping.is_set():
            raise InputError("Generator.stream: nobody reads the tokens any more")
        if not self._prompt:
            self.tokens.put(value)
        self._prompt = False

    def end(self) -> None:
        self.tokens.put(None)
