"""Gradients of functions that vanish or saturate keep their digits there, and are finite where the functions are."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
import tvm
from torch.nn import functional as F

from autocast.frontend import from_torch
from autocast.training import differentiate
from tests.frontend.helpers import Calls
from tests.kernels.modules import run

FUNCTIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "celu": lambda x: F.celu(x, 0.5),
    "elu": F.elu,
    "log1p": lambda x: torch.log1p(x.abs()),
    "logaddexp": lambda x: torch.logaddexp(x, torch.zeros_like(x)),
    "logsigmoid": F.logsigmoid,
    "mish": F.mish,
    "selu": F.selu,
    "softplus": F.softplus,
}
X = torch.tensor([-100.0, -85.0, -30.0, -5.0, -0.5, -1e-4, -1e-10, 0.0, 1e-10, 1e-4, 0.5, 5.0, 30.0, 85.0, 100.0])


@pytest.mark.parametrize("name", FUNCTIONS)
def test_gradients_keep_their_digits_and_are_finite(name: str) -> None:
    function = FUNCTIONS[name]
    main = from_torch(Calls(lambda x: function(x).sum()), (X,)).main
    joint = differentiate(main, main.params[:1]).with_attr("global_symbol", "main")
    got = run(tvm.IRModule({"main": joint}), X.numpy())[1]
    wide = X.double().requires_grad_()
    function(wide).sum().backward()
    assert wide.grad is not None
    np.testing.assert_allclose(got, wide.grad.numpy(), rtol=32 * np.finfo(np.float32).eps, atol=2.0**-126)


#: Functions whose slope jumps, of which torch says what it is there; of NaN, too.
_JUMPS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "clamp": lambda x: x.clamp(-1, 1),
    "clamp from below": lambda x: x.clamp(min=0),
    "clamp from above": lambda x: x.clamp(max=1),
    "relu": torch.relu,
    "angle": lambda x: torch.atan2(x, x.minimum(torch.zeros(9))),
    "maximum": lambda x: torch.maximum(x, torch.ones(9)),
}


@pytest.mark.parametrize("name", _JUMPS)
def test_where_a_slope_jumps_the_gradient_is_torchs(name: str) -> None:
    x = torch.tensor([-2.0, -1.0, -0.0, 0.0, 0.5, 1.0, 2.0, torch.inf, torch.nan])
    main = from_torch(Calls(lambda x: _JUMPS[name](x).sum()), (x,)).main
    joint = differentiate(main, main.params[:1]).with_attr("global_symbol", "main")
    wide = x.clone().requires_grad_()
    _JUMPS[name](wide).sum().backward()
    assert wide.grad is not None
    np.testing.assert_array_equal(run(tvm.IRModule({"main": joint}), x.numpy())[1], wide.grad.numpy())
