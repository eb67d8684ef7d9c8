"""Sizes that the values of tensors decide, as of what `nonzero`, `x[mask]` and `x[: n.item()]` compute.

torch writes them as symbols of their own. Here the tensor of such a size, or the number that is one, is matched with it
where it is computed; what comes after has the same symbols as if inputs had brought them::

    found: (?, ?) = R.nonzero(mask)                                     s = R.tensor_to_shape(n)
    rows: (1, u0) = R.match_cast(found, R.Tensor((1, u0), "int64"))     R.match_cast(s, R.Shape([u0]))

What the module checks of such a size (`torch._check(n <= len(x))`) is checked there, before anything has that size.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, TypeAlias

import sympy  # type: ignore[import-untyped]
import torch
import tvm
from torch import fx
from torch.export import ExportedProgram
from tvm import relax, tirx
from tvm.script import relax as R

from autocast.errors import ImportModelError
from autocast.frontend.nodes import name_of
from autocast.ir import PlacedBuilder
from autocast.runtime.found_sizes import CHECK

#: Makes the type of what is matched, by the symbols of that moment.
_Type: TypeAlias = Callable[[], tvm.ir.Type]

#: How torch writes the types of sizes and places in an operator's signature.
_SIZES = ("int", "Optional[int]", "List[int]", "Optional[List[int]]")

#: Operators whose results have as many elements as their numbers say.
_COUNTING = ("arange.default", "arange.start", "arange.start_step")

#: Operators whose converters take a number that values decide for a tensor, although torch calls it a place.
_BY_TENSOR = ("select.int",)

#: Operators whose converters find sizes of their results; those of others are left to torch.
FINDING = ("index.Tensor", "masked_select.default", "nonzero.default", "slice.Tensor")

#: Relations of sympy, as those of `autocast.runtime.found_sizes`, and whether the sides change places.
_RELATIONS = {
    sympy.Le: ("<=", False),
    sympy.Lt: ("<", False),
    sympy.Ge: ("<=", True),
    sympy.Gt: ("<", True),
    sympy.Eq: ("==", False),
    sympy.Ne: ("!=", False),
}


class Condition(NamedTuple):
    """What a module checks of sizes, which are symbols of both sides."""

    relation: str
    left: sympy.Expr
    right: sympy.Expr

    @property
    def symbols(self) -> set[sympy.Symbol]:
        """The sizes."""
        return self.left.free_symbols | self.right.free_symbols


class FoundSizes:
    """The sizes that are known while a program is translated: those of inputs, then those that are found.

    Parameters
    ----------
    program : torch.export.ExportedProgram
    symbols : dict
        Relax's sizes by the names of torch's symbols; what is found is added to it.
    size : function
        A size that torch computes from symbols, as Relax does.
    """

    def __init__(
        self, program: ExportedProgram, symbols: dict[str, tvm.ir.Expr], size: Callable[[sympy.Expr], tvm.ir.Expr]
    ) -> None:
        self.symbols, self.size = symbols, size
        inputs = [node.meta.get("val") for node in program.graph.nodes if node.op == "placeholder"]
        self.known = {symbol for value in inputs if isinstance(value, torch.Tensor) for symbol in _symbols(value)}
        self.read = _read(program.graph.nodes)
        self.conditions = _conditions(program.graph.nodes, self.read - self.known)

    def knows(self, size: torch.SymInt) -> bool:
        """Whether all that a size is computed from is known."""
        return self.known.issuperset(size.node.expr.free_symbols)

    def match_tensor(
        self, builder: PlacedBuilder, node: fx.Node, value: relax.Expr, sizes: Sequence[int | torch.SymInt], ty: _Type
    ) -> relax.Var:
        """A result of `node` of unknown sizes as one of the type `ty()`, which names what torch calls `sizes`.

        That there are no fewer than 0 and no more than elements of what the operator is given is torch's own condition,
        which need not be checked (and is wrong of `masked_select` by a larger mask).

        Raises
        ------
        ImportModelError
            torch says a size by what nothing has computed yet.
        """
        new = {_symbol(size) for size in sizes if not isinstance(size, int) and not self.knows(size)}
        given = [source.meta.get("val") for source in node.all_input_nodes]
        counts = {sympy.sympify(part.numel()) for part in given if isinstance(part, torch.Tensor)}
        own = {Condition("<=", *sides) for size in new for sides in ((0, size), *((size, count) for count in counts))}
        self.conditions = [condition for condition in self.conditions if condition not in own]
        return self._matched(builder, value, new, ty)

    def match_number(self, builder: PlacedBuilder, value: relax.Expr, size: Any) -> None:
        """The number that a 0-d tensor holds as the size that torch calls it, where anything reads that."""
        if isinstance(size, torch.SymInt) and not self.knows(size) and _symbol(size) in self.read:
            shape, expr = _shape(builder, value), size.node.expr
            self._matched(builder, shape, {_symbol(size)}, lambda: relax.ShapeType([self.size(expr)]))

    def match_count(
        self, builder: PlacedBuilder, count: relax.Expr, size: torch.SymInt, of: torch.SymInt | int
    ) -> None:
        """How many of `of` elements an operator takes, which a 0-d tensor says, as the size that torch calls it."""
        symbol = _symbol(size)
        own = {Condition("<=", sympy.Integer(0), symbol), Condition("<=", symbol, sympy.sympify(of))}
        self.conditions = [condition for condition in self.conditions if condition not in own]
        self._matched(builder, _shape(builder, count), {symbol}, lambda: relax.ShapeType([self.size(symbol)]))

    def match_computed(self, builder: PlacedBuilder, value: relax.Expr, size: torch.SymInt) -> tirx.Var:
        """The whole number that a 0-d tensor holds as the size that torch computes of others by floating-point ones."""
        expr = size.node.expr
        self.known |= expr.free_symbols
        self.symbols[str(expr)] = variable = match_place(builder, value, f"rounded{len(self.symbols)}")
        return variable

    def _matched(self, builder: PlacedBuilder, value: relax.Expr, new: set[sympy.Symbol], ty: _Type) -> relax.Var:
        """`value` as one of type `ty()`, which says the `new` sizes; where they are checked, other names come first.

        A size that must be equal to what is known is that. What is checked is matched anew, and not by way of the other
        names: TVM would take these for the sizes.
        """
        self.known |= new
        asked = [c for c in self.conditions if not c.symbols.isdisjoint(new) and self.known >= c.symbols]
        if not asked:
            return builder.match_cast(value, ty())
        named = {symbol: sympy.Symbol(str(self.size(symbol))) for c in asked for symbol in c.symbols}
        text = json.dumps(
            [(c.relation, f"{c.left.xreplace(named)} {c.relation} {c.right.xreplace(named)}") for c in asked]
        )
        equal = dict(filter(None, (_solved(c, new) for c in asked if c.relation == "==")))
        sizes = {str(symbol): self.size(equal.get(symbol, symbol)) for symbol in sorted(new, key=str)}
        self.symbols.update({name: tirx.Var(f"{name}_found", "int64") for name in sizes})
        builder.match_cast(value, ty())
        found = relax.ShapeExpr([self.symbols[name] for name in sizes])
        sides = relax.ShapeExpr([self.size(side) for c in asked for side in (c.left, c.right)])
        call = relax.op.call_pure_packed(CHECK, R.str(text), found, sides, ty_args=relax.ShapeType(ndim=len(sizes)))
        self.symbols.update(sizes)
        builder.match_cast(builder.emit(call), relax.ShapeType(list(sizes.values())))
        return builder.match_cast(value, ty())


def match_place(builder: PlacedBuilder, value: relax.Expr, name: str) -> tirx.Var:
    """The whole number that a 0-d tensor holds, which is none below 0, as one that sizes are computed of."""
    variable = tirx.Var(name, "int64")
    builder.match_cast(_shape(builder, value), relax.ShapeType([variable]))
    return variable


def _shape(builder: PlacedBuilder, value: relax.Expr) -> relax.Var:
    """A shape of the one size that a 0-d tensor holds."""
    row = relax.op.reshape(relax.op.astype(value, "int64"), [1])
    return builder.emit(relax.op.tensor_to_shape(builder.emit(row)))


def _solved(condition: Condition, new: set[sympy.Symbol]) -> tuple[sympy.Symbol, sympy.Expr] | None:
    """The one new size that an equation says by others that are known."""
    unknown = condition.symbols & new
    if len(unknown) != 1:
        return None
    (symbol,) = unknown
    difference = sympy.expand(condition.left - condition.right)
    factor = difference.coeff(symbol, 1)
    rest = difference - factor * symbol
    return (symbol, sympy.expand(-factor * rest)) if factor in (1, -1) and symbol not in rest.free_symbols else None


def takes_size(node: fx.Node, number: fx.Node) -> bool:
    """Whether `node` is given a number as a size or a place, not as one to compute with."""
    if not isinstance(node.target, torch._ops.OpOverload) or name_of(node) in _BY_TENSOR:
        return False
    arguments = node.target._schema.arguments
    given = {argument.name: value for argument, value in zip(arguments, node.args, strict=False)} | dict(node.kwargs)
    kinds = (*_SIZES, "number") if name_of(node) in _COUNTING else _SIZES
    return any(str(a.type) in kinds and number in _nodes(given.get(a.name)) for a in arguments)


def _read(nodes: Iterable[fx.Node]) -> set[sympy.Symbol]:
    """The symbols in shapes, in what is computed from numbers, and in sizes that operators are given."""
    found: set[sympy.Symbol] = set()
    for node in nodes:
        if node.target is not torch.ops.aten._local_scalar_dense.default:
            found |= _symbols(node.meta.get("val"))
        for number in node.all_input_nodes:
            if isinstance(number.meta.get("val"), torch.SymInt) and takes_size(node, number):
                found |= _symbols(number.meta["val"])
    return found


def _conditions(nodes: Iterable[fx.Node], found: set[sympy.Symbol]) -> list[Condition]:
    """What a program checks of sizes; other checks than comparisons are left out where they are of no size that is
    found, and refused where they are."""
    conditions = []
    for node in nodes:
        if node.target is torch.ops.aten._assert_scalar.default and isinstance(node.args[0], fx.Node):
            checked = node.args[0].meta.get("val")
            whole = checked.node.expr if isinstance(checked, torch.SymBool) else sympy.true
            for part in sympy.And.make_args(whole):
                if type(part) in _RELATIONS:
                    relation, turned = _RELATIONS[type(part)]
                    conditions.append(Condition(relation, *(part.args[::-1] if turned else part.args)))
                elif not found.isdisjoint(part.free_symbols):
                    raise ImportModelError(
                        f"from_torch: the module checks {part}; expected comparisons of sizes, or several"
                    )
    return conditions


def _symbols(value: Any) -> set[sympy.Symbol]:
    if isinstance(value, torch.SymInt):
        return set(value.node.expr.free_symbols)
    parts = value.shape if isinstance(value, torch.Tensor) else value if isinstance(value, list | tuple) else ()
    return {symbol for part in parts for symbol in _symbols(part)}


def _symbol(size: torch.SymInt) -> sympy.Symbol:
    if not isinstance(size.node.expr, sympy.Symbol):
        raise ImportModelError(f"the size {size} depends on values that are not known there")
    return size.node.expr


def _nodes(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value]
