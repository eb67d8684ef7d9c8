"""Text generation gives torch's tokens, and writes keys and values where they are kept."""

from __future__ import annotations

import copy
import pickle
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers import (
    BertConfig,
    BertLMHeadModel,
    BertModel,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GenerationConfig,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    Phi3Config,
    Phi3ForCausalLM,
    PreTrainedModel,
    StoppingCriteria,
    T5Config,
    T5ForConditionalGeneration,
    WhisperConfig,
    WhisperForCausalLM,
)

from autocast import vm
from autocast.errors import ImportModelError, InputError, PolicyError
from autocast.generation import Generator

_COMMON = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 97,
    "max_position_embeddings": 64,
}


def _phi3() -> Phi3Config:
    """Of which a sequence of 12 tokens is read anew: from there on positions are rotated by other factors."""
    factors = {"short_factor": [1.0] * 8, "long_factor": [3.0] * 8, "factor": 4.0, "rope_theta": 1e4}
    rope = {"rope_type": "longrope", "original_max_position_embeddings": 12, **factors}
    return Phi3Config(
        **_COMMON, original_max_position_embeddings=12, rope_parameters=rope, pad_token_id=0, initializer_range=0.2
    )


def _gpt2() -> PreTrainedModel:
    return GPT2LMHeadModel(GPT2Config(n_embd=64, n_layer=1, n_head=4, vocab_size=97, n_positions=64))


_BERT = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "vocab_size": 97,
    "initializer_range": 0.3,
}


