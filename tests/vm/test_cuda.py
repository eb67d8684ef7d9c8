"""On a CUDA device: every operator, architectures, training, and graphs of launches. Skipped where there is none."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import autocast
from autocast import amp, vm
from autocast.errors import UnsupportedError
from autocast.training import MSE, SGD, AdamW, CrossEntropy, training_step
from tests.architectures import ARCHITECTURES, flatten, imported, trainable
from tests.fuzz import torch_rows
from tests.fuzz.expressions import module_of
from tests.torch_target.modules import Chosen, Found, OfTorch
from tests.training.trainers import batch, make_trainer, small_module

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch has no CUDA device here"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning"),  # of torch, of itself
]

Check = Callable[..., Any]


def _close(got: Any, expected: Any, **options: Any) -> None:
    for value, wanted in zip(flatten(got), flatten(expected), strict=True):
        torch.testing.assert_close(value.cpu(), wanted.cpu(), check_dtype=False, **options)


def _error(got: Any, expected: Any) -> float:
    pairs = zip(flatten(got), flatten(expected), strict=True)
    return max(float((a.cpu().double() - b.double()).norm() / b.double().norm()) for a, b in pairs)


@pytest.mark.parametrize(
    ("expression", "shapes", "reference"), torch_rows.ROWS, ids=[row[0] for row in torch_rows.ROWS]
)
def test_rows_compute_what_they_do_on_the_cpu(expression: str, shapes: Any, reference: Check) -> None:
    mod, operands = module_of(expression, shapes)
    try:
        executable = vm.compile(autocast.from_relax(mod), "cuda", mode="eager")
    except UnsupportedError as error:
        pytest.skip(str(error))
    _close(executable(*operands), reference(*operands), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("mode", ["eager", "inductor"])
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_architectures_compute_what_they_were_imported_from(name: str, mode: str) -> None:
    torch._dynamo.reset()
    architecture, model = ARCHITECTURES[name](), imported(name, False)
    expected = architecture.reference(*architecture.args, **architecture.kwargs)
    inputs = *architecture.args, *architecture.kwargs.values()
    with torch.backends.cudnn.flags(allow_tf32=False):
        exact = vm.compile(model, "cuda", mode=mode)
        assert max(_error(exact(*inputs), expected) for _ in range(3)) < 1e-5
    for dtype in ("bfloat16", "float16"):
        low = vm.compile(amp.autocast(model, dtype=dtype), "cuda", mode=mode)
        assert max(_error(low(*inputs), expected) for _ in range(3)) < 2e-2


@pytest.mark.parametrize("mode", ["eager", "inductor"])
@pytest.mark.parametrize("name", ["bert", "llama", "resnet", "lstm"])
def test_training_steps_have_the_losses_of_torch(name: str, mode: str) -> None:
    torch._dynamo.reset()
    architecture = ARCHITECTURES[name]()
    classes = name != "lstm"
    step = training_step(trainable(name), CrossEntropy() if classes else MSE(), SGD(momentum=0.9))
    (logits, *_) = flatten(architecture.reference(*architecture.args, **architecture.kwargs))
    torch.manual_seed(0)
    labels = torch.randint(0, logits.shape[-1], logits.shape[:-1]) if classes else torch.randn(logits.shape)
    inputs = (*architecture.args, *architecture.kwargs.values(), labels, torch.tensor(1e-2))
    on_cpu = vm.compile(step)
    expected = [float(on_cpu(*inputs)) for _ in range(4)]
    with torch.backends.cudnn.flags(allow_tf32=False):
        exact = vm.compile(step, "cuda", mode=mode)
        assert [float(exact(*inputs)) for _ in range(4)] == pytest.approx(expected, rel=1e-3)
    low = vm.compile(amp.autocast(step, dtype="bfloat16"), "cuda", mode=mode)
    assert [float(low(*inputs)) for _ in range(4)] == pytest.approx(expected, rel=2e-2)


class _Written(nn.Module):
    """Writes into its first input, and returns an input and what it computes."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x.add_(y)
        return y, x * 2


