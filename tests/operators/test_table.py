"""The table of operators: one row for each, and every word in it means something to whoever reads it."""

from __future__ import annotations

import inspect

import pytest
from tvm import relax

from autocast.kernels.matching.functions import operation
from autocast.kernels.phases.channels_last.rules import BEHAVIOURS
from autocast.kernels.targets.cpu.vector.expression import FUNCTIONS
from autocast.operators import TABLE, Kind, OperatorRow, add_rows, is_kind, named, row_of
from type_hints import get_row
from type_hints.names import relax_op_names

X = relax.Var("x", relax.TensorType((4,), "float32"))


def test_every_operator_of_the_registry_has_a_row_and_every_row_an_operator() -> None:
    rows = {name: get_row(name) for name in relax_op_names()}
    registered = {name for name, row in rows.items() if row is None or row.family == "custom"}  # by other tests
    assert set(TABLE) - registered == set(relax_op_names()) - registered


def test_vector_functions_exist_and_take_the_operands_and_numbers_of_their_row() -> None:
    assert {row.vector for row in TABLE.values() if row.vector} <= set(FUNCTIONS)
    assert operation(relax.op.nn.leakyrelu(X, 0.25)) == (TABLE["relax.nn.leakyrelu"].vector, (X, 0.25))


def test_behaviours_under_channels_last_are_those_that_there_are() -> None:
    assert {row.channels_last for row in TABLE.values()} - {""} == set(BEHAVIOURS)


@pytest.mark.parametrize("row", [row for row in TABLE.values() if row.flops is not None], ids=lambda row: row.name)
def test_operations_are_counted_from_a_call_its_shapes_and_its_result(row: OperatorRow) -> None:
    assert len(inspect.signature(row.flops).parameters) == 3


def test_each_kind_says_what_its_operators_have_in_common() -> None:
    assert all(named(kind) or kind is Kind.DEFINED for kind in Kind)
    assert all(len(kind.value) > 8 for kind in Kind)


def test_a_row_is_asked_by_call() -> None:
    call = relax.op.nn.silu(X)
    assert row_of(call) is TABLE["relax.nn.silu"] and TABLE["relax.nn.silu"].vector == "silu"
    assert is_kind(call, Kind.ELEMENTWISE) and not is_kind(call, Kind.REDUCTION)
    assert row_of(X) is None and not is_kind(X, *Kind)


def test_an_operator_has_one_row() -> None:
    with pytest.raises(ValueError, match="has a row already"):
        add_rows([TABLE["relax.add"]])
