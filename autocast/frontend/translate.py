"""From what torch exports of a module to a model: exported, split, converted, simplified."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
import tvm
from torch.export import ExportedProgram

from autocast.errors import DrawnNumberWarning, FallbackWarning, ImportModelError
from autocast.frontend.converters.helpers import Converter
from autocast.frontend.converters.pairs import PAIRS
from autocast.frontend.converters.table import CONVERTERS, TRUSTED
from autocast.frontend.exporting.checks import check_supported, listed
from autocast.frontend.exporting.drawn_numbers import noted_draws
from autocast.frontend.exporting.export import export, exported_already
from autocast.frontend.exporting.exported import Exported
from autocast.frontend.exporting.turns import turn
from autocast.frontend.importing.control_flow import CONTROL_FLOW
from autocast.frontend.importing.fallback import call_torch
from autocast.frontend.importing.program import ProgramImporter
from autocast.frontend.importing.randomness import RANDOM_STATE
from autocast.frontend.parameters import other_names, parameters, state_of, writes_to
from autocast.frontend.simplifying.normalize import normalize
from autocast.frontend.splitting.decompose import Call, split
from autocast.messages import warn
from autocast.model.value import CONTROL_FLOW as FLOW
from autocast.model.value import OTHER_NAMES, Model


@turn()
def translate(
    module: torch.nn.Module | ExportedProgram,
    given: tuple[Any, Any, Any],
    start: tvm.runtime.Tensor,
    fallback: str,
    converters: Mapping[str, Converter] | None = None,
) -> Model:
    """The model of a module, or of an exported program.

    Parameters
    ----------
    module
        What is exported, if that is not done.
    given
        Its example inputs by place and by name, and its dynamic dimensions.
    start
        Where random numbers start.
    fallback
        As `from_torch` takes it.
    converters
        Beside `CONVERTERS`, by the name of the overload.

    Raises
    ------
    ImportModelError
        As `from_torch`.
    """
    if isinstance(module, ExportedProgram):
        exported, module = exported_already(module, *given)
    else:
        with noted_draws() as drew:
            exported = export(module, *given)
        if drew:
            warn(
                f"from_torch: {type(module).__name__} draws numbers by {' and '.join(drew)} as it is traced: they are "
                "constants of the model, the same in each run. Draw them by torch (torch.rand), or pass them as inputs",
                DrawnNumberWarning,
            )
    importer, mod = _translated(exported, module, {**CONVERTERS, **CONTROL_FLOW, **(converters or {})})
    if fallback == "error":
        check_supported(importer.left)
    elif importer.left:
        warn(
            "from_torch: torch computes what nothing here does, without mixed precision, whenever the model runs:\n"
            f"{listed(importer.left)}\nModel.fallbacks lists it; fallback='error' refuses it.",
            FallbackWarning,
        )
    if exported.derivatives:
        named = [str(name) for name in (mod["main"].attrs or {}).get(FLOW, ())]
        mod["main"] = mod["main"].with_attr(FLOW, [*named, *exported.derivatives])
    mod, used = normalize(mod)
    values = importer.parameters
    kept = {value.name: value.as_tvm() for value, keep in zip(values, used, strict=False) if keep}
    if used[-1]:
        kept[RANDOM_STATE] = start
    others = other_names(exported.program, module, {value.name: value.value for value in values if value.name in kept})
    if others:
        mod["main"] = mod["main"].with_attr(OTHER_NAMES, others)
    trained = {name for name, parameter in module.named_parameters() if parameter.requires_grad}
    return Model(
        mod,
        kept,
        output_names=exported.output_names,
        frozen=frozenset(kept.keys() - trained),
        writes=writes_to(state_of(module), kept),
    )


def _translated(
    exported: Exported, module: torch.nn.Module, converters: Mapping[str, Converter]
) -> tuple[ProgramImporter, tvm.IRModule]:
    """The program as a Relax module, and who made it: what no converter takes is split further, while torch can."""
    tried: set[Call] = set()
    while True:
        program = exported.program
        names, training = exported.symbols, module.training
        importer = ProgramImporter(
            program, parameters(program, module), names, converters, TRUSTED, PAIRS, call_torch, training=training
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
