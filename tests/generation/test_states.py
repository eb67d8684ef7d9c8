"""Models that keep states of convolutions and recurrences, beside keys and values or alone, generate torch's tokens."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers import (
    CpmAntConfig,
    CpmAntForCausalLM,
    DeepseekV32Config,
    DeepseekV32ForCausalLM,
    FalconH1Config,
    FalconH1ForCausalLM,
    MambaConfig,
    MambaForCausalLM,
    MiniMaxConfig,
    MiniMaxForCausalLM,
    OpenAIGPTConfig,
    OpenAIGPTLMHeadModel,
    PreTrainedModel,
    RecurrentGemmaConfig,
    RecurrentGemmaForCausalLM,
)

from autocast.errors import ImportModelError
from autocast.generation import Generator

_COMMON = {"vocab_size": 97, "hidden_size": 32, "num_hidden_layers": 1}

_MODELS: dict[str, Callable[[], PreTrainedModel]] = {
    "Mamba": lambda: MambaForCausalLM(MambaConfig(**_COMMON, state_size=8, time_step_rank=4)),
    "Falcon-H1, attention beside": lambda: FalconH1ForCausalLM(
        FalconH1Config(
            **_COMMON,
            intermediate_size=48,
            num_attention_heads=4,
            num_key_value_heads=2,
            mamba_d_ssm=32,
            mamba_n_heads=4,
            mamba_d_head=8,
            mamba_d_state=8,
        )
    ),
}

_GREEDY: dict[str, Any] = {"max_new_tokens": 8, "do_sample": False, "pad_token_id": 0, "eos_token_id": None}


@pytest.fixture(scope="module", params=list(_MODELS))
def model(request: pytest.FixtureRequest) -> PreTrainedModel:
    torch.manual_seed(0)
    model = _MODELS[request.param]().eval()
    with torch.no_grad():  # what was read decides what is generated
        for parameter in model.parameters():
            if parameter.ndim == 2 and parameter.std() < 0.1:
                parameter *= 0.3 / parameter.std()
    return model


@pytest.fixture(scope="module")
def generator(model: PreTrainedModel) -> Generator:
    return Generator(model, max_batch=2, max_length=20)


def _prompts(rows: int, length: int) -> torch.Tensor:
    return torch.randint(1, 97, (rows, length), generator=torch.Generator().manual_seed(length))


def test_greedy_tokens_of_prompts_of_unequal_lengths_are_torchs(model: PreTrainedModel, generator: Generator) -> None:
    prompts = _prompts(2, 9)
    mask = torch.ones_like(prompts)
    mask[0, :4] = 0
    for rows in (slice(0, 2), slice(1, 2)):
        asked = {"attention_mask": mask[rows], **_GREEDY, "output_logits": True, "return_dict_in_generate": True}
        got, want = (one.generate(prompts[rows], **asked) for one in (generator, model))
        assert torch.equal(got.sequences, want.sequences)
        torch.testing.assert_close(torch.stack(got.logits), torch.stack(want.logits), rtol=1e-4, atol=1e-4)


def test_embeddings_that_torch_reads_leave_their_states(model: PreTrainedModel, generator: Generator) -> None:
    if "inputs_embeds" not in inspect.signature(model.prepare_inputs_for_generation).parameters:
        pytest.skip("transformers generates from no embeddings with it")
    prompts = _prompts(2, 9)
    mask = torch.ones_like(prompts)
    mask[0, :4] = 0
    asked = {"inputs_embeds": model.get_input_embeddings()(prompts), "attention_mask": mask, **_GREEDY}
    assert torch.equal(generator.generate(**asked), model.generate(**asked))


def test_beams_take_their_states_along(model: PreTrainedModel, generator: Generator) -> None:
    asked = {**_GREEDY, "num_beams": 2}
    assert torch.equal(generator.generate(_prompts(1, 5), **asked), model.generate(_prompts(1, 5), **asked))


def test_each_prompt_begins_with_states_of_zeros(generator: Generator) -> None:
    first = generator.generate(_prompts(1, 5), **_GREEDY)
    states = [state for name, state in generator.step.state.items() if "conv" in name or "recurrent" in name]
    assert len(states) == 2
    for state in states:
        torch.from_dlpack(state).fill_(float("nan"))
    assert torch.equal(generator.generate(_prompts(1, 5), **_GREEDY), first)


def test_a_fork_has_states_of_its_own(generator: Generator) -> None:
    prompts = [_prompts(1, 4), _prompts(1, 6)]
    alone = [generator.generate(prompt, **_GREEDY)[0, prompt.shape[1] :].tolist() for prompt in prompts]
    streams = [
        one.stream(prompt, **_GREEDY) for one, prompt in zip((generator, generator.fork()), prompts, strict=True)
    ]
    in_turn = [(int(left), int(right)) for left, right in zip(*streams, strict=True)]
    assert [list(tokens) for tokens in zip(*in_turn, strict=True)] == alone


def test_no_model_asks_for_a_cache_of_a_kind_of_its_own(
    generator: Generator, model: PreTrainedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """T5Gemma wants an EncoderDecoderCache where transformers' loop begins."""
    expected = generator.generate(_prompts(1, 5), **_GREEDY)
    monkeypatch.setattr(type(model), "_prepare_cache_for_generation", None)
    assert torch.equal(generator.generate(_prompts(1, 5), **_GREEDY), expected)


