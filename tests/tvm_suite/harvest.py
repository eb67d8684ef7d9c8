"""A plugin of pytest that writes every module with Relax functions that a test makes, as text and constants."""

from __future__ import annotations

import hashlib
import importlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import pytest
import tvm
from tvm import relax

from autocast.ir.script import save_constants, to_script
from tests.tvm_suite import FOLDER

#: Of one process, which runs one file of tests.
MOST_MODULES = 400

_state: dict[str, Any] = {"test": "", "busy": False, "seen": set()}


def record(value: Any) -> None:
    """Write a module, or a function without free variables, unless an equal one was written."""
    if _state["busy"] or len(_state["seen"]) >= MOST_MODULES:
        return
    _state["busy"] = True  # printing a module may make modules
    try:
        if isinstance(value, relax.Function) and not relax.analysis.free_vars(value):
            value = tvm.IRModule({"main": value.with_attr("global_symbol", "main")})
        if isinstance(value, tvm.IRModule) and any(isinstance(f, relax.Function) for f in value.functions.values()):
            _write(*to_script(value))
    finally:
        _state["busy"] = False


def _write(text: str, constants: list[relax.Expr]) -> None:
    key = hashlib.sha256(text.encode()).hexdigest()
    if key in _state["seen"]:
        return
    _state["seen"].add(key)
    stem = Path(_state["test"].split("::")[0]).stem
    path = Path(os.environ[FOLDER]) / f"{stem}-{len(_state['seen']):04}.py"
    path.write_text(f"# {_state['test']}\n{text}\n")
    if constants:
        save_constants(path.with_suffix(".npz"), constants)


def _recording(owner: Any, name: str) -> None:
    function: Callable = getattr(owner, name)

    def wrapped(*args: Any, **options: Any) -> Any:
        result = function(*args, **options)
        record(result)
        return result

    for attribute in ("__name__", "__doc__", "dispatch_token"):
        if hasattr(function, attribute):
            setattr(wrapped, attribute, getattr(function, attribute))
    setattr(owner, name, wrapped)


def _refuse(*args: Any) -> NoReturn:
    raise RuntimeError("TVM's wheels of 0.27 crash where they write JSON with a newer tvm-ffi")


def pytest_configure() -> None:
    """Record what the parser, builders and passes return; keep tests of another version of TVM from ending it all."""
    tvm.ir.save_json = _refuse
    tvm.ir.VDevice = relax.VDevice
    for name in ("core.entry", "ir.entry"):
        module = importlib.import_module(f"tvm.script.parser.{name}")
        _recording(module, "parse")
    _recording(relax.BlockBuilder, "get")
    _recording(relax.BlockBuilder, "finalize")
    _recording(tvm.transform.Pass, "__call__")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Note which test runs."""
    _state["test"] = item.nodeid


@pytest.hookimpl(tryfirst=True)
def pytest_collectstart(collector: pytest.Collector) -> None:
    """Note which file is imported."""
    _state["test"] = str(getattr(collector, "path", ""))
