"""Names of operators, as people spell them."""

from __future__ import annotations

import pytest

import autocast  # noqa: F401, as it registers the operators that compute gradients
from type_hints import UnknownOperatorError, normalize_op_name
from type_hints.names import relax_op_names
from type_hints.raf_names import RAF_NAMES, WITHOUT_OPERATOR


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
        ("raf.op.dense", "relax.matmul"),
        ("batch_matmul_nt", "relax.matmul"),
        ("raf.op.transpose", "relax.permute_dims"),
        ("concatenate", "relax.concat"),
        ("raf.op.cast", "relax.astype"),
        ("raf.op.layer_norm_train_dx", "relax.grad.layer_norm_backward"),
    ],
)
def test_spellings_of_one_operator(spelling, name):
    assert normalize_op_name(spelling) == name


#: The names of RAF's casting rules that Relax has, too, which the tables of RAF's names leave out.
SHARED = """
abs adaptive_avg_pool2d add arange argmax argmin argsort atan avg_pool2d batch_flatten bias_add broadcast_to ceil clip
collapse_sum_like conv2d conv2d_transpose cos cross_entropy cumsum divide equal erf exp expand_dims floor floor_divide
full full_like gather_nd gelu get_valid_counts greater greater_equal layer_norm left_shift less less_equal log
log_softmax logical_and logical_not logical_or logical_xor matmul max max_pool2d maximum mean min minimum mod multiply
negative nll_loss non_max_suppression not_equal one_hot ones ones_like pad power prod relu repeat reshape resize2d
reverse_sequence right_shift roi_align round rsqrt sigmoid sign sin size softmax sort split sqrt squeeze stack
strided_slice subtract sum take tanh topk trunc where zeros zeros_like
"""


def test_every_operator_of_raf_is_one_here_or_a_sentence_says_why_not():
    shared = SHARED.split()
    assert len({*shared, *RAF_NAMES, *WITHOUT_OPERATOR}) == len(shared) + len(RAF_NAMES) + len(WITHOUT_OPERATOR) == 181
    known = {*relax_op_names(), "relax.bias_add"}
    for name in (*shared, *RAF_NAMES):
        assert normalize_op_name(f"raf.op.{name}") in known
    for name, why in WITHOUT_OPERATOR.items():
        with pytest.raises(UnknownOperatorError) as error:
            normalize_op_name(f"raf.op.{name}")
        assert str(error.value) == f"operator 'raf.op.{name}' of RAF is none here: {why}"


def test_what_raf_calls_an_operator_is_none_of_relax():
    with pytest.raises(UnknownOperatorError, match=r"'relax\.dense' is not known"):
        normalize_op_name("relax.dense")


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
