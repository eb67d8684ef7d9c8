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


def test_gradients_of_lookups_are_read_again_with_their_mode() -> None:
    """What fails in a training step is written as a reproduction, and embeddings are in most of them."""
    table, index = relax.Var("table", relax.TensorType([5, 2], "float32")), relax.const([1, 4], "int64")
    builder = relax.BlockBuilder()
    with builder.function("main", [table]):
        rows = builder.emit(relax.op.take(table, index, 0, "clip"))
        backward = tvm.ir.Op.get("relax.grad.take_backward")
        attributes = relax.op.take(table, index, 0, "clip").attrs
        builder.emit_func_output(builder.emit(relax.Call(backward, [rows, table, index], attributes)))
    mod = builder.get()
    text, constants = to_script(mod)
    tvm.ir.assert_structural_equal(from_script(text, constants), mod)
