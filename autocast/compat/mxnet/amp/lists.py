"""MXNet's lists of operators, as the policy that they are for a module."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import tvm

import type_hints
from autocast.compat.names import check_names, operators_of, table, translated
from autocast.errors import PolicyError
from autocast.ir import all_bindings, place_of, relax_functions
from autocast.messages import check_option
from autocast.policy import Policy
from autocast.policy.patterns import with_parents
from autocast.policy.text import dtype_name

#: MXNet's operators and ours.
OPERATORS = table("""
Convolution: nn.conv1d nn.conv2d nn.conv3d
Deconvolution: nn.conv1d_transpose nn.conv2d_transpose nn.conv3d_transpose
FullyConnected, dot, batch_dot, linalg_gemm2, RNN: matmul
BatchNorm: nn.batch_norm
LayerNorm: nn.layer_norm
GroupNorm: nn.group_norm
InstanceNorm: nn.instance_norm
softmax, SoftmaxActivation: nn.softmax
log_softmax: nn.log_softmax
Activation: nn.relu sigmoid tanh nn.softplus
LeakyReLU: nn.leakyrelu nn.prelu nn.selu nn.gelu nn.gelu_tanh
Pooling: nn.max_pool1d nn.max_pool2d nn.max_pool3d nn.avg_pool1d nn.avg_pool2d nn.avg_pool3d nn.adaptive_avg_pool2d
Dropout: nn.dropout nn.seeded_dropout
Embedding: take
Concat: concat
elemwise_add, broadcast_add, _plus: add
elemwise_sub, broadcast_sub, _minus: subtract
elemwise_mul, broadcast_mul, _mul: multiply
elemwise_div, broadcast_div, _div: divide
broadcast_maximum: maximum
broadcast_minimum: minimum
broadcast_power, _power: power
Flatten: flatten reshape
Reshape: reshape
transpose, SwapAxis: permute_dims
Pad: nn.pad
slice, slice_axis: strided_slice
relu: nn.relu
Cast, amp_cast: astype
""")

#: Operators of MXNet that are several of ours, told apart by an attribute: (operator, attribute) -> value -> ours.
VARIANTS = {
    ("Activation", "act_type"): table("relu: nn.relu\nsigmoid: sigmoid\ntanh: tanh\nsoftrelu: nn.softplus"),
    ("LeakyReLU", "act_type"): table("leaky: nn.leakyrelu\nprelu: nn.prelu\nselu: nn.selu\ngelu: nn.gelu nn.gelu_tanh"),
    ("Pooling", "pool_type"): table(
        "max: nn.max_pool1d nn.max_pool2d nn.max_pool3d\n"
        "avg: nn.avg_pool1d nn.avg_pool2d nn.avg_pool3d nn.adaptive_avg_pool2d"
    ),
}

#: Operators of several inputs, which take the widest dtype among them (MXNet's WIDEST_TYPE_CASTS).
WIDEST = ("add", "subtract", "multiply", "maximum", "minimum", "concat", "stack", "where")

Names = Iterable[str] | None
Conditions = Sequence[tuple[str, str, Sequence[object]]] | None


@dataclass(frozen=True)
class Lists:
    """MXNet's lists of operators and names, as `convert_hybrid_block` takes them."""

    target_dtype_ops: Names
    fp32_ops: Names
    conditional_fp32_ops: Conditions
    excluded_sym_names: Iterable[str]

    def __post_init__(self) -> None:
        for name in ("target_dtype_ops", "fp32_ops", "excluded_sym_names"):
            check_names(name, getattr(self, name))
        check_option(self, "conditional_fp32_ops", _are_conditions, PolicyError, "(operator, attribute, values), ...")

    def policy(self, mod: tvm.IRModule, dtype: Any, offline: bool) -> Policy:
        """The policy that the lists are for one module, with `dtype` as the low one."""
        called = operators_of(mod)
        low = translated(self.target_dtype_ops, OPERATORS, called)
        wide = list(translated(self.fp32_ops, OPERATORS, called))
        conditions: list[tuple[str, str, tuple[Any, ...]]] = []
        for operator, attribute, values in self.conditional_fp32_ops or ():
            if (operator, attribute) in VARIANTS:
                wide += translated(_variants(operator, attribute, values), {}, called)
            else:
                ours = translated((operator,), OPERATORS, called)
                conditions += [(each, attribute, tuple(values)) for each in ours]
        said = {*low, *wide, *(operator for operator, _, _ in conditions)}
        if self.target_dtype_ops is not None:  # in place of the default list
            wide += sorted(name for name in called - said if _is_low_by_default(name))
        modules = _module_paths(mod)
        excluded = tuple(self.excluded_sym_names)
        return Policy(
            dtype=dtype,
            # The rules make these low already, and leave open in which precision their results are stored.
            low_ops=tuple(name for name in low if name in wide or not _is_low_by_default(name)),
            float32_ops=tuple(wide),
            conditional_float32_ops=tuple(conditions),
            widest_ops=tuple(name for name in WIDEST if name in called - said),
            float32_regions=tuple(name for name in excluded if name in modules),
            float32_names=tuple(name for name in excluded if name not in modules),
            parameters="offline" if offline else "float32",
        )


