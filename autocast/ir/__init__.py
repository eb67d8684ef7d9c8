"""Typed views of expressions and modules: the only place that spells what depends on TVM's version."""

from autocast.ir.copies import with_new_variables
from autocast.ir.failures import in_phase
from autocast.ir.first_order import first_order
from autocast.ir.groups import is_tir_group
from autocast.ir.inferred import hides_dtype, lacks_dtype, with_inferred_types
from autocast.ir.layouts import with_plain_layouts
from autocast.ir.literals import fits, out_of_range
from autocast.ir.places import Place, PlacedBuilder, place_of, whereabouts
from autocast.ir.reading import Bound, Reading
from autocast.ir.views import (
    ALIGNMENT,
    FLOATS,
    ConstantExpr,
    all_bindings,
    dims,
    dtype_of,
    identity,
    is_constant,
    is_op,
    is_static_type,
    is_tensor,
    items,
    main_of,
    number_of,
    op_name,
    parts_of,
    permutation,
    relax_functions,
    same_shape,
    shape_in,
    shape_of,
    static_shape,
    storage,
    with_captured,
    with_functions,
)
from autocast.ir.well_formed import check_well_formed
from autocast.ir.written_out import write_out_literals

__all__ = [
    "ALIGNMENT",
    "FLOATS",
    "Bound",
    "ConstantExpr",
    "Place",
    "PlacedBuilder",
    "Reading",
    "all_bindings",
    "check_well_formed",
    "dims",
    "dtype_of",
    "first_order",
    "fits",
    "hides_dtype",
    "identity",
    "in_phase",
    "is_constant",
    "is_op",
    "is_static_type",
    "is_tensor",
    "is_tir_group",
    "items",
    "lacks_dtype",
    "main_of",
    "number_of",
    "op_name",
    "out_of_range",
    "parts_of",
    "permutation",
    "place_of",
    "relax_functions",
    "same_shape",
    "shape_in",
    "shape_of",
    "static_shape",
    "storage",
    "whereabouts",
    "with_captured",
    "with_functions",
    "with_inferred_types",
    "with_new_variables",
    "with_plain_layouts",
    "write_out_literals",
]
