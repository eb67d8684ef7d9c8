"""Gradients against central differences, in float64: the check that every row of the table passes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial

import numpy as np
import tvm
from tvm import relax

from autocast.kernels.fallback.recurrent import write_recurrences
from autocast.kernels.phases.expand import expand_operators
from autocast.kernels.phases.outline import outline_branches
from autocast.training import differentiate
from tests.plain import plain_machine

#: The step of a central difference, and what its error may be: h² of truncation, eps / h of rounding.
_STEP = 1e-5
_TOLERANCE = 2e-7

Build = Callable[..., relax.Expr]
Run = Callable[..., list[np.ndarray]]


def arguments(seed: int, *shapes: tuple[int, ...], low: float = -2.0, high: float = 2.0) -> list[np.ndarray]:
    """Random float64 arrays, no element close to another or to zero, where slopes jump."""
    generator = np.random.default_rng(seed)
    sizes = [int(np.prod(shape)) for shape in shapes]
    values, gap = np.linspace(low, high, sum(sizes) + 2, retstep=True)
    values = values[1:-1] + 0.2 * gap * generator.random(sum(sizes)) + 0.003
    generator.shuffle(values)
    parts = np.split(values, np.cumsum(sizes)[:-1])
    return [part.reshape(shape) for part, shape in zip(parts, shapes, strict=True)]


def weighted_sum(builder: relax.BlockBuilder, result: relax.Expr, seed: int = 7) -> relax.Var:
    """A 0-d tensor in which every floating-point element of `result` counts with a weight of its own."""
    generator = np.random.default_rng(seed)
    terms = []
    for tensor in _tensors(builder, result):
        if str(tensor.ty.dtype) == "float64":
            shape = [int(size) for size in tensor.ty.shape.values]
            weights = relax.const(generator.uniform(0.5, 1.5, shape) * generator.choice([-1.0, 1.0], shape), "float64")
            terms.append(builder.emit(relax.op.sum(relax.op.multiply(tensor, weights))))
    total = terms[0]
    for term in terms[1:]:
        total = builder.emit(relax.op.add(total, term))
    return total


def function_of(build: Build, arrays: list[np.ndarray]) -> relax.Function:
    """A function of `arrays` to the weighted sum of what `build` makes of them."""
    params = [relax.Var(f"x{i}", relax.TensorType(a.shape, str(a.dtype))) for i, a in enumerate(arrays)]
    builder = relax.BlockBuilder()
    with builder.function("main", params):
        with builder.dataflow():
            result = builder.emit(build(*params))
            loss = builder.emit_output(weighted_sum(builder, result))
        builder.emit_func_output(loss)
    return builder.get()["main"]


def compiled(function: relax.Function) -> Run:
    """The function, run TVM's plain way on numpy arrays once operators of our own are expanded."""
    return compiled_together({"main": function})["main"]


def compiled_together(functions: Mapping[str, relax.Function]) -> dict[str, Run]:
    """The same of several functions, in one module: that takes a third of the time."""
    symbols = {name: f"function{number}" for number, name in enumerate(functions)}
    module = tvm.IRModule({symbols[n]: f.with_attr("global_symbol", symbols[n]) for n, f in functions.items()})
    module = expand_operators(outline_branches(module))  # TVM's memory plan mixes branches up
    module = write_recurrences(module, keep=lambda _: False)
    relax.analysis.well_formed(module)
    machine = plain_machine(module)

    def run(symbol: str, *arrays: np.ndarray) -> list[np.ndarray]:
        results = machine[symbol](*[tvm.runtime.tensor(np.asarray(array, order="C")) for array in arrays])
        return [result.numpy() for result in results]

    return {name: partial(run, symbol) for name, symbol in symbols.items()}


def programs_of(calls: Mapping[str, tuple[Build, list[np.ndarray]]]) -> dict[str, Run]:
    """By name, what computes a call's weighted sum and its gradients by all float64 arrays."""
    functions = {}
    for name, (build, arrays) in calls.items():
        function = function_of(build, arrays)
        wrt = [var for var, array in zip(function.params, arrays, strict=True) if array.dtype == np.float64]
        functions[name] = differentiate(function, wrt)
    return compiled_together(functions)


def check_gradients(run: Run, *arrays: np.ndarray) -> None:
    """Compare the gradient of every element of every float64 array with a central difference.

    `run` is of what `differentiate` made with respect to all of these.
    """
    _, *gradients = run(*arrays)
    places = [i for i, array in enumerate(arrays) if array.dtype == np.float64]
    for place, gradient in zip(places, gradients, strict=True):
        expected = np.zeros_like(arrays[place])
        for index in np.ndindex(expected.shape):
            above, below = (_moved(arrays, place, index, step) for step in (_STEP, -_STEP))
            expected[index] = (run(*above)[0] - run(*below)[0]) / (2 * _STEP)
        scale = max(1.0, float(np.abs(expected).max()))
        np.testing.assert_allclose(gradient, expected, rtol=0, atol=_TOLERANCE * scale, err_msg=f"argument {place}")


def _moved(arrays: tuple[np.ndarray, ...], place: int, index: tuple, step: float) -> list[np.ndarray]:
    moved = [array.copy() if i == place else array for i, array in enumerate(arrays)]
    moved[place][index] += step
    return moved


def _tensors(builder: relax.BlockBuilder, result: relax.Expr) -> Iterator[relax.Expr]:
    if isinstance(result.ty, tvm.ir.TupleType):
        for i in range(len(result.ty.fields)):
            yield from _tensors(builder, builder.emit(relax.TupleGetItem(result, i)))
    else:
        yield result
