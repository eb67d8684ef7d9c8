"""RAF's training script runs as it was written, but for names and the device."""

from __future__ import annotations

import pytest
import torch
import transformers

import autocast
from autocast import vm
from autocast.errors import InputError
from autocast.kernels.targets.cpu.instruction_sets import detect_target, instruction_set
from autocast.model.model import get_peak_memory
from autocast.testing import (
    append_loss_n_optimizer,
    get_transformer_model_by_config,
    one_hot_torch,
    profile_vm_model,
    randint,
    randn_torch,
)
from autocast.testing.models import build_transformer

BATCH, LENGTH = 2, 16
VOCABULARY = 300


def bert():
    config = transformers.AutoConfig.for_model("bert", architectures=["BertForMaskedLM"])
    config.num_hidden_layers = 1
    config.hidden_size, config.num_attention_heads = 64, 2
    config.intermediate_size, config.vocab_size = 128, VOCABULARY
    return config


def setup_model():
    config = bert()
    model, shape = get_transformer_model_by_config(config, batch_size=BATCH, seq_length=LENGTH, dtype="float32")
    words, _ = randint((BATCH, LENGTH), low=0, high=VOCABULARY, dtype="int64")
    labels, _ = one_hot_torch(shape[0] * shape[1], shape[-1])
    seed, _ = randn_torch((), dtype="float32")
    return append_loss_n_optimizer(model, [words], shape, labels), [seed, words, labels]


def test_the_script_of_raf_runs():
    optimizer, args = setup_model()
    device = "cpu"
    float32 = profile_vm_model(optimizer, device, args, opt_level=3, warmup=1, number=2, repeat=1)[0]
    memory = get_peak_memory(optimizer, device, args)

    amp_optimizer = autocast.amp.autocast(optimizer, args)
    low = profile_vm_model(amp_optimizer, device, args, opt_level=3, warmup=1, number=2, repeat=1)[0]
    assert float32 > 0
    assert low > 0
    # At this size: parameters and state. Weights are narrowed beside them where packing does not narrow.
    most = 1.1 if instruction_set(detect_target()).bf16_dot else 1.5
    assert 0 < get_peak_memory(amp_optimizer, device, args) < most * memory


@pytest.mark.parametrize(("dtype", "tolerance"), [(None, 1e-5), ("bfloat16", 2e-2)])
def test_its_losses_and_parameters_are_those_of_torch(dtype, tolerance):
    model, args = setup_model()
    if dtype is not None:
        model = autocast.amp.autocast(model, args, dtype=dtype)
    executable = vm.compile(model)
    seed, ids, labels = torch.tensor(0.5), *args[1:]

    module = build_transformer(bert())
    before = {name: value.detach().clone() for name, value in module.named_parameters()}
    sgd = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.01)
    for _ in range(3):
        loss = executable(seed, ids, labels)
        sgd.zero_grad()
        expected = torch.nn.functional.cross_entropy(module(ids).logits.flatten(0, 1), labels)
        (seed * expected).backward()
        sgd.step()
        assert float(loss) == pytest.approx(float(expected.detach()), rel=tolerance)
    for name, value in module.named_parameters():
        if name in executable.state:  # a tied weight is there under one name
            moved = (value.detach() - before[name]).norm()
            error = (torch.from_dlpack(executable.state[name]) - value.detach()).norm()
            assert float(error) <= 5 * tolerance * float(moved) + 1e-6, name


def test_every_optimizer_by_its_name():
    model, shape = get_transformer_model_by_config(bert(), BATCH, LENGTH)
    labels, _ = one_hot_torch(BATCH * LENGTH, VOCABULARY)
    for name, function in (("adam", "adam_64"), ("adamw", "adamw_64"), ("lamb", "lamb_64")):
        step = append_loss_n_optimizer(model, [], shape, labels, optimizer=name)
        assert function in {var.name_hint for var in step.mod.get_global_vars()}
        assert step.input_names == ("dy", "input_ids", "labels")


def test_what_does_not_fit_is_refused():
    model, shape = get_transformer_model_by_config(bert(), BATCH, LENGTH)
    labels, _ = one_hot_torch(BATCH * LENGTH, VOCABULARY)
    with pytest.raises(InputError, match="optimizer is 'rmsprop', expected one of sgd, adam, adamw, lamb"):
        append_loss_n_optimizer(model, [], shape, labels, optimizer="rmsprop")
    with pytest.raises(InputError, match=r"y_true has shape \(31,\), expected 32 class indices"):
        append_loss_n_optimizer(model, [], shape, labels[:-1])
