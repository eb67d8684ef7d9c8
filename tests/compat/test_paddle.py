"""Paddle's interface: programs are handles, and each argument becomes the field of a policy that it means."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from tvm.script import ir as I
from tvm.script import relax as R

import autocast
from autocast.compat import paddle
from autocast.compat.paddle.nn import functional as F
from autocast.compat.paddle.static import Executor, Program, amp
from autocast.errors import InputError, PolicyError, PolicyWarning, TrainingError, UnsupportedError
from autocast.policy import Policy
from tests.compat.paddle_programs import FEED, Built, decorated, minimized, modes, step_modes


@pytest.fixture
def built() -> Built:
    return Built()


@pytest.mark.parametrize(
    ("pure", "guard", "conv", "matmul"),
    [
        (True, None, "float32", "float16"),
        (True, True, "float32", "float16"),
        (True, False, "float16", "float16"),
        (False, None, "float16", "float16"),
        (False, True, "float32", "float16"),
    ],
)
def test_the_guard_holds_where_it_is_asked_for_and_by_default_in_pure_float16(built, pure, guard, conv, matmul):
    minimized(built, use_pure_fp16=pure, use_fp16_guard=guard)
    found = step_modes(built)
    assert found["matmul"] == matmul
    assert found["nn.conv2d"] in ((conv, "as is") if conv == "float32" else (conv,))


@pytest.mark.parametrize("guard", [True, False])
def test_the_black_list_holds_in_the_guard_and_without_it(built, guard):
    lists = amp.AutoMixedPrecisionLists(custom_black_list=["pool2d", "mul"])
    amp.cast_model_to_fp16(built.test, lists, use_fp16_guard=guard)
    assert modes(built.test.model)["nn.max_pool2d"] == modes(built.test.model)["matmul"] == "float32"


def test_the_black_list_reaches_the_gradient(built):
    lists = amp.AutoMixedPrecisionLists(custom_black_list=["pool2d"])
    minimized(built, amp_lists=lists, use_pure_fp16=True, use_fp16_guard=False)
    decisions = built.train.trainer.step_model.report.decisions
    assert {d.mode for d in decisions if d.forward == "relax.nn.max_pool2d"} == {"float32"}


def test_the_white_list_makes_an_operator_low_and_black_variables_win_over_it():
    white = {"custom_white_list": ["matmul_v2"]}
    for black, mode in (None, "float16"), (["fc.weight"], "float32"):
        built = Built()
        lists = amp.AutoMixedPrecisionLists(**white, custom_black_varnames=black)
        names = amp.cast_model_to_fp16(built.test, lists, use_fp16_guard=False)
        assert modes(built.test.model)["matmul"] == mode
        assert ("fc.weight" in names) == (mode == "float16")


def test_what_gives_or_reads_a_black_variable_is_float32():
    @I.ir_module
    class Module:
        @R.function
        def main(x: R.Tensor((4, 4), "float32")):
            with R.dataflow():
                first = R.matmul(x, x)
                black = R.matmul(first, first)
                reader = R.matmul(black, first)
                last = R.matmul(reader, first)
                R.output(last)
            return last

    program = Program()
    program.model = autocast.from_relax(Module)
    lists = amp.AutoMixedPrecisionLists(custom_black_varnames=["black"])
    amp.cast_model_to_fp16(program, lists, use_fp16_guard=False)
    found = [decision.mode for decision in program.model.report.decisions]
    assert found == ["float16", "float32", "float32", "float16"]


def test_an_operator_in_both_lists_is_an_error(built):
    lists = amp.AutoMixedPrecisionLists(custom_white_list=["pool2d"], custom_black_list=["pool2d"])
    with pytest.raises(PolicyError, match=r"low_ops and float32_ops both name 'nn\.max_pool2d'"):
        amp.cast_model_to_fp16(built.test, lists)


def test_names_that_are_no_operators_are_errors_and_operators_that_are_not_there_are_said(built):
    with pytest.raises(PolicyError, match="pol2d"):
        amp.cast_model_to_fp16(built.test, amp.AutoMixedPrecisionLists(custom_black_list=["pol2d"]))
    with pytest.warns(PolicyWarning, match=r"nn\.softmax"):
        amp.cast_model_to_fp16(built.test, amp.AutoMixedPrecisionLists(custom_black_list=["softmax"]))


def test_every_name_in_the_table_is_an_operator():
    for ours in amp.OPERATORS.values():
        for name in ours:
            Policy(float32_ops=name)


def test_dynamic_loss_scaling_takes_every_argument_and_a_static_one_never_changes(built):
    scaled = {"init_loss_scaling": 64.0, "incr_every_n_steps": 1, "incr_ratio": 4.0}
    minimized(built, **scaled)
    built.step()
    assert float(built.train.trainer.executable.state["loss_scale"].numpy()) == 256.0
    fixed = Built()
    minimized(fixed, **scaled, use_dynamic_loss_scaling=False)
    assert float(fixed.train.trainer.step_model.params["loss_scale"].numpy()) == 64.0


def test_pure_float16_learns_as_float32_does():
    losses = []
    for pure in (True, None):
        built = Built()
        optimizer = paddle.optimizer.SGD(0.1, multi_precision=True)
        if pure:
            optimizer = decorated(optimizer, init_loss_scaling=128.0, use_pure_fp16=True, use_fp16_guard=False)
        optimizer.minimize(built.loss, built.startup)
        built.exe.run(built.startup)
        losses.append([built.step() for _ in range(5)])
    assert losses[0][-1] < losses[0][0]
    np.testing.assert_allclose(*losses, rtol=2e-2)


@pytest.mark.parametrize(
    ("pure", "masters", "dtype"), [(True, True, "float32"), (True, False, "float16"), (False, False, "float32")]
)
def test_pure_float16_alone_does_without_masters(built, pure, masters, dtype):
    optimizer = decorated(paddle.optimizer.SGD(multi_precision=masters), use_pure_fp16=pure, use_fp16_guard=False)
    optimizer.minimize(built.loss, built.startup)
    assert str(built.train.trainer.step_model.params["fc.weight"].dtype) == dtype


def test_optimizers_hand_their_arguments_on():
    for optimizer, rule in (
        (paddle.optimizer.Adam(0.1, beta1=0.8, beta2=0.9, epsilon=1e-6), "Adam(betas=(0.8, 0.9), eps=1e-06"),
        (paddle.optimizer.AdamW(weight_decay=0.2), "AdamW(weight_decay=0.2"),
        (paddle.optimizer.Momentum(momentum=0.5, use_nesterov=True), "SGD(momentum=0.5, nesterov=True"),
        (paddle.optimizer.Lamb(lamb_weight_decay=0.3), "LAMB(weight_decay=0.3"),
    ):
        expected = dict(
            part.split("=", 1) for part in rule.partition("(")[2].replace("0.8, 0.9", "0.8;0.9").split(", ")
        )
        assert type(optimizer.rule).__name__ == rule.partition("(")[0]
        for name, value in expected.items():
            assert str(getattr(optimizer.rule, name)) == value.replace(";", ", ")


def test_gradients_are_clipped_as_the_optimizer_says(built):
    paddle.optimizer.SGD(1.0, grad_clip=paddle.nn.ClipGradByGlobalNorm(1e-3)).minimize(built.loss, built.startup)
    built.exe.run(built.startup)
    before = built.net.fc.weight.detach().numpy().copy()
    built.step()
    moved = built.test.parameters["fc.weight"].numpy() - before
    assert 0 < np.linalg.norm(moved) <= 1.001e-3


@pytest.mark.parametrize("shape", [(None, 1), (None,)])
def test_labels_may_be_columns(shape):
    built = Built(label_shape=shape)
    minimized(built)
    labels = FEED["label"] if len(shape) == 2 else FEED["label"][:, 0]
    loss = built.exe.run(built.train, feed={**FEED, "label": labels}, fetch_list=[built.loss])[0]
    logits = Built().net.eval()(torch.from_numpy(FEED["pixels"]))
    expected = nn.functional.cross_entropy(logits, torch.from_numpy(FEED["label"][:, 0])).item()
    np.testing.assert_allclose(loss, expected, rtol=1e-2)


def test_the_batch_may_have_any_size(built):
    minimized(built)
    feed = {name: np.concatenate([value, value]) for name, value in FEED.items()}
    assert np.isfinite(built.exe.run(built.train, feed=feed, fetch_list=[built.loss])[0])


def test_what_has_no_meaning_here_is_refused(built):
    with pytest.raises(UnsupportedError, match=r"place: got CUDAPlace\(0\), expected the CPU"):
        Executor(paddle.CUDAPlace(0))
    with pytest.raises(UnsupportedError, match="a training step returns its loss 'loss_0' alone"):
        minimized(built)
        built.exe.run(built.train, feed=FEED, fetch_list=[built.trained])
    with pytest.raises(UnsupportedError, match="use_softmax=False, expected use_softmax=True"):
        F.cross_entropy(built.trained, built.loss, use_softmax=False)
    with pytest.raises(UnsupportedError, match="the program has a module already"):
        paddle.static.nn.torch_module(built.net, built.train.arguments[0])


def test_what_is_called_too_early_says_what_comes_first(built):
    optimizer = decorated()
    with pytest.raises(TrainingError, match="call minimize"):
        optimizer.amp_init()
    optimizer.minimize(built.loss, built.startup)
    with pytest.raises(TrainingError, match="run the startup program first"):
        optimizer.amp_init()
    with pytest.raises(TrainingError, match="run the startup program first"):
        built.step()
    with pytest.raises(TrainingError, match="it has no layers"):
        amp.cast_model_to_fp16(Program())


def test_what_is_not_there_is_named_with_the_nearest(built):
    built.exe.run(built.startup)
    with pytest.raises(InputError, match="lacks 'pixels'"):
        built.exe.run(built.test, feed={"image": FEED["pixels"]}, fetch_list=[built.logits])
    with pytest.raises(TrainingError, match=r"called 'output'.*output_0"):
        built.exe.run(built.test, feed=FEED, fetch_list=["output"])
    with pytest.raises(AttributeError, match="has no 'Adamw'; nearest: Adam, AdamW, Lamb"):
        _ = paddle.optimizer.Adamw
    with pytest.raises(AttributeError, match=r"has no 'conv2d'.*torch_module"):
        _ = paddle.static.nn.conv2d


def test_the_default_programs_are_those_of_the_guard():
    train, startup = Program(), Program()
    with paddle.static.program_guard(train, startup), paddle.utils.unique_name.guard():
        assert paddle.static.default_main_program() is train
        assert paddle.static.default_startup_program() is startup
    assert paddle.static.default_main_program() is not train
