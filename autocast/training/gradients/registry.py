"""The table of gradients: one row for each operator, with its reason, and what a rule is given."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from tvm import relax

from autocast.errors import GradientError
from autocast.operators import TABLE

#: The adjoint of a tensor (an expression), of a tuple (one adjoint for each field), or None where it is zero.
Adjoint = Any


class Backward(NamedTuple):
    """What a rule knows of one call of the forward program.

    Attributes
    ----------
    call
        The call itself; its arguments are variables (or tuples of them) and constants.
    result
        The variable that the call is bound to.
    adjoint
        The gradient of the target with respect to `result`, of its shape and dtype; for a result that is a tuple, a
        tuple of adjoints, None where a field has none.
    needs
        For each argument, whether its adjoint is wanted; a rule may answer None for the others.
    emit
        Binds an expression to a variable. Only what is used twice needs it: the rest may nest.
    wants
        Whether the adjoint of a field is wanted, where an argument is a tuple.
    """

    call: relax.Call
    result: relax.Var
    adjoint: Adjoint
    needs: tuple[bool, ...]
    emit: Callable[[relax.Expr], relax.Var]
    wants: Callable[[relax.Expr], bool] = lambda field: True


GradientRule = Callable[[Backward], Sequence[Adjoint]]


@dataclass(frozen=True)
class GradientRow:
    """How one operator is differentiated.

    Attributes
    ----------
    name
        The operator's full name, such as "relax.tanh".
    kind
        "gradient": `rule` says how. "zero": the derivative is zero wherever it exists. "none": there is no
        gradient, and asking for one is an error.
    rule
        `rule(backward) -> one adjoint for each argument of the call`; None unless the kind is "gradient".
    why
        The formula, or the reason why there is none.
    family
        The table that the row stands in.
    """

    name: str
    kind: str
    rule: GradientRule | None
    why: str
    family: str = "custom"


_rows: dict[str, GradientRow] = {}


def gradient(name: str, rule: GradientRule, *, why: str) -> GradientRow:
    """A row of a table: the operator `name` is differentiated by `rule`. It registers nothing yet."""
    return GradientRow(name, "gradient", rule, why)


def zero_gradient(name: str, *, why: str) -> GradientRow:
    """A row of a table: the result does not change with small changes of the arguments, or is not a number."""
    return GradientRow(name, "zero", None, why)


def not_differentiable(name: str, *, why: str) -> GradientRow:
    """A row of a table: a gradient through the operator `name` is an error that repeats `why`."""
    return GradientRow(name, "none", None, why)


def register_gradient(row: GradientRow, *, override: bool = False) -> None:
    """Give an operator its row, for this process.

    Parameters
    ----------
    row
        What `gradient`, `zero_gradient` or `not_differentiable` returns.
    override
        True replaces a row that is already there.

    Raises
    ------
    GradientError
        The operator has a row and `override` is False, or the row says no reason.
    """
    if not row.why.strip():
        raise GradientError(f"register_gradient: the row of {row.name} has an empty why; expected the reason for it")
    if row.name in _rows and not override:
        raise GradientError(
            f"register_gradient: {row.name} has a row in {_rows[row.name].family} already; pass override=True to "
            "replace it"
        )
    _rows[row.name] = row


def register_family(family: str, rows: Iterable[GradientRow]) -> None:
    """Register a family's whole table; GradientError where an operator stands in two tables."""
    for row in rows:
        register_gradient(replace(row, family=family))


def get_gradient(name: str) -> GradientRow | None:
    """The row of an operator; None where there is none."""
    operator = TABLE.get(name)
    if name not in _rows and operator is not None and operator.gradient is not None:
        return GradientRow(name, "gradient", operator.gradient, "as it was registered with the operator")
    return _rows.get(name)


def list_gradients() -> list[GradientRow]:
    """Every row, by family and name."""
    return sorted(_rows.values(), key=lambda row: (row.family, row.name))
