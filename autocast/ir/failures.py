"""What fails in TVM, or in this project, says in which phase and function, and leaves a file that repeats it."""

from __future__ import annotations

import os
import platform
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import tvm
import tvm_ffi
from tvm import relax

from autocast import errors, settings
from autocast.errors import AutocastError, CastingRuleError, CompileError
from autocast.interrupts import is_interrupted, passing_interrupts
from autocast.ir.script import from_script, save_constants, to_script
from autocast.ir.views import parts_of
from autocast.messages import reason, version_of

#: Raised on purpose, or no fault of the code that was running.
_NOT_FAILURES = (AutocastError, CastingRuleError, Warning, MemoryError)

# A pass raises through TVM's C++ pass runner, which rebuilds the exception from the name of its class.
for _name in errors.__all__:
    tvm_ffi.register_error(_name, getattr(errors, _name))

#: Seconds that the search for the function that makes a phase fail may take.
_SEARCH = 20.0


@contextmanager
def in_phase(
    name: str, mod: tvm.IRModule | None = None, again: Callable[[tvm.IRModule], object] | None = None
) -> Iterator[None]:
    """Raise CompileError, naming the phase, where anything inside fails that is not raised on purpose.

    Parameters
    ----------
    name
        What the phase is called.
    mod, again
        The module that it is given, and what repeats it on another module: on parts of `mod`, to find the function that
        makes it fail.
    """
    try:
        yield
    except _NOT_FAILURES:
        raise
    except Exception as error:
        if mod is None or again is None or is_interrupted():
            _fail(name, "", error)
        _fail(name, _failing_function(mod, again), error)


def _fail(phase: str, function: str, error: Exception) -> NoReturn:
    where = f"the phase {phase!r} failed{f' in @{function}' if function else ''}"
    failure = CompileError(f"{where}: {type(error).__name__}: {reason(error)}")
    failure.phase, failure.function = phase, function
    raise failure from error


def _failing_function(mod: tvm.IRModule, again: Callable[[tvm.IRModule], object]) -> str:
    """The function that fails by itself, with what it calls, that calls the fewest others; empty if none does."""
    functions = {var.name_hint: (var, function) for var, function in mod.functions.items()}
    if len(functions) == 1:
        return next(iter(functions))
    end = time.monotonic() + _SEARCH
    for needed in sorted(({*_reached(name, functions)} for name in functions), key=len):
        if time.monotonic() > end:
            break
        part = tvm.IRModule(dict(functions[name] for name in needed), attrs=mod.attrs, global_infos=mod.global_infos)
        try:
            again(part)
        except Exception:
            return _first(needed, functions)
    return ""


def _reached(name: str, functions: Mapping[str, tuple[tvm.ir.GlobalVar, tvm.ir.BaseFunc]]) -> Iterator[str]:
    """A function and all that it calls; PrimFuncs hardly ever call others."""
    seen, pending = {name}, [name]
    while pending:
        current = pending.pop()
        yield current
        function = functions[current][1]
        called = parts_of(function, tvm.ir.GlobalVar) if isinstance(function, relax.Function) else []
        new = {callee.name_hint for callee in called} & functions.keys() - seen
        seen |= new
        pending += sorted(new)


def _first(needed: set[str], functions: Mapping[str, tuple[tvm.ir.GlobalVar, tvm.ir.BaseFunc]]) -> str:
    """The one of `needed` that reaches all of them."""
    return next(name for name in sorted(needed) if needed == {*_reached(name, functions)})


@contextmanager
def repeatable(
    entry: str, mod: tvm.IRModule, arguments: str, params: Mapping[str, Any] | None = None
) -> Iterator[None]:
    """Complete a CompileError raised inside with a file that repeats it; whatever else fails becomes one.

    Parameters
    ----------
    entry
        The function of this project that was called: "vm.compile", say.
    mod
        The module that it was given, whose text and constants are written.
    arguments
        Its other arguments, as Python writes them.
    params
        The parameters of the model that it was given: their shapes are written, not their values.
    """
    try:
        with passing_interrupts(), in_phase("preparation"):
            yield
    except CompileError as error:
        if not error.path:
            try:
                error.path, is_readable = _write(entry, mod, arguments, params, str(error))
                how = (
                    "repeats it when it is run" if is_readable else "has the module, in text that TVM cannot read again"
                )
                file = f"{error.path} {how}"
            except Exception as obstacle:
                file = f"no file to repeat it could be written: {type(obstacle).__name__}: {obstacle}"
            error.args = (
                f"{entry.rpartition('.')[2]}: {error}. Expected every phase to take a well-formed module: unless a "
                f"PrimFunc of your own is wrong, this is a fault of autocast or of TVM. Please report it: {file}",
            )
        raise


def _write(
    entry: str, mod: tvm.IRModule, arguments: str, params: Mapping[str, Any] | None, message: str
) -> tuple[str, bool]:
    """Write a Python file that calls `entry` on `mod` again; its path, and whether TVM's parser takes its text."""
    directory = Path(settings.text("AUTOCAST_DUMP") or tempfile.gettempdir())
    directory.mkdir(parents=True, exist_ok=True)
    handle, path = tempfile.mkstemp(prefix="autocast_failure_", suffix=".py", dir=directory)
    text, constants = to_script(mod)
    if constants:
        save_constants(Path(path).with_suffix(".npz"), constants)
    versions = (
        f"autocast {version_of('relax-autocast')}, TVM {tvm.__version__}, tvm-ffi {tvm_ffi.__version__}, "
        f"Python {platform.python_version()}, {platform.machine()} {platform.system()}"
    )
    subject = "mod"
    if params is not None:
        zeros = [(name, (str(value.dtype), [int(size) for size in value.shape])) for name, value in params.items()]
        subject = "Model(mod, {name: relax.const(np.zeros(shape, dtype)).value for name, (dtype, shape) in PARAMS})"
    lines = [
        f"# {' '.join(message.split())}",
        f"# {versions}",
        "# The constants of the module are in the .npz file beside this one." if constants else "",
        "from pathlib import Path",
        "import numpy as np, tvm",
        "from tvm import relax",
        "from autocast import Model, amp, from_relax, vm",
        "from autocast.ir.script import from_script, load_constants",
        f"PARAMS = {zeros!r}" if params is not None else "",
        f"MODULE = r'''\n{text}\n'''" if "'''" not in text else f"MODULE = {text!r}",
        "mod = from_script(MODULE, load_constants(Path(__file__).with_suffix('.npz')))",
        f"{entry}({subject}{', ' if arguments else ''}{arguments})",
    ]
    with os.fdopen(handle, "w") as file:
        file.write("\n".join(line for line in lines if line) + "\n")
    try:
        from_script(text, constants)
    except Exception:
        return path, False
    return path, True
