"""Imports on disk: a torch module that is unchanged since it was imported is not exported again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import tvm

from autocast.cache import store
from autocast.container import Container, Format
from autocast.errors import CacheWarning
from autocast.frontend.caching.fingerprint import Incomparable, fingerprint
from autocast.frontend.importing.randomness import RANDOM_STATE
from autocast.frontend.parameters import share, state_of, writes_to
from autocast.messages import warn
from autocast.model.saving import module_entries, module_in
from autocast.model.value import Model
from autocast.operators.registration import calls_registered

#: What a file of the cache is marked with. It holds a module; parameters are taken from the torch module.
IMPORTS = Format("autocast.cache.imports", 1, "autocast.from_torch", "autocast.from_torch")


def imported_before(
    module: torch.nn.Module, given: tuple[Any, ...], start: tvm.runtime.Tensor, import_: Callable[[], Model]
) -> Model:
    """What `import_` makes of a module and of what is `given` with it, from the cache where it is unchanged.

    Random numbers start at `start`. Models that leave calls to torch, or call operators of a user's, are imported each
    time.
    """
    kept = store()
    if not kept.folders:
        return import_()
    try:
        key = fingerprint(module, *given)
    except Incomparable as error:
        warn(
            f"from_torch: {error}, and nobody can say whether that is unchanged: {type(module).__name__} is exported "
            "again. Expected attributes that are numbers, text, tensors, functions in files, modules and objects of "
            "these; keep this one elsewhere, or leave out cached=True",
            CacheWarning,
        )
        return import_()
    if found := kept.find(IMPORTS, key):
        return _model_of(found.container, module, start)
    model = import_()
    is_named = model.params.keys() - {RANDOM_STATE} <= state_of(module).keys()
    if is_named and not model.fallbacks and not calls_registered(model.mod):
        facts = {"parameters": list(model.params), "output_names": list(model.output_names)}
        kept.add(IMPORTS, key, module_entries(model.mod), {**facts, "module": type(module).__name__})
        kept.tidy()
    return model


def _model_of(container: Container, module: torch.nn.Module, start: tvm.runtime.Tensor) -> Model:
    state, facts = state_of(module), container.metadata
    params = {name: start if name == RANDOM_STATE else share(state[name]) for name in facts["parameters"]}
    trained = {name for name, parameter in module.named_parameters() if parameter.requires_grad}
    return Model(
        module_in(container),
        params,
        output_names=tuple(facts["output_names"]),
        frozen=frozenset(params.keys() - trained),
        writes=writes_to(state, params),
    )
