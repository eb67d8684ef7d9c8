"""Transformers from their configurations."""

from __future__ import annotations

import pytest
import torch
import transformers

from autocast.errors import InputError, UnsupportedError
from autocast.model.model import get_param_size
from autocast.testing import get_transformer_model_by_config, randint, run_vm_model
from autocast.testing.models import build_transformer

BERT = transformers.BertConfig(
    num_hidden_layers=1, hidden_size=32, num_attention_heads=2, intermediate_size=64, vocab_size=90
)


def test_a_bert_becomes_a_masked_language_model():
    model, shape = get_transformer_model_by_config(BERT, batch_size=2, seq_length=8, dtype="float32")
    assert shape == (2, 8, 90)
    ids, _ = randint((2, 8), high=90)
    with torch.no_grad():
        expected = build_transformer(BERT)(ids).logits
    torch.testing.assert_close(run_vm_model(model, "cpu", [ids]), expected, rtol=1e-4, atol=1e-4)


def test_parameters_take_the_dtype_asked_for():
    sizes = {
        dtype: get_param_size(get_transformer_model_by_config(BERT, 1, 4, dtype)[0])
        for dtype in ("float32", "bfloat16")
    }
    assert sizes["float32"] == 2 * sizes["bfloat16"]


def test_the_architecture_named_in_the_configuration_is_built():
    config = transformers.BertConfig(**{**BERT.to_diff_dict(), "architectures": ["BertForSequenceClassification"]})
    _, shape = get_transformer_model_by_config(config, 2, 8)
    assert shape == (2, 2)


def test_a_decoder_becomes_a_causal_language_model_without_a_cache():
    config = transformers.GPT2Config(n_layer=1, n_embd=32, n_head=2, vocab_size=90, n_positions=16)
    module = build_transformer(config)
    assert isinstance(module, transformers.GPT2LMHeadModel)
    assert not module.config.use_cache
    assert not module.training


def test_weights_repeat_with_their_seed_and_leave_torchs_generator_alone():
    state = torch.random.get_rng_state()
    weights = [build_transformer(BERT, seed).bert.embeddings.word_embeddings.weight for seed in (1, 1, 2)]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])
    assert torch.equal(state, torch.random.get_rng_state())


def test_what_is_no_language_model_is_refused():
    with pytest.raises(UnsupportedError, match="ResNetConfig has no masked or causal language model"):
        get_transformer_model_by_config(transformers.ResNetConfig(), 1, 4)
    with pytest.raises(InputError, match="dtype is 'float64', expected one of float32, bfloat16, float16"):
        get_transformer_model_by_config(BERT, 1, 4, "float64")
