"""Paddle's interface: each argument becomes the field of a policy, or of loss scaling, that it means."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from tvm.script import ir as I
from tvm.script import relax as R

import autocast
from autocast.compat import paddle
from autocast.errors import PolicyError, PolicyWarning, TrainingError, UnsupportedError
from autocast.training import SGD, CrossEntropy


class Net(nn.Module):
    """A layer outside of the guard, and a pool and a layer in it."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 2, 3)
        self.fc = nn.Linear(8, 5)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        """Logits."""
        data = self.conv(image)
        with paddle.fp16_guard():
            return self.fc(nn.functional.max_pool2d(data, 2).flatten(1))


IMAGE = torch.rand(3, 1, 6, 6)
LABELS = torch.tensor([0, 1, 4])


@pytest.fixture
def net() -> nn.Module:
    torch.manual_seed(0)
    return Net()


@pytest.fixture
def program(net: nn.Module) -> autocast.Model:
    return autocast.from_torch(net.train(), (IMAGE,))


@pytest.fixture
def test_program(net: nn.Module, program: autocast.Model) -> autocast.Model:
    return autocast.from_torch(net.eval(), (IMAGE,))


def modes(model: autocast.Model) -> dict[str, str]:
    return {decision.operator.removeprefix("relax."): decision.mode for decision in model.report.decisions}


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
def test_the_guard_holds_where_it_is_asked_for_and_by_default_in_pure_float16(program, pure, guard, conv, matmul):
    optimizer = paddle.decorate(SGD(), use_pure_fp16=pure, use_fp16_guard=guard)
    found = modes(optimizer.minimize(program, CrossEntropy(), learning_rate=0.1).step_model)
    assert found["matmul"] == matmul
    assert found["nn.conv2d"] in ((conv, "as is") if conv == "float32" else (conv,))


@pytest.mark.parametrize("guard", [True, False])
def test_the_black_list_holds_in_the_guard_and_without_it(program, guard):
    lists = paddle.AutoMixedPrecisionLists(custom_black_list=["pool2d", "mul"])
    cast, _ = paddle.cast_model_to_fp16(program, lists, use_fp16_guard=guard)
    assert modes(cast)["nn.max_pool2d"] == modes(cast)["matmul"] == "float32"


def test_the_white_list_makes_an_operator_low_and_black_variables_win_over_it(program):
    lists = paddle.AutoMixedPrecisionLists(custom_white_list=["matmul_v2"])
    cast, names = paddle.cast_model_to_fp16(program, lists, use_fp16_guard=False)
    assert modes(cast)["matmul"] == "float16"
    assert "fc.weight" in names
    lists = paddle.AutoMixedPrecisionLists(custom_white_list=["matmul_v2"], custom_black_varnames=["fc.weight"])
    cast, names = paddle.cast_model_to_fp16(program, lists, use_fp16_guard=False)
    assert modes(cast)["matmul"] == "float32"
    assert "fc.weight" not in names


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

    lists = paddle.AutoMixedPrecisionLists(custom_black_varnames=["black"])
    cast, _ = paddle.cast_model_to_fp16(autocast.from_relax(Module), lists, use_fp16_guard=False)
    assert [decision.mode for decision in cast.report.decisions] == ["float16", "float32", "float32", "float16"]


def test_an_operator_in_both_lists_is_an_error(program):
    lists = paddle.AutoMixedPrecisionLists(custom_white_list=["pool2d"], custom_black_list=["pool2d"])
    with pytest.raises(PolicyError, match=r"low_ops and float32_ops both name 'nn\.max_pool2d'"):
        paddle.cast_model_to_fp16(program, lists)


def test_names_that_are_no_operators_are_errors_and_operators_that_are_not_there_are_said(program):
    with pytest.raises(PolicyError, match="pol2d"):
        paddle.cast_model_to_fp16(program, paddle.AutoMixedPrecisionLists(custom_black_list=["pol2d"]))
    with pytest.warns(PolicyWarning, match=r"nn\.softmax"):
        paddle.cast_model_to_fp16(program, paddle.AutoMixedPrecisionLists(custom_black_list=["softmax"]))


