"""Operator names: the registry's, those derived from patterns, and the short spellings that people use."""

from __future__ import annotations

import difflib

import tvm

from type_hints.errors import UnknownOperatorError
from type_hints.raf_names import RAF_NAMES, WITHOUT_OPERATOR

#: Patterns that are one operator to their user (see `type_hints.derived`), and their leading arguments, all tensors.
DERIVED_TENSORS = {"relax.bias_add": ("data", "bias")}

_PREFIXES = ("autocast.op.", "raf.op.", "relax.op.", "relax.")


def relax_op_names() -> list[str]:
    """Every operator in TVM's registry whose name starts with "relax.", sorted."""
    return sorted(name for name in tvm.ir.Op.list_op_names() if name.startswith("relax."))


def normalize_op_name(name: str) -> str:
    """The full name of an operator: "softmax", "nn.softmax", "raf.op.softmax" are all "relax.nn.softmax".

    A short name means `relax.NAME` if there is one, else `relax.nn.NAME`, else what RAF calls so (`dense` is
    `relax.matmul`), else the one operator in another namespace that ends so.

    Raises
    ------
    UnknownOperatorError
        No operator has this name (the message lists the nearest, or says what takes its place), or several have (it
        lists them).
    """
    if not isinstance(name, str):
        raise UnknownOperatorError(f"operator name {name!r}: got {type(name).__name__}, expected a string")
    known = {str(known_name) for known_name in tvm.ir.Op.list_op_names()} | set(DERIVED_TENSORS)
    if name in known:
        return name
    short = next((name[len(prefix) :] for prefix in _PREFIXES if name.startswith(prefix)), name)
    for candidate in (f"relax.{short}", f"relax.nn.{short}"):
        if candidate in known:
            return candidate
    if name in (short, f"raf.op.{short}"):
        if RAF_NAMES.get(short) in known:
            return RAF_NAMES[short]
        if short in WITHOUT_OPERATOR:
            raise UnknownOperatorError(f"operator {name!r} of RAF is none here: {WITHOUT_OPERATOR[short]}")
    relax_names = [known_name for known_name in known if known_name.startswith("relax.")]
    others = sorted(known_name for known_name in relax_names if known_name.endswith(f".{short}"))
    if len(others) == 1:
        return others[0]
    if others:
        raise UnknownOperatorError(f"operator {name!r} is ambiguous: {', '.join(others)}; use the full name")
    raise UnknownOperatorError(f"operator {name!r} is not known; nearest: {_nearest(short, relax_names)}")


def _nearest(short: str, names: list[str]) -> str:
    # Prefixes would make every name look alike: compare what follows them, and the last part alone.
    spellings: dict[str, str] = {}
    for name in sorted(names):
        spellings.setdefault(name.removeprefix("relax."), name)
        spellings.setdefault(name.rsplit(".", 1)[-1], name)
    close = difflib.get_close_matches(short, spellings, n=5, cutoff=0.5)
    found = list(dict.fromkeys(spellings[spelling] for spelling in close))[:3]
    return ", ".join(found) if found else "none; type_hints.list_rules() prints all names"
