"""What an import reads of a torch module, as one text: its code, its configuration, the shapes of its parameters.

The same fingerprint means the same program. What cannot be compared is an error, never left out:

- classes, methods and functions are their names and the files that they are in: local files by their bytes, installed
  packages by their versions. All local files that are loaded count, for any of them may be called;
- attributes of modules and of their configurations are compared by value, to the last nested one;
- parameters and buffers are dtypes and shapes, and which of them share memory. Tensors that a program holds as
  constants, which are buffers that no checkpoint has, flags and plain attributes, are their bytes;
- example inputs are dtypes and shapes, and plain values.

Not seen are variables of modules that somebody changes while a process runs, and environment variables.
"""

from __future__ import annotations

import functools
import hashlib
import os
import sys
import sysconfig
import types
import weakref
from collections.abc import Iterator, Mapping
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
import torch

from autocast.cache.sources import PACKAGE, digest_of_sources
from autocast.frontend.exporting.number_buffers import is_flag
from autocast.ir.places import current_region
from autocast.operators import TABLE

#: Types whose values are what they print.
_PLAIN = (
    *(type(None), bool, int, float, complex, str, bytes, range, slice, type(Ellipsis)),
    *(torch.dtype, torch.device, torch.layout, torch.memory_format),
)

#: What makes a model of a module, here.
_IMPORTING = ("frontend", "ir", "model", "operators")

#: Attributes that are others in each process: transformers' hash of a configuration, by which it sees changes.
_OF_THE_PROCESS = frozenset({"_original_object_hash"})

_NAMED = (types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType)

#: Python's flag of classes that are no part of the interpreter.
_HEAP_TYPE = 1 << 9

#: Where Python and installed packages are, and where this one is.
_INSTALLED = (
    *{form(sysconfig.get_path(name)) for name in ("stdlib", "purelib") for form in (str, os.path.realpath)},
    *(str(PACKAGE), str(PACKAGE.parent / "type_hints")),
)


class Incomparable(Exception):
    """A module holds something of which nobody can say that it is unchanged."""


def fingerprint(module: torch.nn.Module, *given: Any) -> str:
    """A digest of a module, and of what else it is imported with.

    Raises
    ------
    Incomparable
        Something in it cannot be compared with what it was in another process.
    """
    reader = _Reader()
    reader.add(module, type(module).__name__)
    reader.holds_tensors = False
    reader.add(given, "what it is imported with")
    reader.text(repr((torch.get_default_dtype(), torch.backends.mha.get_fastpath_enabled(), current_region())))
    for line in reader.versions():
        reader.text(line)
    reader.text(digest_of_sources(*_IMPORTING))
    reader.text(repr(sorted(row.torch for row in TABLE.values() if row.torch)))
    return reader.digest.hexdigest()