def test_every_name_in_the_table_is_an_operator():
    for ours in paddle.OPERATORS.values():
        for name in ours:
            autocast.amp.Policy(float32_ops=name)


def test_dynamic_loss_scaling_takes_every_argument_and_a_static_one_never_changes(program):
    scaled = {"init_loss_scaling": 64.0, "incr_every_n_steps": 1, "incr_ratio": 4.0}
    trainer = paddle.decorate(SGD(), **scaled).minimize(program, CrossEntropy(), learning_rate=0.1)
    trainer.step((IMAGE, LABELS))
    assert float(trainer.executable.state["loss_scale"].numpy()) == 256.0
    fixed = paddle.decorate(SGD(), **scaled, use_dynamic_loss_scaling=False)
    trainer = fixed.minimize(program, CrossEntropy(), learning_rate=0.1)
    assert float(trainer.step_model.params["loss_scale"].numpy()) == 64.0


def test_pure_float16_learns_as_float32_does(program):
    losses = []
    for pure in (True, False):
        optimizer = paddle.decorate(SGD(), init_loss_scaling=128.0, use_pure_fp16=pure, use_fp16_guard=False)
        trainer = optimizer.minimize(program, CrossEntropy(), learning_rate=0.1)
        losses.append([trainer.step((IMAGE, LABELS)) for _ in range(5)])
    assert losses[0][-1] < losses[0][0]
    np.testing.assert_allclose(*losses, rtol=2e-2)


def test_the_testing_program_has_the_parameters_that_training_has_reached(program, test_program):
    optimizer = paddle.decorate(SGD(), use_pure_fp16=True)
    trainer = optimizer.minimize(program, CrossEntropy(), learning_rate=0.5)
    before = optimizer.amp_init(test_program=test_program)
    for _ in range(3):
        trainer.step((IMAGE, LABELS))
    after = optimizer.amp_init("cpu", test_program=test_program)
    reached = trainer.trained().params["fc.weight"].numpy()
    np.testing.assert_array_equal(after.params["fc.weight"].numpy(), reached.astype("float16"))
    assert (before.params["fc.weight"].numpy() != after.params["fc.weight"].numpy()).any()
    assert after(IMAGE).shape == (3, 5)


def test_under_lists_the_testing_program_is_transformed_only_if_asked(program, test_program):
    optimizer = paddle.decorate(SGD())
    optimizer.minimize(program, CrossEntropy(), learning_rate=0.5)
    assert optimizer.amp_init(test_program=test_program).report is None
    assert modes(optimizer.amp_init(test_program=test_program, use_fp16_test=True))["matmul"] == "float16"
    assert optimizer.amp_init() is None


def test_a_scope_gives_parameters_their_values(program, test_program):
    optimizer = paddle.decorate(SGD(), use_pure_fp16=True)
    optimizer.minimize(program, CrossEntropy(), learning_rate=0.5)
    scope = {"fc.weight": np.full((5, 8), 0.25, "float32"), "another": np.zeros(3)}
    test = optimizer.amp_init(scope=scope, test_program=test_program)
    assert (test.params["fc.weight"].numpy() == 0.25).all()


def test_parameters_are_cast_by_the_names_that_the_cast_of_the_model_answers(program):
    cast, names = paddle.cast_model_to_fp16(program)
    low = paddle.cast_parameters_to_fp16("cpu", cast, to_fp16_var_names=names)
    assert (
        {name for name, tensor in low.params.items() if tensor.dtype == "float16"} == names == {"fc.weight", "fc.bias"}
    )
    one = paddle.cast_parameters_to_fp16("cpu", cast, to_fp16_var_names=["fc.bias"])
    assert one.report.parameters.stored == ("fc.bias",)


def test_what_has_no_meaning_here_is_refused(program):
    optimizer = paddle.decorate(SGD())
    with pytest.raises(TrainingError, match="call minimize"):
        optimizer.amp_init()
    with pytest.raises(UnsupportedError, match=r"place: got 'CUDAPlace\(0\)', expected the CPU"):
        optimizer.amp_init("CUDAPlace(0)")
    with pytest.raises(UnsupportedError, match="place"):
        paddle.cast_parameters_to_fp16("gpu", paddle.cast_model_to_fp16(program)[0])
