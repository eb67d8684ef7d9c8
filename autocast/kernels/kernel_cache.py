"""Compiled kernels on disk: one that any program had before is not compiled again, whatever it is called there."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import tvm
import tvm_ffi
from tvm import tirx

from autocast.cache import Store, store
from autocast.container import Format
from autocast.kernels.objects import Object
from autocast.kernels.targets.cpu.instruction_sets import machine_of

#: What a file of a kernel is marked with. Another version has other keys, too.
KERNELS = Format("autocast.cache.kernels", 1, "autocast.vm.compile", "autocast.vm.compile")

#: What compiles beside TVM's passes and LLVM: versions, digests of sources.
Makers = Callable[[], tuple[object, ...]]

#: The name of each kernel while it is identified.
_UNNAMED = "kernel"

#: What TVMScript has in place of what is no text, or a long one.
_METADATA = re.compile(r'metadata\["([^"]+)"\]')

#: Digits of its key behind a kernel's name in machine code, where kernels of many programs meet.
_DIGITS = 16

#: What decides about a kernel is in its loops, threads included.
_NO_MATTER = ("num-cores",)


class Identity(NamedTuple):
    """What a kernel is, but for its name.

    Attributes
    ----------
    key : str
        A digest of its loops as text, and of all that makes code of them.
    structure : str
        TVM's structural hash: equal loops that are no text, too.
    """

    key: str
    structure: str

    def symbol(self, name: str) -> str:
        """The name in machine code of the kernel, which is called `name` in the program that compiles it: profiles have
        the name that a program gives it, what LLVM was told to say in errors has this one."""
        return f"{name}_{self.key[:_DIGITS]}"


class FoundKernel(NamedTuple):
    """A kernel that was compiled before, what was read off it then, and the name of the folder that it was in."""

    code: Object
    facts: Any
    folder: str


@dataclass(frozen=True)
class KernelCache:
    """Compiled kernels, for one target and pass context.

    Attributes
    ----------
    store : Store
    makers : tuple
        What every key depends on: versions, the instructions of the target, options of passes.
    """

    store: Store
    makers: tuple[object, ...]

    def identify(self, kernel: tirx.PrimFunc) -> Identity | None:
        """What `kernel` is: its loops, which code generation has not seen yet; None where they hold what is no text,
        a constant tensor, say: TVM would write that as JSON, which ends the process."""
        unnamed = kernel.with_attr("global_symbol", _UNNAMED)
        structure = format(tvm_ffi.structural_hash(unnamed) % 2**64, "016x")
        try:
            text = unnamed.script()
        except TypeError:  # a function within an attribute, say
            return None
        if metadata := set(_METADATA.findall(text)):
            if metadata - {"ir.StringImm"}:
                return None
            text = unnamed.script(show_meta=True)
        return Identity(hashlib.sha256(repr((self.makers, text)).encode()).hexdigest(), structure)

    def find(self, identity: Identity) -> FoundKernel | None:
        """A kernel, if it was compiled before."""
        found = self.store.find(KERNELS, identity.key)
        if found is None or found.container.metadata["structure"] != identity.structure:
            return None
        container, folder = found
        facts = json.loads(bytes(container["facts.json"]))
        return FoundKernel(Object(bytes(container["kernel.o"]), (container.metadata["symbol"],)), facts, folder)

    def add(self, identity: Identity, code: Object, facts: Any, target: tvm.target.Target) -> None:
        """Keep a compiled kernel."""
        (symbol,) = code.functions
        entries = {"kernel.o": code.data, "facts.json": json.dumps(facts).encode()}
        about = {"structure": identity.structure, "symbol": symbol, "target": str(target)}
        self.store.add(KERNELS, identity.key, entries, about)


def kernel_cache(target: tvm.target.Target, makers: Makers | None) -> KernelCache | None:
    """The cache for the caller's `PassContext`; None without `makers`, where the settings want none, or where
    instruments watch what is compiled."""
    context, kept = tvm.transform.PassContext.current(), store()
    if makers is None or len(context.instruments) or not kept.folders:
        return None
    options = sorted((str(name), str(value)) for name, value in context.config.items())
    passes = (context.opt_level, sorted(map(str, context.disabled_pass)), sorted(map(str, context.required_pass)))
    return KernelCache(kept, (str(KERNELS), *makers(), machine_of(target, _NO_MATTER), options, passes))
