"""What is captured and replayed, with an actor in the place of CUDA: on a device it is in `test_cuda.py`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from autocast.vm import cuda_graphs
from autocast.vm.cuda_graphs import CapturedCalls


class _Actor:
    """CUDA as `CapturedCalls` uses it: what is captured is not run, and a replay writes where the capture would have.

    Parameters
    ----------
    work : function
        What is captured.
    can_capture : bool
    """

    def __init__(self, work: Callable[..., Any], *, can_capture: bool = True) -> None:
        self.work, self.can_capture = work, can_capture
        self.runs, self.replays = 0, 0
        self.capturing = False
        self.captured: tuple[Any, ...] = ()
        self.generators: list[object] = []

    def run(self, *inputs: torch.Tensor) -> Any:
        if not self.capturing:
            self.runs += 1
            return self.work(*inputs)
        outputs = self.work(*(value.clone() for value in inputs))
        self.captured = inputs, outputs
        return outputs

    def replay(self) -> None:
        self.replays += 1
        inputs, outputs = self.captured
        for place, value in zip(outputs, self.work(*inputs), strict=True):
            if place is not None:
                place.copy_(value)

    @contextmanager
    def graph(self, graph: object, capture_error_mode: str) -> Iterator[None]:
        assert capture_error_mode == "thread_local"
        if not self.can_capture:
            raise RuntimeError("operation not permitted when stream is capturing")
        self.capturing = True
        yield
        self.capturing = False

    def namespace(self) -> SimpleNamespace:
        generator = SimpleNamespace(clone_state=lambda: "anew", graphsafe_set_state=self.generators.append)
        stream = SimpleNamespace(wait_event=lambda event: None, record_event=lambda: "event")
        return SimpleNamespace(
            CUDAGraph=lambda: SimpleNamespace(replay=self.replay),
            graph=self.graph,
            device=lambda device: nullcontext(),
            current_stream=lambda: stream,
            current_device=lambda: 0,
            default_generators=[generator],
        )


def _acted(monkeypatch: pytest.MonkeyPatch, actor: _Actor, written: tuple[int, ...] = ()) -> CapturedCalls:
    monkeypatch.setattr(cuda_graphs.torch, "cuda", actor.namespace())
    return CapturedCalls(actor.run, written, torch.device("cpu"))


def test_the_first_call_runs_the_second_captures_and_results_stay_as_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    actor = _Actor(lambda x: (x * 2, x, None))
    calls = _acted(monkeypatch, actor)
    inputs = [torch.full((3,), float(number)) for number in range(4)]
    results = [calls(x) for x in inputs]
    assert (actor.runs, actor.replays, calls.is_captured, calls.refused) == (1, 3, True, None)
    for x, (doubled, same, nothing) in zip(inputs, results, strict=True):
        assert nothing is None
        torch.testing.assert_close((doubled, same), (2 * x, x))


def test_what_is_written_into_inputs_is_in_the_callers(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = _acted(monkeypatch, _Actor(lambda x, y: (x.add_(y) * 10,)), written=(0,))
    x, results = torch.zeros(2), []
    for number in range(4):
        results.append(float(calls(x, torch.full((2,), float(number)))[0][0]))
    assert x.tolist() == [6.0, 6.0] and results == [0.0, 10.0, 30.0, 60.0]


def test_what_cannot_be_captured_is_run_and_random_numbers_still_are(monkeypatch: pytest.MonkeyPatch) -> None:
    actor = _Actor(lambda x, y: (x.add_(y),), can_capture=False)
    calls = _acted(monkeypatch, actor, written=(0,))
    x = torch.zeros(2)
    for _ in range(3):
        calls(x, torch.ones(2))
    assert x.tolist() == [3.0, 3.0] and (actor.runs, actor.replays) == (3, 0)
    assert calls.refused is not None and "not permitted" in calls.refused and actor.generators == ["anew"]


def test_sums_are_in_float32_while_it_runs_and_as_they_were_after_it() -> None:
    names = ("allow_fp16_reduced_precision_reduction", "allow_bf16_reduced_precision_reduction")
    matmul = torch.backends.cuda.matmul
    before = [getattr(matmul, name) for name in names]
    with cuda_graphs.sums_in_float32():
        assert [getattr(matmul, name) for name in names] == [False, False]
    assert [getattr(matmul, name) for name in names] == before