class _Reader:
    """Values become text, each object once."""

    def __init__(self) -> None:
        self.digest = hashlib.sha256()
        self.seen: dict[int, tuple[int, object]] = {}
        self.within: set[int] = set()
        self.memory: dict[object, int] = {}
        self.modules = {"torch", "tvm"}
        self.holds_tensors = True

    def text(self, text: str) -> None:
        self.digest.update(f"{len(text)}:{text}".encode())

    def add(self, value: Any, where: str) -> None:
        """`value`, which is found at `where`."""
        kind = type(value)
        if kind in _PLAIN:
            return self.text(f"{kind.__name__} {value!r}")
        if isinstance(value, tuple | list | Mapping | set | frozenset):
            return self.collection(value, where)
        if id(value) in self.seen:
            return self.text(f"object {self.seen[id(value)][0]}")
        self.seen[id(value)] = len(self.seen), value
        return self.object(value, where)

    def collection(self, value: Any, where: str) -> None:
        """Its items. Whether two places hold one list or equal ones is no part of it."""
        if id(value) in self.within:
            raise Incomparable(f"{where} holds itself")
        self.within.add(id(value))
        self.named(type(value), where)
        self.text(f"{len(value)} items")
        if isinstance(value, Mapping):
            for key, item in value.items():
                self.add(key, where)
                self.add(item, f"{where}[{key!r}]")
        elif isinstance(value, tuple | list):
            for place, item in enumerate(value):
                self.add(item, f"{where}[{place}]")
        elif all(type(item) in _PLAIN for item in value):
            self.text(f"{sorted(map(repr, value))}")
        else:
            raise Incomparable(f"{where} is a set of objects")
        self.attributes(getattr(value, "__dict__", {}), where)
        self.within.remove(id(value))

    def object(self, value: Any, where: str) -> None:
        if isinstance(value, torch.nn.Module):
            self.module(value, where)
        elif isinstance(value, torch.Tensor):
            self.tensor(value, where, whole=self.holds_tensors)
        elif isinstance(value, Enum):
            self.named(type(value), where)
            self.text(value.name)
        elif isinstance(value, type):
            self.named(value, where)
        elif isinstance(value, types.FunctionType):
            self.function(value, where)
        elif isinstance(value, types.MethodType):
            self.add(value.__self__, where)
            self.add(value.__func__, where)
        elif isinstance(value, functools.partial):
            self.add((value.func, value.args, value.keywords), where)
        elif isinstance(value, _NAMED) and isinstance(getattr(value, "__self__", None), types.ModuleType | None):
            self.text(f"built-in {getattr(value, '__module__', '')} {value.__qualname__}")
        elif isinstance(value, types.CodeType):
            self.text(f"code {value.co_code!r} {value.co_names} {value.co_varnames}")
            self.add(value.co_consts, where)
        elif isinstance(value, weakref.ReferenceType):
            self.add(value(), where)
        elif isinstance(value, types.ModuleType):
            self.text(f"module {value.__name__}")
            self.modules.add(value.__name__)
        elif isinstance(value, np.ndarray | np.generic) and not value.dtype.hasobject:
            self.text(f"{value.dtype.str} {value.shape}")
            self.digest.update(value.tobytes())
        elif hasattr(value, "__dict__") and all(map(_is_all_attributes, type(value).__mro__[:-1])):
            self.named(type(value), where)
            self.attributes(vars(value), where)
        else:
            raise Incomparable(f"{where} is a {type(value).__module__}.{type(value).__qualname__}")

    def module(self, module: torch.nn.Module, where: str) -> None:
        self.named(type(module), where)
        attributes = dict(vars(module))
        transient = attributes.pop("_non_persistent_buffers_set")
        self.add(transient, where)
        for name, parameter in attributes.pop("_parameters").items():
            self.text(name)
            if parameter is not None:
                self.tensor(parameter, f"{where}.{name}", whole=False)
        for name, buffer in attributes.pop("_buffers").items():
            self.text(name)
            if buffer is not None:
                self.tensor(buffer, f"{where}.{name}", whole=name in transient or is_flag(buffer))
        for name, child in attributes.pop("_modules").items():
            self.text(name)
            self.add(child, f"{where}.{name}")
        self.attributes(attributes, where)

    def attributes(self, attributes: Mapping[str, Any], where: str) -> None:
        self.text(f"{len(attributes)} attributes")
        for name, value in attributes.items():
            self.text(name)
            if name not in _OF_THE_PROCESS:
                self.add(value, f"{where}.{name}")

    def tensor(self, tensor: torch.Tensor, where: str, *, whole: bool) -> None:
        """Its dtype, shape and memory; all of its numbers where a program may hold them."""
        if tensor.layout is not torch.strided or tensor.device.type != "cpu":
            raise Incomparable(f"{where} is a tensor of {tensor.layout} on {tensor.device}")
        self.named(type(tensor), where)
        memory = (tensor.data_ptr() if tensor.numel() else id(tensor), tensor.stride())
        number = self.memory.setdefault(memory, len(self.memory))
        self.text(f"{tensor.dtype} {tuple(tensor.shape)} {tensor.stride()} {tensor.requires_grad} {number}")
        if whole:
            self.digest.update(tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().data)

    def function(self, function: types.FunctionType, where: str) -> None:
        self.named(function, where)
        closure = [cell.cell_contents for cell in function.__closure__ or ()]
        self.add((function.__code__, function.__defaults__, function.__kwdefaults__, closure), where)

    def named(self, named: Any, where: str) -> None:
        """A class or a function: its name, and the file that says what it does."""
        self.text(f"{named.__module__} {named.__qualname__}")
        self.modules.add(named.__module__)
        if isinstance(named, type):
            self.modules.update(base.__module__ for base in named.__mro__)
        found = sys.modules.get(named.__module__)
        if named.__module__ != "builtins" and getattr(found, "__file__", None) is None and found is not _builtin(found):
            raise Incomparable(f"{where} is defined in {named.__module__}, which is no file")

    def versions(self) -> Iterator[str]:
        """What decides what the names mean: the bytes of local files, the versions of installed packages."""
        for name in sorted({name.partition(".")[0] for name in self.modules}):
            yield f"{name} {getattr(sys.modules.get(name), '__version__', '')}"
        for path in sorted({path for path in map(_path, list(sys.modules.values())) if path is not None}):
            yield f"{path} {_digest(path)}"


def _is_all_attributes(kind: type) -> bool:
    """Whether what a class adds to its objects is in their `__dict__`: it is written in Python, without slots."""
    return bool(kind.__flags__ & _HEAP_TYPE) and not vars(kind).get("__slots__")


def _builtin(module: types.ModuleType | None) -> types.ModuleType | None:
    """The module, where it is part of the interpreter or of a compiled package."""
    spec = getattr(module, "__spec__", None)
    return module if module is not None and (spec is None or spec.origin in ("built-in", "frozen")) else None


def _path(module: types.ModuleType) -> str | None:
    """The file of a loaded module that is neither Python's own nor of an installed package."""
    file = getattr(module, "__file__", None)
    if not isinstance(file, str) or not os.path.isfile(file) or file.startswith(_INSTALLED):
        return None
    return os.path.realpath(file)


def _digest(path: str) -> str:
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()
