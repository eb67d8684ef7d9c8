"""Import a PyTorch module."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
import tvm
from torch.export import ExportedProgram

from autocast.errors import FallbackWarning, ImportModelError
from autocast.frontend.checks import check_supported, listed
from autocast.frontend.converters import CONVERTERS, OF_PAIRS, TRUSTED
from autocast.frontend.decompose import Call, split
from autocast.frontend.exporting import Exported, check_module, export, exported_already
from autocast.frontend.fallback import call_torch
from autocast.frontend.importer import Importer
from autocast.frontend.normalize import normalize
from autocast.frontend.parameters import parameters
from autocast.frontend.randomness import RANDOM_STATE, random_state
from autocast.messages import warn
from autocast.model.value import Model

#: What may become of an operator that nothing here computes.
FALLBACKS = ("torch", "error")


def from_torch(
    module: torch.nn.Module | ExportedProgram,
    example_args: Sequence[Any] | None = None,
    *,
    example_kwargs: Mapping[str, Any] | None = None,
    dynamic: Mapping[str, Any] | None = None,
    seed: int = 0,
    fallback: str = "torch",
) -> Model:
    """Import a PyTorch module as it stands: `module.eval()` to infer, `module.train()` to train.

    Parameters
    ----------
    module : torch.nn.Module or torch.export.ExportedProgram
        Any module that torch.export can export, or what it made of one. Its dtypes (float32, bfloat16, float16) are
        kept. An exported program has its examples and dynamic dimensions already: it is imported without the others.
    example_args : sequence
        Example positional inputs. Tensors become inputs of the model; plain Python values are baked in.
    example_kwargs : mapping, optional
        Example keyword inputs.
    dynamic : mapping, optional
        Dimensions that may differ from call to call: `{"batch": ("input_ids", 0, 1, 64)}` (name: input, axis, minimum,
        maximum; the bounds may be left out), a list of such tuples where inputs share the dimension, `"*"` for every
        tensor input; or torch's own `{"input_ids": {0: torch.export.Dim("batch", min=1, max=64)}}`.
    seed : int
        Where random numbers start, in a model that has any (dropout in training mode).
    fallback : str
        What becomes of an operator that nothing here computes: "torch" leaves it to torch when the model runs, without
        mixed precision, and says so in a warning and in `Model.fallbacks`; "error" refuses the model.

    Returns
    -------
    Model
        `main` takes the inputs, in the order in which they were given, then the parameters that it uses. Outputs are
        the tensors that the module returns, flattened; `None` outputs are left out. Caches are not built: `use_cache`
        is off in the configuration while a Hugging Face module is exported, unless `example_kwargs` sets it. What a
        call changes (statistics of BatchNorm, the state of random numbers) are parameters with `updates`. Buffers and
        parameters that need no gradient are `frozen`.

    Raises
    ------
    ImportModelError
        The module cannot be exported, holds an operator that cannot be imported (all are listed, with where they come
        from), or would not be imported faithfully (inputs that it changes, outputs that are not tensors), or `dynamic`
        names what is not there.

    Warns
    -----
    FallbackWarning
        Some operators are left to torch.
    """
    if fallback not in FALLBACKS:
        raise ImportModelError(
            f"from_torch: fallback is {fallback!r}; expected one of {', '.join(map(repr, FALLBACKS))}."
        )
    check_module(module)
    start = random_state(seed)
    if isinstance(module, ExportedProgram):
        return _imported(*exported_already(module, example_args, example_kwargs, dynamic), start, fallback)
    if isinstance(example_args, torch.Tensor):
        example_args = (example_args,)
    if not isinstance(example_args, Sequence) or isinstance(example_args, str):
        raise ImportModelError(
            f"from_torch: example_args is a {type(example_args).__name__}; expected a tuple of what the module is "
            "called with, such as (tensor,). Inputs by name are example_kwargs={...}, with example_args=()."
        )
    if example_kwargs is not None and not isinstance(example_kwargs, Mapping):
        raise ImportModelError(
            f"from_torch: example_kwargs is a {type(example_kwargs).__name__}; expected inputs by their names, such as "
            "{'attention_mask': tensor}. Inputs without names are example_args."
        )
    args, kwargs = tuple(example_args), dict(example_kwargs or {})
    return _imported(export(module, args, kwargs, dynamic), module, start, fallback)


def _imported(exported: Exported, module: torch.nn.Module, start: tvm.runtime.Tensor, fallback: str) -> Model:
    """The model of an exported module, whose random numbers start at `start`."""
    importer, mod = _translated(exported, module)
    if fallback == "error":
        check_supported(importer.left)
    elif importer.left:
        warn(
            "from_torch: torch computes what nothing here does, without mixed precision, whenever the model runs:\n"
            f"{listed(importer.left)}\nModel.fallbacks lists it; fallback='error' refuses it.",
            FallbackWarning,
        )
    mod, used = normalize(mod)
    values = importer.parameters
    kept = {value.name: value.as_tvm() for value, keep in zip(values, used, strict=False) if keep}
    if used[-1]:
        kept[RANDOM_STATE] = start
    trained = {name for name, parameter in module.named_parameters() if parameter.requires_grad}
    return Model(mod, kept, output_names=exported.output_names, frozen=frozenset(kept.keys() - trained))


def _translated(exported: Exported, module: torch.nn.Module) -> tuple[Importer, tvm.IRModule]:
    """The program as a Relax module, and who made it: what no converter takes is split further, while torch can."""
    tried: set[Call] = set()
    while True:
        program = exported.program
        names, training = exported.symbols, module.training
        importer = Importer(
            program, parameters(program, module), names, CONVERTERS, TRUSTED, OF_PAIRS, call_torch, training=training
        )
        try:
            mod = importer.translate()
        except ImportModelError:
            further = split(program, importer.left, tried)
            if further is None:
                raise
        else:
            further = split(program, importer.left, tried)
            if further is None:
                return importer, mod
        exported = replace(exported, program=further)
