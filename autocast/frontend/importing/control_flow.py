"""Control flow: `torch.cond`, `while_loop`, `scan` and `map`, whose parts torch keeps as graphs of their own.

torch.cond(p, f, g, (x,))          an If with both parts in place: casts are chosen for them together with what is
                                   around them
while_loop(more, step, (i, x))     a function that calls itself: see `loops`
scan(f, init, xs), map(f, xs)      one `f` after the other, for each row of `xs`
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial, reduce
from typing import Any

import sympy  # type: ignore[import-untyped]
import torch
from torch import fx
from tvm import relax

from autocast.errors import ImportModelError
from autocast.frontend.converters.helpers import Converter
from autocast.frontend.importing.importer import Importer
from autocast.frontend.importing.loops import fields_of, looped, sequence
from autocast.frontend.nodes import graph_of, symbols_of

#: The most rows of a scan, of which each becomes a part of the model.
_MOST_ROWS = 256

_COMPARISONS: dict[type, Callable[..., relax.Expr]] = {
    sympy.Eq: relax.op.equal,
    sympy.Ge: relax.op.greater_equal,
    sympy.Gt: relax.op.greater,
    sympy.Le: relax.op.less_equal,
    sympy.Lt: relax.op.less,
    sympy.Ne: relax.op.not_equal,
}
_COMBINATIONS: dict[type, Callable[..., relax.Expr]] = {
    sympy.And: relax.op.logical_and,
    sympy.Or: relax.op.logical_or,
}

_Values = Sequence[relax.Expr]


def _cond(importer: Importer, node: fx.Node) -> list[relax.Expr]:
    predicate, yes, no, operands = node.args
    given, builder = importer.values(operands), importer.block_builder
    parts = [sequence(builder, partial(_tuple, importer, part, given)) for part in (yes, no)]
    return fields_of(builder, relax.If(_scalar(importer, _predicate(importer, predicate)), *parts))


def _tuple(importer: Importer, part: fx.Node, operands: _Values) -> relax.Tuple:
    return relax.Tuple(_inlined(importer, part, operands))


def _predicate(importer: Importer, node: fx.Node) -> relax.Expr:
    value = node.meta["val"]
    return _of_sizes(importer, value.node.expr) if isinstance(value, torch.SymBool) else importer.env[node]


def _of_sizes(importer: Importer, condition: sympy.Basic) -> relax.Expr:
    """A condition of sizes as a tensor."""
    compare, combine = _COMPARISONS.get(type(condition)), _COMBINATIONS.get(type(condition))
    if compare is not None:
        return importer.emit(compare(*(importer.number(importer.size(side), "int64") for side in condition.args)))
    if combine is None:
        raise ImportModelError(f"the condition {condition} of sizes is computed with {type(condition).__name__}")
    return reduce(lambda *parts: importer.emit(combine(*parts)), (_of_sizes(importer, part) for part in condition.args))


def _while_loop(importer: Importer, node: fx.Node) -> list[relax.Expr]:
    more, step, carried, others = node.args
    states, given = importer.values(carried), importer.values(others)
    if not all(map(_is_tensor, states)):
        raise ImportModelError("it carries a number from turn to turn; carry torch.tensor(...) of it")
    known = sorted((symbols_of(more) | symbols_of(step)) & importer.symbols.keys())
    sizes = [relax.ShapeExpr([importer.symbols[name] for name in known])] if known else []
    streams = importer.streams

    def turn(states: _Values, captured: _Values) -> list[relax.Expr]:
        tensors = iter(captured)
        values = [next(tensors) if _is_tensor(value) else value for value in given]
        after = _inlined(importer, step, [*states, *values])
        return [_asked(importer, more, [*after, *values]), *after]

    goes_on = _asked(importer, more, [*states, *given])
    captured = [*filter(_is_tensor, given), *sizes]
    after = looped(importer.block_builder, str(node.name), goes_on, states, captured, turn)
    if importer.streams > streams:
        raise ImportModelError("it draws random numbers, which would be the same in each turn; draw them before it")
    return after


def _asked(importer: Importer, more: fx.Node, values: _Values) -> relax.Expr:
    (answer,) = _inlined(importer, more, values)
    return _scalar(importer, answer)


def _scan(importer: Importer, node: fx.Node) -> list[relax.Expr]:
    combine, carried, rows, others = node.args
    state, given = importer.values(carried), importer.values(others)
    results: list[_Values] = []
    for row in _rows(importer, rows):
        values = _inlined(importer, combine, [*state, *row, *given])
        state = values[: len(state)]
        results.append(values[len(state) :])
    return [*state, *_stacked(importer, results)]


def _map(importer: Importer, node: fx.Node) -> list[relax.Expr]:
    function, rows, others = node.args
    given = importer.values(others)
    return _stacked(importer, [_inlined(importer, function, [*row, *given]) for row in _rows(importer, rows)])


def _rows(importer: Importer, tensors: Sequence[fx.Node]) -> list[_Values]:
    """What each turn reads of tensors."""
    count = importer.shape(tensors[0])[0]
    if not isinstance(count, int) or count > _MOST_ROWS:
        raise ImportModelError(
            f"it goes over {count} rows, expected a number that is known, of at most {_MOST_ROWS}, as each becomes a "
            "part of the model. Write it as a torch.while_loop"
        )
    values = importer.values(tensors)
    return [[_row(importer, value, at) for value in values] for at in range(count)]


def _row(importer: Importer, x: relax.Expr, at: int) -> relax.Expr:
    part = importer.emit(relax.op.strided_slice(x, [0], [at], [at + 1], assume_inbound=True))
    return importer.emit(relax.op.squeeze(part, [0]))


def _stacked(importer: Importer, results: Sequence[_Values]) -> list[relax.Expr]:
    return [importer.emit(relax.op.stack(list(parts), axis=0)) for parts in zip(*results, strict=True)]


def _inlined(importer: Importer, part: fx.Node, operands: _Values) -> list[relax.Expr]:
    """What the graph that `part` names computes of `operands`."""
    graph = graph_of(part)
    names = [placeholder.name for placeholder in graph.find_nodes(op="placeholder")]
    (result,) = importer.translate_graph(graph, dict(zip(names, operands, strict=True))).args
    results = result if isinstance(result, list | tuple) else [result]
    if not all(isinstance(one, fx.Node) and isinstance(one.meta.get("val"), torch.Tensor) for one in results):
        raise ImportModelError("one of its functions returns what is no tensor; return torch.tensor(...) of it")
    return importer.values(results)


def _scalar(importer: Importer, value: relax.Expr) -> relax.Expr:
    return importer.emit(relax.op.reshape(value, [])) if value.ty.ndim else value


def _is_tensor(value: Any) -> bool:
    return isinstance(getattr(value, "ty", None), relax.TensorType)


#: Converters of torch's higher-order operators, by their names.
CONTROL_FLOW: dict[str, Converter] = {
    "cond": _cond,
    "map_impl": _map,
    "scan": _scan,
    "while_loop": _while_loop,
}