_MODELS: dict[str, Callable[[], PreTrainedModel]] = {
    "GPT-2, learned positions": _gpt2,
    "Mixtral, experts": lambda: MixtralForCausalLM(MixtralConfig(**_COMMON, num_local_experts=4)),
    "Phi 3, other factors of long sequences": lambda: Phi3ForCausalLM(_phi3()),
    "Gemma 3, sliding windows": lambda: Gemma3ForCausalLM(Gemma3TextConfig(**_COMMON, head_dim=16, sliding_window=6)),
    "Whisper's decoder, which counts positions by itself": lambda: WhisperForCausalLM(
        WhisperConfig(
            **{"vocab_size": 97, "d_model": 64, "decoder_layers": 1, "decoder_attention_heads": 4},
            **{"decoder_ffn_dim": 96, "max_target_positions": 64, "init_std": 0.3},
            **{"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 3},
        )
    ),
}

_GREEDY: dict[str, Any] = {"max_new_tokens": 10, "do_sample": False, "pad_token_id": 0, "eos_token_id": None}


def _model(make: Callable[[], PreTrainedModel]) -> PreTrainedModel:
    torch.manual_seed(0)
    return make().eval()


@pytest.fixture(scope="module")
def llama() -> PreTrainedModel:
    """Of grouped heads."""
    return _model(lambda: LlamaForCausalLM(LlamaConfig(**{**_COMMON, "num_hidden_layers": 2})))


@pytest.fixture(scope="module")
def generator(llama: PreTrainedModel) -> Generator:
    return Generator(llama, max_batch=4, max_length=24)


def _prompts(rows: int, length: int) -> torch.Tensor:
    return torch.randint(1, 97, (rows, length), generator=torch.Generator().manual_seed(length))


@pytest.mark.parametrize("name", _MODELS)
def test_greedy_tokens_are_torchs(name: str) -> None:
    model = _model(_MODELS[name])
    generator = Generator(model, max_batch=2, max_length=24)
    prompts = _prompts(2, 7)
    mask = torch.ones_like(prompts)
    mask[0, :3] = 0
    for rows in (slice(0, 2), slice(1, 2)):
        asked = {"attention_mask": mask[rows], **_GREEDY}
        assert torch.equal(generator.generate(prompts[rows], **asked), model.generate(prompts[rows], **asked))
        embedded = model.get_input_embeddings()(prompts[rows])
        new = [one.generate(inputs_embeds=embedded, **asked) for one in (generator, model)]
        assert new[0].shape == (len(embedded), 10) and torch.equal(*new)
    beams = {**_GREEDY, "num_beams": 2}
    assert torch.equal(generator.generate(prompts[:1], **beams), model.generate(prompts[:1], **beams))


@pytest.fixture(scope="module")
def t5() -> PreTrainedModel:
    torch.manual_seed(0)
    small = {"d_model": 64, "d_ff": 96, "d_kv": 16, "num_layers": 1, "num_heads": 4, "vocab_size": 97}
    # Weights large enough that what was read decides what is answered.
    return T5ForConditionalGeneration(T5Config(**small, decoder_start_token_id=0, initializer_factor=4.0)).eval()


def test_what_an_encoder_read_is_answered_as_by_torch(t5: PreTrainedModel) -> None:
    generator = Generator(t5, max_batch=2, max_length=12, max_source=9)
    source = _prompts(2, 7)
    mask = torch.ones_like(source)
    mask[0, 4:] = 0
    got = generator.generate(source, mask, **_GREEDY)
    assert torch.equal(got, t5.generate(source, attention_mask=mask, **_GREEDY))
    assert not torch.equal(got[0], got[1])
    beams = {**_GREEDY, "num_beams": 2}
    assert torch.equal(generator.generate(source[1:], **beams), t5.generate(source[1:], **beams))
    with pytest.raises(InputError, match="10 tokens with the source, expected at most 9"):
        generator.generate(_prompts(1, 10))
    with pytest.raises(InputError, match="got prefill_chunk_size=2, expected none: an encoder reads all"):
        generator.generate(source, prefill_chunk_size=2)


@pytest.mark.parametrize("length", [1, 2, 14])
def test_prompts_of_any_length_are_continued(llama: PreTrainedModel, generator: Generator, length: int) -> None:
    prompts = _prompts(3, length)
    assert torch.equal(generator.generate(prompts, **_GREEDY), llama.generate(prompts, **_GREEDY))


def test_what_was_generated_before_leaves_no_trace(generator: Generator) -> None:
    prompts = _prompts(1, 5)
    first = generator.generate(prompts, **_GREEDY)
    generator.generate(_prompts(4, 14), **_GREEDY)
    assert torch.equal(generator.generate(prompts, **_GREEDY), first)


def test_beams_follow_torchs(llama: PreTrainedModel, generator: Generator) -> None:
    asked = {**_GREEDY, "num_beams": 4}
    assert torch.equal(generator.generate(_prompts(1, 5), **asked), llama.generate(_prompts(1, 5), **asked))


def test_samplers_and_stopping_criteria_are_those_of_transformers(llama: PreTrainedModel, generator: Generator) -> None:
    class AfterFour(StoppingCriteria):
        def __call__(self, input_ids: torch.Tensor, scores: Any, **_: Any) -> torch.Tensor:
            return torch.full((len(input_ids),), input_ids.shape[1] >= 9)

    asked = {**_GREEDY, "do_sample": True, "temperature": 0.7, "top_k": 20, "stopping_criteria": [AfterFour()]}
    results = []
    for generate in (generator.generate, llama.generate):
        torch.manual_seed(3)
        results.append(generate(_prompts(2, 5), **asked))
    assert results[0].shape == (2, 9)
    assert torch.equal(*results)


def test_tokens_are_streamed_as_they_come(generator: Generator) -> None:
    tokens = torch.stack(list(generator.stream(_prompts(1, 5), **_GREEDY)), dim=1)
    assert torch.equal(tokens, generator.generate(_prompts(1, 5), **_GREEDY)[:, 5:])


def test_a_stream_that_nobody_reads_on_ends(generator: Generator) -> None:
    before = threading.active_count()
    stream = generator.stream(_prompts(1, 5), **_GREEDY)
    next(stream)
    stream.close()
    deadline = time.monotonic() + 60
    while threading.active_count() > before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert threading.active_count() == before


def test_prompts_without_a_mask_begin_where_torch_says(llama: PreTrainedModel, generator: Generator) -> None:
    prompts = _prompts(2, 7)
    prompts[1, :3] = 0
    assert torch.equal(generator.generate(prompts, **_GREEDY), llama.generate(prompts, **_GREEDY))


def test_a_generator_that_would_wait_for_itself_says_so(generator: Generator) -> None:
    def again(tokens: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        generator.generate(tokens, **_GREEDY)
        return scores

    with pytest.raises(InputError, match=r"called while it generates.*fork\(\)"):
        generator.generate(_prompts(1, 5), logits_processor=[again], **_GREEDY)
    assert generator.generate(_prompts(1, 5), **_GREEDY).shape == (1, 15)
    with pytest.raises(InputError, match="got streamer, expected none"):
        list(generator.stream(_prompts(1, 5), streamer=object(), **_GREEDY))


def test_a_failure_while_tokens_are_streamed_is_raised_where_they_are_read(generator: Generator) -> None:
    with pytest.raises(InputError, match="expected at most 24"):
        next(generator.stream(_prompts(1, 5), max_new_tokens=100))


def test_both_programs_hold_the_same_parameters_and_the_same_state(generator: Generator) -> None:
    held = {param.data_ptr() for param in generator.prompt.params}
    assert {param.data_ptr() for param in generator.step.params} <= held
    states = [[tensor.data_ptr() for tensor in one.state.values()] for one in (generator.prompt, generator.step)]
    assert len(states[0]) == 4 and states[0] == states[1]


def test_sequences_with_states_of_their_own_are_generated_in_turn_and_at_once(generator: Generator) -> None:
    other = generator.fork()
    prompts = [_prompts(1, 5), _prompts(1, 9)]
    alone = [generator.generate(prompt, **_GREEDY)[0, prompt.shape[1] :].tolist() for prompt in prompts]
    streams = [one.stream(prompt, **_GREEDY) for one, prompt in zip((generator, other), prompts, strict=True)]
    in_turn = [(int(left), int(right)) for left, right in zip(*streams, strict=True)]
    assert [list(tokens) for tokens in zip(*in_turn, strict=True)] == alone

    assert [param.data_ptr() for param in other.step.params] == [param.data_ptr() for param in generator.step.params]
    pointers = [{value.data_ptr() for value in one.step.state.values()} for one in (generator, other)]
    assert pointers[0].isdisjoint(pointers[1]) and len(pointers[1]) == 4
    assert pointers[1] == {value.data_ptr() for value in other.prompt.state.values()}


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))])
def test_a_copy_generates_with_keys_and_values_of_its_own(
    generator: Generator, copied: Callable[[Generator], Generator]
) -> None:
    other = copied(generator)
    assert torch.equal(other.generate(_prompts(2, 5), **_GREEDY), generator.generate(_prompts(2, 5), **_GREEDY))
    pointers = [{value.data_ptr() for value in one.step.state.values()} for one in (generator, other)]
    assert pointers[0].isdisjoint(pointers[1])