def _captured(executable: Any) -> Any:
    """What launches an executable's graph."""
    return executable._launch


def test_a_graph_is_replayed_with_new_values_and_returns_memory_of_its_own() -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4)).eval()
    executable = vm.compile(autocast.from_torch(module, (torch.randn(3, 8),)), "cuda")
    inputs = [torch.randn(3, 8) for _ in range(6)]
    outputs = [executable(x) for x in inputs]  # all of them live
    assert _captured(executable).is_captured and {output.device.type for output in outputs} == {"cuda"}
    for x, output in zip(inputs, outputs, strict=True):
        _close(output, module(x).detach(), rtol=1e-5, atol=1e-5)
    transposed = torch.randn(8, 3).t()
    _close(executable(transposed), module(transposed).detach(), rtol=1e-5, atol=1e-5)


def test_inputs_are_written_and_returned_through_a_graph() -> None:
    torch._dynamo.reset()
    executable = vm.compile(autocast.from_torch(_Written(), (torch.zeros(4), torch.zeros(4))), "cuda")
    for device in ("cpu", "cuda"):
        x, kept = torch.zeros(4, device=device), []
        for number in range(4):
            y = torch.full((4,), float(number), device=device)
            kept.append(executable(x, y))
        assert x.tolist() == [6.0] * 4
        assert [float(y[0]) for y, _ in kept] == [0.0, 1.0, 2.0, 3.0]
        assert [float(z[0]) for _, z in kept] == [0.0, 2.0, 6.0, 12.0]


@pytest.mark.filterwarnings("ignore::autocast.errors.FallbackWarning")
@pytest.mark.parametrize("module", [Chosen(), Found(), OfTorch()])
@pytest.mark.parametrize("mode", ["eager", "inductor"])
def test_what_waits_for_the_device_is_not_captured(module: nn.Module, mode: str) -> None:
    torch._dynamo.reset()
    x = torch.linspace(-1, 1, 16).reshape(4, 4)
    model = autocast.from_torch(module, (x,))
    executable = vm.compile(model, "cuda", mode=mode)
    for value in (x, x + 3, x - 3):
        _close(executable(value), module(value), rtol=1e-4, atol=1e-4)
    assert not getattr(_captured(executable), "is_captured", False)


def test_sizes_that_vary_are_not_captured() -> None:
    torch._dynamo.reset()
    module = nn.Linear(8, 4)
    model = autocast.from_torch(module, (torch.randn(3, 8),), dynamic={"rows": ("input", 0, 1, 64)})
    executable = vm.compile(model, "cuda")
    for rows in (3, 1, 7, 64):
        x = torch.randn(rows, 8)
        _close(executable(x), module(x).detach(), rtol=1e-5, atol=1e-5)


def test_threads_on_streams_of_their_own_share_a_graph() -> None:
    torch._dynamo.reset()
    module = nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 256)).eval().cuda()
    executable = vm.compile(autocast.from_torch(module.cpu(), (torch.randn(64, 256),)), "cuda")
    module, wrong = module.cuda(), []
    for _ in range(3):
        executable(torch.randn(64, 256, device="cuda"))

    def work(seed: int) -> None:
        generator = torch.Generator("cuda").manual_seed(seed)
        with torch.cuda.stream(torch.cuda.Stream()), torch.no_grad():
            for _ in range(50):
                x = torch.randn(64, 256, device="cuda", generator=generator)
                got, expected = executable(x), module(x)
                if not torch.allclose(got, expected, rtol=1e-3, atol=1e-3):
                    wrong.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_latencies_are_of_the_device_and_a_peak_is_that_of_what_is_computed() -> None:
    torch._dynamo.reset()
    module = nn.Sequential(nn.Linear(512, 4096), nn.ReLU(), nn.Linear(4096, 512)).eval()
    x = torch.randn(1024, 512)
    for mode in ("eager", "inductor"):
        executable = vm.compile(autocast.from_torch(module, (x,)), "cuda", mode=mode)
        report = vm.profile_vm_model(executable, "cuda", [x], warmup=3, number=5, repeat=3)
        assert report.minimum > 0 and any("gemm" in row.name or "cutlass" in row.name for row in report.operators)
        for _ in range(2):  # the graph holds memory of its own, which is no part of it
            trace = vm.trace_memory(executable, "cuda", [x])
            assert 16 <= trace.intermediates <= 40  # 16 MiB each before and after the ReLU


