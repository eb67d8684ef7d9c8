"""The cost of every choice of precisions for a small module, found by trying them all.

Nothing of the AutoCast pass is used: operators are classed by a table of this file's own, and each choice is priced by
walking the module's bindings and noting which tensor is asked for in which dtype.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import numpy as np
import tvm
from tvm import relax

from autocast.passes.casting.costs import CastCost

_LOW = {"matmul"}
_FULL = {"exp", "nn.softmax", "sqrt", "power", "sum", "max", "nn.layer_norm"}
_FOLLOW = {
    *(
        "nn.relu",
        "tanh",
        "negative",
        "add",
        "multiply",
        "maximum",
        "subtract",
        "permute_dims",
        "expand_dims",
        "squeeze",
    ),
    *("take", "where", "concat", "split", "stack"),
}
#: Operators that `Costs` says of to convert as they load and store.
_CONVERTING = (_LOW | _FULL | _FOLLOW | {"divide", "astype"}) - {"expand_dims", "squeeze"}
_SYMBOLIC_DIMENSION = 64


class Costs:
    """A cost model for the pass: whoever converts stores low for nothing, and loads either."""

    def cast(
        self,
        producer: relax.Call | relax.Var | None,
        consumer: relax.Call | None,
        position: int,
        type: relax.TensorType,
        dtype: str,
    ) -> CastCost:
        """What a cast costs, by the table of this file."""
        if dtype != "float32" and _converts(producer):
            return CastCost.STORE
        return CastCost.LOAD if _converts(consumer) else CastCost.KERNEL


def _converts(call: Any) -> bool:
    return isinstance(call, relax.Call) and getattr(call.op, "name", "").removeprefix("relax.") in _CONVERTING


@dataclass(eq=False)
class _Tensor:
    """A value of the module; `choice` decides its dtype: "low", "full", or the number of a free choice.

    `rounded` is the tensor of which it is what the author narrowed: who reads it low decides what that costs.
    """

    elements: int
    choice: int | str
    asked: list[int | str] = field(default_factory=list)
    constant: bool = False
    stored_by: str | None = None
    readers: list[str | None] = field(default_factory=list)
    rounded: _Tensor | None = None
    readers_of_rounded: list[tuple[int | str, str | None]] = field(default_factory=list)

    def ask(self, choice: int | str, reader: str | None = None) -> None:
        """Note that an operator (None: something else) reads the tensor in the precision of `choice`."""
        self.asked.append(choice)
        self.readers.append(reader)
        if self.rounded is not None:
            self.rounded.readers_of_rounded.append((choice, reader))

    def is_absorbed(self, low: tuple[bool, ...]) -> bool:
        """Whether a cast of the tensor is done by the kernels around it, under the choices `low`."""
        stored = is_low(self.choice, low)
        asked = zip(self.asked, self.readers, strict=True)
        readers = [reader for choice, reader in asked if is_low(choice, low) != stored]
        readers += [reader for choice, reader in self.readers_of_rounded if not stored and is_low(choice, low)]
        return (not stored and self.stored_by in _CONVERTING) or all(reader in _CONVERTING for reader in readers)


@dataclass
class Prices:
    """The free choices of a module and what they cost; call it with one boolean (low?) for each choice."""

    amp: str
    objective: str
    tensors: list[_Tensor] = field(default_factory=list)
    traffic: dict[int, int] = field(default_factory=dict)
    choices: int = 0

    def choice(self, moved: int = 0) -> int:
        """A new free choice, with the elements that it moves."""
        self.traffic[self.choices] = 2 * moved if self.objective == "bytes" else 0
        self.choices += 1
        return self.choices - 1

    def __call__(self, low: tuple[bool, ...]) -> tuple[float, int]:
        """What one assignment's casts cost (their number, or bytes), and what its free choices move besides."""
        cost: float = 0
        for tensor in self.tensors:
            if any(is_low(choice, low) != is_low(tensor.choice, low) for choice in tensor.asked):
                if tensor.constant and any(isinstance(choice, int) and low[choice] for choice in tensor.asked):
                    return float("inf"), 0
                if not tensor.constant:
                    each = 1 if tensor.is_absorbed(low) else 6
                    cost += 1 if self.objective == "casts" else each * tensor.elements
        return cost, sum(moved for choice, moved in self.traffic.items() if not low[choice])

    def minimum(self) -> float:
        """What the cheapest assignment's casts cost."""
        return min(map(self, product((False, True), repeat=self.choices)))[0]

    def best_traffic(self) -> int:
        """The least that free choices move while the casts cost the minimum."""
        return min(map(self, product((False, True), repeat=self.choices)))[1]


def is_low(choice: int | str, low: tuple[bool, ...]) -> bool:
    """Whether a pinned or free choice is low."""
    return low[choice] if isinstance(choice, int) else choice == "low"


def read(mod: tvm.IRModule, amp: str, objective: str) -> Prices:
    """The prices of a module's choices."""
    prices = Prices(amp, objective)
    for function in mod.functions.values():
        values: dict[Any, Any] = {param: _new(prices, param.ty) for param in function.params}
        _sequence(prices, function.body, values, [_pinned(prices, dtype) for dtype in _dtypes(prices, function.ret_ty)])
    return prices


def _pinned(prices: Prices, dtype: str) -> str:
    return "low" if dtype == prices.amp else "full"


