"""One file of a model compiled for several kinds of processors: see `autocast.runtime.load`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tvm

from autocast import kernels
from autocast.container import to_bytes, write
from autocast.errors import UnsupportedError
from autocast.kernels.targets.cpu.instruction_sets import target_of
from autocast.messages import check_kind, check_value
from autocast.model import saving
from autocast.model.value import Model, load
from autocast.runtime import torch_calls
from autocast.runtime.executable import Executable
from autocast.runtime.processors import missing
from autocast.runtime.variant import ARTIFACT, Variant, entries_of
from autocast.vm.checks import A_MODEL
from autocast.vm.compile import check_options, compile, variant_of


def export(
    model: Model,
    path: str | os.PathLike[str],
    *,
    targets: Sequence[str] = (),
    opt_level: int = 3,
    with_model: bool = False,
    key: bytes | None = None,
) -> Path:
    """Compile a model for several kinds of processors into one file, of which `autocast.runtime.load` runs a part.

    Parameters
    ----------
    model : Model
        Its parameters and, where it has updates, its state as they are.
    path : path
        The folders above it are made if they are missing; the file is whole or is not there.
    targets : sequence of str
        LLVM's names of processors, the best first: the first that a machine has all instructions of is loaded there.
        `x86-64-v3` is any with AVX2, `x86-64-v4` any with AVX-512, `znver4` and `sapphirerapids` multiply bfloat16.
        This machine's if there are none. Parameters that two of them read alike are stored once.
    opt_level : int
        As `autocast.vm.compile` takes it.
    with_model : bool
        Put the model itself into the file as well: where no target fits, it is compiled when it is loaded, if TVM's
        compiler is there. The file holds the parameters twice then.
    key : bytes, optional
        Sign the file with this key.

    Raises
    ------
    UnsupportedError
        What is exported is no Model, or LLVM does not know a processor of that name.
    ArtifactError
        The file cannot be written, or there is no linker here.

    Warns
    -----
    FallbackWarning
        The model calls operators of torch, so that torch has to be where the file is loaded.
    """
    check_kind("autocast.vm.export", model, Model, UnsupportedError, A_MODEL)
    check_value(
        "autocast.vm.export", "targets", targets, _are_names, UnsupportedError, "a list of names, such as ['x86-64-v3']"
    )
    here = kernels.detect_target()
    named = [target_of(name, "autocast.vm.export: targets") for name in targets]
    saved = to_bytes(saving.FORMAT, *saving.parts_of(model)) if with_model else None
    variants = [_variant(model, target, opt_level) for target in named or [here]]
    torch_calls.warn(variants[0].program.torch_calls, "autocast.vm.export")
    entries, metadata = entries_of(variants, saved)
    return write(path, ARTIFACT, entries, metadata, key=key)


def _are_names(targets: Any) -> bool:
    return not isinstance(targets, str) and all(isinstance(name, str) for name in targets)


def _variant(model: Model, target: tvm.target.Target, opt_level: int) -> Variant:
    """The model compiled, and its parameters prepared where this machine can do that: else whoever loads it does."""
    check_options(target, opt_level)
    variant, _ = variant_of(model.mod, model.params, target, opt_level)
    lacking = missing(variant.program.architecture, variant.program.features)
    return variant if lacking else Executable(variant).variant()


def compiled_here(data: Any) -> Executable:
    """The executable for this processor of a model that `export` put into a file."""
    return compile(load(data))