def test_a_trainer_trains_on_the_device() -> None:
    torch._dynamo.reset()
    for options in ({}, {"amp": "bfloat16"}, {"amp": "float16"}, {"optimizer": AdamW(), "clip_norm": 1.0}):
        ours, cudas = make_trainer(**options), make_trainer(device="cuda", **options)
        for step in range(5):
            assert cudas.step(batch(step)) == pytest.approx(
                ours.step(batch(step)), rel=2e-2 if "amp" in options else 1e-4
            )
        assert cudas.loss_scale == ours.loss_scale


def test_what_was_learned_on_the_device_is_evaluated_and_kept(tmp_path: Path) -> None:
    torch._dynamo.reset()
    ours, cudas = make_trainer(), make_trainer(device="cuda")
    for trainer in (ours, cudas):
        trainer.fit(batch, 4, progress=False)
    metrics = {"distance": lambda outputs, labels: abs(outputs - labels).max()}
    batches = [batch(step) for step in range(2)]
    assert cudas.evaluate(batches, metrics) == pytest.approx(ours.evaluate(batches, metrics), rel=1e-4)
    cudas.save(tmp_path / "checkpoint")
    on_cpu, again = make_trainer(), make_trainer(device="cuda")
    expected = ours.fit(batch, 6, progress=False)
    for trainer in (on_cpu, again):
        trainer.load(tmp_path / "checkpoint")
        assert trainer.fit(batch, 6, progress=False) == pytest.approx(expected, rel=1e-4)
    module = small_module()
    cudas.to_torch(module)
    for name, tensor in cudas.trained().params.items():
        torch.testing.assert_close(module.get_parameter(name).detach(), torch.from_dlpack(tensor))


def test_a_vocabulary_of_an_odd_size_is_computed_and_trained() -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(264, 1003), nn.Tanh(), nn.Linear(1003, 517))
    x, labels = torch.randn(300, 264), torch.randint(0, 517, (300,))
    model = autocast.from_torch(module, (x,))
    low = amp.autocast(model, dtype="bfloat16")
    got = [vm.compile(low, "cuda")(x) for _ in range(3)]
    assert all(output.is_contiguous() and _error(output, low(x)) < 1e-2 for output in got)
    step = amp.autocast(training_step(model, CrossEntropy(), SGD()), dtype="bfloat16")
    losses = []
    for device in ("cpu", "cuda"):
        run = vm.compile(step, device)
        losses.append([float(run(x, labels, torch.tensor(0.1))) for _ in range(4)])
    assert losses[1] == pytest.approx(losses[0], rel=1e-3)


def test_state_is_written_between_replays() -> None:
    torch._dynamo.reset()
    module = nn.Linear(4, 4)
    step = training_step(autocast.from_torch(module, (torch.zeros(2, 4),)), MSE(), SGD())
    x, labels, rate = torch.ones(2, 4), torch.zeros(2, 4), torch.tensor(0.05)
    executable = vm.compile(step, "cuda")
    start = {name: value.clone() for name, value in executable.state.items()}
    first = [float(executable(x, labels, rate)) for _ in range(4)]
    executable.load_state(start)
    assert [float(executable(x, labels, rate)) for _ in range(4)] == pytest.approx(first)


def test_random_numbers_are_drawn_anew_by_each_replay() -> None:
    torch._dynamo.reset()
    module = nn.Dropout(0.5).train()
    step = autocast.from_torch(nn.Sequential(nn.Linear(64, 64), module), (torch.ones(64, 64),))
    executable = vm.compile(training_step(step, MSE(), SGD()), "cuda")
    rate = torch.tensor(0.0)
    losses = [float(executable(torch.ones(64, 64), torch.zeros(64, 64), rate)) for _ in range(4)]
    assert len(set(losses)) == 4
