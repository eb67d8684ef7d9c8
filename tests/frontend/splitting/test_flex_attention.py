"""flex_attention: scores that a function of the author's changes or hides, beside the same written out."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention.flex_attention import AuxRequest, create_block_mask, flex_attention

from autocast import vm
from autocast.frontend import from_torch
from autocast.training import MSE, SGD, training_step
from tests.frontend.helpers import operators, relative_error

_LENGTH = 12


class _Attention(nn.Module):
    """Four heads of queries over two of keys, with tensors that functions of scores read."""

    def __init__(self, score_mod: Callable[..., Any], mask_mod: Callable[..., Any] | None, is_written: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.query, self.key = nn.Linear(8, 32), nn.Linear(8, 16)
        self.table = nn.Parameter(torch.randn(4, 2 * _LENGTH))
        self.score_mod, self.mask_mod, self.is_written = score_mod, mask_mod, is_written

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        query = self.query(x).view(batch, length, 4, 8).transpose(1, 2)
        key = self.key(x).view(batch, length, 2, 8).transpose(1, 2)
        if self.is_written:
            return self._written(query, key.repeat_interleave(2, 1))
        hidden = self.mask_mod and create_block_mask(self.mask_mod, None, None, length, length, device="cpu")
        change = None if self.score_mod is None else lambda *args: self.score_mod(self.table, *args)
        return flex_attention(query, key, key + 1, change, hidden, enable_gqa=True)

    def _written(self, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        scores = query @ key.mT / math.sqrt(8)
        batch, head, row, column = torch.meshgrid(*map(torch.arange, scores.shape), indexing="ij")
        if self.score_mod is not None:
            scores = self.score_mod(self.table, scores, batch, head, row, column)
        if self.mask_mod is not None:
            scores = scores.masked_fill(~self.mask_mod(batch, head, row, column), -math.inf)
        is_hidden = (scores == -math.inf).all(-1, keepdim=True)
        return scores.masked_fill(is_hidden, 0).softmax(-1).masked_fill(is_hidden, 0) @ (key + 1)


#: What is done to scores, which of them a query sees, and the operator that it is.
_CASES: dict[str, tuple[Callable[..., Any] | None, Callable[..., Any] | None, str]] = {
    "some see nothing": (None, lambda b, h, i, j: (j < 3 + b) & (i > 3), "nn.attention_bias"),
    "distance": (lambda t, s, b, h, i, j: 1 + s - t[h, 0] * (i - j), lambda b, h, i, j: i >= j, "nn.attention_bias"),
    "hides": (lambda t, s, b, h, i, j: torch.where(i >= j, s, -math.inf), None, "nn.attention"),
    "does not hide": (lambda t, s, b, h, i, j: torch.where(i >= j, s, 0.0), None, "nn.softmax"),
    "doubles": (lambda t, s, b, h, i, j: torch.add(t[h, j], s, alpha=2), None, "nn.softmax"),
    "caps": (lambda t, s, b, h, i, j: 2 * torch.tanh(s / 2), lambda b, h, i, j: (i >= j) & (i > 3), "nn.softmax"),
}
_RELATIVE = (lambda t, s, b, h, i, j: s + t[h, i - j + _LENGTH], None)
_SCALED = (lambda t, s, b, h, i, j: s + s * t[h, i], lambda b, h, i, j: (i >= j) & (i > 3))


@pytest.mark.parametrize("case", _CASES)
def test_scores_are_what_their_function_makes_of_them(case: str) -> None:
    score_mod, mask_mod, operator = _CASES[case]
    x = torch.randn(2, _LENGTH, 8)
    model = from_torch(_Attention(score_mod, mask_mod, False), (x,), fallback="error")
    assert operators(model)[operator] == 1, operators(model)
    with torch.no_grad():
        expected = _Attention(score_mod, mask_mod, True)(x)
    assert relative_error(model(x), expected) < 1e-6


def test_batch_and_length_are_those_of_the_call() -> None:
    score_mod, mask_mod, _ = _CASES["distance"]
    dynamic = {"batch": ("x", 0), "length": ("x", 1, 2, 2 * _LENGTH)}
    model = from_torch(_Attention(score_mod, mask_mod, False), (torch.randn(2, _LENGTH, 8),), dynamic=dynamic)
    for shape in [(1, 5, 8), (3, 2 * _LENGTH, 8)]:
        x = torch.randn(shape)
        with torch.no_grad():
            assert relative_error(model(x), _Attention(score_mod, mask_mod, True)(x)) < 1e-6, shape


def test_what_hides_nothing_has_no_bias_for_any_batch() -> None:
    x = torch.randn(2, _LENGTH, 8)
    model = from_torch(_Attention(None, None, False), (x,), dynamic={"batch": ("x", 0), "length": ("x", 1, 2, 64)})
    assert operators(model)["nn.attention"] == 1


@pytest.mark.parametrize(("score_mod", "mask_mod"), [_RELATIVE, _SCALED], ids=["relative", "scaled"])
def test_it_is_trained_on_cpus_where_torch_cannot(score_mod: Any, mask_mod: Any) -> None:
    x, labels = torch.randn(2, _LENGTH, 8), torch.randn(2, 4, _LENGTH, 8)
    written = _Attention(score_mod, mask_mod, True)
    F.mse_loss(written(x), labels).backward()
    model = from_torch(_Attention(score_mod, mask_mod, False).train(), (x,), fallback="error")
    step = vm.compile(training_step(model, MSE(), SGD()))
    step(x, labels, torch.tensor(1.0))
    for name, parameter in written.named_parameters():
        gradient = parameter.detach() - torch.from_dlpack(step.state[name])
        assert (gradient - parameter.grad).abs().max() < 1e-6, name


def test_sums_are_those_of_the_changed_scores() -> None:
    class Sums(nn.Module):
        def forward(self, query: torch.Tensor) -> Any:
            return flex_attention(query, query, query, lambda s, *at: s.tanh(), return_aux=AuxRequest(lse=True))

    query = torch.randn(1, 2, 6, 4)
    attended, sums = from_torch(Sums(), (query,))(query)
    scores = (query @ query.mT / 2).tanh()
    assert relative_error(attended, scores.softmax(-1) @ query) < 1e-6
    assert relative_error(sums, scores.logsumexp(-1)) < 1e-6


def test_a_model_in_low_precision_adds_to_scores_in_float32() -> None:
    low = _Attention(lambda t, s, b, h, i, j: s + (100 + 0.1 * j), None, False).bfloat16()  # steps of 0.5 at 100
    x = torch.randn(2, _LENGTH, 8, dtype=torch.bfloat16)
    exact = copy.deepcopy(low).double()
    exact.is_written = True
    with torch.no_grad():
        expected = exact(x.double())
    assert relative_error(from_torch(low, (x,))(x).double(), expected) < 0.01
