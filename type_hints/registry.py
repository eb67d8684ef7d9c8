"""The registry: one row for each operator, and what the active `CustomTypeHint` blocks make of it."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass, replace

from type_hints.arguments import check_named_arguments, tensor_arguments
from type_hints.errors import CastingRuleError, UnknownOperatorError
from type_hints.hints import Rule
from type_hints.names import normalize_op_name
from type_hints.overrides import active_rule


@dataclass(frozen=True)
class Row:
    """One operator's casting rule.

    Attributes
    ----------
    name
        The operator's full name, such as "relax.nn.softmax".
    rule
        `rule(args, ret_type, amp_dtype) -> list of hints`.
    why
        The reason for the rule.
    family
        The table that the row stands in, such as "normalization".
    """

    name: str
    rule: Rule
    why: str
    family: str = "custom"

    @property
    def label(self) -> str:
        """The rule's class: low, full, follow, untouched, cast, opaque, or custom for any other callable."""
        return getattr(self.rule, "label", "custom")

    def __str__(self) -> str:
        return f"{self.name}: {self.label} ({self.why})"


class RuleTable(tuple[Row, ...]):
    """Rows in the order of their families and names; `print` shows an aligned table."""

    __slots__ = ()

    def __str__(self) -> str:
        cells = [("operator", "class", "family", "why"), *((r.name, r.label, r.family, r.why) for r in self)]
        widths = [max(len(row[column]) for row in cells) for column in range(3)]
        return "\n".join(
            "  ".join([*(text.ljust(width) for text, width in zip(row, widths, strict=False)), row[3]]) for row in cells
        )

    def to_markdown(self) -> str:
        """The same as a Markdown table."""
        lines = ["| operator | class | why |", "|---|---|---|"]
        lines += [f"| `{row.name}` | {row.label} | {row.why.replace('|', chr(92) + '|')} |" for row in self]
        return "\n".join(lines)


_rows: dict[str, Row] = {}

#: Packages that register rules for others.
_PACKAGES = ("autocast", "type_hints")


def rule(op_name: str, rule: Rule, *, why: str) -> Row:
    """One line of a family's table: `rule("relax.matmul", low(2), why="...")`. It registers nothing yet."""
    return Row(op_name, rule, why)


def register_op_cast_rule(
    op_name: str, rule: Rule, *, why: str | None = None, family: str = "custom", override: bool = False
) -> None:
    """Give an operator its casting rule, for this process.

    Parameters
    ----------
    op_name
        The operator's name; it must exist in TVM's registry, or be a derived name such as `bias_add`.
    rule
        `rule(args, ret_type, amp_dtype) -> list of hints`: one hint for each argument of the call, and
        optionally one for the result. `low(2)`, `full(1)` and `follow(1)` make the usual ones.
    why
        The reason, which reports repeat; without one they say in which file and line this was called.
    family
        The table that `list_rules` shows the row in.
    override
        True replaces a rule that is already there. For a while only, use `CustomTypeHint`.

    Raises
    ------
    UnknownOperatorError
        No operator has this name, or several have.
    CastingRuleError
        The rule is not callable or names arguments that the operator lacks, the reason is empty, or the operator has a
        rule and `override` is False.
    """
    name = normalize_op_name(op_name)
    if not callable(rule):
        raise CastingRuleError(
            f"register_op_cast_rule({op_name!r}): got {rule!r}, expected a callable "
            "rule(args, ret_type, amp_dtype) -> list of hints; try type_hints.follow(1)"
        )
    if why is None:
        why = f"registered at {_caller()}"
    if not isinstance(why, str) or not why.strip():
        raise CastingRuleError(f"register_op_cast_rule({op_name!r}): why={why!r}, expected the reason for the rule")
    tensors = tensor_arguments(name)
    if tensors is not None:
        check_named_arguments("register_op_cast_rule", name, rule, tensors)
    if name in _rows and not override:
        raise CastingRuleError(
            f"register_op_cast_rule({op_name!r}): {_rows[name]} is registered already; pass override=True to "
            "replace it, or use CustomTypeHint to override it for a while"
        )
    _rows[name] = Row(name, rule, why, family)


def register_family(family: str, rows: Iterable[Row]) -> None:
    """Register a family's whole table; CastingRuleError where an operator stands in two tables."""
    for row in rows:
        if row.name in _rows:
            raise CastingRuleError(f"{row.name} has a row in {_rows[row.name].family} and another in {family}")
        _rows[row.name] = replace(row, family=family)


def table_row(op_name: str) -> Row | None:
    """The registered row of `op_name` (its full name), whatever `CustomTypeHint` blocks say; None if it has none."""
    return _rows.get(op_name)


def get_row(op_name: str) -> Row | None:
    """The row that decides `op_name` here and now, `CustomTypeHint` blocks included; None where there is none.

    Any spelling of the name is accepted; the full one is found fastest.
    """
    row = table_row(op_name)
    if row is None:
        try:
            op_name = normalize_op_name(op_name)
        except UnknownOperatorError:
            return None
        row = table_row(op_name)
    custom = active_rule(op_name)
    if custom is None:
        return row
    return Row(op_name, custom, _reason(custom), "CustomTypeHint")


def get_rule(op_name: str) -> Rule | None:
    """The rule that decides `op_name` here and now, `CustomTypeHint` blocks included; None where there is none.

    The pass collects every operator for which this is None and reports them in one error.
    """
    if op_name in _rows:
        return active_rule(op_name) or _rows[op_name].rule
    row = get_row(op_name)
    return row.rule if row is not None else None


def list_rules() -> RuleTable:
    """Every row that decides here and now, by family and name, `CustomTypeHint` blocks included."""
    rows = [row for name in _rows if (row := get_row(name)) is not None]
    return RuleTable(sorted(rows, key=lambda row: (row.family, row.name)))


def _reason(custom: Rule) -> str:
    documentation = (getattr(custom, "__doc__", None) or "").strip()
    name = getattr(custom, "__name__", None)
    if name is None:
        return f"CustomTypeHint: {custom!r}"
    first_line = documentation.splitlines()[0] if documentation else "no docstring"
    return f"CustomTypeHint: {name} ({first_line})"


def _caller() -> str:
    """The file and the line, outside of this project, that registers a rule."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in _PACKAGES:
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"
