"""A compiled model as it is stored: for each kind of processor its code, and the parameters as that code reads them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm_ffi

from autocast.container import Container, Format, LayoutError, as_entry
from autocast.errors import ArtifactError
from autocast.runtime.library import Library, load_library
from autocast.runtime.processors import missing
from autocast.runtime.program import Program
from autocast.runtime.tensors import array_over, tensor_over

#: What a file of variants is marked with.
ARTIFACT = Format("autocast.artifact", 1, "Executable.export", "autocast.runtime.load")

#: The model that the code was made of, as `Model.save` writes it, where it is kept.
MODEL = "model.autocast"

_PARAMETERS = "parameters.safetensors"


@dataclass(frozen=True)
class Variant:
    """A compiled model for one kind of processor.

    Attributes
    ----------
    program : Program
    library : Library
    params : sequence of tvm_ffi.Tensor
        The parameters, prepared if the program has no function that prepares them.
    state : mapping of str to tvm_ffi.Tensor
        The parameters that calls replace, as they are at the start.
    """

    program: Program
    library: Library
    params: Sequence[tvm_ffi.Tensor]
    state: Mapping[str, tvm_ffi.Tensor]


def entries_of(variants: Sequence[Variant], model: bytes | None = None) -> tuple[dict[str, Any], dict[str, Any]]:
    """The entries of a file, and its metadata; what several variants read alike is stored once.

    Raises
    ------
    ArtifactError
        Code that is in this process alone.
    """
    stored: dict[str, np.ndarray] = {}
    names: dict[tuple[Any, ...], str] = {}
    entries: dict[str, Any] = {}
    listed = []
    for number, variant in enumerate(variants):
        if variant.library.code is None:
            raise ArtifactError(
                "Executable.export: the compiled code is in this process alone, as there was no linker (cc or ld) when "
                "it was compiled; expected one on the PATH of the machine that compiles. The machine that runs the "
                "artifact needs none"
            )
        entries[f"{number}/library.so"] = variant.library.code
        entries[f"{number}/program.json"] = json.dumps(variant.program.to_json(), separators=(",", ":")).encode()
        listed.append(
            {
                "target": variant.program.target,
                "architecture": variant.program.architecture,
                "features": list(variant.program.features),
                "parameters": [_stored(tensor, stored, names) for tensor in variant.params],
                "state": {name: _stored(tensor, stored, names) for name, tensor in variant.state.items()},
            }
        )
    entries[_PARAMETERS] = as_entry(stored)
    if model is not None:
        entries[MODEL] = model
    return entries, {"variants": listed}


def _stored(tensor: tvm_ffi.Tensor, stored: dict[str, np.ndarray], names: dict[tuple[Any, ...], str]) -> str:
    """The name of a tensor among those that are stored; one that is there already is not stored again."""
    array = array_over(tensor)
    key = (array.dtype.name, array.shape, hashlib.sha256(array.reshape(-1).view(np.uint8).data).digest())
    if key not in names:
        names[key] = str(len(names))
        stored[names[key]] = array
    return names[key]


def variant_in(container: Container) -> Variant | None:
    """The first variant that this processor can run; None where it can run none of them.

    Raises
    ------
    ArtifactError
        The file is no file of variants, whatever it is marked with.
    """
    with container.reading("its description of the compiled code"):
        try:
            for number, facts in enumerate(_listed(container)):
                if not missing(facts["architecture"], facts["features"]):
                    return _read(container, number, facts)
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise LayoutError(f"{type(error).__name__}: {error}") from error
    return None


def lacking(container: Container) -> Iterator[str]:
    """A few words about each variant, and what this processor lacks to run it."""
    for facts in _listed(container):
        yield f"{facts['target']} (lacking {', '.join(missing(facts['architecture'], facts['features']))})"


def _listed(container: Container) -> list[dict[str, Any]]:
    variants: list[dict[str, Any]] = container.metadata["variants"]
    return variants


def _read(container: Container, number: int, facts: Mapping[str, Any]) -> Variant:
    tensors = {name: tensor_over(array) for name, array in container.tensors(_PARAMETERS).items()}
    program = Program.from_json(json.loads(bytes(container[f"{number}/program.json"])))
    return Variant(
        program,
        load_library(container[f"{number}/library.so"]),
        [tensors[name] for name in facts["parameters"]],
        {name: tensors[stored] for name, stored in facts["state"].items()},
    )
