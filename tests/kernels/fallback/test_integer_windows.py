"""Windows over integers are integers, by our kernels and by torch."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from tvm import relax

import autocast
from autocast import vm
from autocast.errors import UnsupportedError
from tests.kernels.modules import module

nn = relax.op.nn

_POOLS: dict[str, tuple[Callable[[relax.Expr], relax.Expr], Callable[[np.ndarray], np.ndarray]]] = {
    "means": (lambda x: nn.avg_pool2d(x, (2, 2), strides=(2, 2)), lambda w: w.sum(-1) // 4),
    "means of parts": (lambda x: nn.adaptive_avg_pool2d(x, (2, 2)), lambda w: w.sum(-1) // 4),
    "largest": (lambda x: nn.max_pool2d(x, (2, 2), strides=(2, 2)), lambda w: w.max(-1)),
}


@pytest.mark.parametrize("by", ["kernels", "torch"])
@pytest.mark.parametrize("dtype", ["int32", "int64"])
@pytest.mark.parametrize("pool", _POOLS)
def test_windows_over_integers_have_their_dtype(pool: str, dtype: str, by: str) -> None:
    body, reference = _POOLS[pool]
    x = (np.arange(16, dtype=dtype) * 7 % 16).reshape(1, 1, 4, 4)
    windows = x.reshape(2, 2, 2, 2).transpose(0, 2, 1, 3).reshape(1, 1, 2, 2, 4)
    model = autocast.from_relax(module(body, (x.shape, dtype)))
    got = vm.compile(model)(x) if by == "kernels" else autocast.to_torch(model)(torch.from_numpy(x)).numpy()
    assert str(got.dtype) == dtype
    np.testing.assert_array_equal(got, reference(windows))


def test_means_of_elements_that_lie_apart_are_refused_by_torch() -> None:
    model = autocast.from_relax(module(lambda x: nn.avg_pool2d(x, (2, 2), dilation=(2, 1)), ((1, 1, 4, 4), "float32")))
    with pytest.raises(UnsupportedError, match=r"avg_pool2d has dilation=\(2, 1\), expected 1"):
        autocast.to_torch(model)(torch.zeros(1, 1, 4, 4))
