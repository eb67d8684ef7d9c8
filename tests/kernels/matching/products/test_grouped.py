"""Products of mixtures of experts: which a kernel takes, and what becomes of the others."""

from __future__ import annotations

import numpy as np
import pytest
from tvm import relax

from autocast.kernels import detect_target, lower
from autocast.operators import own
from tests.kernels.modules import error, module, operators, random, run


def test_transposed_matrices_are_read_as_they_are_stored() -> None:
    def body(x: relax.Expr, w: relax.Expr, ends: relax.Expr) -> relax.Expr:
        return own.grouped_matmul(x, relax.op.permute_dims(w, [0, 2, 1]), ends)

    mod = module(body, (("n", 8), "bfloat16"), ((3, 6, 8), "bfloat16"), ((3,), "int32"))
    assert operators(lower(mod, detect_target())) == ["grouped0_3_anyx6x8_bfloat16"]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_what_no_kernel_takes_is_computed_by_other_operators(dtype: str) -> None:
    mod = module(own.grouped_matmul, ((5, 4), dtype), ((3, 4, 2), dtype), ((3,), "int64"))
    names = operators(lower(mod, detect_target()))
    assert any(name.startswith("grouped") for name in names) == (dtype == "float32")
    x, w = random((5, 4), dtype), random((3, 4, 2), dtype, 1)
    w[2] = np.inf  # what no row is multiplied by leaves no trace
    (got,) = run(mod, x, w, np.array([2, 4, 4], "int64"))
    exact = np.concatenate([x[:2] @ w[0], x[2:4] @ w[1], np.zeros((1, 2))])
    assert error(got, exact) < 1e-6