def test_prompts_are_read_in_pieces(generator: Generator) -> None:
    expected = generator.generate(_prompts(2, 7), **_GREEDY)
    assert torch.equal(generator.generate(_prompts(2, 7), prefill_chunk_size=3, **_GREEDY), expected)


@pytest.fixture(scope="module")
def small() -> PreTrainedModel:
    """Llama of one layer."""
    return _model(lambda: LlamaForCausalLM(LlamaConfig(**_COMMON)))


@pytest.fixture(scope="module")
def low(small: PreTrainedModel) -> Generator:
    return Generator(small, max_batch=2, max_length=24, amp="bfloat16")


def test_in_mixed_precision_keys_and_values_are_low_and_logits_near(small: PreTrainedModel, low: Generator) -> None:
    assert {str(tensor.dtype) for tensor in low.step.state.values()} == {"bfloat16"}
    asked = {**_GREEDY, "max_new_tokens": 6, "output_logits": True, "return_dict_in_generate": True}
    got, want = (one.generate(_prompts(2, 8), **asked) for one in (low, small))
    assert (got.logits[0] - want.logits[0]).abs().max() < 0.02 * want.logits[0].abs().max()
    asked["inputs_embeds"] = small.get_input_embeddings()(_prompts(2, 8))  # which torch reads
    got, want = (one.generate(**asked) for one in (low, small))
    torch.testing.assert_close(got.logits[0], want.logits[0])
    assert (got.logits[1] - want.logits[1]).abs().max() < 0.02 * want.logits[1].abs().max()


def test_a_step_writes_what_is_new_and_copies_and_converts_nothing_that_is_kept(low: Generator) -> None:
    inputs = [torch.zeros(2, 1, dtype=torch.int64)] * 2 + [torch.ones(2, 24, dtype=torch.int64), torch.tensor(3)]
    kernels = [row.name for row in vm.profile_vm_model(low.step, "cpu", inputs, number=1, repeat=1).operators]
    whole = [name for name in kernels if "2x2x24x16" in name]
    assert len(whole) == 2 and all(name.startswith("index_copy") and name.endswith("in_place") for name in whole)


