"""Names of operators, as people spell them."""

from __future__ import annotations

import pytest

from type_hints import UnknownOperatorError, normalize_op_name
from type_hints.names import relax_op_names


@pytest.mark.parametrize(
    ("spelling", "name"),
    [
        ("relax.matmul", "relax.matmul"),
        ("matmul", "relax.matmul"),
        ("raf.op.matmul", "relax.matmul"),
        ("relax.op.matmul", "relax.matmul"),
        ("conv2d", "relax.nn.conv2d"),
        ("autocast.op.nn.conv2d", "relax.nn.conv2d"),
        ("image.resize2d", "relax.image.resize2d"),
        ("resize2d", "relax.image.resize2d"),
        ("bias_add", "relax.bias_add"),
        ("raf.op.bias_add", "relax.bias_add"),
    ],
)
def test_spellings_of_one_operator(spelling, name):
    assert normalize_op_name(spelling) == name


def test_every_full_name_means_itself():
    assert [name for name in relax_op_names() if normalize_op_name(name) != name] == []


def test_a_short_name_in_several_namespaces_lists_them():
    with pytest.raises(UnknownOperatorError, match=r"ambiguous: relax\.builtin\.alloc_tensor, relax\.memory\.al"):
        normalize_op_name("alloc_tensor")


@pytest.mark.parametrize(
    ("spelling", "nearest"),
    [("relax.nn.layernorm", "relax.nn.layer_norm"), ("mat_mul", "relax.matmul"), ("raf.op.gelu_", "relax.nn.gelu")],
)
def test_a_typing_error_lists_the_nearest_name_first(spelling, nearest):
    with pytest.raises(UnknownOperatorError, match=f"nearest: {nearest}"):
        normalize_op_name(spelling)


def test_a_name_like_no_other_says_where_all_names_are():
    with pytest.raises(UnknownOperatorError, match=r"nearest: none; type_hints.list_rules\(\) prints all names"):
        normalize_op_name("zzzzzzzzzzzz")


def test_a_name_that_is_not_a_string_is_refused():
    with pytest.raises(UnknownOperatorError, match="got int, expected a string"):
        normalize_op_name(3)
