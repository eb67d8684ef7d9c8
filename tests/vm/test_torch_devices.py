"""Models on torch's devices: the same results, state, latencies and memory as on ours."""

from __future__ import annotations

import itertools
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from tvm.script import ir as I
from tvm.script import relax as R
from tvm.script import tirx as T

import autocast
from autocast import amp, kernels, vm
from autocast.errors import InputError, UnsupportedError
from autocast.training import MSE, SGD, training_step
from autocast.vm.torch_measuring import CALL, TORCH_ROW
from tests.vm.modules import dense

X = torch.linspace(-1, 1, 16 * 64).reshape(16, 64)


def _network() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 32)).eval()


def _imported(module: nn.Module) -> autocast.Model:
    return autocast.from_torch(module, (X,), dynamic={"rows": ("input", 0, 1, 64)})


@cache
def _model() -> autocast.Model:
    return amp.autocast(_imported(_network()))


def _eager(model: Any) -> Any:
    return vm.compile(model, "torch:cpu", mode="eager")


def test_results_are_those_of_our_kernels_and_of_the_kind_of_the_inputs() -> None:
    executable = _eager(_model())
    for rows in (1, 16):
        x = X[:rows]
        got, expected = executable(x), _model()(x)
        torch.testing.assert_close(got, expected, rtol=2e-2, atol=1e-2)
        assert isinstance(executable(x.numpy()), np.ndarray)
        np.testing.assert_array_equal(executable(input=x.numpy()), got.numpy())


def test_a_models_executable_is_kept_one_for_each_device_and_mode() -> None:
    assert _eager(_model()) is _eager(_model())
    assert (
        len({vm.compile(_model(), device, mode=mode) for device, mode in (("cpu", "fast"), ("torch:cpu", "eager"))})
        == 2
    )


def test_an_executable_keeps_its_values_and_a_model_reads_what_torch_wrote() -> None:
    module = _network()
    model = _imported(module)
    executable = _eager(model)
    before = executable(X)
    module.load_state_dict({name: 2 * value for name, value in module.state_dict().items()})
    torch.testing.assert_close(executable(X), before, rtol=0, atol=0)
    torch.testing.assert_close(_eager(model)(X), module(X).detach())


def test_a_training_step_changes_its_state_as_on_our_device() -> None:
    step = training_step(autocast.from_torch(_network(), (X,)), MSE(), SGD())
    ours, torchs = vm.compile(step), _eager(step)
    target, rate = torch.ones(16, 32), torch.tensor(0.1)
    for _ in range(3):
        torch.testing.assert_close(torchs(X, target, rate), ours(X, target, rate))
    assert torchs.state.keys() == ours.state.keys()
    loss = torchs(X, target, rate)
    torchs.load_state(ours.state)
    torch.testing.assert_close(torchs(X, target, rate), loss)
    with pytest.raises(InputError, match=r"load_state: 'wrong' is not part of the state"):
        torchs.load_state({"wrong": rate})


def test_an_ir_module_takes_its_parameters_as_inputs() -> None:
    model = dense()
    x, n = torch.randn(4, 16), torch.tensor(1.0)
    weight = torch.from_dlpack(model.params["w"])
    torch.testing.assert_close(_eager(model.mod)(x, n, weight)[1], x @ weight + 1.0)


def test_inputs_that_do_not_fit_are_named() -> None:
    with pytest.raises(InputError, match=r"input is float64\[16, 64\], expected float32\[rows, 64\]"):
        _eager(_model())(X.double())


def test_latencies_are_reported_with_the_operators_of_torch() -> None:
    report = vm.profile_vm_model(_eager(_model()), "torch:cpu", [X], warmup=1, number=2, repeat=3)
    assert len(report) == 3 and report.device == "torch:cpu"
    rows = {row.name: row for row in report.operators}
    assert rows["aten::relu"].calls == 1 and TORCH_ROW in rows
    assert sum(row.share for row in report.operators) == pytest.approx(1.0, abs=0.05)
    with pytest.raises(InputError, match="repeat is 0"):
        vm.profile_vm_model(_eager(_model()), "torch:cpu", [X], repeat=0)


