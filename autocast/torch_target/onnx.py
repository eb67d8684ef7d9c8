"""A model as an ONNX file: torch's exporter over the torch module, with casts, parameters and names as they are."""

from __future__ import annotations

import importlib.util
import logging
import math
import operator
import os
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import fx
from tvm import tirx
from tvm.ir import TupleType

from autocast.errors import ArtifactError, UnsupportedError
from autocast.ir import all_bindings, dims
from autocast.ir.agreeing import sizes_in
from autocast.kernels.phases.integers import multiply_integers
from autocast.messages import beginning, check_value, checked_path, is_count
from autocast.model.value import Model
from autocast.torch_target.asked import torch_dtype
from autocast.torch_target.convert import check_model, to_torch
from autocast.torch_target.onnx_arithmetic import arithmetic_forms
from autocast.torch_target.onnx_boxes import box_forms
from autocast.torch_target.onnx_file import check_low, tidy, write
from autocast.torch_target.onnx_loops import loop_forms
from autocast.torch_target.onnx_operators import operators_read_once
from autocast.torch_target.onnx_pooling import pooling_forms
from autocast.torch_target.onnx_recurrent import recurrent_forms
from autocast.torch_target.onnx_searching import searching_forms
from autocast.torch_target.parts import has_tensors_alone
from autocast.torch_target.sizes import Sizes

#: The first version in which convolutions take bfloat16.
OPSET = 22

#: The first version that torch's exporter writes.
OLDEST = 18


def to_onnx(model: Model, path: str | os.PathLike[str], *, opset: int = OPSET, exact: bool = False) -> Path:
    """Write a model to an ONNX file, with a Cast node for each of its casts.

    Parameters
    ----------
    model : Model
        As it was imported, or with casts.
    path : path
        The folders above it are made if they are missing; the file is whole or is not there. Weights of more than 2 GB
        are in a file beside it, `<name>.<random>.data`, which replaces that of an earlier file of this name.
    opset : int
        The version of ONNX's operators, 18 or more; bfloat16 convolutions need 22.
    exact : bool
        Products of 16 bits whose result is float32 are computed in float32, as our kernels do. False leaves them to
        whoever runs the file: a product in 16 bits, which accelerators accumulate in float32 and round once.

    Returns
    -------
    pathlib.Path
        The file. Inputs, outputs, parameters and dynamic dimensions have the model's names; outputs that have none
        there are `output`, or `output_0` and so on, and one that has an input's is `sample_out`.

    Raises
    ------
    UnsupportedError
        The extra `onnx` is not installed; a call of the model replaces parameters, as ONNX has no state; or some
        operators have no form in torch, or none in ONNX: all of them, with counts.
    ArtifactError
        The file cannot be written.
    """
    path = checked_path("to_onnx", path, ArtifactError)
    _check(model, opset)
    program = _exported(model, opset, exact)
    check_low(program.graph, opset, OPSET)
    tidy(program, set(model.params), _output_names(model))
    try:
        write(program, path)
    except OSError as error:
        raise ArtifactError(
            f"to_onnx: {path} cannot be written: {error.strerror or error}. Expected a folder with room for the file "
            "that this process may write to; nothing was changed. Try another path"
        ) from error
    return path


def _check(model: Model, opset: int) -> None:
    missing = [name for name in ("onnx", "onnxscript") if importlib.util.find_spec(name) is None]
    if missing:
        raise UnsupportedError(
            f"to_onnx: {' and '.join(missing)} is not installed, which torch's exporter needs. Try pip install "
            "'relax-autocast[onnx]'"
        )
    import onnx

    check_model("to_onnx", model)
    newest = onnx.defs.onnx_opset_version()
    legal = f"{OLDEST} to {newest}, the newest that the package onnx {onnx.__version__} has"
    check_value("to_onnx", "opset", opset, lambda n: is_count(n, OLDEST) and n <= newest, UnsupportedError, legal)
    for what, types in (("takes", [var.ty for var in model.main.params]), ("returns", [model.main.ty.ret])):
        other = next((type for type in types if not has_tensors_alone(type)), None)
        if other is not None:
            raise UnsupportedError(
                f"to_onnx: the model {what} a {other}, expected tensors: ONNX has no other values. Return the sizes as "
                "a tensor, or compile the model: autocast.compile"
            )
    if not _num_tensors(model):
        raise UnsupportedError(
            "to_onnx: the model returns nothing, expected a tensor or several: runtimes load no file without results. "
            "Return a result"
        )
    if model.written:
        raise UnsupportedError(
            f"to_onnx: a call of the model writes into its inputs ({', '.join(model.written)}), and ONNX has nothing "
            "that does; expected a model that only computes. Return the new values in the torch module instead"
        )
    if model.updated:
        raise UnsupportedError(
            f"to_onnx: a call of the model replaces {len(model.updated)} parameters ({', '.join(model.updated[:3])}"
            f"{', ...' if len(model.updated) > 3 else ''}), and ONNX has no state; expected a model that only "
            "computes. Import the torch module in evaluation mode, module.eval(), or, where it changes them then, too, "
            "take and return them as tensors"
        )


