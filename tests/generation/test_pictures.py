"""Prompts with pictures among their tokens are continued with torch's tokens, or refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import (
    DynamicCache,
    PaliGemmaConfig,
    PaliGemmaForConditionalGeneration,
    PreTrainedModel,
    Qwen2VLConfig,
    Qwen2VLForConditionalGeneration,
)

from autocast.errors import InputError
from autocast.generation import Generator
from autocast.generation.prompts import write

_TEXT: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 97,
    "max_position_embeddings": 64,
}

_VISION: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "image_size": 8,
    "patch_size": 4,
}

_GREEDY: dict[str, Any] = {"max_new_tokens": 8, "do_sample": False, "pad_token_id": 0, "eos_token_id": None}

_PICTURE = 93


def _spread(model: PreTrainedModel) -> PreTrainedModel:
    """Weights large enough that what was read decides what is generated."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.copy_(0.3 * torch.randn(parameter.shape, generator=generator))
    return model.eval()


def _qwen() -> PreTrainedModel:
    """Positions in time, height and width: those after a picture are fewer than the tokens before them."""
    rope = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 1, 1]}
    vision = {"depth": 1, "embed_dim": 32, "hidden_size": 32, "num_heads": 2, "patch_size": 4}
    tokens = {"image_token_id": _PICTURE, "video_token_id": 94, "vision_start_token_id": 95, "vision_end_token_id": 96}
    config = Qwen2VLConfig(text_config={**_TEXT, "rope_parameters": rope}, vision_config=vision, **tokens)
    return _spread(Qwen2VLForConditionalGeneration(config))


@pytest.fixture(scope="module")
def qwen() -> PreTrainedModel:
    return _qwen()


@pytest.fixture(scope="module")
def generator(qwen: PreTrainedModel) -> Generator:
    return Generator(qwen, max_batch=2, max_length=24)


def _with_pictures(rows: int) -> dict[str, Any]:
    """Prompts of 12 tokens, six of which are those of a picture of 4 by 6 patches."""
    seeded = torch.Generator().manual_seed(rows)
    tokens = torch.randint(1, 90, (rows, 12), generator=seeded)
    tokens[:, 3:9] = _PICTURE
    return {
        "input_ids": tokens,
        "pixel_values": torch.randn(rows * 24, 2 * 3 * 4 * 4, generator=seeded),
        "image_grid_thw": torch.tensor([[1, 4, 6]] * rows),
        "mm_token_type_ids": (tokens == _PICTURE).long(),
    }


def test_positions_after_a_picture_are_torchs(qwen: PreTrainedModel, generator: Generator) -> None:
    prompt = _with_pictures(1)
    answer = generator.generate(**prompt, **_GREEDY)
    assert torch.equal(answer, qwen.generate(**prompt, **_GREEDY))
    other = generator.generate(**prompt | {"pixel_values": -prompt["pixel_values"]}, **_GREEDY)
    assert not torch.equal(answer, other)
    tokens = {"input_ids": prompt["input_ids"][:, :3]}  # of which no picture was read
    assert torch.equal(generator.generate(**tokens, **_GREEDY), qwen.generate(**tokens, **_GREEDY))
    embedded = {"inputs_embeds": qwen.get_input_embeddings()(tokens["input_ids"])}
    assert torch.equal(generator.generate(**embedded, **_GREEDY), qwen.generate(**embedded, **_GREEDY))


def test_prompts_of_unequal_lengths_have_pictures(qwen: PreTrainedModel, generator: Generator) -> None:
    prompts = _with_pictures(2)
    prompts["attention_mask"] = torch.ones_like(prompts["input_ids"])
    prompts["attention_mask"][0, :2] = 0
    asked = {**_GREEDY, "output_logits": True, "return_dict_in_generate": True}
    got, want = (one.generate(**prompts, **asked) for one in (generator, qwen))
    assert torch.equal(got.sequences, want.sequences)
    torch.testing.assert_close(torch.stack(got.logits), torch.stack(want.logits), rtol=1e-4, atol=1e-4)


def test_beams_and_streams_of_a_picture_are_torchs(qwen: PreTrainedModel, generator: Generator) -> None:
    prompt = _with_pictures(1)
    for one in (generator, generator.fork()):  # the first later token of another is compared with torch's anew
        beams = {**_GREEDY, "num_beams": 2}
        assert torch.equal(one.generate(**prompt, **beams), qwen.generate(**prompt, **beams))
    tokens = torch.stack(list(generator.stream(**prompt, **_GREEDY)), dim=1)
    assert torch.equal(tokens, qwen.generate(**prompt, **_GREEDY)[:, 12:])


class _Recalls(PaliGemmaForConditionalGeneration):
    """All tokens of a prompt read each other, with a picture and without; a hint is added to logits, however late."""

    def forward(
        self,
        input_ids: Any = None,
        pixel_values: Any = None,
        attention_mask: Any = None,
        position_ids: Any = None,
        cache: Any = None,
        token_type_ids: Any = None,
        hint: torch.Tensor | None = None,
        **others: Any,
    ) -> Any:
        outputs = super().forward(
            input_ids, pixel_values, attention_mask, position_ids, cache, token_type_ids, **others
        )
        if hint is not None:
            outputs.logits = outputs.logits + hint
        return outputs


@pytest.fixture(scope="module")
def recalling() -> PreTrainedModel:
    config = PaliGemmaConfig(
        text_config={**_TEXT, "model_type": "gemma", "head_dim": 8},
        vision_config={**_VISION, "projection_dim": 32},
        image_token_index=_PICTURE,
        projection_dim=32,
    )
    return _spread(_Recalls(config))


@pytest.fixture(scope="module")
def prefixed(recalling: PreTrainedModel) -> Generator:
    return Generator(recalling, max_length=24)


def test_tokens_of_a_prompt_that_read_each_other(recalling: PreTrainedModel, prefixed: Generator) -> None:
    assert prefixed.prompt is prefixed.step  # torch reads all prompts
    tokens = torch.randint(1, 90, (1, 11), generator=torch.Generator().manual_seed(1))
    assert torch.equal(prefixed.generate(tokens, **_GREEDY), recalling.generate(tokens, **_GREEDY))
    tokens[:, 2:6] = _PICTURE
    kinds = (tokens == _PICTURE).long()
    prompt = {"input_ids": tokens, "pixel_values": torch.randn(1, 3, 8, 8), "token_type_ids": kinds}
    assert torch.equal(prefixed.generate(**prompt, **_GREEDY), recalling.generate(**prompt, **_GREEDY))
    with pytest.raises(InputError, match="expected the whole prompt at once"):
        prefixed.generate(tokens, prefill_chunk_size=3, **_GREEDY)


def test_what_each_later_token_reads_is_refused(prefixed: Generator) -> None:
    tokens = torch.randint(1, 90, (1, 4))
    with pytest.raises(InputError, match="got hint, of which later tokens of _Recalls read more than keys"):
        prefixed.generate(tokens, hint=9 * torch.randn(97), max_new_tokens=3)


def test_keys_of_more_places_than_tokens_are_refused() -> None:
    cache = DynamicCache()
    cache.update(torch.ones(1, 2, 5, 4), torch.ones(1, 2, 5, 4), 0)
    kept = {"kept.keys_0": torch.zeros(2, 2, 8, 4), "kept.values_0": torch.zeros(2, 2, 8, 4)}
    assert not write(cache, kept, 3)
    assert write(cache, kept, 5)
    assert all(bool((one[:1, :, :5] == 1).all()) and float(one.sum()) == 40 for one in kept.values())
