"""One casting rule for every operator, by family, each with its reason.

    from type_hints import follow, full, low, register_op_cast_rule
    register_op_cast_rule("relax.nn.foo", follow(1), why="moves data only")

`list_rules()` prints every rule; `CustomTypeHint` overrides some for a while. See docs/casting_rules.md.
"""

from __future__ import annotations

from type_hints import (
    attention,
    conversion,
    convolutions,
    creation,
    elementwise,
    gradients,
    indexing,
    layout,
    logic,
    losses,
    normalization,
    not_model_operators,
    pooling,
    products,
    recurrent,
    reductions,
    special,
    vision,
)
from type_hints.arguments import check_named_arguments, tensor_arguments
from type_hints.derived import DerivedCall, derived_name
from type_hints.errors import CastingRuleError, UnknownOperatorError
from type_hints.helpers import (
    CASTABLE,
    TableRule,
    cast,
    check_dtype,
    follow,
    full,
    gen_hint_helper,
    generic_cast,
    infer_cast,
    low,
    opaque,
    untouched,
)
from type_hints.hints import Argument, Hint, PrimType, Rule, TupleType, as_hint
from type_hints.names import normalize_op_name
from type_hints.overrides import CustomTypeHint, active_names
from type_hints.registry import (
    Row,
    RuleTable,
    get_row,
    get_rule,
    list_rules,
    register_family,
    register_op_cast_rule,
    rule,
    table_row,
)

__all__ = [
    "CASTABLE",
    "Argument",
    "CastingRuleError",
    "CustomTypeHint",
    "DerivedCall",
    "Hint",
    "PrimType",
    "Row",
    "Rule",
    "RuleTable",
    "TableRule",
    "TupleType",
    "UnknownOperatorError",
    "active_names",
    "as_hint",
    "cast",
    "check_dtype",
    "check_named_arguments",
    "derived_name",
    "follow",
    "full",
    "gen_hint_helper",
    "generic_cast",
    "get_row",
    "get_rule",
    "infer_cast",
    "list_rules",
    "low",
    "normalize_op_name",
    "opaque",
    "register_op_cast_rule",
    "rule",
    "table_row",
    "tensor_arguments",
    "untouched",
]

for _family in (
    products,
    convolutions,
    attention,
    recurrent,
    elementwise,
    reductions,
    special,
    normalization,
    losses,
    layout,
    indexing,
    creation,
    pooling,
    vision,
    gradients,
    logic,
    conversion,
    not_model_operators,
):
    register_family(_family.__name__.rpartition(".")[2], _family.RULES)