def test_the_peak_is_what_a_call_holds_at_most() -> None:
    executable = _eager(_imported(_network()))
    trace = vm.trace_memory(executable, "torch:cpu", [X])
    kib = {name: 1024 * value for name, value in (("peak", trace.intermediates), ("inputs", trace.inputs))}
    assert [step.name for step in trace] == [CALL]
    assert kib["inputs"] == 16 * 64 * 4 / 1024
    assert kib["peak"] == pytest.approx(2 * 16 * 128 * 4 / 1024, abs=1)  # before and after the ReLU
    parameters = 4 * (64 * 128 + 128 + 128 * 32 + 32) / 2**20
    assert vm.get_peak_memory(executable, "torch:cpu", [X]) == pytest.approx(trace.peak)
    assert trace.peak - vm.get_peak_memory(executable, "torch:cpu", [X], include_param=False) == pytest.approx(
        parameters
    )


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch, of itself
def test_inductor_compiles_a_model_that_is_called_on_a_device_of_torchs() -> None:
    torch._dynamo.reset()
    torch.testing.assert_close(_model()(X, device="torch:cpu"), _model()(X), rtol=2e-2, atol=1e-2)
    assert vm.compile(_model(), "torch:cpu").mode == "inductor"  # type: ignore[attr-defined]


@pytest.mark.parametrize("device", ["tpu", "torch:tpu", "cuda:99", "torch", "cpu:0"])
def test_a_device_that_torch_lacks_is_refused_with_those_that_it_has(device: str) -> None:
    with pytest.raises(UnsupportedError, match=f"device '{device}' is not supported, expected one of cpu, torch:cpu"):
        vm.compile(_model(), device)


@pytest.mark.parametrize(
    ("device", "options", "message"),
    [
        ("torch:cpu", {"mode": "fast"}, "mode is 'fast', expected one of inductor, eager on the device torch:cpu"),
        ("cpu", {"mode": "eager"}, r"mode is 'eager', expected one of fast, .*dynamic_hybrid on the device cpu"),
        ("torch:cpu", {"target": kernels.detect_target()}, "expected None on the device torch:cpu, whose code is"),
    ],
)
def test_what_belongs_to_the_other_kind_of_device_is_refused(device: str, options: Any, message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        vm.compile(_model(), device, **options)


def test_an_input_without_values_is_refused() -> None:
    model = autocast.from_torch(nn.Linear(4, 3), (torch.zeros(2, 4),))
    executable = vm.compile(model, device="torch:cpu", mode="eager")
    with pytest.raises(InputError, match="an input is on meta, expected one with values"):
        executable(torch.zeros(2, 4, device="meta"))


def test_inputs_lie_in_memory_in_any_way_and_have_any_sizes_that_were_declared() -> None:
    x = torch.randn(4, 3, 2)
    dimensions = {name: ("x", axis, 0, 8) for axis, name in enumerate("abc")}
    executable = vm.compile(autocast.from_torch(_Line(), (x,), dynamic=dimensions), "torch:cpu")
    kinds = [*itertools.product((4, 1, 0), (3, 1, 0), (2,)), (1, 1, 1), (0, 0, 0)]
    for sizes in kinds:  # more than the eight that torch's compiler has code for by itself
        value = torch.randn(sizes)
        torch.testing.assert_close(executable(value), 2 * value + 1)
    for order in itertools.permutations(range(3)):
        turned = torch.randn(4, 3, 2).permute(order)
        torch.testing.assert_close(executable(turned), 2 * turned + 1)
    negative = torch.randn(4, 3, 2, dtype=torch.complex64).conj().imag
    assert negative.is_neg()
    torch.testing.assert_close(executable(negative), 2 * negative + 1)
    torch.testing.assert_close(executable(x.requires_grad_()), 2 * x.detach() + 1)


class _Line(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 2 * x + 1


def test_sizes_are_results() -> None:
    @I.ir_module
    class Sizes:
        @R.function
        def main(x: R.Tensor(("n", 6), "float32")):
            n = T.int64()
            y = R.exp(x)
            return (y, R.shape([n * 2, n // 2]))

    for kind in (np.asarray, torch.from_numpy):
        y, sizes = vm.compile(autocast.from_relax(Sizes), device="torch:cpu", mode="eager")(kind(np.ones((3, 6), "f4")))
        assert tuple(sizes) == (6, 1) and isinstance(y, type(kind(np.ones(1))))
