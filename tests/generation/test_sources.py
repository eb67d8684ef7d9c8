"""What encoders make of sounds and pictures is answered with torch's tokens."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import (
    BertConfig,
    EncoderDecoderConfig,
    EncoderDecoderModel,
    GPT2Config,
    NllbMoeConfig,
    NllbMoeForConditionalGeneration,
    PreTrainedModel,
    Speech2TextConfig,
    Speech2TextForConditionalGeneration,
    VisionEncoderDecoderConfig,
    VisionEncoderDecoderModel,
    ViTConfig,
    WhisperConfig,
    WhisperForConditionalGeneration,
)

from autocast.errors import ImportModelError, InputError
from autocast.generation import Generator

_WHISPER = {
    "vocab_size": 120,
    "d_model": 32,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
    "num_mel_bins": 8,
    "max_source_positions": 12,
    "max_target_positions": 40,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 3,
    "suppress_tokens": None,
    "begin_suppress_tokens": None,
}

_MULTILINGUAL = {
    "is_multilingual": True,
    "lang_to_id": {"<|en|>": 4, "<|de|>": 5},
    "task_to_id": {"transcribe": 6, "translate": 7},
    "no_timestamps_token_id": 100,
    "max_initial_timestamp_index": 5,
}

_GREEDY: dict[str, Any] = {"max_new_tokens": 12, "do_sample": False}


def _spread(model: PreTrainedModel) -> PreTrainedModel:
    """Weights large enough that what was read decides what is answered."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.copy_(0.2 * torch.randn_like(parameter))
    return model.eval()


@pytest.fixture(scope="module")
def whisper() -> PreTrainedModel:
    torch.manual_seed(0)
    model = _spread(WhisperForConditionalGeneration(WhisperConfig(**_WHISPER)))
    for name, value in _MULTILINGUAL.items():
        setattr(model.generation_config, name, value)
    return model


@pytest.fixture(scope="module")
def generator(whisper: PreTrainedModel) -> Generator:
    return Generator(whisper, max_batch=2, max_length=40)


def _sounds(rows: int, frames: int = 24) -> torch.Tensor:
    return torch.randn(rows, 8, frames, generator=torch.Generator().manual_seed(frames))


@pytest.mark.parametrize(
    ("rows", "asked"),
    [
        (2, {"language": "de", "task": "translate"}),
        (1, {"language": "en", "return_timestamps": True, "suppress_tokens": [105, 93]}),
        (1, {"num_beams": 2}),  # of a language that it detects
    ],
)
def test_whispers_tokens_are_torchs(
    whisper: PreTrainedModel, generator: Generator, rows: int, asked: dict[str, Any]
) -> None:
    got = generator.generate(_sounds(rows), **asked, **_GREEDY)
    assert torch.equal(got, whisper.generate(_sounds(rows), **asked, **_GREEDY))
    assert rows == 1 or not torch.equal(got[0], got[1])


def test_sounds_longer_than_the_encoder_reads_are_answered_piece_by_piece(
    whisper: PreTrainedModel, generator: Generator
) -> None:
    asked = {"attention_mask": torch.ones(2, 60, dtype=torch.int64), "return_timestamps": True, **_GREEDY}
    got = generator.generate(input_features=_sounds(2, 60), **asked)
    assert torch.equal(got, whisper.generate(_sounds(2, 60), **asked))
    assert got.shape[1] > 12


def test_whispers_logits_come_without_keys_and_values(whisper: PreTrainedModel, generator: Generator) -> None:
    asked = {**_GREEDY, "language": "en", "output_logits": True, "return_dict_in_generate": True}
    got, want = (one.generate(_sounds(2), **asked) for one in (generator, whisper))
    torch.testing.assert_close(torch.stack(got.logits), torch.stack(want.logits), rtol=0, atol=1e-4)


def test_a_sound_is_streamed_if_it_is_one_piece(generator: Generator) -> None:
    asked = {**_GREEDY, "language": "en", "suppress_tokens": list(range(100, 120))}  # times, at which it would be cut
    tokens = torch.stack(list(generator.stream(_sounds(1), **asked)), dim=1)
    assert torch.equal(tokens, generator.generate(_sounds(1), **asked))
    with pytest.raises(InputError, match="60 frames, expected at most 24"):
        generator.stream(_sounds(1, 60), **asked)


