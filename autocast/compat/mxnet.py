"""MXNet's mixed precision (`mxnet.amp` 2.0), in its words: a block is a torch module or a Model, a symbol an IRModule.

Its framework's default lists are our rules, with MXNet's operators of several inputs: these take the widest dtype among
them, and only what is narrower is cast. Source: MXNet's pull request 20753.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import tvm

import type_hints
from autocast import amp
from autocast.compat.names import check_device, operators_of, table, translated
from autocast.errors import InputError, PolicyError
from autocast.frontend import from_relax, with_dtypes
from autocast.ir import all_bindings, place_of, relax_functions
from autocast.model import Model
from autocast.passes.store_parameters import store_signature
from autocast.policy import Policy
from autocast.policy.patterns import with_parents

__all__ = ["convert_hybrid_block", "convert_model", "convert_symbol"]

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


def convert_hybrid_block(
    block: Any,
    data_example: Any,
    target_dtype: Any = "float16",
    target_dtype_ops: Names = None,
    fp32_ops: Names = None,
    conditional_fp32_ops: Conditions = None,
    excluded_sym_names: Iterable[str] = (),
    device: object = "cpu",
    cast_params_offline: bool = False,
) -> Model:
    """A block in mixed precision.

    Parameters
    ----------
    block : torch.nn.Module or Model
        It is taken as it stands: `block.eval()` to infer.
    data_example : torch.Tensor, or a sequence of them
        Example inputs, from which all types follow.
    target_dtype : str
        "float16" or "bfloat16".
    target_dtype_ops : iterable of str, optional
        The operators that are in `target_dtype`, by MXNet's names or ours, in place of the default list: others that
        multiply matrices keep float32. None: the default list.
    fp32_ops : iterable of str, optional
        Operators in float32, besides those that the rules have.
    conditional_fp32_ops : sequence of (str, str, sequence), optional
        (operator, attribute, values): float32 where the attribute has one of the values.
    excluded_sym_names : iterable of str
        What keeps float32: paths of torch modules (a symbol's name is its layer's), names of results or of parameters.
    device
        "cpu".
    cast_params_offline : bool
        Store parameters in `target_dtype` where that is all that is read of them.

    Raises
    ------
    UnsupportedError
        `device` is not the CPU.
    PolicyError
        An operator, or the value of its attribute, is not known; or two lists contradict each other.
    InputError
        The example does not fit a Model.
    """
    check_device(device, "device")
    examples = tuple(data_example) if isinstance(data_example, Sequence) else (data_example,)
    if isinstance(block, Model):
        model = block
        _check_example(model, examples)
    else:
        from autocast.frontend import from_torch

        model = from_torch(block, examples)
    policy = _policy(
        model.mod,
        target_dtype,
        target_dtype_ops,
        fp32_ops,
        conditional_fp32_ops,
        excluded_sym_names,
        cast_params_offline,
    )
    return amp.autocast(model, policy=policy)


def convert_model(
    sym: tvm.IRModule,
    arg_params: Mapping[str, Any],
    aux_params: Mapping[str, Any],
    input_dtypes: Mapping[str, Any],
    target_dtype: Any = "float16",
    target_dtype_ops: Names = None,
    fp32_ops: Names = None,
    conditional_fp32_ops: Conditions = None,
    excluded_sym_names: Iterable[str] = (),
    cast_params_offline: bool = False,
) -> tuple[tvm.IRModule, dict[str, tvm.runtime.Tensor], dict[str, tvm.runtime.Tensor]]:
    """A symbol and its parameters in mixed precision.

    Parameters
    ----------
    sym : tvm.IRModule
        Its `main` takes inputs, then parameters; tensors in it may have no dtype.
    arg_params, aux_params : mapping of str to array
        The values of main's parameters: what learns, and statistics.
    input_dtypes : mapping of str to str
        The dtypes of the inputs.

    The others are as in `convert_hybrid_block`.

    Returns
    -------
    sym, arg_params, aux_params

    Raises
    ------
    ImportModelError
        The dtypes are incomplete or disagree with the module's, or the values do not fit.
    """
    values = {**arg_params, **aux_params}
    param_dtypes = {name: value.dtype for name, value in values.items()}
    model = from_relax(_typed(sym, input_dtypes, param_dtypes), values)
    policy = _policy(
        model.mod,
        target_dtype,
        target_dtype_ops,
        fp32_ops,
        conditional_fp32_ops,
        excluded_sym_names,
        cast_params_offline,
    )
    converted = amp.autocast(model, policy=policy)
    args, auxiliary = ({name: converted.params[name] for name in group} for group in (arg_params, aux_params))
    return converted.mod, args, auxiliary


def convert_symbol(
    sym: tvm.IRModule,
    input_dtypes: Mapping[str, Any],
    param_dtypes: Mapping[str, Any],
    target_dtype: Any = "float16",
    target_dtype_ops: Names = None,
    fp32_ops: Names = None,
    conditional_fp32_ops: Conditions = None,
    excluded_sym_names: Iterable[str] = (),
    cast_params_offline: bool = False,
) -> tvm.IRModule:
    """A symbol in mixed precision, of which only types are known.

    Parameters
    ----------
    sym : tvm.IRModule
        Its `main` takes inputs and parameters, in any order; tensors in it may have no dtype.
    input_dtypes, param_dtypes : mapping of str to str
        The dtypes of main's inputs, and of its parameters.
    cast_params_offline : bool
        Take parameters in `target_dtype` where that is all that is read of them; the caller casts their values.

    The others are as in `convert_hybrid_block`, the errors as in `convert_model`.
    """
    mod = _typed(sym, input_dtypes, param_dtypes)
    policy = _policy(
        mod, target_dtype, target_dtype_ops, fp32_ops, conditional_fp32_ops, excluded_sym_names, cast_params_offline
    )
    converted = amp.autocast(mod, policy=policy)
    return store_signature(converted, policy.dtype, param_dtypes)[0] if cast_params_offline else converted


def _policy(
    mod: tvm.IRModule,
    target_dtype: Any,
    target_dtype_ops: Names,
    fp32_ops: Names,
    conditional_fp32_ops: Conditions,
    excluded_sym_names: Iterable[str],
    cast_params_offline: bool,
) -> Policy:
    """The policy that MXNet's arguments are for one module."""
    called = operators_of(mod)
    low = translated(target_dtype_ops, OPERATORS, called)
    wide = list(translated(fp32_ops, OPERATORS, called))
    conditions: list[tuple[str, str, tuple[Any, ...]]] = []
    for operator, attribute, values in conditional_fp32_ops or ():
        if (operator, attribute) in VARIANTS:
            wide += translated(_variants(operator, attribute, values), {}, called)
        else:
            ours = translated((operator,), OPERATORS, called)
            conditions += [(each, attribute, tuple(values)) for each in ours]
    said = {*low, *wide, *(operator for operator, _, _ in conditions)}
    if target_dtype_ops is not None:  # in place of the default list
        wide += sorted(name for name in called - said if _is_low_by_default(name))
    modules = _module_paths(mod)
    excluded = tuple(excluded_sym_names)
    return Policy(
        dtype=target_dtype,
        # The rules make these low already, and leave open in which precision their results are stored.
        low_ops=tuple(name for name in low if name in wide or not _is_low_by_default(name)),
        float32_ops=tuple(wide),
        conditional_float32_ops=tuple(conditions),
        widest_ops=tuple(name for name in WIDEST if name in called - said),
        float32_regions=tuple(name for name in excluded if name in modules),
        float32_names=tuple(name for name in excluded if name not in modules),
        parameters="offline" if cast_params_offline else "float32",
    )


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


def _typed(sym: tvm.IRModule, input_dtypes: Mapping[str, Any], param_dtypes: Mapping[str, Any]) -> tvm.IRModule:
    return with_dtypes(sym, {name: _dtype(dtype) for name, dtype in {**input_dtypes, **param_dtypes}.items()})


def _dtype(dtype: Any) -> str:
    """The name of a dtype of numpy, torch, ml_dtypes or TVM."""
    text = str(dtype).removeprefix("torch.")
    return np.dtype(dtype).name if isinstance(dtype, type) else text


def _check_example(model: Model, examples: tuple[Any, ...]) -> None:
    expected = [str(var.ty.dtype) for var in model.main.params[: model.num_input]]
    got = [_dtype(example.dtype) for example in examples]
    if got != expected:
        raise InputError(f"convert_hybrid_block: data_example has the dtypes {got}, expected {expected}")
