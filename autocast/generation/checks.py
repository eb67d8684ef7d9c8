"""What may be asked of a generator: the errors of its doors."""

from __future__ import annotations

import inspect
import threading
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from autocast.errors import ImportModelError, InputError
from autocast.generation.steps import Limits, Step
from autocast.messages import check_kind, shown

_WHERE = "Generator.generate"

#: Options of transformers that ask for what a step does not give, and why.
_NOT_GIVEN = {
    "assistant_model": "a step gives the logits of its last token alone",
    "prompt_lookup_num_tokens": "a step gives the logits of its last token alone",
    "no_speech_threshold": "a step gives the logits of its last token alone",
    "dola_layers": "a step gives logits alone",
    "penalty_alpha": "a step gives logits alone",
    "output_attentions": "a step gives logits alone",
    "output_hidden_states": "a step gives logits alone",
    "return_token_timestamps": "a step gives logits alone",
    "cache_implementation": "the generator has keys and values of its own",
    "cache": "the generator has keys and values of its own",
    "past_key_values": "the generator has keys and values of its own",
    "decoder_inputs_embeds": "a step reads tokens",
    "labels": "nothing is learned",
    "mm_encoder_outputs": "a step reads tokens",
    "encoder_outputs": "the program for the first tokens encodes",
}

#: Arguments of models that a step takes besides the main input, and with an encoder, or without one.
_TAKEN = {
    True: {"attention_mask", "decoder_input_ids", "decoder_attention_mask"},
    False: {"attention_mask", "position_ids"},
}


#: Arguments of `prepare_inputs_for_generation` that transformers' loop itself gives, or that are no names.
_OF_LOOP = {"self", "args", "kwargs", "model_kwargs", "next_sequence_length", "is_first_iteration", "cache_position"}


def check_positions(model: PreTrainedModel, limits: Limits, reads_tokens: bool) -> None:
    """InputError where the model has learned fewer positions than a sequence may have."""
    config = model.config.get_text_config(decoder=True)
    names = ("max_position_embeddings", "max_target_positions")
    count = next((value for name in names if (value := getattr(config, name, None))), 0)
    learned = any(
        # OPT's and BART's tables have two rows more
        module.num_embeddings in (count, count + 2) and module is not model.get_input_embeddings()
        for module in model.modules()
        if isinstance(module, nn.Embedding)
    )
    asked = max(limits.length, limits.source if model.config.is_encoder_decoder and reads_tokens else 0)
    if learned and asked > count:
        raise InputError(
            f"Generator: got sequences of up to {asked} tokens, expected at most {count}: the model has as many "
            f"positions. Make it with max_length={count}"
        )


def reads_ahead(model: PreTrainedModel) -> bool:
    """Whether tokens of a prompt read those after them, as PaliGemma's do; an encoder's are free to.

    Raises
    ------
    InputError
        Later tokens do so, too, and what is kept of those before is wrong then.
    """
    if model.config.is_encoder_decoder:
        return False
    with torch.no_grad():
        one, other = (model(input_ids=torch.tensor([[0, last]]), use_cache=False).logits[:, 0] for last in (0, 1))
    ahead = _differ(one, other)
    if ahead and not getattr(model.config.get_text_config(decoder=True), "is_decoder", True):
        raise InputError(
            f"Generator: got {type(model).__name__}, whose tokens read those after them, expected a causal model; "
            "make it with is_decoder=True in its configuration"
        )
    return ahead


def check_first(model: PreTrainedModel, first: Step) -> None:
    """ImportModelError where a model that encodes tokens gives others logits for keys of a fixed length, whose places
    after the last token are masked: its masks mean something else, too. NLLB-MoE chooses experts by them."""
    refused = ImportModelError(
        f"Generator: {type(model).__name__} has no use for keys and values of a fixed length, of which a mask says how "
        "many there are: its logits are others then, or it fails. Expected a model whose masks say what is attended "
        "to, and nothing else. Import one step of it with from_torch"
    )
    with torch.no_grad():
        expected = model(**{model.main_input_name: first.inputs[3]}, decoder_input_ids=first.inputs[0]).logits[:, -1:]
        try:
            got = first.module(*first.inputs)
        except Exception as error:  # of the kinds that the authors of models thought of
            raise refused from error
        for name, buffer in first.module.named_buffers():
            if name.startswith(("kept.", "of_source.")):
                buffer.zero_()
    if _differ(got, expected):
        raise refused


