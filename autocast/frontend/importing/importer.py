"""From nodes of an exported torch program to Relax: TVM's importer, with every result checked against torch's own."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any

import sympy  # type: ignore[import-untyped]
import torch
import tvm
from torch import fx
from torch._higher_order_ops.effects import with_effects
from torch.export import ExportedProgram
from tvm import relax, tirx
from tvm.relax.frontend.torch.exported_program_translator import ExportedProgramImporter

from autocast.errors import ImportModelError
from autocast.frontend.exporting.checks import NO_CONVERTER, call_place
from autocast.frontend.exporting.stops import stops_of
from autocast.frontend.importing.agreement import agreeing
from autocast.frontend.importing.found_sizes import FINDING, FoundSizes, takes_size
from autocast.frontend.importing.multiples import Multiples
from autocast.frontend.importing.randomness import random_state_variable
from autocast.frontend.importing.registered import registered, translate_registered
from autocast.frontend.importing.result_types import check_type, example_sizes
from autocast.frontend.importing.sizes import number_of, size_of
from autocast.frontend.nodes import (
    has_complex,
    makes_floats,
    name_of,
    narrows,
    node_place,
    operator_of,
    read_by,
    reads_converted,
)
from autocast.frontend.parameters import Parameter
from autocast.frontend.splitting.constants import as_constant, constants, smallest
from autocast.ir import Place, is_tensor, shape_of


class Importer(ExportedProgramImporter):
    """Translates the nodes of one exported program.

    Known operators are those of `converters` (ours) and `trusted` (TVM's converters that the tests compare with torch).
    Everything else is unknown, even if TVM has a converter for it: some of those drop arguments without a word. The
    type of each result is compared with what torch said it would be. What is unknown, and what a converter refuses, is
    left to `otherwise`, and listed in `left`.

    Complex numbers are pairs: the last axis of their tensors has two elements. Few converters know that
    (`pairs`); torch does the rest.
    """

    def __init__(
        self,
        program: ExportedProgram,
        parameters: Sequence[Parameter],
        symbols: Mapping[str, str],
        converters: Mapping[str, Callable[..., Any]],
        trusted: Collection[str],
        pairs: Mapping[str, Callable[..., Any]],
        otherwise: Callable[[Importer, fx.Node], Any],
        *,
        training: bool = False,
    ) -> None:
        super().__init__()
        self.training = training
        self.program = program
        self.parameters = parameters
        self.converters, self.trusted, self.pairs = converters, trusted, pairs
        self.left: dict[fx.Node, str] = {}
        self.otherwise = otherwise
        self.constants = constants(program)
        variables = {name: tirx.Var(name, "int64") for name in symbols.values()}
        self.symbols: dict[str, tvm.ir.Expr] = {symbol: variables[name] for symbol, name in symbols.items()}
        sizes = ((self.symbols.get(symbol), size) for symbol, size in example_sizes(program).items())
        self._examples = {var: size for var, size in sizes if isinstance(var, tirx.Var)}
        self.found = FoundSizes(program, self.symbols, self.size)
        self.env: dict[fx.Node, Any] = {}
        self.converted: set[fx.Node] = set()
        self.bound_constants: dict[tuple[fx.Node, str], relax.Expr] = {}
        self.numbers: dict[fx.Node, relax.Expr] = {}
        self.streams = 0
        self.random_state = random_state_variable()
        self.multiples = Multiples()
        self.stops, self.own_backward = stops_of(program)

    def converter(self, node: fx.Node) -> Callable[..., Any] | None:
        """What translates `node`: an operator of a user's, a converter of ours, or one of TVM's."""
        name = name_of(node)
        row = registered(node)
        if row is not None:
            return partial(translate_registered, self, row)
        if has_complex(node):
            return partial(self.pairs[name], self) if name in self.pairs else None
        if name in self.converters:
            return partial(self.converters[name], self)
        if name not in self.trusted:
            return None
        converter = self.convert_map[name]
        return partial(self._of_floats, converter) if makes_floats(node) else converter

    def _of_floats(self, converter: Callable[[fx.Node], Any], node: fx.Node) -> Any:
        """What a converter of TVM's makes of a function of whole numbers, which it would leave whole."""
        (source,) = node.all_input_nodes
        whole = self.env[source]
        self.env[source] = self.emit(relax.op.astype(whole, self.dtype(node)))
        try:
            return converter(node)
        finally:
            self.env[source] = whole

    def emit(self, expr: relax.Expr) -> relax.Var:
        """Bind `expr` to a new variable."""
        return self.block_builder.emit(expr)

    def dim(self, size: Any) -> Any:
        """A dimension that torch knows (int or SymInt), as Relax wants it (int or PrimExpr)."""
        return int(size) if isinstance(size, int) else self.size(size.node.expr)

    def shape(self, node: fx.Node) -> list[Any]:
        """The shape of the tensor that `node` computes."""
        return self.type_of(node.meta["val"])[0]

    def dtype(self, node: fx.Node) -> str:
        """The dtype of the tensor that `node` computes."""
        return self.type_of(node.meta["val"])[1]

    def type_of(self, value: torch.Tensor) -> tuple[list[Any], str]:
        """The shape and the dtype of what holds a tensor of torch's: pairs of real numbers if it is complex."""
        shape = [self.dim(size) for size in value.shape]
        if value.is_complex():
            return [*shape, 2], str(self._convert_data_type(value.dtype.to_real()))
        return shape, str(self._convert_data_type(value.dtype))

    def arg(self, node: fx.Node, position: int, name: str, default: Any = None) -> Any:
        """An argument of an operator, translated: positional, keyword or default."""
        value = node.args[position] if len(node.args) > position else node.kwargs.get(name, default)
        return self._retrieve_args(value)

    def values(self, nodes: Sequence[Any]) -> list[Any]:
        """What nodes are translated to, and numbers as they are."""
        return [self._retrieve_args(node) for node in nodes]

    def number(self, value: Any, dtype: str) -> relax.Expr:
        """A number, or a size that is known at run time, as a 0-d tensor."""
        return relax.const(value, dtype) if isinstance(value, int) else self._prim_value_to_scalar_tensor(value, dtype)

    def next_stream(self) -> int:
        """The number of a new stream of random numbers."""
        self.streams += 1
        return self.streams - 1

    def smallest_constant(self, node: fx.Node) -> relax.Expr | None:
        """The constant that `node` computes, with size 1 along the axes along which it does not vary; else None."""
        value = self.constants.get(node)
        return None if value is None else as_constant(smallest(value))

    def translate_graph(self, graph: fx.Graph, operands: Mapping[str, Any]) -> fx.Node:
        """Translate the nodes of a graph whose placeholders are `operands`, by their names; returns its output node."""
        (output,) = graph.find_nodes(op="output")
        read = read_by(output)
        for node in graph.nodes:
            if node.op == "placeholder":
                if node.name in operands:
                    self.env[node] = operands[node.name]
            elif node.op == "call_function" and node in read and node not in self.constants:
                self._translate_node(node)
        return output

    def _translate_node(self, node: fx.Node) -> None:
        try:
            self.block_builder.place = place = self._place(node)
            self._materialize(node, place.region)
            result = self._without_elements(node.meta.get("val"))
            result = self._converted(node) if result is None else result
            self.env[node] = self._without_gradient(result) if node in self.stops else result
        except ImportModelError as error:
            raise ImportModelError(f"from_torch: {node.target} in {call_place(node)}: {error}") from None
        except Exception as error:
            raise ImportModelError(
                f"from_torch: {node.target} in {call_place(node)} cannot be imported with these arguments: {error}"
            ) from error

    def _converted(self, node: fx.Node) -> Any:
        """What a converter makes of `node`; what none can is a call of torch."""
        if node.target is torch.ops.aten._local_scalar_dense.default:
            self.numbers[node] = self.env[node] = self.env[node.args[0]]
            self.found.match_number(self.block_builder, self.env[node], node.meta["val"])
            return self.env[node]
        if isinstance(node.meta.get("val"), torch.SymInt):
            return self._size(node)
        if isinstance(node.meta.get("val"), torch.SymBool):
            return None  # a condition of sizes: what reads it computes it
        if isinstance(node.meta.get("val"), torch.SymFloat):
            return self._number(node)
        if node.target is with_effects and not node.args[1]._schema.returns:
            return [None]  # a check that raises, and orders itself after others by a token
        if operator_of(node) is not node.target:
            self.left[node] = "it writes into its arguments"
            return self.otherwise(self, node)
        if not isinstance(node.target, torch._ops.OpOverload):
            converter = self.converter(node) or self.convert_map.get(node.target.__name__)
            if converter is None:
                raise ImportModelError("nothing here translates it; write it with torch.cond, while_loop, scan or map")
            return converter(node)
        converter, why = self.converter(node), NO_CONVERTER
        if not self._is_known(node.meta.get("val")) and name_of(node) not in FINDING:
            why = "its result has sizes that values decide"
        elif converter is not None:
            try:
                with agreeing(self, node):
                    result = converter(node)
                check_type(node, result, self.type_of, self._examples)
                return result
            except NameError:  # a fault of the converter, and no refusal
                raise
            except Exception as error:  # TVM refuses in as many ways as it has operators
                why = str(error) if isinstance(error, ImportModelError) else f"{type(error).__name__}: {error}"
        self.left[node] = why
        return self.otherwise(self, node)

    def _size(self, node: fx.Node) -> tirx.PrimExpr:
        """A size that is computed of others: as one, or, where floating-point numbers decide it, as a number."""
        size = node.meta["val"]
        try:
            if self.found.knows(size):
                return self.dim(size)
            raise ImportModelError("a number that depends on the values of a tensor; leave out .item()")
        except ImportModelError as refused:
            try:
                number = self._number(node)
            except ImportModelError:
                raise refused from None
        return self.found.match_computed(self.block_builder, number, size)

    def _number(self, node: fx.Node) -> relax.Expr:
        """What a node computes of numbers and sizes, as a 0-d tensor of float64."""
        return self.emit(
            number_of(node.target, [self._float64(value) for value in self.values(node.args) if value is not None])
        )

    def _float64(self, value: Any) -> relax.Expr:
        """A number, a size, or what was computed of them, as a 0-d tensor."""
        if isinstance(value, relax.Expr) and is_tensor(value):
            return value
        return relax.const(value, "float64") if isinstance(value, float) else self.number(value, "float64")

    def _without_gradient(self, result: Any) -> Any:
        """A value that no gradient passes; of several, those that are floating-point."""
        if isinstance(result, list):
            return [self._without_gradient(part) for part in result]
        floating = isinstance(result, relax.Expr) and "float" in str(getattr(result.ty, "dtype", ""))
        return self.emit(relax.op.grad.no_grad(result)) if floating else result

    def _is_known(self, value: Any) -> bool:
        """Whether the shapes of tensors do not depend on values."""
        parts = value if isinstance(value, list | tuple) else [value]
        sizes = [size for part in parts if isinstance(part, torch.Tensor) for size in part.shape]
        return all(isinstance(size, int) or self.found.knows(size) for size in sizes)

    def _place(self, node: fx.Node) -> Place:
        """Where a node comes from, and whether it follows a conversion to float32 that none to low precision ends.

        Complex numbers are computed in float32, as torch leaves them alone.
        """
        if not narrows(node) and (reads_converted(node) or not self.converted.isdisjoint(node.all_input_nodes)):
            self.converted.add(node)
        place = node_place(node)
        region = place.region or ("float32" if has_complex(node) else "")
        return place._replace(region=region, converted="float32" if node in self.converted else "")

    def _without_elements(self, value: Any) -> Any:
        """What needs no converter: a tensor without elements, or several."""
        if isinstance(value, list | tuple):
            parts = [self._without_elements(part) for part in value]
            return parts if parts and all(part is not None for part in parts) else None
        if not isinstance(value, torch.Tensor) or not self._is_known(value):
            return None
        if not any(isinstance(size, int) and size == 0 for size in value.shape):
            return None
        return self.emit(relax.op.zeros(*self.type_of(value)))

    def _materialize(self, node: fx.Node, region: str) -> None:
        """Bind the constants that `node` reads, at their full shape: once for each region that reads them.

        A number that was read from a tensor is a size where `node` takes one, else a 0-d tensor.
        """
        for source in node.all_input_nodes:
            if source in self.numbers:
                as_size = takes_size(node, source) and self.found.knows(source.meta["val"])
                self.env[source] = self.dim(source.meta["val"]) if as_size else self.numbers[source]
            if source in self.constants:
                if (source, region) not in self.bound_constants:
                    self.bound_constants[source, region] = self._constant(source)
                self.env[source] = self.bound_constants[source, region]

    def _constant(self, node: fx.Node) -> relax.Expr:
        literal, shape = as_constant(self.constants[node]), self.shape(node)
        if list(shape_of(literal) or ()) == shape:
            return literal
        return self.emit(relax.op.broadcast_to(literal, shape))

    def size(self, expr: sympy.Expr) -> tirx.PrimExpr:
        """A size that torch computes from symbols, as Relax does."""
        return size_of(expr, self.symbols)
