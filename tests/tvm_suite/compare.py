"""One module: what TVM's own build makes of random inputs, and what comes out here."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import tvm
import tvm_ffi
from tvm import relax, tirx

from autocast import amp, from_relax, vm
from autocast.errors import AutocastError, CastErasureError, CastingRuleError, CompileError
from autocast.frontend.tensor_inputs import flat
from autocast.ir.script import from_script, load_constants

#: Symbolic dimensions are these, in the order in which they come.
SIZES = (3, 4, 5, 6, 2)

#: No input has more elements.
MOST_ELEMENTS = 30_000_000

#: How far results may be apart, relative to the largest: float32 may sum in another order, and AutoCast rounds.
TOLERANCES = {"as it is": 1e-4, "autocast": 6e-2}


def compare(path: Path, only: str = "") -> dict[str, str]:
    """What came of a module, by the way it took: "right", "refused", "failed", "raw", "wrong" or "ran", and why.

    The ways are "TVM", "as it is" and "autocast": all of them, or the one that is named.
    """
    mod = from_script(path.read_text(), load_constants(path.with_suffix(".npz")))
    if isinstance(mod, relax.Function):
        mod = tvm.IRModule({"main": mod.with_attr("global_symbol", "main")})
    name = _entry(mod)
    inputs = Inputs().of([param.ty for param in mod[name].params])
    outcomes: dict[str, str] = {}
    expected = None
    try:
        if only in ("", "TVM"):
            machine = relax.VirtualMachine(tvm.compile(mod, target="llvm"), tvm.cpu())
            expected = [*_flat(machine[name](*map(_to_tvm, inputs)))]
            outcomes["TVM"] = "ran"
    except Exception as error:
        outcomes["TVM"] = _line(error)
    if any(isinstance(f, tirx.PrimFunc) and "T.evaluate(0)" in f.script() for f in mod.functions.values()):
        expected = None  # a kernel without a body, as tests of memory plans have them, returns what was in memory
    count = int((mod[name].attrs or {}).get("num_input", len(inputs)))
    low = "float16" in mod.script()
    half = low and "bfloat16" not in mod.script()
    ways: dict[str, Callable[[Any], Any]] = {
        "as it is": lambda model: model,
        "autocast": lambda model: amp.autocast(model, dtype="float16" if half else "bfloat16"),
    }
    for way, prepare in ways.items():
        if only not in ("", way):
            continue
        try:
            executable = vm.compile(prepare(from_relax(mod, _tensors(inputs[count:]), function=name)))
            got = [*_flat(executable(*_tensors(inputs[:count])))]
            tolerance = TOLERANCES["autocast" if low else way]
            difference = None if expected is None else _difference(got, expected, tolerance)
            outcomes[way] = "ran" if expected is None else "right" if difference is None else f"wrong: {difference}"
        except CompileError as error:
            outcomes[way] = f"failed: {_line(error)}"
        except (AutocastError, CastingRuleError) as error:
            outcomes[way] = f"{'raw' if isinstance(error, CastErasureError) else 'refused'}: {_line(error)}"
        except Exception as error:
            outcomes[way] = f"raw: {_line(error)}"
    return outcomes


def _entry(mod: tvm.IRModule) -> str:
    functions = {var.name_hint: f for var, f in mod.functions.items() if isinstance(f, relax.Function)}
    public = [name for name, f in functions.items() if "global_symbol" in (f.attrs or {}) and name[0] != "_"]
    return "main" if "main" in functions else [*public, *functions][0]


class Inputs:
    """Random values of types; symbolic dimensions of one name have one size."""

    def __init__(self) -> None:
        self.random = np.random.default_rng(0)
        self.sizes: dict[str, int] = {}

    def of(self, types: list[tvm.ir.Type]) -> tuple[Any, ...]:
        """A value of each type: arrays, shapes, numbers, and tuples of them."""
        return tuple(self._value(type) for type in types)

    def _value(self, type: Any) -> Any:
        if isinstance(type, tvm.ir.TupleType):
            return self.of(list(type.fields))
        if isinstance(type, relax.ShapeType):
            sizes = [3] * max(int(type.ndim), 0) if type.values is None else map(self._size, type.values)
            return tvm.runtime.ShapeTuple(list(sizes))
        if isinstance(type, tvm.ir.PrimType):
            return np.dtype(str(type.dtype)).type(1.5).item()
        if not isinstance(type, relax.TensorType):
            raise ValueError(f"nobody knows a value of {type}")
        known = isinstance(type.shape, relax.ShapeExpr)
        shape = [self._size(d) for d in type.shape.values] if known else [3] * max(int(type.ndim), 0)
        if math.prod(shape) > MOST_ELEMENTS:
            raise ValueError(f"an input of {shape} is too large")
        dtype = str(type.dtype or "float32")
        if dtype == "bool" or "int" in dtype:
            return self.random.integers(0, 2, shape).astype(dtype)
        stored = ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype
        return self.random.standard_normal(shape).astype("float32").astype(stored)

    def _size(self, dimension: Any) -> int:
        if isinstance(dimension, int | tirx.IntImm):
            return int(dimension)
        analyzer = tvm.sym.Analyzer()
        for var in tirx.analysis.undefined_vars(dimension):
            size = self.sizes.setdefault(var.name, SIZES[len(self.sizes) % len(SIZES)])
            analyzer.bind(var, tirx.const(size, var.ty))
        return int(analyzer.simplify(dimension))


def _to_tvm(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return tvm.runtime.tensor(value)
    return [_to_tvm(field) for field in value] if type(value) is tuple else value


def _tensors(values: Iterable[Any]) -> list[Any]:
    """Arguments as a model takes them: fields in place of tuples, numbers and shapes as tensors."""
    numbers = {bool: "bool", int: "int64", float: "float32", tvm.runtime.ShapeTuple: "int64"}
    dtypes = ((value, numbers.get(type(value))) for value in flat(values))
    return [value if dtype is None else np.array(value, dtype) for value, dtype in dtypes]


def _flat(value: Any) -> Iterator[Any]:
    if isinstance(value, tvm.runtime.Tensor):
        yield value.numpy()
    elif isinstance(value, tvm_ffi.Array | tuple | list | tvm.runtime.ShapeTuple):
        for field in value:
            yield from _flat(field)
    else:
        yield value


def _difference(got: list[Any], expected: list[Any], tolerance: float) -> str | None:
    """How results differ; None where they do not."""
    if len(got) != len(expected):
        return f"{len(got)} results, expected {len(expected)}"
    for a, b in zip(got, expected, strict=True):
        if not isinstance(a, np.ndarray) or not isinstance(b, np.ndarray):
            if type(a) is not type(b) or a != b:
                return f"{a!r}, expected {b!r}"
            continue
        if (a.shape, a.dtype) != (b.shape, b.dtype):
            return f"{a.dtype}{a.shape}, expected {b.dtype}{b.shape}"
        wide, other = a.astype("float64"), b.astype("float64")
        finite = np.isfinite(other)
        if not np.array_equal(np.isnan(wide), np.isnan(other)):
            return "NaN in other places"
        if finite.any():
            error = np.abs(wide - other)[finite].max() / max(1e-3, np.abs(other[finite]).max())
            if not error <= tolerance:
                return f"off by {error:.2g}"
    return None


def _line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[-1] if lines else ''}"[:500]
