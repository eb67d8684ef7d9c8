"""Conversion of what infers: a block is a torch module or a Model, a symbol an IRModule."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import tvm

from autocast import amp
from autocast.compat.mxnet.amp.lists import Conditions, Lists, Names
from autocast.compat.names import check_device
from autocast.errors import ImportModelError, InputError
from autocast.frontend import from_relax, with_dtypes
from autocast.messages import check_kind
from autocast.model import Model
from autocast.passes.store_parameters import store_signature
from autocast.policy.text import dtype_name


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
    data_example : torch.Tensor or numpy.ndarray, or a sequence of them
        Example inputs, from which all types follow.
    target_dtype : str, or dtype of numpy or torch
        float16 or bfloat16.
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
        import torch

        from autocast.frontend import from_torch

        tensors = [torch.from_numpy(each) if isinstance(each, np.ndarray) else each for each in examples]
        model = from_torch(block, tuple(tensors))
    lists = Lists(target_dtype_ops, fp32_ops, conditional_fp32_ops, excluded_sym_names)
    policy = lists.policy(model.mod, target_dtype, cast_params_offline)
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
    for what, given in (("arg_params", arg_params), ("aux_params", aux_params)):
        check_kind(
            f"convert_model: {what}", given, Mapping, ImportModelError, "arrays by their names, perhaps none: {}"
        )
    values = {**arg_params, **aux_params}
    param_dtypes = {name: value.dtype for name, value in values.items()}
    model = from_relax(_typed(sym, input_dtypes, param_dtypes), values)
    lists = Lists(target_dtype_ops, fp32_ops, conditional_fp32_ops, excluded_sym_names)
    policy = lists.policy(model.mod, target_dtype, cast_params_offline)
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
    lists = Lists(target_dtype_ops, fp32_ops, conditional_fp32_ops, excluded_sym_names)
    policy = lists.policy(mod, target_dtype, cast_params_offline)
    converted = amp.autocast(mod, policy=policy)
    return store_signature(converted, policy.dtype, param_dtypes)[0] if cast_params_offline else converted


def _typed(sym: tvm.IRModule, input_dtypes: Mapping[str, Any], param_dtypes: Mapping[str, Any]) -> tvm.IRModule:
    for what, given in (("input_dtypes", input_dtypes), ("param_dtypes", param_dtypes)):
        check_kind(f"convert_symbol: {what}", given, Mapping, ImportModelError, "dtypes by names, perhaps none: {}")
    return with_dtypes(sym, {name: dtype_name(dtype) for name, dtype in {**input_dtypes, **param_dtypes}.items()})


def _check_example(model: Model, examples: tuple[Any, ...]) -> None:
    expected = [str(var.ty.dtype) for var in model.main.params[: model.num_input]]
    got = [dtype_name(example.dtype) for example in examples]
    if got != expected:
        raise InputError(f"convert_hybrid_block: data_example has the dtypes {got}, expected {expected}")
