"""The table of every name in docs/coming_from.md says of each what the code does."""

from __future__ import annotations

import argparse
import importlib
import inspect
import pkgutil
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn

import autocast
from autocast import compat, errors
from autocast.compat import mxnet, paddle, raf
from autocast.compat.sambaflow.presets import add_arguments
from autocast.training import SGD, CrossEntropy, Trainer

PAGE = Path(__file__).resolve().parents[2] / "docs" / "coming_from.md"
ROW = re.compile(r"^\| `([^`]+)` \| (works|differs|\w+Error)(?:: (.+))? \|$", re.MULTILINE)
SECTION = PAGE.read_text().split("## Every name")[1]
TABLE = {name: (kind, text) for name, kind, text in ROW.findall(SECTION)}


def trainer() -> Trainer:
    """One that could train."""
    model = autocast.from_torch(nn.Linear(2, 2), (torch.zeros(1, 2),))
    return Trainer(model, CrossEntropy(), SGD(), learning_rate=0.1)


#: Names that there are, and that are errors when they are used.
USES: dict[str, Callable[[], Any]] = {
    "mxnet.amp.unscale": lambda: mxnet.amp.unscale(trainer()),
    "paddle.CUDAPlace": lambda: paddle.static.Executor(paddle.CUDAPlace(0)),
    "raf.cuda": lambda: raf.cuda(),
}


def resolved(name: str) -> Any:
    """What a name of theirs is here."""
    package, *rest = name.split(".")
    value = importlib.import_module(f"autocast.compat.{package}")
    for part in rest:
        value = getattr(value, part)
    return value


def faces() -> Iterator[tuple[str, ModuleType]]:
    """The modules that are reached by the names that they have there, by these."""
    for found in pkgutil.walk_packages(compat.__path__, "autocast.compat."):
        module = importlib.import_module(found.name)
        name = found.name.removeprefix("autocast.compat.")
        if "__getattr__" in vars(module):
            yield name, module


def test_the_table_is_sorted_and_has_no_other_rows():
    names = [line for line in SECTION.splitlines() if line.startswith("| `")]
    assert len(names) == len(TABLE) > 150
    assert list(TABLE) == sorted(TABLE)


@pytest.mark.parametrize("name", [name for name, (kind, _) in TABLE.items() if kind in ("works", "differs")])
def test_what_works_or_differs_is_there(name):
    if name.startswith("compile "):
        parser = argparse.ArgumentParser()
        add_arguments(parser)
        assert name.removeprefix("compile ") in parser.format_help()
    else:
        resolved(name)


@pytest.mark.parametrize("name", [name for name, (kind, _) in TABLE.items() if kind.endswith("Error")])
def test_what_has_no_meaning_here_is_the_error_that_the_table_gives(name):
    kind, text = TABLE[name]
    error = AttributeError if kind == "AttributeError" else getattr(errors, kind)
    with pytest.raises(error, match=re.escape(text)):
        USES.get(name, lambda: resolved(name))()


def test_every_name_that_is_offered_or_explained_is_in_the_table():
    for package, module in faces():
        explained = inspect.getclosurevars(vars(module)["__getattr__"]).nonlocals["instead"]
        theirs = [name for name, text in explained.items() if not text.startswith("it is ")]
        for name in (*module.__all__, *theirs):
            assert f"{package}.{name}" in TABLE


@pytest.mark.parametrize("package", ["raf", "paddle", "mxnet", "sambaflow"])
def test_every_module_says_what_is_nearest_to_a_name_that_it_has_not(package):
    modules = [(name, module) for name, module in faces() if name.partition(".")[0] == package]
    assert modules
    for _, module in modules:
        close = module.__all__[0][:-1] + "_"
        with pytest.raises(AttributeError, match=f"{close}'; nearest: .*{module.__all__[0]}"):
            getattr(module, close)


@pytest.mark.parametrize(
    "use",
    [
        lambda: raf.Device("cuda"),
        lambda: raf.cuda(0),
        lambda: paddle.static.Executor(paddle.CUDAPlace(0)),
        lambda: mxnet.amp.convert_hybrid_block(nn.Linear(2, 2), torch.zeros(1, 2), device="gpu(0)"),
    ],
)
def test_a_gpu_is_refused_with_the_device_that_there_is(use):
    with pytest.raises(errors.UnsupportedError, match=r"expected the CPU, which is all .*'cpu'"):
        use()
