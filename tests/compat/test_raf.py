"""RAF's interface: its scripts run with other imports and on the CPU."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import torch
import transformers
from torch import nn
from tvm.ir import PrimType

import autocast.compat.raf as raf
import type_hints
from autocast.compat.raf._op import sym
from autocast.compat.raf.amp.type_hints import register_op_cast_rule
from autocast.compat.raf.frontend import from_pytorch
from autocast.compat.raf.model.model import calc_model_gflops, get_param_size, get_peak_memory, trace_memory
from autocast.compat.raf.testing import (
    append_loss_n_optimizer,
    check,
    get_transformer_model,
    get_transformer_model_by_config,
    get_vm_executor,
    one_hot_torch,
    profile_vm_model,
    randint,
    randn,
    randn_torch,
    run_model,
    run_vm_executor,
    run_vm_model,
    with_seed,
)
from autocast.errors import InputError, TrainingModeWarning, UnsupportedError

pytestmark = pytest.mark.filterwarnings("ignore::autocast.errors.SlowDtypeWarning")

BATCH, LENGTH, WORDS = 2, 16, 300


def bert() -> transformers.PretrainedConfig:
    config = transformers.AutoConfig.for_model("bert", architectures=["BertForMaskedLM"])
    config.num_hidden_layers, config.hidden_size, config.num_attention_heads = 1, 64, 2
    config.intermediate_size, config.vocab_size = 128, WORDS
    return config


def convolutions() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 6 * 6, 10))


SHAPES = {"input0": ((4, 3, 8, 8), "float32")}


@pytest.fixture(scope="module")
def training() -> tuple[raf.frontend.FrameworkModel, list[torch.Tensor]]:
    model, shape = get_transformer_model_by_config(bert(), batch_size=BATCH, seq_length=LENGTH, dtype="float32")
    words, _ = randint((BATCH, LENGTH), low=0, high=WORDS, dtype="int64")
    labels, _ = one_hot_torch(shape[0] * shape[1], shape[-1])
    seed, _ = randn_torch((), std=0.0, mean=1.0, dtype="float32")
    return append_loss_n_optimizer(model, [words], shape, labels), [seed, words, labels]


def test_a_training_step_is_profiled_in_float32_and_in_mixed_precision(training):
    optimizer, args = training
    low = raf.amp.autocast(optimizer, args)
    assert low.report.dtype == "float16"
    for model in (optimizer, low):
        assert profile_vm_model(model, "cpu", args, opt_level=3, warmup=0, number=1, repeat=2)[1] > 0
        assert get_peak_memory(model, "cpu", args) > get_peak_memory(model, "cpu", args, include_param=False) > 0


def test_arguments_of_the_profiler_have_rafs_order_and_may_be_named(training):
    optimizer, args = training
    named = dict(zip(optimizer.input_names, args, strict=True))
    report = profile_vm_model(optimizer, "cpu", named, 3, False, 0, 1, 3)
    assert (len(report), report.warmup, report.number) == (3, 0, 1)


def test_memory_is_traced_as_pairs_of_names_and_numbers(training):
    optimizer, args = training
    trace = trace_memory(optimizer, "cpu", args)
    assert all(isinstance(name, str) and memory > 0 for name, memory in trace)
    assert max(memory for _, memory in trace) <= get_peak_memory(optimizer, "cpu", args)
    without = trace_memory(optimizer, "cpu", args, include_param=False)
    assert all(more > less for (_, more), (_, less) in zip(trace, without, strict=True))


def test_an_executor_trains(training):
    optimizer, args = training
    record = optimizer._internal(*args)
    executor = get_vm_executor(record.mod, "cpu")
    losses = [float(run_vm_executor(executor, record, args, "cpu")[0]) for _ in range(4)]
    assert losses[-1] < losses[0]
    assert int(record.named_params["optimizer_step"]) == 4
    run_vm_model(optimizer, "cpu", args)  # the model goes on from there
    assert int(optimizer.state()["optimizer_step"]) == 5


def test_a_recorded_loss_is_the_appended_one():
    model = from_pytorch(convolutions(), SHAPES)
    model.to(device="cpu")
    model.train_mode()
    x, _ = randn_torch((4, 3, 8, 8), device="cpu")
    labels, _ = one_hot_torch(size=4, num_classes=10, device="cpu")
    dy = torch.tensor(1.0)
    loss = sym.nll_loss(labels, sym.log_softmax(model.record(x)))
    trainers = [
        raf.optim.sgd.with_sgd(learning_rate=0.1, momentum=0.01)(model + loss),
        append_loss_n_optimizer(model, args=[x], out_shape=(4, 10), y_true=labels, optimizer="sgd"),
    ]
    first, second = ([run_vm_model(each, "cpu", [dy, x, labels])[0] for _ in range(3)] for each in trainers)
    for one, other in zip(first, second, strict=True):
        check(one, other, rtol=1e-5, atol=1e-6)
    expected = nn.functional.cross_entropy(convolutions()(x), labels)
    check(first[0], expected, rtol=1e-5)


def test_lans_trains_what_it_wraps():
    model = from_pytorch(convolutions().eval(), SHAPES)
    x, _ = randn_torch((4, 3, 8, 8))
    labels, _ = one_hot_torch(4, 10)
    trainer = raf.optim.lans.with_lans(lr=0.01)(model + sym.cross_entropy(labels, model.record(x)))
    losses = [float(run_vm_model(trainer, "cpu", [torch.tensor(1.0), x, labels])[0]) for _ in range(5)]
    assert losses[-1] < losses[0]
    with pytest.raises(UnsupportedError, match="normalize_grad is False, expected True, as LANS has it"):
        raf.optim.lans.with_lans(normalize_grad=False)


def test_a_model_without_a_loss_is_not_trained():
    with pytest.raises(InputError, match=r"expected one number.*as a loss is; try append_loss_n_optimizer"):
        raf.optim.sgd.with_sgd()(from_pytorch(convolutions().eval(), SHAPES))


def test_modes_change_what_a_batchnorm_does():
    module = convolutions()
    model, x = from_pytorch(module, SHAPES), torch.randn(4, 3, 8, 8)
    model.infer_mode()
    check(model(x), module.eval()(x), rtol=1e-4)
    model.train_mode()
    with pytest.warns(TrainingModeWarning, match="nothing trains it"):
        assert isinstance(model(x), tuple)  # statistics are updated
    check(model.state()["1.running_mean"] * 10, module[0](x).mean((0, 2, 3)), rtol=1e-4)


def test_pairs_have_the_same_values():
    for make in (randn, randn_torch):
        array, other = make((3, 4), device="cpu", positive=True)
        assert (array > 0).all()
        check(array, other, rtol=0, atol=0)
    array, other = randint((5,), high=9, device="cpu")
    assert isinstance(other, np.ndarray) and (array.numpy() == other).all()
    labels, others = one_hot_torch((2, 3), 7, device="cpu")
    assert labels.shape == (2, 3) and torch.equal(labels, others)
    assert randn_torch((2,), requires_grad=True)[1].requires_grad


def test_what_differs_fails_the_check_and_is_written_if_asked(tmp_path):
    with pytest.raises(AssertionError):
        check(torch.zeros(2), np.ones(2), dump_name_when_error=str(tmp_path / "wrong"))
    assert {file.name for file in tmp_path.iterdir()} == {"wrong_x.npy", "wrong_y.npy"}
    check(torch.ones(2, dtype=torch.bfloat16), np.ones(2))


def test_a_seed_repeats_random_numbers_and_leaves_the_others_alone():
    @with_seed(3)
    def draw():
        return randn((4,))[1], np.random.rand()

    torch.manual_seed(0)
    first = draw()
    after = torch.rand(1)
    torch.manual_seed(0)
    assert (draw()[0] == first[0]).all() and draw()[1] == first[1]
    assert torch.rand(1) == after


def test_sizes_are_counted():
    model, _ = get_transformer_model_by_config(bert(), batch_size=BATCH, seq_length=LENGTH)
    module = transformers.BertForMaskedLM(bert())
    assert get_param_size(model) == sum(parameter.numel() for parameter in module.parameters())
    assert get_param_size(model, mbs=True) == get_param_size(model) * 4 / 2**20
    trainer = append_loss_n_optimizer(model, [], (BATCH, LENGTH, WORDS), torch.zeros(BATCH * LENGTH).long(), "lans")
    assert get_param_size(trainer) == get_param_size(model)
    assert calc_model_gflops(model, "cpu", [torch.zeros((BATCH, LENGTH), dtype=torch.int64)]) > 0


def test_a_model_may_be_named_by_its_folder(tmp_path):
    bert().save_pretrained(tmp_path)
    _, shape = get_transformer_model(str(tmp_path), batch_size=BATCH, seq_length=LENGTH)
    assert shape == (BATCH, LENGTH, WORDS)


def never_cast(args, ret_type, amp_dtype):
    """A bias is added in float32."""
    return [PrimType("float32"), PrimType("float32"), raf.ir.PrimType(None)]


def test_a_custom_hint_reaches_the_bias_of_a_convolution():
    module = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 4, 3)).eval()
    model = from_pytorch(module, SHAPES)
    args = [torch.randn(4, 3, 8, 8)]

    def modes(low):
        return [d.mode for d in low.report.decisions if d.operator == "relax.bias_add"]

    assert modes(raf.amp.autocast(model, args))[0] == "float16"
    with raf.amp.CustomTypeHint({"raf.op.bias_add": never_cast}):
        low = raf.amp.autocast(model)
    assert modes(low) == ["float32", "float32"]
    check(run_vm_model(low, "cpu", args), module(args[0]), rtol=2e-2, atol=2e-2)


def test_a_registered_rule_says_where_it_was_registered(monkeypatch):
    monkeypatch.setattr(type_hints.registry, "_rows", dict(type_hints.registry._rows))
    line = sys._getframe().f_lineno + 1
    register_op_cast_rule("raf.op.bias_add", never_cast)
    model = from_pytorch(nn.Linear(8, 8).eval(), SHAPES)
    decisions = raf.amp.autocast(model).report.decisions
    assert [d.why for d in decisions if d.operator == "relax.bias_add"] == [f"registered at {__file__}:{line}"]


def test_options_of_a_pass_context_become_a_policy():
    model = from_pytorch(nn.Linear(8, 8).eval(), SHAPES)
    with raf.ir.PassContext(config={"raf.amp.dtype": "bfloat16"}):
        assert raf.amp.autocast(model).report.dtype == "bfloat16"
        with raf.ir.PassContext(config={"raf.amp.out_dtype": "bfloat16"}):
            low = raf.amp.autocast(model)
    assert str(low.main.ret_ty.dtype) == "bfloat16"
    assert raf.amp.autocast(model).report.dtype == "float16"
    with pytest.raises(UnsupportedError, match=r"'raf.amp.dtypes' has no meaning here.*nearest: raf.amp.dtype"):
        raf.ir.PassContext(config={"raf.amp.dtypes": "float16"})


def test_example_inputs_are_checked():
    model = from_pytorch(nn.Linear(8, 8).eval(), SHAPES)
    with pytest.raises(
        InputError, match=r"autocast: the example inputs .* is float32\[3\], expected float32\[4, 3, 8, 8\]"
    ):
        raf.amp.autocast(model, [torch.zeros(3)])


def test_fusion_can_be_left_to_nobody():
    model = from_pytorch(nn.Sequential(nn.ReLU(), nn.Flatten()).eval(), SHAPES)
    check(run_vm_model(model, "cpu", [torch.ones(4, 3, 8, 8)], 3, True), torch.ones(4, 192))


def test_a_pass_is_applied_before_compilation():
    seen = []

    def note(mod):
        seen.append(mod)
        return mod

    model = from_pytorch(nn.Linear(8, 8).eval(), SHAPES)
    run_vm_model(model, "cpu", [torch.ones(4, 3, 8, 8)], pass_seq=note, stream_schedule_policy="sequential")
    assert len(seen) == 1
    with pytest.raises(UnsupportedError, match="stream_schedule_policy is 'wavefront', expected 'sequential'"):
        run_vm_model(model, "cpu", [torch.ones(4, 3, 8, 8)], stream_schedule_policy="wavefront")
    with pytest.raises(InputError, match=r"got 'pass_seqs'.*nearest: pass_seq"):
        run_vm_model(model, "cpu", [torch.ones(4, 3, 8, 8)], pass_seqs=note)


def test_levels_of_optimization_agree():
    module = nn.Linear(8, 8).eval()
    x = torch.randn(4, 3, 8, 8)
    check(run_model(from_pytorch(module, SHAPES), [x], "cpu"), module(x))
