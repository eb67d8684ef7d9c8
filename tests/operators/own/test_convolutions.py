"""Gradients of convolutions' weights, beside torch's: few taps, many, and windows side by side."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tvm import relax

from autocast.operators import own
from tests.kernels.modules import module, run

#: Data (batch, channels, ...), weights, and the convolution's strides, padding, dilation and groups.
CASES = {
    "few taps": ((2, 4, 9, 8), (6, 4, 3, 2), (2, 1), 1, 1, 1),
    "one tap": ((2, 4, 5), (6, 4, 1), (1,), 0, 1, 1),
    "side by side": ((2, 4, 8, 6), (6, 4, 4, 3), (4, 3), 0, 1, 1),
    "side by side, something left": ((2, 4, 11, 7), (6, 2, 4, 3), (4, 3), 0, 1, 2),
    "side by side in padding": ((1, 4, 6, 7, 5), (4, 4, 3, 3, 3), (3, 3, 3), 1, 1, 1),
    "side by side of every other": ((1, 4, 11), (4, 4, 3), (3,), 0, 2, 1),
    "many taps": ((2, 4, 13, 12), (6, 4, 9, 8), (2, 1), 3, 1, 1),
    "many taps of volumes": ((1, 2, 7, 9, 8), (4, 2, 4, 5, 4), (1, 2, 1), 0, 1, 1),
    "many taps of groups": ((2, 4, 30), (8, 2, 70), (1,), 24, 1, 2),
    "many taps of single channels": ((2, 4, 20, 20), (4, 1, 9, 9), (1, 1), 8, 2, 4),
}


@pytest.mark.parametrize("case", CASES)
def test_gradients_of_weights_are_torchs(case: str) -> None:
    shape, weights, strides, padding, dilation, groups = CASES[case]
    rank = len(shape) - 2
    generator = torch.Generator().manual_seed(0)
    x, w = (torch.randn(sizes, generator=generator, dtype=torch.float64) for sizes in (shape, weights))
    w.requires_grad_()
    result = torch.convolution(x, w, None, strides, [padding] * rank, [dilation] * rank, False, [0] * rank, groups)
    g = torch.randn(result.shape, generator=generator, dtype=torch.float64)
    result.backward(g)
    options = {"strides": strides, "padding": [padding] * rank, "dilation": [dilation] * rank, "groups": groups}

    def body(x: relax.Expr, w: relax.Expr, g: relax.Expr) -> relax.Expr:
        forward = getattr(relax.op.nn, f"conv{rank}d")(x, w, **options)
        return getattr(own, f"conv{rank}d_weight_backward")(x, w, g, attrs=forward.attrs)

    arguments = [tensor.detach().numpy() for tensor in (x, w, g)]
    (found,) = run(module(body, *[(tensor.shape, "float64") for tensor in arguments]), *arguments)
    np.testing.assert_allclose(found, w.grad.numpy(), rtol=0, atol=1e-11)
