"""Compiled programs on disk: what was compiled before, here or on a machine like this one, is not compiled again."""

from __future__ import annotations

import functools
import hashlib
import json
import time
from collections.abc import Callable
from importlib import metadata
from typing import Any

import tvm
import tvm_ffi
from tvm.target import codegen

from autocast import settings
from autocast.cache import Store, store
from autocast.cache.sources import digest_of_sources
from autocast.container import Container, Format
from autocast.ir import all_bindings, op_name, relax_functions
from autocast.kernels.targets.cpu.instruction_sets import machine_of
from autocast.operators.registration import calls_registered
from autocast.runtime.library import Library, load_library
from autocast.runtime.program import Program
from autocast.vm.compiled import Compiled
from autocast.vm.source import Source

#: What a file of the cache is marked with. Another version has other keys, too.
PROGRAMS = Format("autocast.cache.programs", 1, "autocast.vm.compile", "autocast.vm.compile")

#: Packages and files that make of a module what it becomes.
_VERSIONED = ("apache-tvm", "apache-tvm-ffi")
_COMPILING = ("ir", "operators", "kernels", "runtime", "vm", "model/value.py")


def cached(source: Source, compile: Callable[[], Compiled]) -> Compiled:
    """What `compile` makes of a module, from the cache where it was made before."""
    kept = store()
    if not kept.folders or calls_registered(source.mod):
        return compile()
    started = time.perf_counter()
    key = _key(source)
    if found := _found(kept, key, started):
        return found
    with kept.alone(PROGRAMS, key):
        if found := _found(kept, key, started):
            return found
        compiled = compile()
        if compiled.library.code is not None:
            about = {"target": str(source.target), "inputs": _inputs(compiled.program)}
            kept.add(PROGRAMS, key, entries_of(compiled), about)
    kept.tidy()
    return compiled


def cached_before(source: Source) -> Compiled | None:
    """A program from the cache, if it was made before."""
    kept = store()
    if not kept.folders or calls_registered(source.mod):
        return None
    started = time.perf_counter()
    return _found(kept, _key(source), started)


def _found(kept: Store, key: str, started: float) -> Compiled | None:
    found = kept.find(PROGRAMS, key)
    if found is None:
        return None
    container, folder = found
    looked = time.perf_counter()
    program, library = loaded(container)
    seconds = {"look up": looked - started, "load": time.perf_counter() - looked}
    return Compiled(program, library, seconds, f"the {folder}'s cache")


def entries_of(compiled: Compiled) -> dict[str, Any]:
    """What a file holds of a program whose code another process can load."""
    program = json.dumps(compiled.program.to_json(), separators=(",", ":"))
    return {"library.so": compiled.library.code, "program.json": program.encode()}


def loaded(container: Container) -> tuple[Program, Library]:
    """A program in a file, and its code."""
    program = Program.from_json(json.loads(bytes(container["program.json"])))
    return program, load_library(container["library.so"])


def _inputs(program: Program) -> str:
    """What a listing of the cache shows of a program."""
    return ", ".join(f"{one.name}: {one}" for one in program.signature.inputs)


def _key(source: Source) -> str:
    """All that decides what a module is compiled to, and what is said of it.

    TVM's structural hash has 64 bits. The names, and the operators in their order, have to agree as well.
    """
    mod, target = source.mod, source.target
    functions = [function for _, function in relax_functions(mod)]
    operators = [op_name(binding.value) for function in functions for binding in all_bindings(function.body)]
    whole = tvm_ffi.structural_hash(tvm.IRModule(mod.functions, attrs=mod.attrs))
    how = (machine_of(target), source.opt_level, settings.debug().poison, source.found, makers())
    parts = (str(PROGRAMS), whole, operators, source.names, *how)
    return hashlib.sha256(repr(parts).encode()).hexdigest()


@functools.cache
def makers() -> tuple[object, ...]:
    """Versions of the compilers, and a digest of the sources here that make programs: part of every key."""
    return (*map(metadata.version, _VERSIONED), codegen.llvm_version_major(), digest_of_sources(*_COMPILING))
