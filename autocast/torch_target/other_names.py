"""States have the names of the module that a model was imported from, which the model's module may have not."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch


def know(module: torch.nn.Module, others: Mapping[str, str]) -> None:
    """Let `module.load_state_dict` take a state that has these names, too.

    Parameters
    ----------
    module : torch.nn.Module
    others : mapping of str to str
        Of each name the parameter that it is another name of (a tied weight), or "" for what is not read.
    """
    if others:
        module.register_load_state_dict_pre_hook(partial(_take, {str(k): str(v) for k, v in others.items()}))


def show(module: torch.nn.Module, held: Mapping[str, str]) -> None:
    """Let the state of a module have other names than its attributes, from which the values of `held` are."""
    if held:
        know(module, held)
        module.register_state_dict_post_hook(partial(_named, {place: name for name, place in held.items()}))


def _named(
    names: Mapping[str, str], module: torch.nn.Module, state: dict[str, Any], prefix: str, _metadata: Any
) -> None:
    """What torch calls after it wrote the attributes of the module into `state`."""
    renamed = {
        prefix + names.get(key.removeprefix(prefix), key.removeprefix(prefix)) if key.startswith(prefix) else key: value
        for key, value in state.items()
    }
    state.clear()
    state.update(renamed)


def _take(
    others: Mapping[str, str],
    module: torch.nn.Module,
    state: dict[str, Any],
    prefix: str,
    metadata: Any,
    strict: bool,
    missing: list[str],
    unexpected: list[str],
    errors: list[str],
) -> None:
    """What torch calls before it loads `state`, its copy of what the user gave."""
    for name, same in others.items():
        value = state.pop(prefix + name, None)
        if value is None or not same:
            continue
        known = state.setdefault(prefix + same, value)
        if known.data_ptr() != value.data_ptr() and not torch.equal(known, value):
            errors.append(
                f"{prefix}{name} and {prefix}{same} are one tensor in the model, and differ in this state; expected a "
                "state of a module that ties them. Import the module that it belongs to"
            )