def _dtypes(prices: Prices, type: Any) -> list[str]:
    if isinstance(type, tvm.ir.TupleType):
        return [dtype for part in type.fields for dtype in _dtypes(prices, part)]
    dtype = str(type.dtype) if isinstance(type, relax.TensorType) else ""
    return [dtype] if dtype in ("float32", prices.amp) else []


def _elements(type: relax.TensorType) -> int:
    analyzer = tvm.sym.Analyzer()
    count = 1
    for dimension in type.shape.values:
        if not isinstance(dimension, tvm.tirx.IntImm):
            for variable in tvm.tirx.analysis.undefined_vars(dimension):
                analyzer.bind(variable, tvm.tirx.const(_SYMBOLIC_DIMENSION, variable.ty), allow_override=True)
            dimension = analyzer.simplify(dimension)
        count *= int(dimension.value)
    return count


def _new(prices: Prices, type: Any, choices: Iterator[int | str] | None = None) -> Any:
    """New tensors for a type: pinned to its dtypes, or following `choices`."""
    if isinstance(type, tvm.ir.TupleType):
        return [_new(prices, part, choices) for part in type.fields]
    dtypes = _dtypes(prices, type)
    if not dtypes:
        return None
    tensor = _Tensor(_elements(type), next(choices) if choices else _pinned(prices, dtypes[0]))
    prices.tensors.append(tensor)
    return tensor


def _flat(value: Any) -> list[_Tensor]:
    if isinstance(value, list):
        return [tensor for part in value for tensor in _flat(part)]
    return [] if value is None else [value]


def _look(prices: Prices, expr: Any, values: dict) -> Any:
    if isinstance(expr, relax.Var):
        return values[expr]
    if isinstance(expr, relax.Tuple):
        return [_look(prices, part, values) for part in expr.fields]
    if isinstance(expr, relax.TupleGetItem):
        return _look(prices, expr.tuple_value, values)[expr.index]
    if isinstance(expr, type(relax.const(1.0))):
        return _constant(prices, expr)
    return None


def _constant(prices: Prices, expr: Any) -> _Tensor | None:
    """A literal is folded for nothing, but not narrowed by choice if it overflows, vanishes or is coarse."""
    value = expr.value.numpy()
    if str(value.dtype) not in ("float32", prices.amp):
        return None
    with np.errstate(over="ignore"):
        rounded = value.astype(prices.amp).astype("float64")
    tensor = _Tensor(0, _pinned(prices, str(value.dtype)), constant=True)
    coarse = np.abs(rounded - value).max() > np.abs(value).max() * {"float16": 2**-11, "bfloat16": 2**-8}[prices.amp]
    if not np.all(np.isfinite(rounded)) or np.any((rounded == 0) & (value != 0)) or coarse:
        prices.tensors.append(tensor)
    return tensor


def _sequence(prices: Prices, sequence: relax.SeqExpr, values: dict, results: list) -> None:
    values = dict(values)
    for block in sequence.blocks:
        for binding in block.bindings:
            values[binding.var] = _value(prices, binding.var, binding.value, values)
    for tensor, choice in zip(_flat(_look(prices, sequence.body, values)), results, strict=True):
        tensor.ask(choice)


def _value(prices: Prices, var: relax.Var, value: Any, values: dict) -> Any:
    if isinstance(value, relax.If):
        choices = [prices.choice() for _ in _dtypes(prices, var.ty)]
        for branch in (value.true_branch, value.false_branch):
            _sequence(prices, branch, values, choices)
        return _new(prices, var.ty, iter(choices))
    if not isinstance(value, relax.Call):
        return _look(prices, value, values)
    arguments = [tensor for arg in value.args for tensor in _flat(_look(prices, arg, values))]
    if isinstance(value.op, tvm.ir.GlobalVar):
        for tensor, dtype in zip(arguments, [d for a in value.args for d in _dtypes(prices, a.ty)], strict=True):
            tensor.ask(_pinned(prices, dtype))
        return _new(prices, var.ty)
    name = value.op.name.removeprefix("relax.")
    if name == "astype":
        return _author_cast(prices, var, arguments[0], values)
    moved = sum(tensor.elements for tensor in arguments)
    results = _dtypes(prices, var.ty)
    if name in _LOW:
        choice: int | str = "low"
        result: int | str = prices.choice(_elements(var.ty))
    elif name in _FULL or (name == "divide" and not arguments[1].constant):
        choice = result = "full"
    else:
        assert name in _FOLLOW or name == "divide", name
        made = _new(Prices(prices.amp, "casts"), var.ty)
        moved += sum(tensor.elements for tensor in _flat(made))
        choice = result = prices.choice(0 if name in ("expand_dims", "squeeze") else moved)
    for tensor in arguments:
        tensor.ask(choice, name)
    made = _new(prices, var.ty, iter([result] * len(results)))
    for tensor in _flat(made):
        # A free result is stored wide only if it is read so; what only renames elements does not store them.
        renames = name in ("expand_dims", "squeeze")
        tensor.stored_by = arguments[0].stored_by if renames else None if name in _LOW else name
    return made


def _author_cast(prices: Prices, var: relax.Var, source: _Tensor, values: dict) -> _Tensor:
    """A cast that changes no value is its operand; one that rounds makes a value of its own, in low precision."""
    if str(var.ty.dtype) == "float32" or source.choice == "low":
        return source
    source.ask("low", "astype")
    if source not in values:
        values[source] = _new(prices, var.ty)
        values[source].rounded = source
    return values[source]
