"""Outputs are views of what kernels wrote, but never of arguments."""

from __future__ import annotations

import numpy as np
from tvm import relax

from autocast.kernels import detect_target, plan
from tests.kernels.modules import error, module, random, run

op = relax.op


def _exponential(x: relax.Expr) -> relax.Expr:
    return op.reshape(op.exp(x), (12, 8))


def test_a_reshaped_output_is_not_copied() -> None:
    script = plan(module(_exponential, ((8, 12), "float32")), detect_target()).planned["main"].script()
    assert "R.reshape" in script and script.count("alloc_tensor(") == 1


def test_a_reshaped_argument_is_copied() -> None:
    mod = module(lambda x: op.reshape(x, (12, 8)), ((8, 12), "float32"))
    assert "R.reshape" not in plan(mod, detect_target()).planned["main"].script()
    x = random((8, 12), "float32")
    assert error(run(mod, x)[0], x.reshape(12, 8).astype("float64")) == 0.0


def test_what_is_viewed_may_be_an_output_too() -> None:
    def body(x: relax.Expr) -> relax.Expr:
        y = op.exp(x)
        return relax.Tuple([y, op.reshape(y, (12, 8)), op.sum(y)])

    x = random((8, 12), "float32")
    expected = np.exp(x.astype("float64"))
    whole, view, total = run(module(body, ((8, 12), "float32")), x)
    assert error(whole, expected) < 1e-6 and error(view, expected.reshape(12, 8)) < 1e-6
    assert error(total, expected.sum()) < 1e-6