def _are_conditions(conditions: Any) -> bool:
    return all(len(one) == 3 and isinstance(one[2], Iterable) for one in conditions or ())


def _variants(operator: str, attribute: str, values: Sequence[object]) -> list[str]:
    """Our operators for the values of an attribute of one of MXNet's."""
    known = VARIANTS[operator, attribute]
    if unknown := [value for value in values if value not in known]:
        raise PolicyError(
            f"conditional_fp32_ops: {operator} with {attribute} {unknown} is no operator here; expected some of "
            f"{', '.join(known)}"
        )
    return [ours for value in values for ours in known[str(value)]]


def _is_low_by_default(name: str) -> bool:
    row = type_hints.table_row(f"relax.{name}")
    return row is not None and row.label == "low"


def _module_paths(mod: tvm.IRModule) -> set[str]:
    """The paths of the torch modules that a module's values come from, and of those that contain them."""
    return {
        path
        for _, function in relax_functions(mod)
        for binding in all_bindings(function.body)
        for path in with_parents(place_of(binding.var).module)
    }


def _label(name: str) -> str:
    row = type_hints.table_row(f"relax.{name}")
    return "custom" if row is None else row.label


def _labels(operator: str) -> set[str]:
    return {_label(ours) for ours in OPERATORS[operator]}


def check_target(where: str, target_dtype: Any) -> None:
    if dtype_name(target_dtype) not in ("float16", "bfloat16"):
        raise PolicyError(
            f"{where}: got target_dtype={target_dtype!r}, expected 'float16' or 'bfloat16'; try 'float16', "
            "as the lists are the same for both"
        )


def list_lp16_ops(target_dtype: Any = "float16") -> list[str]:
    """MXNet's names of the operators that are in `target_dtype` by default.

    Raises
    ------
    PolicyError
        `target_dtype` is neither float16 nor bfloat16. So do the other lists.
    """
    check_target("list_lp16_ops", target_dtype)
    return [name for name in OPERATORS if _labels(name) == {"low"}]


def list_fp32_ops(target_dtype: Any = "float16") -> list[str]:
    """MXNet's names of the operators that are in float32 by default, whatever their attributes."""
    check_target("list_fp32_ops", target_dtype)
    return [name for name in OPERATORS if _labels(name) == {"full"}]


def list_conditional_fp32_ops(target_dtype: Any = "float16") -> list[tuple[str, str, list[str]]]:
    """(operator, attribute, values) of the operators that are in float32 by default for some values of an attribute."""
    check_target("list_conditional_fp32_ops", target_dtype)
    listed = []
    for (operator, attribute), values in VARIANTS.items():
        wide = [value for value, ours in values.items() if {_label(each) for each in ours} == {"full"}]
        if wide and operator not in list_fp32_ops(target_dtype):
            listed.append((operator, attribute, wide))
    return listed


def list_widest_type_cast(target_dtype: Any = "float16") -> list[str]:
    """MXNet's names of the operators of several inputs that take the widest dtype among these."""
    check_target("list_widest_type_cast", target_dtype)
    return [name for name, ours in OPERATORS.items() if set(ours) <= set(WIDEST)]


def list_lp16_fp32_ops(target_dtype: Any = "float16") -> list[str]:
    """MXNet's names of the operators that are in either dtype: those of the tables that are in no other list."""
    check_target("list_lp16_fp32_ops", target_dtype)
    conditional = [name for name, _, _ in list_conditional_fp32_ops(target_dtype)]
    others = {
        *list_lp16_ops(target_dtype),
        *list_fp32_ops(target_dtype),
        *list_widest_type_cast(target_dtype),
        *conditional,
    }
    return [name for name in OPERATORS if name not in others]
