"""Python's functions of numbers, called with sizes that vary: `math.sqrt(n)`, `float(n)`, `int(0.7 * n)`, `len(x)`.

Python makes numbers of their arguments, so that torch.export would know their results for the example alone. While a
module is exported, those of `math` are others that compute with torch's symbols, as it has it itself of `max`, `min`
and `math.pow`. `float`, `int` and `len`, which all code calls, are others in the files of code alone that call them
with sizes; these are known when a module was exported once. There they take a tensor of one element, too:
`int(t.max())` is as `int(t.max().item())`, a number that values decide. So does `x.shape.numel()` there.
"""

from __future__ import annotations

import builtins
import contextlib
import linecache
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial, reduce
from types import FrameType
from typing import Any, NamedTuple
from unittest import mock

import sympy  # type: ignore[import-untyped]
import torch
from torch.fx.experimental.sym_node import SymNode

from autocast.frontend.exporting.decisions import INSIDE

#: Functions of `math` that are functions of torch's under the same names.
_OF_TENSORS = (
    *("acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh", "cos", "cosh", "sin", "sinh", "tan", "tanh"),
    *("erf", "erfc", "exp", "expm1", "fmod", "hypot", "lgamma", "log1p", "log10", "log2"),
)


def _varies(*values: Any) -> bool:
    return any(isinstance(value, torch.SymInt | torch.SymFloat) for value in values)


def _by_torch(name: str, *values: Any) -> Any:
    """A function of tensors without dimensions; what it returns is a number that torch knows as one of values."""
    numbers = [torch.scalar_tensor(value, dtype=torch.float64) for value in values]
    return getattr(torch, name)(*numbers).item()


def _log(x: Any, base: Any = None) -> Any:
    return _by_torch("log", x) if base is None else _by_torch("log", x) / _MATH["log"](base)


def _either(native: Callable[..., Any], symbolic: Callable[..., Any]) -> Callable[..., Any]:
    """`symbolic` where an argument is a size that varies, or was computed of one, else `native`."""

    def function(*args: Any, **kwargs: Any) -> Any:
        return (symbolic if _varies(*args) else native)(*args, **kwargs)

    return function


#: By the name in `math` what is called instead.
_MATH: dict[str, Callable[..., Any]] = {
    name: _either(getattr(math, name), symbolic)
    for name, symbolic in {
        **{name: partial(_by_torch, name) for name in _OF_TENSORS},
        "fabs": abs,
        "isqrt": lambda n: math.trunc(torch.sym_sqrt(n)),
        "log": _log,
        "sqrt": torch.sym_sqrt,
    }.items()
}

