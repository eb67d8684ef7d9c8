"""What a program is compiled from."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import tvm
import tvm_ffi

from autocast import settings
from autocast.ir import all_bindings, place_of, relax_functions
from autocast.kernels import found
from autocast.runtime.signature import Signature


@dataclass(frozen=True, eq=False)
class Source:
    """A module that was checked, and how it is compiled.

    Attributes
    ----------
    mod : IRModule
    signature : Signature
        Of `main`.
    state : tuple of str
        The names of the parameters that a call replaces.
    target : Target
    opt_level : int
    """

    mod: tvm.IRModule
    signature: Signature
    state: tuple[str, ...]
    target: tvm.target.Target
    opt_level: int

    @cached_property
    def names(self) -> tuple[object, ...]:
        """The name of each variable, and where it comes from: equal modules of other names are other programs to who
        reads a profile, or an error."""
        return (*_names(self.mod), *self.state)

    @cached_property
    def key(self) -> tuple[Any, ...]:
        """The same for sources that become the same program, in this process."""
        whole = tvm_ffi.StructuralKey(tvm.IRModule(self.mod.functions, attrs=self.mod.attrs))
        return (whole, self.names, str(self.target), self.opt_level, settings.debug().poison, self.found)

    @cached_property
    def found(self) -> tuple[tuple[str, str], ...]:
        """What the find database says of kernels, the same for all of a key."""
        return found.state()


def _names(mod: tvm.IRModule) -> Iterator[tuple[str, str]]:
    for _, function in relax_functions(mod):
        for var in (*function.params, *(binding.var for binding in all_bindings(function.body))):
            yield str(var.name), place_of(var).module
