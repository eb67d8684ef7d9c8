"""The registry: complete, with reasons, and hard to misuse."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import tvm

import type_hints
from autocast.operators.own import OPERATORS
from type_hints import CastingRuleError, UnknownOperatorError, follow, full, low
from type_hints.names import DERIVED_TENSORS, relax_op_names

REPOSITORY = Path(__file__).resolve().parents[2]
CLASSES = {"low", "full", "follow", "untouched", "cast", "opaque"}


def test_every_relax_operator_of_tvm_has_a_row():
    rows = {row.name for row in type_hints.list_rules()}
    assert [name for name in relax_op_names() if name not in rows] == []


def test_every_row_is_an_operator_of_tvm_or_a_derived_one():
    known = {*relax_op_names(), *DERIVED_TENSORS}
    assert [row.name for row in type_hints.list_rules() if row.name not in known] == []


def test_every_operator_of_our_own_has_a_row():
    assert [name for name in OPERATORS if type_hints.get_row(name) is None] == []


def tables() -> list[type_hints.Row]:
    """The rows of the tables, without those that tests of other things registered."""
    return [row for row in type_hints.list_rules() if row.family != "custom"]


def test_every_row_has_a_reason_and_a_class():
    for row in tables():
        assert len(row.why) > 10 and row.why == row.why.strip(), row
        assert row.label in CLASSES, row


def test_run_time_and_memory_operators_are_opaque():
    for row in type_hints.list_rules():
        namespace = row.name.split(".")[1]
        if namespace in ("vm", "memory", "builtin", "ccl", "dist", "inspect"):
            assert row.label == "opaque", row


def test_matrix_products_convolutions_attention_and_recurrences_are_the_low_ones():
    by_family = Counter(row.family for row in tables() if row.label == "low")
    assert by_family == {
        "products": 3,
        "convolutions": 6,
        "attention": 3,
        "recurrent": 6,
        "gradients": 4,
        "losses": 1,
    }


@pytest.mark.parametrize("name", ["exp", "log", "rsqrt", "softmax", "layer_norm", "nll_loss", "cumsum", "sum", "erf"])
def test_dangerous_operators_are_float32(name):
    assert type_hints.get_row(name).label == "full"


@pytest.mark.parametrize(
    "name", ["reshape", "concat", "take", "add", "multiply", "relu", "gelu", "max_pool2d", "where"]
)
def test_cheap_operators_follow(name):
    assert type_hints.get_row(name).label == "follow"


def test_an_operator_without_a_row_has_no_rule_rather_than_a_default():
    assert type_hints.get_rule("relax.nn.not_an_operator") is None
    assert type_hints.get_row("relax.nn.not_an_operator") is None


def test_get_rule_accepts_every_spelling():
    rule = type_hints.get_rule("relax.nn.softmax")
    for spelling in ("nn.softmax", "softmax", "autocast.op.softmax", "raf.op.softmax"):
        assert type_hints.get_rule(spelling) is rule


@pytest.fixture
def restored_registry(monkeypatch):
    monkeypatch.setattr(type_hints.registry, "_rows", dict(type_hints.registry._rows))


def test_a_registered_rule_is_found_with_its_reason(restored_registry):
    name = "relax.type_hints_test.registered"
    tvm.ir.register_op_attr(name, "FPurity", True)
    assert type_hints.get_rule(name) is None
    rule = follow(1)
    type_hints.register_op_cast_rule(name, rule, why="moves data only")
    assert type_hints.get_rule(name) is rule
    assert type_hints.get_row(name) == type_hints.Row(name, rule, "moves data only", "custom")


def test_registering_a_second_rule_needs_to_say_so(restored_registry):
    with pytest.raises(CastingRuleError, match=r"relax\.exp: full .* is registered already; pass override=True"):
        type_hints.register_op_cast_rule("relax.exp", follow(1), why="an experiment")
    type_hints.register_op_cast_rule("relax.exp", follow(1), why="an experiment", override=True)
    assert type_hints.get_row("relax.exp").label == "follow"


def test_registering_an_unknown_operator_names_the_nearest():
    with pytest.raises(UnknownOperatorError, match=r"'relax\.nn\.sofmax' is not known; nearest: relax\.nn\.softmax"):
        type_hints.register_op_cast_rule("relax.nn.sofmax", follow(1), why="a typing error")


def test_a_rule_that_is_not_callable_is_refused():
    with pytest.raises(CastingRuleError, match=r"expected a callable rule\(args, ret_type, amp_dtype\)"):
        type_hints.register_op_cast_rule("relax.exp", "float32", why="not a rule", override=True)


def test_rows_of_tables_name_tensors_of_their_operators_alone():
    declared = ((row, type_hints.tensor_arguments(row.name)) for row in type_hints.list_rules())
    for row, tensors in declared:
        if tensors is not None:
            type_hints.check_named_arguments("the tables", row.name, row.rule, tensors)


def test_a_rule_that_names_more_arguments_than_the_operator_has_is_refused():
    with pytest.raises(
        CastingRuleError, match=r"names the arguments 0, 1 .* relax.nn.gelu takes 1 tensor \(0: x\); try full"
    ):
        type_hints.register_op_cast_rule("gelu", full(2), why="a typing error", override=True)
    assert type_hints.get_row("gelu").label == "follow"


@pytest.mark.parametrize("why", ["", "  ", 3])
def test_a_rule_with_an_empty_reason_is_refused(why):
    with pytest.raises(CastingRuleError, match="expected the reason"):
        type_hints.register_op_cast_rule("relax.exp", full(1), why=why, override=True)


def test_the_reason_of_a_rule_without_one_is_the_line_that_registers_it(monkeypatch):
    monkeypatch.setattr(type_hints.registry, "_rows", dict(type_hints.registry._rows))
    line = sys._getframe().f_lineno + 1
    type_hints.register_op_cast_rule("relax.exp", full(1), override=True)
    assert type_hints.get_row("exp").why == f"registered at {__file__}:{line}"


def test_an_operator_in_two_tables_is_refused():
    with pytest.raises(CastingRuleError, match=r"relax\.matmul has a row in products and another in twice"):
        type_hints.registry.register_family("twice", [type_hints.rule("relax.matmul", low(2), why="again")])


def test_the_rules_print_as_an_aligned_table():
    lines = str(type_hints.list_rules()).splitlines()
    assert lines[0].split() == ["operator", "class", "family", "why"]
    assert len(lines) == 1 + len(type_hints.list_rules())
    column = lines[0].index("class")
    assert all(line[column - 1] == " " and line[column] != " " for line in lines)


def test_the_page_of_operators_is_what_the_registry_prints():
    page = (REPOSITORY / "docs" / "operators.md").read_text()
    printed = subprocess.run(
        [sys.executable, "-m", "type_hints", "--markdown"], cwd=REPOSITORY, capture_output=True, text=True, check=True
    ).stdout
    assert page == printed, "run: python -m type_hints --markdown > docs/operators.md"


def test_type_hints_does_not_import_autocast():
    code = "import sys, type_hints; sys.exit(any(name.split('.')[0] == 'autocast' for name in sys.modules))"
    subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, check=True)