def test_in_mixed_precision_states_stay_float32() -> None:
    torch.manual_seed(0)
    low = Generator(_MODELS["Mamba"]().eval(), max_length=12, amp="bfloat16")
    assert {str(state.dtype) for state in low.step.state.values()} == {"float32"}
    assert low.generate(_prompts(1, 3), **_GREEDY).shape == (1, 11)


_ATTENTION = {"intermediate_size": 48, "num_attention_heads": 4, "num_key_value_heads": 4}


def test_attention_that_chooses_its_tokens_keeps_the_keys_it_chooses_by() -> None:
    torch.manual_seed(0)
    sizes = {"q_lora_rank": 16, "kv_lora_rank": 16, "qk_nope_head_dim": 8, "qk_rope_head_dim": 8, "v_head_dim": 8}
    chosen = {"index_n_heads": 16, "index_head_dim": 16, "index_topk": 6}  # of more heads, so that no two are alike
    config = DeepseekV32Config(
        **{**_COMMON, **_ATTENTION, **sizes, **chosen}, first_k_dense_replace=1, initializer_range=0.3
    )
    model = DeepseekV32ForCausalLM(config).eval()
    generator = Generator(model, max_batch=2, max_length=20)
    prompts = _prompts(2, 9)
    asked = {**_GREEDY, "attention_mask": torch.ones_like(prompts)}
    asked["attention_mask"][0, :4] = 0
    assert torch.equal(generator.generate(prompts, **asked), model.generate(prompts, **asked))
    asked = {**_GREEDY, "num_beams": 2}
    assert torch.equal(generator.generate(prompts[:1], **asked), model.generate(prompts[:1], **asked))


def _cpmant() -> PreTrainedModel:
    sizes = {"num_attention_heads": 4, "dim_head": 8, "dim_ff": 48, "prompt_length": 8}
    return CpmAntForCausalLM(CpmAntConfig(**_COMMON, **sizes))


def _recurrent_gemma() -> PreTrainedModel:
    return RecurrentGemmaForCausalLM(
        RecurrentGemmaConfig(**{**_COMMON, **_ATTENTION, "num_hidden_layers": 3}, lru_width=32)
    )


class _Divides(OpenAIGPTLMHeadModel):
    def forward(self, input_ids: torch.Tensor, **_: Any) -> Any:
        return input_ids / (1 // 0)


def _divides() -> PreTrainedModel:
    return _Divides(OpenAIGPTConfig(vocab_size=99, n_positions=64, n_embd=32, n_layer=1, n_head=4))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (_recurrent_gemma, "got RecurrentGemmaForCausalLM, which keeps nothing in a LinearAttentionLayer; expected"),
        (_cpmant, "got CpmAntForCausalLM, which keeps 9 keys of one token in a layer, expected one of each token"),
        (_divides, "_Divides does not run with a cache of transformers: integer division"),
    ],
)
def test_what_keeps_something_else_is_refused(make: Callable[[], PreTrainedModel], message: str) -> None:
    with pytest.raises(ImportModelError, match=message):
        Generator(make().eval(), max_length=16)


def test_a_model_with_a_cache_of_its_own_is_refused() -> None:
    config = MiniMaxConfig(**_COMMON, intermediate_size=48, num_attention_heads=4, num_key_value_heads=2)
    with pytest.raises(ImportModelError, match="MiniMaxForCausalLM does not run with a cache of transformers: MiniMax"):
        Generator(MiniMaxForCausalLM(config).eval())


def test_a_model_that_keeps_nothing_is_refused() -> None:
    config = OpenAIGPTConfig(vocab_size=99, n_positions=64, n_embd=32, n_layer=1, n_head=4)
    with pytest.raises(ImportModelError, match=r"OpenAIGPTLMHeadModel does not run with a cache .*it keeps nothing in"):
        Generator(OpenAIGPTLMHeadModel(config).eval(), max_length=60)