#: What takes a number in the place of a tensor.
_ARITHMETIC = (operator.add, operator.sub, operator.mul, operator.truediv, operator.pow)

#: Examples have the smallest sizes that there may be, or multiples of what networks of images halve five times.
_STEPS = (1, 32)


def _exported(model: Model, opset: int, exact: bool) -> Any:
    """What torch's exporter makes of a model: onnx_ir's Model."""
    # Runtimes convolve float32 alone.
    module = to_torch(model.replace(mod=multiply_integers(model.mod, ["float32"])), exact=exact)
    _keep_digits(module)
    varies = any(_varies(size) for var in model.main.params[: model.num_input] for size in dims(var))
    refusals: list[UnsupportedError] = []
    choices = [_sizes(model, step) for step in (_STEPS if varies else _STEPS[:1])]
    for sizes in sorted(choices, key=lambda sizes: _constants(model, sizes)):
        examples, dynamic = _examples(model, sizes)
        with _quiet(), operators_read_once():
            try:
                return torch.onnx.export(
                    module,
                    examples,
                    dynamic_shapes=dynamic,
                    input_names=list(model.input_names),
                    opset_version=opset,
                    custom_translation_table=_forms(),
                    dynamo=True,
                    optimize=False,  # it computes the casts of parameters, which lose their names
                    verbose=False,
                ).model
            except Exception as error:
                refusal = UnsupportedError(_refusal(module, examples, dynamic, opset, error))
                refusal.__cause__ = error
                refusals.append(refusal)
    raise refusals[0]


def _keep_digits(module: fx.GraphModule) -> None:
    """Write numbers that float32 does not have as tensors: the exporter rounds those that it finds in the code."""
    found = [
        (node, number)
        for node in module.graph.nodes
        if node.target in _ARITHMETIC
        for number in node.args
        if type(number) is float and math.isfinite(number) and float(np.float32(number)) != number
    ]
    for place, (node, number) in enumerate(found):
        name = f"float64_{place}"
        module.register_buffer(name, torch.tensor(number, dtype=torch.float64), persistent=False)
        with module.graph.inserting_before(node):
            exact = module.graph.get_attr(name)
        node.args = tuple(exact if one is number else one for one in node.args)
    if found:
        module.recompile()


def _forms() -> dict[Any, Callable[..., Any]]:
    """What torch's exporter lacks, in ONNX."""
    from onnxscript import opset18

    op: Any = opset18

    def conv3d(
        x: Any,
        weight: Any,
        bias: Any = None,
        stride: Sequence[int] = (1, 1, 1),
        padding: Sequence[int] = (0, 0, 0),
        dilation: Sequence[int] = (1, 1, 1),
        groups: int = 1,
    ) -> Any:  # the exporter's own adds zeros of a wrong shape where there is no bias
        operands = [x, weight] if bias is None else [x, weight, bias]
        return op.Conv(*operands, strides=stride, pads=[*padding, *padding], dilations=dilation, group=groups)

    return {
        torch.ops.aten.conv3d.default: conv3d,
        **arithmetic_forms(op),
        **box_forms(op),
        **pooling_forms(op),
        **recurrent_forms(op),
        **searching_forms(op),
        **loop_forms(),
    }


def _output_names(model: Model) -> list[str]:
    taken = {*model.input_names, *model.params}
    if model.output_names:
        names = []
        for name in model.output_names[: model.num_results]:
            while name in taken:  # a module may return what it takes under one name; values of a file are others
                name = f"{name}_out"
            taken.add(name)
            names.append(name)
        return names
    free = (name for name in (f"output_{i}" for i in count()) if name not in taken)
    if (number := _num_tensors(model)) == 1 and "output" not in taken:
        return ["output"]
    return [next(free) for _ in range(number)]


def _num_tensors(model: Model) -> int:
    """How many tensors are in the results, in nested tuples, too."""
    others = len(model.written) + len(model.updated)

    def count_in(type: Any) -> int:
        return sum(map(count_in, type.fields)) if isinstance(type, TupleType) else 1

    return count_in(model.main.ret_ty) - others


