"""The table of gradients is complete, and says why."""

from __future__ import annotations

from pathlib import Path

import pytest

import type_hints
from autocast.errors import GradientError
from autocast.training.gradients import (
    get_gradient,
    gradient,
    list_gradients,
    register_gradient,
    zero_gradient,
)
from autocast.training.gradients.__main__ import page
from tests.training.gradients.test_finite_differences import CASES

REPOSITORY = Path(__file__).parents[3]


def test_every_operator_with_a_casting_rule_has_a_row_of_gradients() -> None:
    derived = {"relax.bias_add"}  # an add to its user
    rows = [row for row in type_hints.list_rules() if row.family != "custom" and row.name not in derived]
    assert [row.name for row in rows if get_gradient(row.name) is None] == []


def test_every_row_of_gradients_has_a_casting_rule() -> None:
    assert [row.name for row in list_gradients() if type_hints.get_row(row.name) is None] == []


def test_every_row_says_its_formula_or_its_reason() -> None:
    assert all(row.why.strip() for row in list_gradients())


def test_every_row_with_a_formula_here_is_measured() -> None:
    families = {"elementwise", "special", "products", "reductions", "layout", "indexing", "conversion"}
    not_run_by_tvm = {"ewise_fma", "nn.pixel_shuffle", "hint_on_device", "wrap_param"}
    measured = {name.partition(" ")[0] for name in CASES} | not_run_by_tvm
    rows = [row for row in list_gradients() if row.family in families and row.kind == "gradient"]
    assert [row.name for row in rows if row.name.removeprefix("relax.") not in measured] == []


def test_a_second_row_for_an_operator_is_an_error_unless_it_overrides() -> None:
    row = get_gradient("relax.tanh")
    assert row is not None
    with pytest.raises(GradientError, match=r"relax\.tanh has a row in elementwise already; pass override=True"):
        register_gradient(zero_gradient("relax.tanh", why="a test"))
    register_gradient(row, override=True)
    assert get_gradient("relax.tanh") is row


def test_a_row_without_a_reason_is_an_error() -> None:
    with pytest.raises(GradientError, match="an empty why"):
        register_gradient(gradient("relax.tanh", lambda b: [b.adjoint], why=" "))


def test_the_page_of_gradients_is_what_the_registry_prints() -> None:
    written = (REPOSITORY / "docs" / "gradients.md").read_text()
    assert written == page(), "run: python -m autocast.training.gradients > docs/gradients.md"
