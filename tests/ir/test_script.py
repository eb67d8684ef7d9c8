"""Modules written as text, with their constants beside it, and read again."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import tvm
from tvm import relax

from autocast.ir.script import from_script, load_constants, save_constants, to_script


def test_a_module_is_what_it_was_when_it_is_read_again(tmp_path: Path) -> None:
    weight, other = (relax.const(np.random.default_rng(seed).standard_normal((3, 3)), "float32") for seed in (0, 1))
    builder = relax.BlockBuilder()
    for name, constants in {
        "second": [weight, relax.const(np.nan, "float32"), other],
        "first": [other, weight, relax.const(-np.inf, "float32"), relax.const(0.1, "float32")],
        "third": [relax.const(np.ones((3, 3)), "bfloat16"), relax.const(0.1, "bfloat16")],
    }.items():
        x = relax.Var("x", relax.TensorType([3, 3], constants[-1].ty.dtype))
        with builder.function(name, [x]):
            value: relax.Expr = x
            for constant in constants:
                value = builder.emit(relax.op.add(value, constant))
            builder.emit_func_output(value)
    mod = relax.transform.LegalizeOps()(builder.get())  # with PrimFuncs
    text, constants = to_script(mod)
    save_constants(tmp_path / "constants.npz", constants)
    tvm.ir.assert_structural_equal(from_script(text, load_constants(tmp_path / "constants.npz")), mod)
