"""`Generator`: what transformers generates with, where each step of the model is one call of a compiled program."""

from __future__ import annotations

import copy
import threading
from collections.abc import Iterator
from functools import partial
from queue import SimpleQueue
from typing import Any

import torch
from transformers import PreTrainedModel
from transformers.generation.streamers import BaseStreamer
from transformers.modeling_outputs import CausalLMOutputWithPast

from autocast import amp as mixed_precision
from autocast.errors import ImportModelError, InputError
from autocast.frontend import from_torch
from autocast.generation.caches import CachingStep, Filled
from autocast.messages import check_kind, check_value, is_count, shown
from autocast.model import Model
from autocast.runtime.tensors import from_tensor
from autocast.torch_target.asked import torch_dtype
from autocast.vm.compile import compile


class Generator:
    """A language model of transformers that generates text on our kernels.

    It is compiled twice: for prompts of any length, and for the one token of every later step. Both programs have the
    same parameters and write to the same keys and values in place, so a step reads each weight once.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        A decoder in eval mode that keeps keys and values, such as LlamaForCausalLM.
    max_batch : int
        How many sequences it generates at once, at most. Fewer are padded to as many.
    max_length : int
        How many tokens a sequence has at most, its prompt among them.
    amp : str, optional
        The dtype of AutoCast, "bfloat16" or "float16", which keys and values are stored in, too. Without it all is
        computed as the model is stored.
    policy : Policy or str, optional
        What AutoCast goes by.

    Attributes
    ----------
    prompt, step : Executable
        The program for prompts and the one for single tokens: to be profiled, say.

    Raises
    ------
    ImportModelError
        The model cannot be exported, encodes before it decodes, or keeps something else than keys and values.
    InputError
        An argument is of another type or out of range.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        max_batch: int = 1,
        max_length: int = 1024,
        amp: str | None = None,
        policy: Any = None,
    ) -> None:
        check_kind("Generator", model, PreTrainedModel, InputError, "a model of transformers, such as LlamaForCausalLM")
        for name, value in (("max_batch", max_batch), ("max_length", max_length)):
            check_value("Generator", name, value, partial(is_count, least=1), InputError, "a whole number, 1 or more")
        if model.config.is_encoder_decoder or not model.can_generate():
            raise ImportModelError(
                f"Generator: got {type(model).__name__}, expected a decoder that generates text, such as "
                "LlamaForCausalLM; import what else there is with autocast.from_torch"
            )
        self.max_batch, self.max_length = max_batch, max_length
        self._lock = threading.Lock()
        dtype = model.dtype if amp is None else torch_dtype(amp)
        step = CachingStep(model, max_batch, max_length, dtype).eval()

        def imported(count: int, dynamic: Any) -> Model:
            mask, start = torch.ones(max_batch, max_length, dtype=torch.int64), torch.tensor(0)
            positions = torch.arange(count).repeat(max_batch, 1)
            imported = from_torch(step, (torch.zeros_like(positions), positions, mask, start), dynamic=dynamic)
            return imported if amp is None else mixed_precision.autocast(imported, dtype=amp, policy=policy)

        several = min(2, max_length)
        lengths = {"tokens": [("input_ids", 1, 1, max_length), ("position_ids", 1, 1, max_length)]}
        self.prompt = compile(imported(several, lengths if max_length > 1 else None))
        self.step = compile(imported(1, None))
        self.step.share(self.prompt)
        self._torch = copy.copy(model)
        object.__setattr__(self._torch, "forward", self._forward)

    def generate(self, input_ids: torch.Tensor, attention_mask: torch.Tensor | None = None, **options: Any) -> Any:
        """Continue sequences, as `model.generate` of transformers does and with all that it takes.

        Parameters
        ----------
        input_ids : torch.Tensor
            Prompts, int64 (batch, length); shorter ones are padded on the left.
        attention_mask : torch.Tensor, optional
            1 for tokens and 0 for padding, (batch, length); all are tokens where it is missing.
        **options
            Such as `max_new_tokens`, `do_sample`, `temperature`, `eos_token_id`, `stopping_criteria`, `streamer`.

        Returns
        -------
        torch.Tensor
            Prompts and what follows them, int64; or what transformers makes with `return_dict_in_generate`.

        Raises
        ------
        InputError
            There are more sequences or tokens than the generator was made for, or several beams.
        """
        check_kind("Generator.generate", input_ids, torch.Tensor, InputError, "token numbers, int64 (batch, length)")
        if input_ids.ndim != 2 or input_ids.dtype != torch.int64 or not 1 <= input_ids.shape[0] <= self.max_batch:
            raise InputError(
                f"Generator.generate: input_ids are {input_ids.dtype} {list(input_ids.shape)}, expected torch.int64 "
                f"(batch, length) with 1 to {self.max_batch} sequences; make the generator with a larger max_batch"
            )
        total = input_ids.shape[1] + int(options.get("max_new_tokens") or 1)
        if total > self.max_length or options.get("max_length", 0) > self.max_length:
            raise InputError(
                f"Generator.generate: {max(total, options.get('max_length', 0))} tokens with the prompt, expected at "
                f"most {self.max_length}; make the generator with a larger max_length"
            )
        if attention_mask is None:
            attention_mask = torch.ones_like(input_ids)
        with self._lock, torch.no_grad():
            filled = Filled(self.max_length, [from_tensor(kept, "torch") for kept in self.step.state.values()])
            return self._torch.generate(
                input_ids, attention_mask=attention_mask, past_key_values=filled, use_cache=True, **options
            )

    def stream(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor | None = None, **options: Any
    ) -> Iterator[torch.Tensor]:
        """What `generate` does, token by token: an int64 tensor (batch,) for each step, as soon as it is known."""
        queue = _Queue()
        failed: list[BaseException] = []

        def run() -> None:
            try:
                self.generate(input_ids, attention_mask, streamer=queue, **options)
            except BaseException as error:  # raised where the tokens are read
                failed.append(error)
                queue.end()

        threading.Thread(target=run, daemon=True).start()
        yield from iter(queue.tokens.get, None)
        if failed:
            raise failed[0]

    def _forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        past_key_values: Filled | None = None,
        **_: Any,
    ) -> CausalLMOutputWithPast:
        """A step, as transformers' loop asks for it."""
        if not isinstance(past_key_values, Filled):
            raise InputError(f"Generator: got the cache {shown(past_key_values)}, expected none: it has its own")
        batch, count = input_ids.shape
        start = past_key_values.count
        if batch > self.max_batch:
            raise InputError(
                f"Generator.generate: {batch} sequences with their beams, expected at most {self.max_batch}; make the "
                "generator with a larger max_batch"
            )
        if start + count > self.max_length:
            raise InputError(
                f"Generator.generate: token {start + count}, expected at most {self.max_length} with the prompt; pass "
                "max_new_tokens, or make the generator with a larger max_length"
            )
        if attention_mask is None:  # transformers leaves out one of ones alone
            attention_mask = torch.ones(batch, start + count, dtype=torch.int64)
        if position_ids is None:
            position_ids = (attention_mask.cumsum(-1) - 1).clamp(min=0)[:, start : start + count]
        padded = partial(_padded, rows=self.max_batch)
        mask = torch.ones(self.max_batch, self.max_length, dtype=torch.int64)
        mask[:batch, : start + count] = attention_mask
        program = self.step if count == 1 else self.prompt
        logits = program(padded(input_ids), padded(position_ids), mask, torch.tensor(start))
        past_key_values.count = start + count
        return CausalLMOutputWithPast(logits=logits[:batch], past_key_values=past_key_values)


class _Queue(BaseStreamer):
    """Tokens on their way to another thread; None after the last. transformers puts the prompt first."""

    def __init__(self) -> None:
        self.tokens: SimpleQueue[torch.Tensor | None] = SimpleQueue()
        self._prompt = True

    def put(self, value: torch.Tensor) -> None:
        if not self._prompt:
            self.tokens.put(value)
        self._prompt = False

    def end(self) -> None:
        self.tokens.put(None)


def _padded(tensor: torch.Tensor, rows: int) -> torch.Tensor:
    """The tensor with as many rows: copies of the last."""
    tensor = tensor.expand(rows, -1) if tensor.shape[0] == 1 else tensor
    return torch.cat([tensor, tensor[-1:].expand(rows - tensor.shape[0], -1)]).contiguous()
