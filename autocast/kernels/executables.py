"""What the virtual machine runs: bytecode of Relax functions together with the machine code of kernels."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tvm
import tvm_ffi
from tvm import relax
from tvm.relax import vm_build

from autocast.kernels.linking import link
from autocast.kernels.objects import Object
from autocast.runtime.library import Library, load_library


@dataclass(frozen=True)
class Linked:
    """The Relax functions of a module, which `builder` holds, to be joined with code."""

    mod: tvm.IRModule
    builder: relax.ExecBuilder
    target: tvm.target.Target

    def of_modules(self, modules: Sequence[tvm_ffi.Module]) -> Library:
        """Joined with modules of LLVM's."""
        executable = self._joined(None)
        for module in modules:
            executable.import_module(module)
        return Library(None, executable)

    def of_objects(self, objects: Sequence[Object], names: Mapping[str, str], linker: str) -> Library:
        """Joined with object files; code that can be loaded again, unless external modules belong to it.

        `names` has the functions that the module calls by other names, with those of the objects.
        """
        data = [one.data for one in objects]
        if self._external:
            return Library(None, self._joined(load_library(link(linker, data, names, None)).module))
        functions = [*names, *(name for one in objects for name in one.functions)]
        executable = self._joined(_stand_in(functions))
        blob = tvm_ffi.get_global_func("runtime.ModulePackImportsToTensor")(executable).numpy().tobytes()
        return load_library(link(linker, data, names, blob))

    @property
    def _external(self) -> list[Any]:
        return list((self.mod.attrs or {}).get("external_mods", []))

    def _joined(self, library: tvm_ffi.Module | None) -> tvm_ffi.Module:
        constants = dict((self.mod.attrs or {}).get("const_name_to_constant", {}))
        return vm_build._ffi_api.VMLink(self.builder, self.target, library, self._external, constants)


def _stand_in(functions: Sequence[str]) -> tvm_ffi.Module:
    """A module in place of the library that will be linked: packing notes where it is imported, and nothing of it."""
    with tempfile.TemporaryDirectory(prefix="autocast_") as folder:
        path = Path(folder, "empty.o")
        path.touch()
        return tvm_ffi.get_global_func("runtime.ModuleLoadStaticLibrary")(str(path), list(functions))
