"""The table of operators: one row for each, in the files of their families; and operators of our own, and of users.

A row says what phases and kernels have to know of an operator (`OperatorRow`), so a new one is a row here, and its
casting rule in `type_hints`. What passes and kernels treat alike are queries: `is_kind(call, Kind.REDUCTION)`,
`named(Kind.PRODUCT)`, `row_of(call).vector`. Operators of our own (`operators.own`) are defined when this is imported,
so that whoever holds a module can read it.
"""

from autocast.operators import backward, elementwise, foreign, movement, own, products, recurrent, statistics
from autocast.operators.operator import OPERATORS, Expansion, Operator, like
from autocast.operators.registration import REGISTERED, register
from autocast.operators.row import (
    MOVING,
    MULTIPLYING,
    TABLE,
    Kind,
    OperatorRow,
    add_rows,
    is_kind,
    named,
    row_of,
    rows,
)

for _family in (elementwise, movement, products, recurrent, statistics, backward, foreign):
    add_rows(_family.ROWS)

__all__ = [
    "MOVING",
    "MULTIPLYING",
    "OPERATORS",
    "REGISTERED",
    "TABLE",
    "Expansion",
    "Kind",
    "Operator",
    "OperatorRow",
    "add_rows",
    "is_kind",
    "like",
    "named",
    "own",
    "register",
    "row_of",
    "rows",
]
