"""Names of parameters that torch cannot write into the code of a graph, such as those in a submodule `graph`."""

from __future__ import annotations

import contextlib
import keyword
import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import torch
from torch import fx
from torch.export import ExportedProgram

#: What a GraphModule, and what a module in it has itself.
_TAKEN = frozenset(dir(fx.GraphModule(torch.nn.Module(), fx.Graph())))
_TAKEN_INSIDE = frozenset(dir(torch.nn.Module()))

#: What code that quotes a name as it is cannot have in it.
_UNQUOTABLE = re.compile(r'["\\\n\r]')


def in_writing(names: Collection[str]) -> dict[str, str]:
    """Of dotted names those that the code of a graph cannot have, and others that it can."""
    others: dict[str, str] = {}
    for name in names:
        first, *inner = name.split(".")
        parts = [_apart(first, _TAKEN), *(_apart(part, _TAKEN_INSIDE) for part in inner)]
        if (other := ".".join(parts)) != name:
            while other in names or other in others.values():
                other += "_"
            others[name] = other
    return others


def _apart(part: str, taken: Collection[str]) -> str:
    part = _UNQUOTABLE.sub("_", part) or "_"
    return f"{part}__" if part in taken or keyword.iskeyword(part) else part


@contextlib.contextmanager
def written_names(program: ExportedProgram) -> Iterator[Mapping[str, str]]:
    """Meanwhile a program has names that can be written; yields the names that these stand for."""
    names = in_writing([spec.target for spec in program.graph_signature.input_specs if spec.target is not None])
    back = {new: name for name, new in names.items()}
    rename(program, names)
    try:
        yield back
    finally:
        rename(program, back)


def rename(program: ExportedProgram, names: Mapping[str, str]) -> None:
    """Give parameters, buffers and constants of a program other names."""
    if not names:
        return
    specs: list[Any] = [*program.graph_signature.input_specs, *program.graph_signature.output_specs]
    for spec in specs:
        spec.target = names.get(spec.target, spec.target)
    for values in (program._state_dict, program._constants):
        renamed = {names.get(name, name): value for name, value in values.items()}  # in their order
        values.clear()
        values.update(renamed)
