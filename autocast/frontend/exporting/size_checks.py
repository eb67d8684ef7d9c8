"""Whether a module is one program for all sizes: what torch.export assumed of them, and what it decided by them."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch

from autocast.errors import ImportModelError
from autocast.frontend.exporting.conditions import ASSUMED, Assumed, bounds_of, conditions_of
from autocast.frontend.exporting.decisions import agrees, deviation
from autocast.frontend.exporting.dynamic import DynamicAxis
from autocast.frontend.exporting.exported import Exported
from autocast.frontend.exporting.small_sizes import other_program
from autocast.frontend.exporting.tracing import no_cache, no_gradients

#: Where a module is another for sizes up to this, larger ones are asked for; so many sizes are tried at most that torch
#: keeps out, and one where nobody asked for them.
_FEW = 16


class Counterexample(NamedTuple):
    """Sizes by name for which a module is another program, those that decide it, and why, in words."""

    sizes: Mapping[str, int]
    why: str


def counterexample(
    program: torch.export.ExportedProgram,
    symbols: Mapping[str, str],
    asked: Mapping[str, tuple[int | None, int | None]],
    assumed: Assumed,
) -> Counterexample | None:
    """Sizes for which a module is another program; None where none was found.

    Parameters
    ----------
    program
        What was exported.
    symbols
        The names of its symbolic sizes.
    asked
        By name the least and the largest size that there may be; None: what torch inferred.
    assumed
        What holds of all sizes that may come.
    """
    ranges, bounds = {}, bounds_of(program)
    for symbol, name in symbols.items():
        low, high = bounds.get(symbol, (2, None))
        low = max(low, 2)  # the program of 2 is taken for that of 1
        least, largest = asked.get(name, (None, None))
        if max(least or low, 2) < low or (largest is not None and high is not None and high < largest):
            return Counterexample({}, f"torch exports it for {name} from {low} to {high}")
        ranges[name] = (max(least or low, 2), high if largest is None else largest)
    smallest = {name: low for name, (low, _) in ranges.items()}
    failures = []
    for condition in conditions_of(program):
        if condition.symbols <= symbols.keys():
            names = {symbols[symbol] for symbol in condition.symbols}
            columns = assumed.combinations(names, ranges)
            fails = ~condition.hold({symbol: columns[symbols[symbol]] for symbol in condition.symbols})
            for row in np.flatnonzero(fails)[:1]:
                failures.append(({**smallest, **{name: int(sizes[row]) for name, sizes in columns.items()}}, condition))
    if not failures:
        return None
    found, condition = min(failures, key=lambda failure: tuple(failure[0].values()))
    shown = ", ".join(f"{name} = {size}" for name, size in found.items())
    decide = {symbols[symbol]: found[symbols[symbol]] for symbol in condition.symbols}
    return Counterexample(decide, f"for {shown} this does not hold: {condition.named(symbols)}")


def to_be_tried(axes: Sequence[DynamicAxis]) -> list[DynamicAxis]:
    """The axes with bounds, of which torch proves nothing: their sizes are tried, without an upper bound the first."""
    bounds = {axis.name: (axis.dim.min, axis.dim.max) for axis in axes if type(axis.dim) is torch.export.Dim}
    if len(bounds) < len({axis.name for axis in axes}):
        return []
    bounds = {name: (least, most if isinstance(most, int) else None) for name, (least, most) in bounds.items()}
    dims = {name: torch.export.Dim.DYNAMIC(min=least, max=most) for name, (least, most) in bounds.items()}
    return [replace(axis, dim=dims[axis.name]) for axis in axes]


def allow_smaller(
    exported: Exported, program: torch.export.ExportedProgram, module: torch.nn.Module, example: Any
) -> None:
    """Lower least sizes that torch infers to those that are asked for, where the module is the same for these.

    It takes `x[1:] - x[:-1]` for a program of 3 rows or more: it asks whether `n - 1` rows lie one after another in
    memory, which those of a tensor of one row do in another way.

    Parameters
    ----------
    exported, program
        What was exported, and as it was before it was decomposed.
    module, example
        Of what, with which inputs.
    """
    for symbol, size in (sizes := exported.sizes).items():
        asked = exported.least_asked(size.name)
        least = max(2, asked or 0)
        usual = {one: max(known.example, known.least, 2) for one, known in sizes.items()}
        fewer = [{**usual, symbol: few} for few in range(least, size.least)]
        if 0 < len(fewer) <= (1 if asked is None else _FEW):
            with no_gradients(module), no_cache(module, example[1]), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                same = all(not other_program(program, few, symbol) for few in fewer)
                if same and all(agrees(exported.program, module, example, few) for few in fewer):
                    exported.bound(symbol, least)


def check_conditions(exported: Exported, module: torch.nn.Module) -> None:
    """Raise the least sizes, as far as torch infers them, until what it assumes of sizes and did not prove holds.

    Raises
    ------
    ImportModelError
        It does not hold of sizes that may come: the module is another program for these.
    """
    inferred = {axis.name: (axis.dim.min, axis.dim.max) for axis in exported.axes if not hasattr(axis.dim, "__name__")}
    examples = {size.name: size.example for size in exported.sizes.values()}
    first, assumed = None, getattr(module, ASSUMED, Assumed())
    while inferred and (found := counterexample(exported.program, exported.symbols, inferred, assumed)):
        first = first or found
        size = next(iter(found.sizes.values())) if len(found.sizes) == 1 else _FEW
        name = next(iter(found.sizes), "")
        if size >= min(_FEW, examples.get(name, 0)) or not exported.require(name, size + 1):
            raise ImportModelError(
                f"from_torch: {type(module).__name__} decides by sizes: {first.why}. Expected a module that computes "
                f"the same for all sizes of {', '.join(sorted(inferred))}, and cuts tensors (chunk, split) into as "
                "many parts; narrow the bounds, import it once for each case, or, if it takes multiples alone, say so: "
                'dynamic={"x": {1: 2 * torch.export.Dim("half")}}'
            )
        inferred[name] = (size + 1, inferred[name][1])


def check_decisions(exported: Exported, module: torch.nn.Module, example: Any) -> None:
    """Raise the least sizes, as far as torch infers them, until the module decides as it did for the examples.

    Raises
    ------
    ImportModelError
        It is another program for sizes that are asked for.
    """
    if not exported.decisions:
        return
    assumed = getattr(module, ASSUMED, Assumed())
    with no_gradients(module), no_cache(module, example[1]), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        while found := deviation(exported.program, module, example, exported.decisions, exported.sizes, assumed):
            (name, size), *others = found.sizes.items()
            if others or size > _FEW or not exported.require(name, size + 1):
                shown = ", ".join(f"{name} = {size}" for name, size in found.sizes.items())
                raise ImportModelError(
                    f"from_torch: {type(module).__name__} decides by sizes ({found.place}): for {shown} it computes "
                    f"something else. Expected a module that computes the same for all sizes of "
                    f"{', '.join(found.sizes)}; narrow the bounds, or import it once for each case."
                )
