"""Imports point where docs/architecture.md says: up its table of folders, from what builds on others to these."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent

#: These offer names of later layers on purpose.
FACES = ("autocast/__init__.py", "autocast/__main__.py", "autocast/model/model.py")


@cache
def layers() -> list[str]:
    """The folders and files of the table, from the first that knows no other to the last."""
    text = (REPOSITORY / "docs" / "architecture.md").read_text()
    rows = [line.split("|")[1] for line in text.splitlines() if line.startswith("| [`") and "](../" in line]
    table = rows[: next(i for i, row in enumerate(rows) if "cli.py" in row) + 1]
    return [path.removesuffix(".py") for row in table for path in re.findall(r"\]\(\.\./([^)]+)\)", row)]


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
    """The place of a module in the table."""
    within = [i for i, layer in enumerate(layers()) if path == layer or path.startswith(f"{layer}/")]
    return within[0] if within else None


def test_every_folder_and_module_has_a_place_in_the_table() -> None:
    paths = [str(path.relative_to(REPOSITORY).with_suffix("")) for path in sources()]
    assert [path for path in paths if layer_of(path) is None] == []


def test_everything_in_the_table_exists() -> None:
    assert [layer for layer in layers() if not list(REPOSITORY.glob(f"{layer}*"))] == []


def test_imports_point_up_the_table() -> None:
    wrong = []
    for source in sources():
        own = str(source.relative_to(REPOSITORY).with_suffix(""))
        names = imported(ast.parse(source.read_text()))
        wrong += [f"{own} imports {name}" for name in names if (layer_of(name) or 0) > (layer_of(own) or 0)]
    assert wrong == []


def test_imports_make_no_circle() -> None:
    modules = {str(path.relative_to(REPOSITORY).with_suffix("")): path for path in sources()}

    def module_of(name: str) -> str | None:
        """The module that an import of `name` loads, which may be a name inside of it."""
        found = (name, f"{name}/__init__", *(name.rpartition("/")[0] + end for end in ("", "/__init__")))
        return next((path for path in found if path in modules), None)

    graph = {path: map(module_of, imported(ast.parse(source.read_text()))) for path, source in modules.items()}
    order = TopologicalSorter(
        {path: {name for name in names if name not in (None, path)} for path, names in graph.items()}
    )
    order.prepare()  # raises CycleError, which names the circle
