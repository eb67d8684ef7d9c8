"""Where torch multiplies 16 bits slowly, products are computed in float32: the same numbers, rounded once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

import autocast
from autocast import amp
from autocast.torch_target import multiplied_slowly
from autocast.training import MSE, SGD, training_step
from autocast.vm.generic import Generic
from autocast.vm.torch_devices import TorchExecutable

LOW = (torch.bfloat16, torch.float16)

#: Parts of the names of torch's products.
MULTIPLYING = ("mm", "convolution", "attention")


class _Multiplied(TorchDispatchMode):
    """The dtypes of what torch's products are given."""

    def __init__(self) -> None:
        super().__init__()
        self.dtypes: set[torch.dtype] = set()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(name in function.overloadpacket.__name__ for name in MULTIPLYING):
            self.dtypes |= {x.dtype for x in pytree.tree_leaves(args) if isinstance(x, torch.Tensor)}
        return function(*args, **(kwargs or {}))


class Mixed(nn.Module):
    """A convolution, attention and products."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv1d(6, 16, 3, padding=1)
        self.attention = nn.MultiheadAttention(16, 2, batch_first=True)
        self.last = nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Of (2, 6, length), numbers of (2, length, 4)."""
        rows = self.patches(x).transpose(1, 2)
        return self.last(self.attention(rows, rows, rows, need_weights=False)[0] + rows)


def _model(dtype: torch.dtype, *, trained: bool) -> tuple[autocast.Model, tuple[torch.Tensor, ...]]:
    torch.manual_seed(0)
    x = torch.randn(2, 6, 9)
    model = autocast.from_torch(Mixed().eval(), (x,))
    if not trained:
        return amp.autocast(model, dtype=dtype), (x,)
    step = training_step(model, MSE(), SGD())
    return amp.autocast(step, dtype=dtype), (x, torch.randn(2, 9, 4), torch.tensor(0.1))


def _run(run: Callable[..., Any], inputs: tuple[Any, ...]) -> tuple[Any, set[torch.dtype]]:
    """What it returns, and the dtypes that torch's products were given."""
    with torch.no_grad(), _Multiplied() as multiplied:
        return run(*inputs), multiplied.dtypes


@pytest.mark.parametrize("trained", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("dtype", LOW, ids=str)
def test_no_product_is_given_16_bits_and_results_are_rounded_once(dtype: torch.dtype, trained: bool) -> None:
    model, inputs = _model(dtype, trained=trained)
    widened = autocast.to_torch(model, exact=False, widened=(str(dtype).removeprefix("torch."),))
    as_stored = autocast.to_torch(model, exact=False)
    got, wide = _run(widened, inputs)
    expected, low = _run(as_stored, inputs)
    assert dtype in low
    assert wide == {torch.float32}
    torch.testing.assert_close(got, expected, rtol=4 * torch.finfo(dtype).eps, atol=torch.finfo(dtype).eps)


@pytest.mark.parametrize("dtype", LOW, ids=str)
def test_models_that_torch_runs_multiply_as_is_fast_on_this_processor(dtype: torch.dtype) -> None:
    model, inputs = _model(dtype, trained=False)
    cpu = torch.device("cpu")
    slow = str(dtype).removeprefix("torch.") in multiplied_slowly(cpu)
    for run in (Generic(model), TorchExecutable(model, "torch:cpu", cpu, "eager")):
        assert (dtype in _run(run, inputs)[1]) != slow


def test_accelerators_multiply_16_bits() -> None:
    assert multiplied_slowly(torch.device("cuda")) == frozenset()


def test_a_torch_without_onednn_multiplies_16_bits_slowly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    assert multiplied_slowly(torch.device("cpu")) == {"bfloat16", "float16"}