def test_pictures_are_described_with_torchs_tokens() -> None:
    torch.manual_seed(0)
    reads = ViTConfig(
        hidden_size=48, num_hidden_layers=1, num_attention_heads=4, intermediate_size=64, image_size=32, patch_size=16
    )
    says = GPT2Config(vocab_size=99, n_embd=32, n_layer=1, n_head=4, n_positions=16, add_cross_attention=True)
    model = _spread(VisionEncoderDecoderModel(VisionEncoderDecoderConfig.from_encoder_decoder_configs(reads, says)))
    pictures = torch.randn(2, 3, 32, 32)
    asked = {**_GREEDY, "decoder_start_token_id": 3, "pad_token_id": 0, "eos_token_id": None}
    got = Generator(model, max_batch=2, max_length=16).generate(pixel_values=pictures, **asked)
    assert torch.equal(got, model.generate(pictures, **asked))
    assert not torch.equal(got[0], got[1])


@pytest.mark.parametrize(
    ("features", "options", "message"),
    [
        (torch.ones(1, 24, dtype=torch.int64), {}, r"input_features is torch.int64 \[1, 24\], expected torch.float32"),
        (_sounds(1).transpose(1, 2), {}, r"\[1, 24, 8\], expected torch.float32 \(batch, 8, 24\)"),
        (_sounds(3), {}, "3 sequences with their beams, expected at most 2"),
        (_sounds(1), {"return_token_timestamps": True}, "return_token_timestamps, and a step gives logits alone"),
        (_sounds(1), {"no_speech_threshold": 0.6}, "no_speech_threshold, and a step gives the logits of its last"),
    ],
)
def test_features_that_do_not_fit_are_refused(
    generator: Generator, features: torch.Tensor, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        generator.generate(features, **options)


def test_more_tokens_than_whisper_has_positions_are_refused(whisper: PreTrainedModel) -> None:
    with pytest.raises(InputError, match="up to 41 tokens, expected at most 40"):
        Generator(whisper, max_length=41)


def test_torch_reads_sounds_of_any_length() -> None:
    config = Speech2TextConfig(
        **{"vocab_size": 50, "d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "conv_channels": 16},
        **{"encoder_ffn_dim": 32, "decoder_ffn_dim": 32, "input_feat_per_channel": 8, "decoder_start_token_id": 2},
    )
    model = _spread(Speech2TextForConditionalGeneration(config))
    generator = Generator(model, max_batch=2, max_length=16, max_source=10)
    for rows, frames, asked in ((2, 24, _GREEDY), (1, 33, {**_GREEDY, "num_beams": 2})):
        sounds = torch.randn(rows, frames, 8)
        assert torch.equal(generator.generate(sounds, **asked), model.generate(sounds, **asked))
    with pytest.raises(InputError, match="11 tokens with the source, expected at most 10"):
        generator.generate(torch.randn(1, 44, 8), **_GREEDY)
    with pytest.raises(InputError, match="expected inputs of one length; generate one after the other"):
        mask = torch.tensor([[1] * 24, [1] * 16 + [0] * 8])
        generator.generate(torch.randn(2, 24, 8), attention_mask=mask, **_GREEDY)
    with pytest.raises(InputError, match=r"is torch.int64 \[1, 24\], expected torch.float32 \(batch, ...\)"):
        generator.generate(torch.ones(1, 24, dtype=torch.int64), **_GREEDY)


def test_a_decoder_that_is_joined_counts_positions_and_torch_reads_what_else_there_is() -> None:
    torch.manual_seed(1)
    small = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 2}
    encoder, decoder = (BertConfig(**small, vocab_size=97, **has) for has in ({}, {"is_decoder": True}))
    config = EncoderDecoderConfig.from_encoder_decoder_configs(encoder, decoder)
    config.decoder_start_token_id, config.pad_token_id = 1, 0
    model = _spread(EncoderDecoderModel(config).eval())
    generator = Generator(model, max_batch=2, max_length=16)
    source = torch.randint(3, 97, (2, 6))
    asked = {"attention_mask": torch.ones_like(source), **_GREEDY}
    assert torch.equal(generator.generate(source, **asked), model.generate(source, **asked))
    for name in ("token_type_ids", "position_ids"):
        told = {name: torch.ones_like(source), **asked}
        assert torch.equal(generator.generate(source, **told), model.generate(source, **told))
    with pytest.raises(InputError, match="got decoder_position_ids, of which later tokens of EncoderDecoderModel read"):
        generator.generate(source, decoder_position_ids=torch.full_like(source, 5), **asked)


def test_a_model_whose_masks_choose_experts_is_refused() -> None:
    torch.manual_seed(0)
    parts = {f"{part}_{name}": 2 for part in ("encoder", "decoder") for name in ("layers", "sparse_step")}
    sizes = {"vocab_size": 97, "d_model": 32, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "num_experts": 4}
    model = NllbMoeForConditionalGeneration(NllbMoeConfig(**sizes, **parts)).eval()
    with pytest.raises(
        ImportModelError, match="NllbMoeForConditionalGeneration has no use for keys and values of a fixed length"
    ):
        Generator(model, max_length=8, max_source=6)