_WRONG: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "no model of transformers": (lambda: Generator(torch.nn.Linear(2, 2)), InputError, "a model of transformers"),
    "an encoder": (
        lambda: Generator(BertModel(BertConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=1))),
        ImportModelError,
        "expected a model that reads tokens and generates text",
    ),
    "a model whose tokens read those after them": (
        lambda: Generator(BertLMHeadModel(BertConfig(**_BERT)).eval(), max_length=16),
        InputError,
        "got BertLMHeadModel, whose tokens read those after them.*is_decoder=True",
    ),
    "a model in training mode": (
        lambda: Generator(_gpt2().train()),
        InputError,
        r"call model.eval\(\)",
    ),
    "more tokens than positions": (
        lambda: Generator(_model(_gpt2), max_length=65),
        InputError,
        r"up to 65 tokens, expected at most 64.*max_length=64",
    ),
    "a length of 0": (lambda: Generator(_model(_gpt2), max_length=0), InputError, "max_length"),
    "a policy that is none": (
        lambda: Generator(_model(_gpt2), max_length=8, policy="low"),
        PolicyError,
        "preset",
    ),
    "a policy and a dtype": (
        lambda: Generator(_model(_gpt2), max_length=8, amp="bfloat16", policy="mp4"),
        PolicyError,
        "both given",
    ),
    "a batch that is true": (
        lambda: Generator(_model(_gpt2), max_batch=True),
        InputError,
        "max_batch is True, expected a whole number",
    ),
}


@pytest.mark.parametrize("what", _WRONG)
def test_what_cannot_generate_is_refused(what: str) -> None:
    make, error, message = _WRONG[what]
    with pytest.raises(error, match=message):
        make()


@pytest.mark.parametrize(
    ("prompts", "options", "message"),
    [
        ([[1, 2]], {}, "got a list, expected token numbers"),
        (torch.ones(5, dtype=torch.int64), {}, r"torch.int64 \[5\], expected"),
        (torch.ones(1, 2), {}, r"torch.float32 \[1, 2\], expected torch.int64"),
        (torch.ones(1, 0, dtype=torch.int64), {}, "one token at least"),
        (torch.ones(5, 2, dtype=torch.int64), {}, "5 sequences with their beams, expected at most 4"),
        (torch.full((1, 2), 97), {}, "has the token 97, expected 0 to 96"),
        (torch.full((1, 2), -1), {}, "has the token -1, expected 0 to 96"),
        (torch.ones(1, 3, dtype=torch.int64), {"attention_mask": torch.ones(1, 2)}, "1 or 0 for each of the tokens"),
        (torch.ones(1, 3, dtype=torch.int64), {"use_cache": False}, "got use_cache=False"),
        (torch.ones(1, 3, dtype=torch.int64), {"prompt_lookup_num_tokens": 3}, "logits of its last token alone"),
        (torch.ones(1, 3, dtype=torch.int64), {"mm_encoder_outputs": {"image": None}}, "and a step reads tokens"),
        (
            torch.ones(1, 3, dtype=torch.int64),
            {"labels": torch.ones(1, 3)},
            "got labels, and nothing is learned",
        ),
        (
            None,
            {"inputs_embeds": torch.zeros(1, 3, 63)},
            r"inputs_embeds is torch.float32 \[1, 3, 63\], expected .*64\)",
        ),
        (None, {"inputs_embeds": torch.zeros(5, 3, 64)}, "5 sequences with their beams, expected at most 4"),
        (
            torch.ones(1, 7, dtype=torch.int64),
            {"inputs_embeds": torch.zeros(1, 7, 64), "prefill_chunk_size": 3, "max_new_tokens": 2},
            "expected the whole prompt at once; leave out prefill_chunk_size",
        ),
        (torch.ones(1, 3, dtype=torch.int64), {"guidance_scale": 1.5}, "logits of other sequences"),
        (
            torch.ones(1, 3, dtype=torch.int64),
            {"generation_config": GenerationConfig(output_attentions=True, return_dict_in_generate=True)},
            "got output_attentions, and a step gives logits alone",
        ),
        (torch.ones(1, 20, dtype=torch.int64), {"max_new_tokens": 5}, "25 tokens with the prompt, expected at most 24"),
        (torch.ones(1, 20, dtype=torch.int64), {"max_length": 30}, "30 tokens with the prompt, expected at most 24"),
        (torch.ones(2, 2, dtype=torch.int64), {"num_beams": 3, "max_new_tokens": 2}, "6 sequences with their beams"),
    ],
)
def test_prompts_that_do_not_fit_are_refused(generator: Generator, prompts: Any, options: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        generator.generate(prompts, **options)
