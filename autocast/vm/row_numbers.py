"""Which inputs of a function number rows of its tables: see `autocast.runtime.rows`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from tvm import relax

from autocast.ir import dims, dtype_of, is_constant, is_op, shape_of
from autocast.model.value import IMPORTED_FROM
from autocast.runtime.rows import Rows
from autocast.vm.dimensions import Dimensions

#: Operators whose result holds the numbers of their first operand: all of them, and no others.
_REARRANGES = tuple(
    f"relax.{name}" for name in ("broadcast_to", "expand_dims", "flatten", "permute_dims", "reshape", "squeeze")
)

#: What numbers keep their values in; those of fewer bits wrap around.
_WIDE = ("int32", "int64")

_Bound = Mapping[relax.Expr, Any]


class _Held(NamedTuple):
    """The position of an input whose numbers a variable holds, but those that are `ignored`.

    `from_end` says whether those below 0 were counted from the end.
    """

    position: int
    from_end: bool = False
    ignored: int | None = None


def rows_of(main: relax.Function, count: int, dimensions: Dimensions) -> tuple[tuple[int, Rows], ...]:
    """The positions of those of the first `count` parameters that number rows, each with the rows.

    In what comes from torch or ONNX, whose runtimes refuse numbers without a row: a module that somebody wrote says by
    the mode of its `take` what such a number is answered by. Numbers that are chosen or computed from inputs are left
    alone, and so is what is looked up within a branch.
    """
    from_torch = (main.attrs or {}).get(IMPORTED_FROM) == "torch"
    bound: _Bound = {b.var: b.value for block in main.body.blocks for b in block.bindings}
    held: dict[relax.Expr, _Held] = {
        var: _Held(at) for at, var in enumerate(main.params[:count]) if "int" in str(dtype_of(var))
    }
    found: dict[tuple[int, Rows], None] = {}
    for var, value in bound.items():
        source = _source(value, bound, held)
        if source is not None:
            held[var] = source
        for numbers, axis, from_end in _numbers(value, bound):
            if numbers not in held or not (from_torch or held[numbers].from_end):
                continue
            source, rows = held[numbers], dimensions.size(dims(value.args[0])[axis])
            if rows is not None:
                table = _name(value.args[0], bound, main)
                found[source.position, Rows(rows, table, axis, from_end or source.from_end, source.ignored)] = None
    return tuple(found)


def _numbers(value: Any, bound: _Bound) -> Iterator[tuple[relax.Expr, int, bool]]:
    """What numbers the first operand of a lookup or of a write, along which axis, and whether also from its end.

    Of torch's indices, which wrap around here, and of what is written by them; its `gather`, `scatter` and losses
    refuse numbers below 0.
    """
    if not isinstance(value, relax.Call) or not value.args or shape_of(value.args[0]) is None:
        return
    rank = len(dims(value.args[0]))
    if is_op(value, "relax.take"):
        if value.attrs.axis is not None or rank == 1:
            yield value.args[1], int(value.attrs.axis or 0) % rank, str(value.attrs.mode) == "wrap"
    elif is_op(value, "relax.gather_elements", "relax.scatter_elements"):
        yield value.args[1], int(value.attrs.axis) % rank, False
    elif is_op(value, "relax.nn.index_copy"):
        yield value.args[1], int(value.attrs.axis) % rank, True
    elif is_op(value, "relax.scatter_nd") and dims(value.args[1])[-1] == 1:
        yield value.args[1], 0, True
    elif is_op(value, "relax.index_tensor", "relax.index_put"):
        several = bound.get(value.args[1], value.args[1])
        for axis, numbers in enumerate(several.fields if isinstance(several, relax.Tuple) else ()):
            yield numbers, axis, True


def _source(value: Any, bound: _Bound, held: Mapping[relax.Expr, _Held]) -> _Held | None:
    """What `value` holds the numbers of; None where it holds others."""
    if isinstance(value, relax.Var):
        return held.get(value)
    if is_op(value, *_REARRANGES) or (is_op(value, "relax.astype") and dtype_of(value) in _WIDE):
        return held.get(value.args[0])
    if not is_op(value, "relax.where"):
        return None
    condition, then, other = (bound.get(part, part) for part in value.args)
    chosen, rest = value.args[1:]
    counted = bound.get(then.args[0], then) if is_op(then, "relax.maximum") else then
    if rest in held and _reads(condition, "relax.less", rest) and _reads(counted, "relax.add", rest):
        return held[rest]._replace(from_end=True)  # plus the number of rows where they are below 0
    if chosen in held and _reads(condition, "relax.not_equal", chosen) and is_constant(other):
        nothing = condition.args[1]  # labels, and a class in place of what is none
        return held[chosen]._replace(ignored=int(nothing.value.numpy())) if is_constant(nothing) else None
    return None


def _reads(value: Any, name: str, numbers: relax.Expr) -> bool:
    return is_op(value, name) and value.args[0].same_as(numbers)


def _name(table: relax.Expr, bound: _Bound, main: relax.Function) -> str:
    """What a table is called, without the casts on its way."""
    while is_op(bound.get(table), "relax.astype"):
        table = bound[table].args[0]
    is_given = any(table.same_as(param) for param in main.params)
    return table.name if is_given else "what the model computes"
