"""The only package that spells names which depend on TVM's version: typed views of expressions and modules."""

from autocast.ir.views import (
    FLOATS,
    ConstantExpr,
    dtype_of,
    identity,
    is_constant,
    is_op,
    is_static_type,
    is_tensor,
    number_of,
    op_name,
    relax_functions,
    same_shape,
    shape_of,
    static_shape,
)

__all__ = [
    "FLOATS",
    "ConstantExpr",
    "dtype_of",
    "identity",
    "is_constant",
    "is_op",
    "is_static_type",
    "is_tensor",
    "number_of",
    "op_name",
    "relax_functions",
    "same_shape",
    "shape_of",
    "static_shape",
]
