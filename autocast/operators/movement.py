"""Operators that move, make, order and find elements, and that change their dtype."""

from __future__ import annotations

from autocast.operators.row import Kind, rows

VIEWS = (
    *rows(Kind.VIEW, "expand_dims flatten squeeze"),
    *rows(Kind.VIEW, "reshape", channels_last="reshape"),
)

MOVES = (
    *rows(
        Kind.MOVE,
        """
        broadcast_to dynamic_strided_slice flip gather_elements gather_nd hint_on_device index_put index_tensor
        layout_transform meshgrid nn.batch_flatten nn.dropout nn.index_copy nn.pixel_shuffle nonzero repeat
        reverse_sequence scatter_elements scatter_nd slice_scatter stack take tile to_vdevice tril triu unique
        """,
    ),
    *rows(Kind.MOVE, "concat nn.pad split", channels_last="axis"),
    *rows(Kind.MOVE, "permute_dims", channels_last="permutation"),
    *rows(Kind.MOVE, "strided_slice", channels_last="slice"),
    *rows(Kind.MOVE, "where", vector="where", channels_last="elementwise"),
)

CREATION = rows(
    Kind.CREATION,
    """
    arange eye eye_like full full_like hamming_window null_value one_hot ones ones_like shape_of shape_to_tensor size
    tensor_to_shape zeros zeros_like
    """,
)

CASTS = (
    *rows(Kind.CAST, "astype", channels_last="elementwise"),
    *rows(Kind.CAST, "wrap_param"),
)

PLACES = (
    *rows(Kind.SORT, "argsort sort topk"),
    *rows(Kind.SEARCH, "argmax argmin bucketize"),
)

#: Numbers that stand for others: computed, for all that they are dtypes.
CODES = rows(Kind.SHORTHAND, "dequantize multinomial_from_uniform quantize")

ROWS = (*VIEWS, *MOVES, *CREATION, *CASTS, *PLACES, *CODES)