def _differ(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether logits are not the same but for rounding."""
    return float((one - other).abs().max()) > torch.finfo(one.dtype).eps ** 0.5 * float(one.abs().max())


def check_tokens(model: PreTrainedModel, input_ids: Any, attention_mask: Any) -> None:
    """InputError unless these are tokens that the model has, with a mask of the same shape or none."""
    check_kind(_WHERE, input_ids, torch.Tensor, InputError, "token numbers, int64 (batch, length)")
    got = f"{_WHERE}: input_ids are {input_ids.dtype} {list(input_ids.shape)}, expected"
    if input_ids.ndim != 2 or input_ids.dtype != torch.int64 or not input_ids.numel():
        raise InputError(f"{got} torch.int64 (batch, length), one token at least; try input_ids.long()[None]")
    tokens = model.get_input_embeddings().num_embeddings
    low, high = map(int, input_ids.aminmax())
    if low < 0 or high >= tokens:
        raise InputError(
            f"{_WHERE}: input_ids has the token {low if low < 0 else high}, expected 0 to {tokens - 1}, which the "
            "model knows; use the tokenizer of the model"
        )
    if attention_mask is not None and tuple(getattr(attention_mask, "shape", ())) != tuple(input_ids.shape):
        raise InputError(
            f"{_WHERE}: attention_mask is {shown(attention_mask)}, expected 1 or 0 for each of the tokens, "
            f"{list(input_ids.shape)}"
        )


def check_features(model: PreTrainedModel, features: Any, shape: tuple[int, ...]) -> None:
    """InputError unless these are features of the shape, but for the last size: transformers cuts sounds in pieces."""
    name, expected = model.main_input_name, f"{model.dtype} (batch, {', '.join(map(str, shape)) or '...'})"
    check_kind(_WHERE, features, torch.Tensor, InputError, f"{name}, {expected}")
    sizes = tuple(features.shape)
    fits = len(sizes) == len(shape) + 1 and sizes[1:-1] == shape[:-1] if shape else len(sizes) > 1
    if features.dtype != model.dtype or not fits or 0 in sizes:
        raise InputError(
            f"{_WHERE}: {name} is {features.dtype} {list(sizes)}, expected {expected}; use the processor of the model"
        )


def check_one_length(mask: torch.Tensor | None) -> None:
    """InputError where features are padded: which of what an encoder makes of them is padding is the model's rule."""
    if mask is not None and not bool((mask != 0).all()):
        raise InputError(
            f"{_WHERE}: got attention_mask with padding of what the encoder reads, expected inputs of one length; "
            "generate one after the other"
        )


def check_one_piece(frames: int, most: int) -> None:
    """InputError where transformers would cut a sound in pieces, and answer one after the other."""
    if frames > most:
        raise InputError(f"Generator.stream: {frames} frames, expected at most {most}; use generate, or cut the sound")


def check_is_free(generating: int | None) -> None:
    """InputError where the thread that generates asks for more meanwhile: it would wait for itself."""
    if generating == threading.get_ident():
        raise InputError(
            f"{_WHERE}: called while it generates, by a processor of logits, say; its keys and values are in use. "
            "Expected another generator: make one with fork()"
        )


def check_not_streamed(options: dict[str, Any]) -> None:
    """InputError where tokens that are streamed are to go to a streamer, too."""
    if options.get("streamer") is not None:
        raise InputError("Generator.stream: got streamer, expected none: the tokens are what it yields; use generate")


def check_batch(rows: int, limits: Limits) -> None:
    """InputError where there are more sequences, or beams, than the generator was made for."""
    if rows > limits.batch:
        raise InputError(
            f"{_WHERE}: {rows} sequences with their beams, expected at most {limits.batch}; make the generator with a "
            "larger max_batch"
        )


def check_options(model: PreTrainedModel, options: dict[str, Any], features: tuple[int, ...] | None) -> None:
    """InputError where an option asks for what no step gives."""
    if options.get("use_cache") is False:
        raise InputError(f"{_WHERE}: got use_cache=False, expected True: keys and values are always kept")
    config = options.get("generation_config") or model.generation_config
    for name, why in _NOT_GIVEN.items():
        asked = options.get(name, getattr(config, name, None))
        if name == "mm_encoder_outputs" and name in _arguments(model):
            continue
        if isinstance(asked, torch.Tensor) or asked:
            raise InputError(f"{_WHERE}: got {name}, and {why}; leave it out, or use model.generate of transformers")
    chunk = options.get("prefill_chunk_size", getattr(config, "prefill_chunk_size", None))
    if chunk is not None and model.config.is_encoder_decoder:
        raise InputError(
            f"{_WHERE}: got prefill_chunk_size={chunk}, expected none: an encoder reads all of its tokens at once. "
            "Leave it out"
        )
    beside = beside_tokens(model, options)
    if chunk and beside:
        raise InputError(
            f"{_WHERE}: got prefill_chunk_size={chunk} and {', '.join(sorted(beside))}, expected the whole prompt at "
            "once; leave out prefill_chunk_size"
        )
    if features and beside:
        raise InputError(
            f"{_WHERE}: got {', '.join(sorted(beside))}, which {type(model).__name__} reads and a step does not: it "
            f"reads {model.main_input_name} and a mask. Leave it out, or use model.generate of transformers"
        )
    if (scale := options.get("guidance_scale", config.guidance_scale)) not in (None, 1):
        raise InputError(
            f"{_WHERE}: got guidance_scale={scale}, expected none: it asks for the logits of other sequences, without "
            "the prompt, and a step knows those of its own. Leave it out, or use model.generate of transformers"
        )


def beside_tokens(model: PreTrainedModel, options: dict[str, Any]) -> frozenset[str]:
    """The names of what a model is to read besides its main input and a mask, such as pictures."""
    taken = _TAKEN[bool(model.config.is_encoder_decoder)] | {model.main_input_name}
    return frozenset(
        name
        for name in _arguments(model).intersection(options) - taken
        if not isinstance(options[name], bool | int | None)
    )


def check_embeddings(model: PreTrainedModel, embeddings: Any) -> None:
    """InputError unless these are as many numbers as the model has for each of some tokens."""
    width = model.get_input_embeddings().embedding_dim
    expected = f"inputs_embeds, {model.dtype} (batch, length, {width})"
    check_kind(_WHERE, embeddings, torch.Tensor, InputError, expected)
    sizes = tuple(embeddings.shape)
    if embeddings.dtype != model.dtype or len(sizes) != 3 or sizes[2] != width or 0 in sizes:
        raise InputError(
            f"{_WHERE}: inputs_embeds is {embeddings.dtype} {list(sizes)}, expected {expected}; try "
            "model.get_input_embeddings()(input_ids)"
        )


def check_later(
    model: PreTrainedModel, got: torch.Tensor, expected: torch.Tensor, dtype: torch.dtype, beside: frozenset[str]
) -> None:
    """InputError where a later token has other logits than torch gives it: not all that was read is in what is kept."""
    allowed = 0.5 if dtype.itemsize < 4 else torch.finfo(dtype).eps ** 0.5
    said = expected.abs() < 1e30  # some models forbid tokens by the least of numbers
    if not float((got - expected)[said].abs().max()) <= allowed * float(expected[said].abs().max()):
        raise not_beside(model, beside)


def not_beside(model: PreTrainedModel, beside: frozenset[str]) -> InputError:
    """The error of a model whose later tokens need more of pictures, say, than keys and values."""
    read = ", ".join(sorted(beside)) or "a prompt"
    return InputError(
        f"{_WHERE}: got {read}, of which later tokens of {type(model).__name__} read more than keys and values of as "
        "many places as there are tokens; leave it out, or use model.generate of transformers"
    )


def check_at_once(start: int, count: int) -> None:
    """InputError where transformers gives a prompt piece by piece whose tokens are to be read together."""
    if start and count > 1:
        raise InputError(
            f"{_WHERE}: got {count} tokens after {start} others, expected the whole prompt at once; leave out "
            "prefill_chunk_size"
        )


def _arguments(model: PreTrainedModel) -> set[str]:
    """What a model's forward, or that of an encoder and a decoder which it is joined of, reads by name."""
    kind = type(model)
    names = set(inspect.signature(kind.forward).parameters) - {"self"}
    names |= set(inspect.signature(kind.prepare_inputs_for_generation).parameters) - _OF_LOOP
    if model.config.is_encoder_decoder:
        parts = (kind.get_encoder(model), getattr(model, "decoder", None))
        of_encoder, of_decoder = (set(inspect.signature(part.forward).parameters) if part else set() for part in parts)
        names |= of_encoder | {f"decoder_{name}" for name in of_decoder}
    return names


def check_room(what: str, asked: int, limit: str, most: int) -> None:
    """InputError where there are more tokens than the generator was made for."""
    if asked > most:
        raise InputError(
            f"{_WHERE}: {asked} tokens with the {what}, expected at most {most}; make the generator with a larger "
            f"{limit}"
        )
