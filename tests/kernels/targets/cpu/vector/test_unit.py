"""Vectors widen what they load, narrow what they store, and touch nothing beyond their count."""

from __future__ import annotations

from functools import cache

import ml_dtypes
import numpy as np
import pytest
import tvm
from tvm.script.ir_builder import tirx as T

from autocast.kernels.extents import i64
from autocast.kernels.targets.cpu.instruction_sets import instruction_set
from autocast.kernels.targets.cpu.vector import llvm_ir
from autocast.kernels.targets.cpu.vector.unit import VectorUnit, importing, kernel_function
from tests.kernels.compiling import compile_kernels
from tests.kernels.targets.cpu.products.cases import CPUS, runs_here, target_of

DTYPES = {
    "float32": np.float32,
    "bfloat16": ml_dtypes.bfloat16,
    "float16": np.float16,
    "bool": np.bool_,
    "int8": np.int8,
    "uint8": np.uint8,
    "int32": np.int32,
    "int64": np.int64,
}
SIZE = 48
every_cpu = pytest.mark.parametrize("cpu", [cpu for cpu in CPUS if runs_here(cpu)])


@cache
def copies(cpu: str) -> tvm.runtime.Module:
    """Functions `SOURCE_RESULT_COUNT` that copy one vector, or its first elements, from one dtype to another."""
    unit = VectorUnit(instruction_set(target_of(cpu)))
    functions = {}
    for dtype in DTYPES:
        for source, result in ((dtype, "float32"), ("float32", dtype)):
            for count in (None, 1, unit.lanes - 1):
                name = f"{source}_{result}_{count}"
                with kernel_function(name) as finished:
                    x = T.arg("x", T.buffer((SIZE,), source))
                    y = T.arg("y", T.buffer((SIZE,), result))
                    with importing(llvm_ir.conversions_and_accesses(unit.isa)):
                        unit.store(y, i64(1), unit.load(x, i64(1), count), count)
                functions[name] = finished()
    return compile_kernels(functions, target_of(cpu))


@every_cpu
def test_every_dtype_is_loaded_and_stored_whole_and_in_part(cpu: str) -> None:
    module, lanes = copies(cpu), instruction_set(target_of(cpu)).lanes
    numbers = np.random.default_rng(0).integers(0, 100, SIZE) - 2.0 * (np.arange(SIZE) % 7 == 0)
    numbers[::3] = 0
    for dtype in DTYPES:
        for source, result in ((dtype, "float32"), ("float32", dtype)):
            for count in (None, 1, lanes - 1):
                x = np.abs(numbers) if dtype == "uint8" else numbers
                x = x.astype(DTYPES[source])
                poison = np.full(SIZE, 77).astype(DTYPES[result])
                y = tvm.runtime.tensor(poison)
                module[f"{source}_{result}_{count}"](tvm.runtime.tensor(x), y)
                expected, end = poison.copy(), 1 + (lanes if count is None else count)
                expected[1:end] = x[1:end].astype(DTYPES[result])
                np.testing.assert_array_equal(y.numpy(), expected, f"{source} to {result}, {count} elements")


@every_cpu
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_narrowing_rounds_to_nearest_even_and_keeps_what_is_not_finite(cpu: str, dtype: str) -> None:
    module, lanes = copies(cpu), instruction_set(target_of(cpu)).lanes
    rng = np.random.default_rng(1)
    for _ in range(200):
        # Between two neighbours, exactly halfway as often as not.
        near = rng.standard_normal(SIZE).astype(DTYPES[dtype])
        x = (near.astype("float32") + np.spacing(near).astype("float32") * rng.choice([0.25, 0.5, 0.75], SIZE)).astype(
            "float32"
        )
        x[1:5] = np.nan, np.inf, -np.inf, -0.0
        y = tvm.runtime.tensor(np.zeros(SIZE, DTYPES[dtype]))
        module[f"float32_{dtype}_None"](tvm.runtime.tensor(x), y)
        got, expected = y.numpy()[1 : 1 + lanes], x.astype(DTYPES[dtype])[1 : 1 + lanes]
        np.testing.assert_array_equal(got.astype("float32"), expected.astype("float32"))
        assert np.signbit(got[3])


@every_cpu
@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_of_a_number_that_a_byte_does_not_hold_it_keeps_the_low_bits_of_the_integer(cpu: str, dtype: str) -> None:
    x = np.float32([np.nan, np.inf, -np.inf, 1e30, 300, -1, -200.5, 65537])
    y = tvm.runtime.tensor(np.zeros(SIZE, dtype))
    copies(cpu)[f"float32_{dtype}_None"](tvm.runtime.tensor(np.resize(x, SIZE)), y)
    expected = np.array([0, 0, 0, 0, 44, -1, 56, 1]).astype(dtype)
    lanes = instruction_set(target_of(cpu)).lanes
    np.testing.assert_array_equal(y.numpy()[1 : 1 + lanes], np.resize(expected, SIZE)[1 : 1 + lanes])