#: The same of builtins that are no types.
_BUILTINS: dict[str, Callable[..., Any]] = {
    "divmod": _either(divmod, lambda n, by: (n // by, n % by)),
    "max": _either(max, lambda *numbers: reduce(torch.sym_max, numbers)),
    "min": _either(min, lambda *numbers: reduce(torch.sym_min, numbers)),
}

#: What torch.export does not take, though Dynamo writes it in its graphs.
_TORCH = {f"_sym_{name}": _MATH[name] for name in _OF_TENSORS if hasattr(torch, f"_sym_{name}")}


@contextlib.contextmanager
def symbolic_functions() -> Iterator[None]:
    """While this is active, functions of `math` take sizes that vary."""
    with contextlib.ExitStack() as stack:
        for module, functions in ((math, _MATH), (builtins, _BUILTINS), (torch, _TORCH)):
            for name, function in functions.items():
                stack.enter_context(mock.patch.object(module, name, function))
        yield


class _Conversion(type):
    """The type of what stands for `float` or `int`: in nearly all that code does with them it is these."""

    native: type
    symbolic: Callable[[Any], Any]

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        args = tuple(value.item() if isinstance(value, torch.Tensor) else value for value in args)
        return (cls.symbolic if _varies(*args) else cls.native)(*args, **kwargs)

    def __instancecheck__(cls, value: Any) -> bool:
        return isinstance(value, cls.native)

    def __subclasscheck__(cls, other: type) -> bool:
        return issubclass(other, cls.native)

    def __eq__(cls, other: Any) -> bool:
        return other is cls or other is cls.native

    def __hash__(cls) -> int:
        return hash(cls.native)

    def __getattr__(cls, name: str) -> Any:
        return getattr(cls.native, name)


def _conversion(native: type, symbolic: Callable[[Any], Any]) -> type:
    return _Conversion(native.__name__, (), {"native": native, "symbolic": staticmethod(symbolic)})


def _length(value: Any) -> Any:
    return value.shape[0] if isinstance(value, torch.Tensor) and value.dim() else len(value)


_CONVERSIONS = {
    "float": _conversion(float, torch.sym_float),
    "int": _conversion(int, torch.sym_int),
    "len": _length,
}


class Conversion(NamedTuple):
    """A size that was made a number of Python's: the line of a module's code that led to it, its file's variables."""

    size: sympy.Expr
    place: str
    variables: dict[str, Any]


@contextlib.contextmanager
def noted_conversions() -> Iterator[list[Conversion]]:
    """While this is active, the sizes that become numbers of Python's are added to the list, each line once."""
    found: dict[tuple[str, sympy.Expr], Conversion] = {}
    listed: list[Conversion] = []

    def noting(native: Callable[..., Any]) -> Callable[..., Any]:
        def guard(node: SymNode, file: str, line: int) -> Any:
            frame = _outside(sys._getframe(1))
            if frame is not None and node.expr.free_symbols:
                at = f"{frame.f_code.co_filename}:{frame.f_lineno}"
                place = f"{at}: {linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()}"
                if (at, node.expr) not in found:
                    found[at, node.expr] = Conversion(node.expr, place, frame.f_globals)
                    listed.append(found[at, node.expr])
            return native(node, file, line)

        return guard

    with contextlib.ExitStack() as stack:
        for name in ("guard_int", "guard_float"):
            stack.enter_context(mock.patch.object(SymNode, name, noting(getattr(SymNode, name))))
        yield listed


def _outside(frame: FrameType | None) -> FrameType | None:
    """The innermost frame of a module's own code; None where torch alone led to this."""
    while frame is not None and frame.f_code.co_filename.startswith(INSIDE):
        if frame.f_code.co_filename.endswith("exporting/export.py"):
            return None
        frame = frame.f_back
    return frame


def files_of(conversions: Iterable[Conversion]) -> set[tuple[int, bool]]:
    """The files in which `symbolic_conversions` has others in place of functions, and whether of `numel`, too."""
    return {(id(conversion.variables), _counts(conversion)) for conversion in conversions}


def _counts(conversion: Conversion) -> bool:
    return ".numel()" in conversion.place


@contextlib.contextmanager
def symbolic_conversions(conversions: Iterable[Conversion]) -> Iterator[None]:
    """While this is active, `float`, `int`, `len` and what was imported from `math` take sizes that vary, in the files
    of these `conversions`."""
    files = list({id(conversion.variables): conversion.variables for conversion in conversions}.values())
    counted = [conversion.variables for conversion in conversions if _counts(conversion)]
    before = [(variables, {name: variables.get(name, _ABSENT) for name in _instead(variables)}) for variables in files]
    for variables in files:
        variables.update(_instead(variables))
    try:
        with _counted_sizes(counted) if counted else contextlib.nullcontext():
            yield
    finally:
        for variables, values in before:
            for name, value in values.items():
                if value is _ABSENT:
                    del variables[name]
                else:
                    variables[name] = value


class _Sizes(tuple[Any, ...]):
    """What stands for a `torch.Size`, whose `numel` makes numbers of sizes."""

    def numel(self) -> Any:
        return math.prod(self)

    def __getitem__(self, place: Any) -> Any:
        found = super().__getitem__(place)
        return _Sizes(found) if isinstance(place, slice) else found


@contextlib.contextmanager
def _counted_sizes(files: Sequence[Mapping[str, Any]]) -> Iterator[None]:
    """While this is active, `x.shape` and `x.size()` have a `numel()` of sizes that vary in these files."""
    shape, size = torch.Tensor.shape, torch.Tensor.size

    def seen(sizes: Any, frame: FrameType) -> Any:
        asked = isinstance(sizes, torch.Size) and _varies(*sizes) and any(frame.f_globals is file for file in files)
        return _Sizes(sizes) if asked else sizes

    def of_shape(tensor: torch.Tensor) -> Any:
        return seen(shape.__get__(tensor), sys._getframe(1))

    def of_size(tensor: torch.Tensor, *dim: Any, **named: Any) -> Any:
        return seen(size(tensor, *dim, **named), sys._getframe(1))

    with (
        mock.patch.object(torch.Tensor, "shape", property(of_shape)),
        mock.patch.object(torch.Tensor, "size", of_size),
    ):
        yield


#: In place of a variable that a file does not have.
_ABSENT = object()


def _instead(variables: Mapping[str, Any]) -> dict[str, Any]:
    native = {getattr(math, name): function for name, function in _MATH.items()}
    imported = {
        name: native[value]
        for name, value in variables.items()
        if callable(value) and getattr(value, "__module__", "") == "math" and value in native
    }
    return {**{name: value for name, value in _CONVERSIONS.items() if name not in variables}, **imported}
