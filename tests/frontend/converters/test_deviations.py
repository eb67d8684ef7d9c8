"""Variances and standard deviations: of huge and tiny numbers, of too few, of sizes known at run time; gradients."""

from __future__ import annotations

import pytest
import torch

from autocast.frontend import from_torch
from autocast.training import differentiate
from autocast.vm import compile as compile_model
from tests.frontend.helpers import Calls


def _deviations(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return x.std(-1), x.std((0, 1), correction=0, keepdim=True), *torch.std_mean(x, 0), x[0, 0].std()


def _of_too_few(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return *torch.std_mean(x, 0, correction=4), x.std(0, correction=7), *torch.var_mean(x, 0, correction=4), x.std(-1)


@pytest.mark.filterwarnings("ignore:.*degrees of freedom")
@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30])
def test_no_square_is_too_large_or_too_small(scale: float) -> None:
    x = torch.randn(4, 9) * scale
    results = compile_model(from_torch(Calls(_deviations), (x,), fallback="error"))(x)
    torch.testing.assert_close(tuple(results), _deviations(x), rtol=1e-5, atol=0, equal_nan=True)


@pytest.mark.filterwarnings("ignore:.*degrees of freedom")
def test_a_correction_may_leave_no_degree_of_freedom() -> None:
    x = torch.randn(4, 3)
    x[:, 1] = 2.0
    results = compile_model(from_torch(Calls(_of_too_few), (x,), fallback="error"))(x)
    torch.testing.assert_close(tuple(results), _of_too_few(x), equal_nan=True)


@pytest.mark.filterwarnings("ignore:.*degrees of freedom")
def test_how_many_there_are_may_be_known_at_run_time() -> None:
    dynamic = {"rows": (0, 0, 1, 64), "columns": (0, 1, 1, 64)}
    run = compile_model(from_torch(Calls(_of_too_few), (torch.randn(3, 5),), dynamic=dynamic, fallback="error"))
    for shape in ((6, 2), (4, 7), (1, 1)):
        x = torch.randn(shape)
        torch.testing.assert_close(tuple(run(x)), _of_too_few(x), equal_nan=True)


def test_the_gradient_where_all_elements_are_equal_is_zero() -> None:
    def loss(x: torch.Tensor) -> torch.Tensor:
        return x.std(1).sum()

    x = torch.randn(3, 8, requires_grad=True)
    with torch.no_grad():
        x[1] = 0.5
    loss(x).backward()
    model = from_torch(Calls(loss), (x.detach(),), fallback="error")
    mod = model.mod.clone()
    mod["main"] = differentiate(model.main, [model.main.params[0]])
    _, gradient = compile_model(model.replace(mod=mod, output_names=()))(x.detach())
    torch.testing.assert_close(gradient, x.grad)
