"""Gradients of embeddings, of which each rank sends the rows that it looked up, not the whole table."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from tvm import relax

from autocast.ir import dtype_of, is_op, static_shape
from autocast.ir.rewriting import reads_of
from autocast.operators.own import all_gather_done, all_gather_start, share

op = relax.op


class Lookup(NamedTuple):
    """A gradient that is the sum of rows at the places that a lookup read, and what else it has.

    Attributes
    ----------
    call : relax.Call
        `take_backward(rows, table, numbers)`.
    bound : tuple of relax.Var
        What only this gradient needs: the sum of rows, and of these and `dense`.
    dense : relax.Var or None
        The gradient that they are added to, of a table that is the weight of a linear layer as well.
    """

    call: relax.Call
    bound: tuple[relax.Var, ...]
    dense: relax.Var | None

    def begin(self, builder: relax.BlockBuilder, count: int) -> list[relax.Var]:
        """Emit what sends this rank's rows, and their numbers, to all of `count` ranks."""
        rows, _, numbers = self.call.args
        return [builder.emit(all_gather_start(relax.Tuple([x]), count=count), "rows") for x in (rows, numbers)]

    def mean(
        self, builder: relax.BlockBuilder, sent: Sequence[relax.Var], count: int, shares: int, dense: relax.Expr | None
    ) -> relax.Expr:
        """Emit the mean over ranks, or this rank's share of it; `dense` is that of what the rows are added to."""
        _, table, numbers = self.call.args
        gathered = []
        for buffer, part in zip(sent, self.call.args[::2], strict=True):
            first, *others = static_shape(part) or ()
            whole = all_gather_done(buffer, shapes=[[count * first, *others]], dtype=dtype_of(part))
            gathered.append(builder.emit(relax.TupleGetItem(builder.emit(whole, "whole"), 0)))
        rows, numbers = gathered
        rows = builder.emit(op.multiply(rows, relax.const(1 / count, "float32")))
        mean = builder.emit(relax.Call(self.call.op, [rows, table, numbers], self.call.attrs), "mean")
        mean = mean if shares == 1 else builder.emit(share(mean, count=shares))
        return mean if dense is None else builder.emit(op.add(builder.emit(dense), mean))


def find_lookups(
    bindings: Sequence[relax.Binding], results: Mapping[int, relax.Expr], kept: Iterable[relax.Expr], count: int
) -> dict[int, Lookup]:
    """The results that `count` ranks exchange by rows: where all their rows are fewer than those of the table.

    Parameters
    ----------
    bindings : sequence of relax.Binding
    results : mapping of int to relax.Expr
        Gradients, by their places among the function's results: the variables that they are bound to where they are
        computed.
    kept : iterable of relax.Expr
        The other results.
    count : int
        How many ranks there are.
    """
    values = {binding.var: binding.value for binding in bindings}
    names = {var: value for var, value in values.items() if isinstance(value, relax.Var)}
    uses = Counter([*results.values(), *kept])
    for var, value in values.items():
        if var not in names:
            uses.update(names.get(read, read) for read in reads_of(value))

    def only(var: relax.Expr) -> Any:
        return values.get(var) if uses[var] == 1 else None

    found = {}
    for place, result in results.items():
        value = only(result)
        if _fits(value, count):
            found[place] = Lookup(value, (result,), None)
        elif is_op(value, "relax.add"):
            for rows, dense in (value.args, reversed(value.args)):
                if _fits(only(rows), count) and dense in values and static_shape(dense) == static_shape(result):
                    found[place] = Lookup(only(rows), (rows, result), dense)
                    break
    return found


def _fits(call: Any, count: int) -> bool:
    """Whether a value is the gradient of a lookup that is cheaper to send by its rows."""
    if count == 1 or not is_op(call, "relax.grad.take_backward") or dtype_of(call) != "float32":
        return False
    rows, table, numbers = map(static_shape, call.args)
    if rows is None or table is None or numbers is None or int(call.attrs.axis or 0) != 0:
        return False
    return count * math.prod(numbers) < table[0]
