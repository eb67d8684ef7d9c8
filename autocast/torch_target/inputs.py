"""What is wrong with the inputs of a module of `to_torch` is said before its first operator runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from tvm import relax, tirx

from autocast import ir
from autocast.errors import InputError
from autocast.model.value import IMPORTED_FROM
from autocast.runtime.signature import Input, Signature


def check_inputs(module: torch.nn.Module, main: relax.Function, names: Sequence[str]) -> None:
    """Let each eager call of a module be checked against the types of main's inputs, which have these `names` there.

    What is traced is not checked: it is no tensor of anybody's yet.
    """
    inputs = tuple(
        Input(name, str(var.ty.dtype), _sizes(name, ir.shape_of(var)))
        for name, var in zip(names, main.params, strict=False)
        if ir.is_tensor(var) and ir.shape_of(var) is not None
    )
    if len(inputs) == len(names):
        signature = Signature(inputs, {}, {}, {}, {}, IMPORTED_FROM in (main.attrs or {}))
        module.register_forward_pre_hook(partial(_check, signature), with_kwargs=True)


def _sizes(name: str, shape: Sequence[Any] | None) -> tuple[int | str, ...]:
    """Numbers, the names of sizes that vary, and of each that is computed one of its own: it may be any."""
    return tuple(
        int(size) if isinstance(size, int | tirx.IntImm) else size.name if isinstance(size, tirx.Var) else f"{name}_{i}"
        for i, size in enumerate(shape or ())
    )


def _check(signature: Signature, module: torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """What torch calls before the module's forward; InputError where that cannot take these inputs."""
    if torch.compiler.is_compiling():
        return
    given = signature.in_places(args, kwargs) if kwargs else args
    for spec, value in zip(signature.inputs, given, strict=False):
        if not isinstance(value, torch.Tensor):
            raise InputError(
                f"to_torch: input {spec.name} is a {type(value).__name__}, expected a torch tensor of {spec}. Try "
                f"torch.as_tensor({spec.name}, dtype=torch.{spec.dtype})"
            )
    if all(type(value) in (torch.Tensor, torch.nn.Parameter) for value in given):
        signature.bind(given)
