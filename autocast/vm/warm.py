"""Fill the cache before anybody waits, several models at once: `autocast warm`."""

from __future__ import annotations

import importlib
import inspect
import itertools
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any, NamedTuple

from rich.console import Console
from rich.progress import track
from rich.table import Table

from autocast import settings
from autocast.cache import store
from autocast.errors import AutocastError, InputError
from autocast.model.value import Model
from autocast.vm.compile import compile

_EXPECTED = "expected package.module:function, of a function that returns an autocast Model, or several"


class Warmed(NamedTuple):
    """One model: the arguments that it was made with, seconds, and where its code came from; or what went wrong."""

    arguments: Mapping[str, int]
    seconds: float
    origin: str
    failed: bool = False


def warm(name: str, batches: Sequence[int], lengths: Sequence[int], jobs: int) -> list[Warmed]:
    """Call a function for each batch with each length, and compile the models that it returns, in other processes.

    Parameters
    ----------
    name : str
        `package.module:function`, of a function that takes `batch=`, `length=`, both or neither.
    batches, lengths : sequence of int
        Empty where the function does not take them.
    jobs : int
        Processes that compile at once.

    Raises
    ------
    InputError
        There is no such function, it takes or returns something else, or nothing can be kept.
    """
    if not any(folder.writable for folder in store().folders):
        raise InputError(
            f"warm: nothing can be kept, as AUTOCAST_CACHE is {settings.text('AUTOCAST_CACHE')!r} or its folder cannot "
            "be used; expected 'on', and a folder of yours. autocast cache info shows them"
        )
    sys.path.insert(0, os.getcwd())  # as `python -m` has it
    cases = cases_of(name, batches, lengths)
    with ProcessPoolExecutor(min(jobs, len(cases)), get_context("spawn")) as pool:
        found = pool.map(_warmed, itertools.repeat(name), cases)
        progress = Console(stderr=True, emoji=False)
        return list(track(found, total=len(cases), description="warming", console=progress, transient=True))


def cases_of(name: str, batches: Sequence[int], lengths: Sequence[int]) -> list[dict[str, int]]:
    """The arguments of each call of the function of this name; InputError where it takes others."""
    return _cases(_function(name), name, {"batch": batches, "length": lengths})


def models_of(name: str, arguments: Mapping[str, int]) -> list[Model]:
    """The models that one call of the function returns; InputError where it returns, or raises, something else."""
    function = _function(name)
    try:
        made = function(**arguments)
    except Exception as error:
        raise InputError(f"{name}: {type(error).__name__}: {error}") from error
    models: list[Any] = list(made) if isinstance(made, tuple | list) else [made]
    if not models or not all(isinstance(model, Model) for model in models):
        what = f"a {type(made).__name__}" if models else "no model"
        raise InputError(f"{name} returned {what}; {_EXPECTED}")
    return models


def _function(name: str) -> Callable[..., Any]:
    module, _, attribute = name.partition(":")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise InputError(f"{name!r} cannot be imported ({error}); {_EXPECTED}") from error
    except Exception as error:  # whatever the user's module raises
        raise InputError(
            f"{name!r} cannot be imported ({type(error).__name__}: {error}); expected a module that can be, as by "
            f"python -c 'import {module}'"
        ) from error
    if not callable(found):
        raise InputError(f"{name!r} is a {type(found).__name__}; {_EXPECTED}")
    function: Callable[..., Any] = found
    return function


def _cases(function: Callable[..., Any], name: str, given: Mapping[str, Sequence[int]]) -> list[dict[str, int]]:
    """The arguments of each call: every batch with every length."""
    taken = inspect.signature(function).parameters
    for argument, values in given.items():
        if values and argument not in taken:
            raise InputError(
                f"{name} takes {', '.join(taken) or 'nothing'}, and no {argument}; expected a parameter of that "
                f"name, or no --{argument}"
            )
    missing = [
        f"--{argument} N" for argument, values in given.items() if not values and _is_needed(taken.get(argument))
    ]
    if missing:
        raise InputError(f"{name} takes {', '.join(taken)}; expected {' '.join(missing)} as well")
    named = {argument: values for argument, values in given.items() if values}
    return [dict(zip(named, values, strict=True)) for values in itertools.product(*named.values())]


def _is_needed(parameter: inspect.Parameter | None) -> bool:
    return parameter is not None and parameter.default is parameter.empty


def _warmed(name: str, arguments: Mapping[str, int]) -> Warmed:
    """Make and compile the models of one call, in a process of its own."""
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    started = time.perf_counter()
    try:
        origins = sorted({compile(model).origin for model in models_of(name, arguments)})
    except AutocastError as error:
        return Warmed(arguments, time.perf_counter() - started, f"{type(error).__name__}: {error}", True)
    return Warmed(arguments, time.perf_counter() - started, ", ".join(origins))


def table(name: str, results: Sequence[Warmed]) -> Table:
    """One row for each call: how long it took, and where the code came from."""
    shown = Table(title=name)
    for heading in ("arguments", "seconds", "code"):
        shown.add_column(heading, justify="right" if heading == "seconds" else "left", overflow="fold")
    for result in results:
        arguments = ", ".join(f"{argument} {value}" for argument, value in result.arguments.items())
        shown.add_row(arguments or "-", f"{result.seconds:.1f}", result.origin)
    return shown
