"""Loss scaling: a state machine inside the graph, and steps that are skipped without loss."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from autocast import amp, vm
from autocast.errors import TrainingError
from autocast.frontend import from_torch
from autocast.training import Trainer
from autocast.training.loss_scaling import DynamicLossScaling, StaticLossScaling
from autocast.training.losses import MSE
from autocast.training.optimizers import SGD, AdamW
from autocast.training.step import training_step
from tests.training.modules import batches, imported, imported_network, network, rate

QUICK = DynamicLossScaling(
    init_loss_scaling=64.0, incr_every_n_steps=3, decr_every_n_nan_or_inf=2, incr_ratio=4.0, decr_ratio=0.25
)


def compiled(scaling, optimizer=None, **options):
    optimizer = optimizer or SGD()
    return vm.compile(training_step(imported_network(), MSE(), optimizer, loss_scaling=scaling, **options))


def snapshot(executable):
    return {name: value.numpy().copy() for name, value in executable.state.items()}


def reference(scaling: DynamicLossScaling, finite: list[bool]) -> tuple[float, int, int]:
    """The scale and both counters after steps whose gradients were finite or not, in plain Python."""
    scale, good, bad = scaling.init_loss_scaling, 0, 0
    for step in finite:
        good, bad = (good + 1, 0) if step else (0, bad + 1)
        if good == scaling.incr_every_n_steps:
            good = 0
            scale = scale * scaling.incr_ratio if scale * scaling.incr_ratio <= np.finfo("float32").max else scale
        if bad == scaling.decr_every_n_nan_or_inf:
            scale, bad = max(scale * scaling.decr_ratio, 1.0), 0
    return scale, good, bad


@pytest.fixture(scope="module")
def quick():
    return compiled(QUICK)


@given(finite=st.lists(st.booleans(), max_size=24))
@settings(max_examples=40)
def test_the_scale_follows_any_sequence_of_overflows(quick, finite):
    initial = {"loss_scale": np.float32(64.0), "finite_steps": np.int64(0), "overflow_steps": np.int64(0)}
    quick.load_state({name: np.array(value) for name, value in initial.items()})
    (x, y), *_ = batches(1)
    for step in finite:
        quick(x if step else x * float("inf"), y, rate(0.0))
    state = snapshot(quick)
    got = float(state["loss_scale"]), int(state["finite_steps"]), int(state["overflow_steps"])
    assert got == reference(QUICK, finite)


@pytest.mark.parametrize("bad", [float("inf"), float("nan")])
@pytest.mark.parametrize("clip_norm", [None, 1.0])
def test_a_step_that_overflows_changes_nothing_but_the_scale(bad, clip_norm):
    executable = compiled(DynamicLossScaling(decr_every_n_nan_or_inf=1, decr_ratio=0.5), AdamW(), clip_norm=clip_norm)
    first, injected, last = batches(3)
    executable(*first, rate(0.01))
    before = snapshot(executable)
    loss = executable(injected[0] * bad, injected[1], rate(0.01))
    after = snapshot(executable)
    assert not torch.isfinite(loss)
    assert float(after.pop("loss_scale")) == float(before.pop("loss_scale")) / 2 == 2.0**14
    counters = ("finite_steps", "overflow_steps")
    assert [int(after.pop(name)) for name in counters] == [0, 0]
    assert [int(before.pop(name)) for name in counters] == [1, 0]
    for name, value in before.items():
        np.testing.assert_array_equal(after[name], value, err_msg=name)
    assert torch.isfinite(executable(*last, rate(0.01)))
    assert int(snapshot(executable)["optimizer_step"]) == 2


@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_batch_that_is_no_number_leaves_running_statistics(accumulate):
    module = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Dropout(0.5)).train()
    x, y = torch.randn(8, 6), torch.randn(8, 4)
    trainer = Trainer(
        from_torch(module, (x,)), MSE(), SGD(), learning_rate=0.01, loss_scaling=1.0, accumulate=accumulate
    )
    good, bad = (x, y), (x * float("nan"), y)
    trainer.step(*[good] * accumulate)
    before = trainer.state_dict()["tensors"]
    trainer.step(*[good] * (accumulate - 1), bad)
    after = trainer.state_dict()["tensors"]
    assert not np.array_equal(after["random_state"], before["random_state"])
    if accumulate == 1:
        for name in (*dict(module.named_buffers()), *dict(module.named_parameters())):
            np.testing.assert_array_equal(after[name], before[name], err_msg=name)
    assert all(np.isfinite(tensor).all() for tensor in after.values())
    assert np.isfinite(trainer.evaluate([good])) and np.isfinite(trainer.step(*[good] * accumulate))


def test_training_with_an_injected_overflow_ends_where_training_without_it_ends():
    plain, whole, injected = compiled(None, AdamW()), *(compiled(DynamicLossScaling(), AdamW()) for _ in range(2))
    for number, (x, y) in enumerate(batches(6)):
        plain(x, y, rate(0.01))
        whole(x, y, rate(0.01))
        if number == 3:
            injected(x * float("inf"), y, rate(0.01))
        injected(x, y, rate(0.01))
    expected, got = snapshot(whole), snapshot(injected)
    for name in plain.state:
        np.testing.assert_array_equal(got[name], expected[name], err_msg=name)
    for name, value in snapshot(plain).items():
        # A power of two scales without rounding; but the graphs differ, and with them which sums LLVM contracts.
        np.testing.assert_allclose(got[name], value, rtol=1e-6, atol=1e-8, err_msg=name)


def test_the_loss_is_not_scaled_and_a_static_scale_stays():
    plain, scaled = compiled(None), compiled(1024)
    for x, y in batches(3):
        assert float(plain(x, y, rate(0.1))) == float(scaled(x, y, rate(0.1)))
    model = training_step(imported_network(), MSE(), SGD(), loss_scaling=StaticLossScaling(8.0))
    assert float(model.params["loss_scale"].numpy()) == 8.0
    assert "loss_scale" not in model.updated


class Faint(nn.Module):
    """A network whose output is so small that the gradients of float16 products vanish."""

    def __init__(self) -> None:
        super().__init__()
        self.network = network()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.network(x) * 1e-7


def test_gradients_too_small_for_float16_survive_where_the_loss_is_scaled():
    (x, y), name = batches(1)[0], "network.0.weight"
    module = Faint()
    nn.functional.mse_loss(module(x), y).backward()
    exact = module.network[0].weight.grad

    def error(scaling):
        step = training_step(imported(module), MSE(), SGD(), loss_scaling=scaling)
        executable = vm.compile(amp.autocast(step, dtype="float16"))
        executable(x, y, rate(-1e7))
        change = torch.from_dlpack(executable.state[name]) - torch.from_dlpack(step.params[name])
        return float((change / 1e7 - exact).norm() / exact.norm())

    assert error(2.0**15) < 0.01
    assert error(None) > 0.3


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: DynamicLossScaling(init_loss_scaling=0.5), "init_loss_scaling is 0.5, expected 1 to 3.4e38"),
        (
            lambda: DynamicLossScaling(incr_every_n_steps=0),
            "incr_every_n_steps is 0, expected a number of steps",
        ),
        (lambda: DynamicLossScaling(incr_ratio=1.0), "incr_ratio is 1.0, expected a finite number above 1"),
        (lambda: DynamicLossScaling(decr_ratio=1.0), "decr_ratio is 1.0, expected 0 to 1, both excluded"),
        (lambda: DynamicLossScaling(decr_ratio="half"), "decr_ratio is 'half', expected 0 to 1, both excluded"),
        (lambda: DynamicLossScaling(growth_interval=9), "'growth_interval'; it is incr_every_n_steps"),
        (lambda: DynamicLossScaling(2.0), "got a float without a name; try loss_scaling=1024.0"),
        (lambda: compiled(0.0), "StaticLossScaling: scale is 0.0, expected above 0"),
        (lambda: compiled("dynamic"), r"loss_scaling is 'dynamic', expected None, a number or DynamicLossScaling\(\)"),
        (lambda: compiled(None, clip_norm=0.0), "clip_norm is 0.0, expected a finite norm above 0, or None"),
    ],
)
def test_options_out_of_range_are_refused(build, message):
    with pytest.raises(TrainingError, match=message):
        build()
