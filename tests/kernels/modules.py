"""Small modules for the tests of the kernel phases, and how to build, run and compare them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import ml_dtypes
import numpy as np
import tvm
from tvm import relax, tirx

from autocast.kernels import detect_target, plan
from autocast.kernels.pipeline import RELEASING
from autocast.kernels.poison import PoisonMemory
from autocast.model import Model
from autocast.vm.checks import check_module
from tests.kernels.compiling import machine_of

NUMPY = {"bfloat16": np.dtype(ml_dtypes.bfloat16)}
EPSILON = {"float32": 2.0**-24, "bfloat16": 2.0**-9, "float16": 2.0**-11}

Shape = Sequence[int | str]


def module(body: Callable[..., relax.Expr], *arguments: tuple[Shape, str]) -> tvm.IRModule:
    """A module whose "main" computes `body` of tensors of the given (shape, dtype); a named dimension is run-time.

    The expressions that `body` makes are normalized to one dataflow block.
    """
    dims: dict[str, tirx.Var] = {}

    def dim(size: int | str) -> object:
        return size if isinstance(size, int) else dims.setdefault(size, tirx.Var(size, "int64"))

    params = [
        relax.Var(f"x{i}", relax.TensorType([dim(size) for size in shape], dtype))
        for i, (shape, dtype) in enumerate(arguments)
    ]
    builder = relax.BlockBuilder()
    with builder.function("main", params):
        with builder.dataflow():
            result = builder.emit_output(builder.normalize(body(*params)))
        builder.emit_func_output(result)
    return builder.get()


def run(mod: tvm.IRModule, *arrays: np.ndarray) -> list[np.ndarray]:
    """The outputs of "main", built for this machine."""
    machine = machine_of(mod)
    result = machine["main"](*[tvm.runtime.tensor(array) for array in arrays])
    return [output.numpy() for output in ([result] if hasattr(result, "numpy") else result)]


def planned_main(model: Model | tvm.IRModule) -> relax.Function:
    """`main` of what the virtual machine executes, for this machine, while allocations are bindings of their own."""
    mod = plan(check_module(getattr(model, "mod", model)), detect_target()).planned
    return tvm.transform.Sequential([*RELEASING, PoisonMemory()])(mod)["main"]


def random(shape: Sequence[int], dtype: str, seed: int = 0, scale: float = 1.0) -> np.ndarray:
    """Normally distributed numbers, rounded to `dtype`."""
    numbers = np.random.default_rng(seed).standard_normal(shape) * scale
    return numbers.astype(NUMPY.get(dtype, dtype))


def error(got: np.ndarray, expected: np.ndarray) -> float:
    """The relative error in the Frobenius norm, in float64."""
    wide = got.astype("float64")
    return float(np.linalg.norm(wide - expected) / max(np.linalg.norm(expected), 1e-30))


def operators(mod: tvm.IRModule, function: str = "main") -> list[str]:
    """The names of what `function` calls, in order: operators, and PrimFuncs by their names."""
    names = []
    for block in mod[function].body.blocks:
        for binding in block.bindings:
            value = binding.value
            if isinstance(value, relax.Call):
                callee = value.args[0] if value.op.name == "relax.call_tir" else value.op
                names.append(callee.name_hint if isinstance(callee, tvm.ir.GlobalVar) else callee.name)
    return names


def scheduled(mod: tvm.IRModule) -> Mapping[str, tirx.PrimFunc]:
    """The PrimFuncs of a module by name."""
    return {var.name_hint: function for var, function in mod.functions.items() if isinstance(function, tirx.PrimFunc)}
