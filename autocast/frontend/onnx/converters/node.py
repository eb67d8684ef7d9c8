"""What a converter is given: a node of an ONNX graph, with Relax expressions for its inputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import relax, tirx
from tvm.ir import GenericConst

from autocast.errors import UnsupportedError
from autocast.frontend.names import variable_name
from autocast.ir import dtype_of, same_shape, shape_of

op = relax.op

#: What converts a node: its result, or a tuple of them in ONNX's order.
Converter = Callable[["Node"], relax.Expr]


@dataclass(frozen=True)
class Node:
    """A node of an ONNX graph.

    Attributes
    ----------
    builder
        What its operators are emitted to.
    inputs
        None for what it leaves out, at the end too.
    attributes
        By name; texts are `str`.
    results
        The names of its results, empty for what nobody reads.
    opset
        The version of ONNX's operators.
    parameter
        The value of the model's parameter of this name; None where there is none.
    expressions
        The whole numbers and expressions that an input holds, by its place; None where they are not known.
    partly
        The same of a vector that was joined of what is known and what is not: None for each element that is not.
    other
        Converts the node of another operator: `other(name, inputs, attributes)`.
    """

    builder: relax.BlockBuilder
    inputs: tuple[relax.Expr | None, ...]
    attributes: Mapping[str, Any]
    results: tuple[str, ...]
    opset: int
    parameter: Callable[[str], np.ndarray | None]
    expressions: Callable[[int], np.ndarray | None]
    partly: Callable[[int], np.ndarray | None]
    other: Callable[[str, Sequence[relax.Expr | None], Mapping[str, Any]], relax.Expr]

    def get(self, at: int) -> relax.Expr | None:
        """An input, as a tensor; None if it is left out."""
        value = self.inputs[at] if at < len(self.inputs) else None
        if value is not None and isinstance(value.ty, relax.ShapeType):
            return self.emit(op.shape_to_tensor(value))
        return value

    def __getitem__(self, at: int) -> relax.Expr:
        value = self.get(at)
        if value is None:
            raise UnsupportedError(f"its input {at} is left out, expected a tensor")
        return value

    def emit(self, value: relax.Expr) -> relax.Expr:
        """Bind an expression to a variable; constants and variables are themselves."""
        if isinstance(value, relax.Var | GenericConst):
            return value
        return self.builder.emit(value)

    def cast(self, value: relax.Expr, to: str) -> relax.Expr:
        """A tensor in another dtype."""
        value = self.emit(value)
        return value if dtype(value) == to else self.emit(op.astype(value, to))

    def reshaped(self, value: relax.Expr, to: Sequence[Any]) -> relax.Expr:
        """A tensor in another shape; with other names for its sizes, a call looks whether it has as many elements."""
        return value if same_shape(shape(value), to) else self.emit(op.reshape(value, [*to]))

    def size(self, value: Any) -> relax.Expr:
        """A number, or an expression in the names of dimensions, as a tensor without axes, int64."""
        if isinstance(value, int):
            return relax.const(value, "int64")
        return self.emit(op.reshape(op.shape_to_tensor(relax.ShapeExpr([value])), []))

    def named(self, sizes: relax.Expr, what: str, at: int | None = None, replaced: Sequence[int] = ()) -> list[Any]:
        """Names for what a vector of int64, of known length, holds when the model runs: sizes from here on.

        What is known of the input `at`, of which it is computed, has none; of numbers that are `replaced` something
        else was made.
        """
        base, sizes = variable_name(next(filter(None, self.results))), self.emit(sizes)
        names = [tirx.Var(f"{base}_{what}_{place}", "int64") for place in range(static(sizes, what)[0])]
        self.builder.match_cast(self.emit(op.tensor_to_shape(sizes)), relax.ShapeType(names))
        known = None if at is None else self.partly(at)
        if known is None:
            return [*names]
        is_free = [one is None or (isinstance(one, int) and one in replaced) for one in known]
        return [name if free else one for name, free, one in zip(names, is_free, known, strict=True)]

    def along(self, vector: relax.Expr, axis: int, rank: int) -> relax.Expr:
        """A vector along one axis of a tensor of `rank` axes; what has another number of axes is itself."""
        vector = self.emit(vector)
        sizes = shape(vector)
        if len(sizes) != 1 or rank <= 1:
            return vector
        return self.emit(op.reshape(vector, [sizes[0] if at == axis % rank else 1 for at in range(rank)]))

    def known(self, at: int, what: str) -> np.ndarray:
        """The values of an input that has to be known when the model is imported.

        Raises
        ------
        UnsupportedError
            It is computed when the model runs.
        """
        value = self.inputs[at] if at < len(self.inputs) else None
        if isinstance(value, GenericConst):
            return np.asarray(value.value.numpy())
        if isinstance(value, relax.Var) and (array := self.parameter(value.name)) is not None:
            return array
        if isinstance(value, relax.ShapeExpr) and all(isinstance(size, tirx.IntImm) for size in value.values):
            return np.array([int(size) for size in value.values], "int64")
        raise UnsupportedError(f"its {what} is computed when the model runs; expected a constant. Export it with one")

    def known_or(self, at: int, what: str, default: Any) -> Any:
        """The same, or what an input that is left out stands for."""
        return default if at >= len(self.inputs) or self.inputs[at] is None else self.known(at, what)

    def reads(self, at: int) -> bool:
        """Whether somebody reads a result."""
        return at < len(self.results) and bool(self.results[at])

    def refuse(self, what: str, is_asked: bool, hint: str) -> None:
        """UnsupportedError if the node asks for what is not imported."""
        if is_asked:
            raise UnsupportedError(f"{what} is not imported; {hint}")


def dtype(tensor: relax.Expr) -> str:
    """The dtype of a tensor."""
    known = dtype_of(tensor)
    if known is None:
        raise UnsupportedError(f"it takes a {tensor.ty}; expected a tensor")
    return known


def shape(tensor: relax.Expr) -> tuple[Any, ...]:
    """The sizes of a tensor, numbers or expressions.

    Raises
    ------
    UnsupportedError
        They are not known when the model is imported, even by names.
    """
    known = shape_of(tensor)
    if known is None:
        raise UnsupportedError(
            f"it takes a {tensor.ty}, whose sizes depend on values; expected a tensor whose sizes follow from those of "
            "the inputs. Export the model with fixed sizes"
        )
    return known


def sized(tensor: relax.Expr, name: str, known: Mapping[int, Any]) -> relax.TensorType:
    """The type of a tensor whose sizes depend on values: those that are known by axis, and names for the others."""
    axes = range(tensor.ty.ndim)
    sizes = [known[axis] if axis in known else tirx.Var(f"{variable_name(name)}_{axis}", "int64") for axis in axes]
    return relax.TensorType(sizes, dtype(tensor))


def said(node: Node, at: int, what: str) -> list[Any]:
    """The numbers or expressions that an input holds; names, if the model computes them."""
    known = node.expressions(at)
    if known is not None:
        return list(known.reshape(-1))
    return node.named(vector(node, at), what, at)


def vector(node: Node, at: int) -> relax.Expr:
    """An input of integers as a vector of int64."""
    count = int(np.prod(static(node[at], "number of elements")))
    return node.emit(op.reshape(node.cast(node[at], "int64"), [count]))


def static(tensor: relax.Expr, what: str) -> tuple[int, ...]:
    """The sizes of a tensor, which have to be known when the model is imported.

    Raises
    ------
    UnsupportedError
        They vary.
    """
    return fixed(shape(tensor), what)


def fixed(sizes: Sequence[Any], what: str) -> tuple[int, ...]:
    """Sizes, of which none may vary, as in `static`."""
    if not all(isinstance(size, int) for size in sizes):
        raise UnsupportedError(
            f"its {what} has sizes that vary, {list(sizes)}; expected fixed ones: dynamic={{name: size}}"
        )
    return tuple(sizes)


def number(value: float, like: relax.Expr) -> relax.Expr:
    """A constant of the dtype of a tensor."""
    return relax.const(value, dtype(like))