def _sizes(model: Model, step: int) -> dict[tirx.Var, int]:
    """Sizes that vary as different multiples of `step`, none of them 1: torch takes equal ones for one size."""
    attrs = model.main.attrs
    inputs = model.main.params[: model.num_input]
    lower, upper = (attrs.get(f"tir_var_{side}_bound", {}) for side in ("lower", "upper"))
    taken = {int(size) for var in inputs for size in dims(var) if isinstance(size, tirx.IntImm)} | {1}
    values: dict[tirx.Var, int] = {}
    for size in (size for var in inputs for size in dims(var) if isinstance(size, tirx.Var)):
        if size not in values:
            least, most = int(lower.get(size.name, 1)), int(upper.get(size.name, 2**31))
            first = -(-max(least, 2 * step) // step) * step
            candidates = range(first, min(most, first + 64 * step) + 1, step)
            values[size] = next((n for n in candidates if n not in taken), most)
            taken.add(values[size])
    return values


def _constants(model: Model, values: dict[tirx.Var, int]) -> int:
    """How many of the sizes that are computed of others are 0 or 1, which torch may take for what they always are."""
    types = (binding.var.ty for binding in all_bindings(model.main.body))
    varying = {size for type_ in types for size in sizes_in(type_) if _varies(size)}
    known = (size for size in varying if values.keys() >= set(tirx.analysis.undefined_vars(size)))
    number = Sizes(values)
    return sum(number((size,))[0] in (0, 1) for size in known)


def _examples(model: Model, values: dict[tirx.Var, int]) -> tuple[tuple[torch.Tensor, ...], tuple[dict[int, Any], ...]]:
    """Inputs to export with, and the names of those axes of each input that vary."""
    inputs = model.main.params[: model.num_input]
    sizes = Sizes(values)
    tensors = tuple(torch.zeros(sizes(dims(var)), dtype=torch_dtype(str(var.ty.dtype))) for var in inputs)
    return tensors, tuple({axis: _axis(size) for axis, size in enumerate(dims(var)) if _varies(size)} for var in inputs)


def _varies(size: Any) -> bool:
    return not isinstance(size, int | tirx.IntImm)


def _axis(size: Any) -> Any:
    """The name of a size that varies; what is computed of others has none."""
    return str(size.name) if isinstance(size, tirx.Var) else torch.export.Dim.DYNAMIC


def _refusal(module: torch.nn.Module, examples: Any, dynamic: Any, opset: int, error: Exception) -> str:
    """Why the exporter did not make a file: all operators that it lacks, with counts, or what it says."""
    unknown = _without_form(module, examples, dynamic, opset)
    if unknown:
        listed = ", ".join(f"{name} ({count})" for name, count in sorted(unknown.items()))
        return (
            f"to_onnx: these have no form in ONNX's opset {opset}: {listed}. Expected operators that torch's exporter "
            "knows. Try another opset, or write the model without them"
        )
    cause: BaseException = error
    while cause.__cause__ is not None:
        cause = cause.__cause__
    said = beginning(cause).rstrip(".") or type(cause).__name__
    return f"to_onnx: torch's exporter refuses the model for opset {opset}: {said}. Try another opset"


def _without_form(module: torch.nn.Module, examples: Any, dynamic: Any, opset: int) -> Counter[str]:
    """The operators that the exporter has no ONNX form of; it names the first one only, so its own table is asked."""
    from torch.onnx._internal.exporter import _core, _dispatching, _registration

    shapes = [
        {axis: torch.export.Dim.DYNAMIC if isinstance(size, str) else size for axis, size in axes.items()}
        for axes in dynamic
    ]
    unknown: Counter[str] = Counter()
    ours = _forms()
    try:
        exported = torch.export.export(module, examples, dynamic_shapes=tuple(shapes))
        registry = _registration.ONNXRegistry.from_torchlib(opset_version=opset)
        prepared = _core._prepare_exported_program_for_export(exported, registry=registry)
    except Exception:
        return unknown
    for node in prepared.graph.nodes:
        if node.op == "call_function" and getattr(node.target, "__module__", "") != "_operator":
            known, _ = _dispatching.dispatch(node, registry)
            unknown[str(node.target)] += known is None and node.target not in ours
    return +unknown


@contextmanager
def _quiet() -> Iterator[None]:
    """Without what the exporter says of packages that nobody asked for, and warns of itself."""
    log = logging.getLogger("torch.onnx")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.setLevel(level)
