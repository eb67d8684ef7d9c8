"""What a handler of a signal raises while a model is imported or compiled is raised, and is no fault of the model."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator

import pytest
import torch
import tvm
from torch import nn
from tvm import relax

from autocast import from_torch
from autocast.errors import CompileError
from autocast.interrupts import passing_interrupts
from autocast.ir.failures import repeatable


class AlarmError(Exception):
    """What the handler raises."""


def _ring(*_signal_and_frame: object) -> None:
    raise AlarmError("time is up")


@contextlib.contextmanager
def _handling() -> Iterator[None]:
    """Of an alarm, and of Ctrl-C, which a shell has processes ignore that it runs in the background."""
    handlers = {signal.SIGALRM: _ring, signal.SIGINT: signal.default_int_handler}
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
        assert all(signal.getsignal(number) is handler for number, handler in handlers.items())
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class _Slow(nn.Module):
    """Is interrupted while torch traces it."""

    def __init__(self, number: signal.Signals) -> None:
        super().__init__()
        self.number = number

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        signal.raise_signal(self.number)
        return x + 1


@pytest.mark.parametrize(("number", "error"), [(signal.SIGALRM, AlarmError), (signal.SIGINT, KeyboardInterrupt)])
def test_a_module_that_is_interrupted_is_not_refused(number: signal.Signals, error: type[BaseException]) -> None:
    with _handling(), pytest.raises(error):
        from_torch(_Slow(number), (torch.zeros(2),))


@pytest.mark.parametrize(("number", "error"), [(signal.SIGALRM, AlarmError), (signal.SIGINT, KeyboardInterrupt)])
def test_a_pass_of_tvm_that_is_interrupted_has_not_failed(number: signal.Signals, error: type[BaseException]) -> None:
    @tvm.transform.module_pass(opt_level=0)
    def slow(mod: tvm.IRModule, _context: object) -> tvm.IRModule:
        signal.raise_signal(number)
        return mod

    mod = tvm.IRModule({"main": relax.Function([], relax.const(1.0), relax.TensorType([], "float32"))})
    with _handling(), pytest.raises(error), repeatable("vm.compile", mod, ""):
        slow(mod)


def test_what_is_swallowed_is_raised_in_the_end() -> None:
    with _handling(), pytest.raises(AlarmError), passing_interrupts(), contextlib.suppress(AlarmError):
        signal.raise_signal(signal.SIGALRM)


def test_other_errors_are_what_they_were() -> None:
    mod = tvm.IRModule()
    with _handling(), pytest.raises(CompileError, match="no signal"), repeatable("vm.compile", mod, ""):
        raise ValueError("no signal")
