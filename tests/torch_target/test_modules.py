"""The module that `to_torch` makes is moved, copied, saved and loaded as torch's are, and keeps its dtypes."""

from __future__ import annotations

import copy
import io
import pickle
from functools import cache
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize

import autocast
from autocast import amp
from autocast.errors import UnsupportedError

X = torch.linspace(-1, 1, 12).reshape(3, 4)


class _Net(nn.Module):
    """Has a constant, and a branch that reads one."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.norm = nn.BatchNorm1d(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scale = torch.tensor([1.0, 2.0, 3.0, 4.0])
        y = torch.cond(x.sum() > -1, lambda x: self.norm(self.linear(x)) * scale, lambda x: x * 2, (x,))
        return y + scale


@cache
def _source() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return _Net().eval()


def _ours(**policy: Any) -> nn.Module:
    model = autocast.from_torch(copy.deepcopy(_source()), (X,))
    return autocast.to_torch(amp.autocast(model, **policy) if policy else model)


def _assert_same(module: nn.Module) -> None:
    torch.testing.assert_close(module(X), _source()(X))
    assert module.state_dict().keys() == _ours().state_dict().keys()
    module.load_state_dict(_source().state_dict())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_dtypes_are_the_models(dtype: torch.dtype) -> None:
    for ours in (_ours(), _ours(dtype="bfloat16")):
        with pytest.raises(UnsupportedError, match=r"weights are float32 was asked for .*amp\.autocast\(model, dtype="):
            ours.to(dtype)


def test_float_and_cpu_leave_a_module_with_constants_in_low_precision_as_it_is() -> None:
    ours = _ours(dtype="bfloat16")
    before = ours(X)
    torch.testing.assert_close(ours.float().cpu().to(torch.float32)(X), before, rtol=0, atol=0)


def test_a_module_that_was_on_meta_loads_a_state_and_has_its_constants() -> None:
    emptied = _ours().to("meta").to_empty(device="cpu")
    emptied.load_state_dict(_source().state_dict())
    _assert_same(emptied)
    assigned = _ours().to("meta")
    assert assigned.get_buffer("constant_0").is_meta
    assigned.load_state_dict(_source().state_dict(), assign=True)
    _assert_same(assigned)


@pytest.mark.parametrize("assign", [False, True])
def test_a_state_of_another_dtype_is_converted(assign: bool) -> None:
    ours = _ours()
    ours.load_state_dict(
        {name: value.to(torch.float16) for name, value in _source().state_dict().items()}, assign=assign
    )
    assert {value.dtype for value in ours.state_dict().values()} <= {torch.float32, torch.int64}
    torch.testing.assert_close(ours(X), _source()(X), rtol=1e-2, atol=1e-2)


def test_copies_have_the_same_state_and_results() -> None:
    ours = _ours()
    saved = io.BytesIO()
    torch.save(ours, saved)
    saved.seek(0)
    for copied in (copy.deepcopy(ours), pickle.loads(pickle.dumps(ours)), torch.load(saved, weights_only=False)):
        assert copied.get_parameter("linear.weight").data_ptr() != ours.get_parameter("linear.weight").data_ptr()
        assert copied.code == ours.code and str(copied) == str(ours)
        _assert_same(copied)


def test_a_copy_draws_the_same_random_numbers() -> None:
    model = autocast.from_torch(nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.3)).train(), (torch.randn(4, 8),))
    ours, x = autocast.to_torch(model), torch.randn(4, 8)
    torch.testing.assert_close(pickle.loads(pickle.dumps(ours))(x), ours(x), rtol=0, atol=0)


class _Twice(nn.Module):
    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        """Twice the weight."""
        return 2 * weight


def test_a_copy_has_the_parametrizations() -> None:
    ours = _ours()
    parametrize.register_parametrization(ours.get_submodule("linear"), "weight", _Twice())
    copied = copy.deepcopy(ours)
    assert dict(copied.named_parameters()).keys() == dict(ours.named_parameters()).keys()
    torch.testing.assert_close(copied(X), ours(X), rtol=0, atol=0)
