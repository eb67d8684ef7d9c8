"""Imports point where docs/architecture.md says: up its tables of folders, from what builds on others to these."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

from tvm.relax.expr_functor import PyExprMutator, PyExprVisitor

REPOSITORY = Path(__file__).resolve().parent.parent

KERNELS = "autocast/kernels"

#: These offer names of later layers on purpose.
FACES = ("autocast/__init__.py", "autocast/__main__.py", "autocast/model/model.py")


def table(number: int) -> list[str]:
    """The folders and files in the first column of one of the page's tables of them, without endings."""
    text = (REPOSITORY / "docs" / "architecture.md").read_text()
    rows = text.split("| folder or file |")[number].split("\n\n")[0].splitlines()[2:]
    cells = [row.split("|")[1] for row in rows]
    return [path.removesuffix(".py") for cell in cells for path in re.findall(r"\]\(\.\./([^)]+)\)", cell)]


@cache
def layers() -> list[str]:
    """The folders and files of the tables, from the first that knows no other to the last; kernels have their own."""
    whole, kernels = table(1), table(2)
    at = whole.index(KERNELS)
    return [*whole[:at], *kernels, *whole[at + 1 :]]


def sources() -> list[Path]:
    """The modules of both packages, but for those whose purpose is to offer names of later layers."""
    found = [path for package in ("autocast", "type_hints") for path in (REPOSITORY / package).rglob("*.py")]
    return sorted(path for path in found if str(path.relative_to(REPOSITORY)) not in FACES)


def imported(tree: ast.Module) -> Iterator[str]:
    """What a module imports, inside functions and for types too, as paths."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            continue
        yield from (name.replace(".", "/") for name in names)


@cache
def layer_of(path: str) -> int | None:
    """The place of a module, or of a name inside of it, in the tables."""
    within = [i for i, layer in enumerate(layers()) if path == layer or path.startswith(f"{layer}/")]
    return within[0] if within else None


def is_below(own: str, name: str) -> bool:
    """Whether a module imports a name from what builds on it; packages offer names too."""
    place = layer_of(name)
    if place is None:
        place = layer_of(f"{name.rpartition('/')[0]}/__init__")
    return (place or 0) > (layer_of(own) or 0)


def test_every_folder_and_module_has_a_place_in_the_table() -> None:
    paths = [str(path.relative_to(REPOSITORY).with_suffix("")) for path in sources()]
    assert [path for path in paths if layer_of(path) is None] == []


def test_everything_in_the_table_exists() -> None:
    assert [layer for layer in layers() if not list(REPOSITORY.glob(f"{layer}*"))] == []


@cache
def modules() -> dict[str, list[str]]:
    """What each module imports."""
    return {
        str(source.relative_to(REPOSITORY).with_suffix("")): list(imported(ast.parse(source.read_text())))
        for source in sources()
    }


def test_imports_point_up_the_tables() -> None:
    wrong = [f"{own} imports {name}" for own, names in modules().items() for name in names if is_below(own, name)]
    assert wrong == []


def test_what_matches_patterns_and_what_generates_kernels_do_not_know_each_other() -> None:
    target = f"{KERNELS}/targets/"
    others = tuple(f"{KERNELS}/{folder}/" for folder in ("matching", "phases", "state", "fallback"))
    wrong = [
        f"{own} imports {name}"
        for own, names in modules().items()
        for name in names
        if (own.startswith(target) and name.startswith(others)) or (own.startswith(others) and name.startswith(target))
    ]
    assert wrong == []


def test_imports_make_no_circle() -> None:
    known = modules()

    def module_of(name: str) -> str | None:
        """The module that an import of `name` loads, which may be a name inside of it."""
        found = (name, f"{name}/__init__", *(name.rpartition("/")[0] + end for end in ("", "/__init__")))
        return next((path for path in found if path in known), None)

    order = TopologicalSorter(
        {path: {name for name in map(module_of, names) if name not in (None, path)} for path, names in known.items()}
    )
    order.prepare()  # raises CycleError, which names the circle


def test_no_visitor_overrides_what_tvm_does_not_have() -> None:
    known = {name for base in (PyExprMutator, PyExprVisitor) for name in dir(base)}
    unknown = [
        f"{path.relative_to(REPOSITORY)}:{node.lineno}: {node.name}"
        for path in sources()
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef) and re.fullmatch("visit_.*_", node.name) and node.name not in known
    ]
    assert not unknown
