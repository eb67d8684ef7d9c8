"""What there is to know of a compiled module beside its code, as plain values: for checks, profiles and memory plans.

Whoever compiles describes the module once, so that neither a profile nor a memory trace needs the compiler again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from autocast.runtime.results import Output, Outputs
from autocast.runtime.rows import Rows
from autocast.runtime.signature import Input, Signature
from autocast.runtime.sizes import Size, as_size

#: The function that computes, once, what depends on parameters alone, and the one that narrows the state.
PREPARE, CARRY = "autocast_prepare", "autocast_carry"

#: The name of the number of threads in a kernel's workspace.
THREADS = "threads"


@dataclass(frozen=True)
class Kernel:
    """One kernel: what its calls take and do, in terms of the sizes of its tensors.

    Attributes
    ----------
    shapes : tuple of tuple of Size
        Of its tensors, in the order of its parameters; names are its own.
    workspace : Size
        Bytes of temporary memory at its peak; `threads` is a name in it.
    flops : Size or None
        Floating-point operations of a call, where they are known.
    modules : tuple of str
        The submodules that its calls come from, one for each call of which that is known.
    """

    shapes: tuple[tuple[Size, ...], ...]
    workspace: Size
    flops: Size | None = None
    modules: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """As JSON can say it."""
        return asdict(self)

    @classmethod
    def from_json(cls, facts: Mapping[str, Any]) -> Kernel:
        """What `to_json` said."""
        shapes = tuple(map(_shape, facts["shapes"]))
        return cls(shapes, as_size(facts["workspace"]), as_size(facts["flops"]), tuple(facts["modules"]))

    def sizes(self, shapes: Sequence[Sequence[int]]) -> dict[str, int]:
        """The values of its names where its tensors have `shapes`."""
        sizes: dict[str, int] = {}
        for own, shape in zip(self.shapes, shapes, strict=False):
            for dimension, size in zip(own, shape, strict=False):
                if isinstance(dimension, str):
                    sizes.setdefault(dimension, size)
        return sizes


@dataclass(frozen=True)
class Function:
    """One function as the virtual machine runs it, as far as memory is concerned.

    Attributes
    ----------
    params : tuple of tuple of Size
        The shapes of its parameters, whose names a call gives values; nothing for what is no tensor. They are the first
        variables, numbered from 0.
    steps : sequence of steps
        Each a word and its operands; `v` is a number of a variable, `value` is one, a list of values, or None:

        - `allocate, v, shape or None, dtype`: storage, whose size may be known to nobody;
        - `is, v, value`: another name, a group of values, a tensor in a storage;
        - `field, v, value, index`;
        - `release, v`;
        - `call, v, function, values, shapes`: another of the functions;
        - `kernel, name, shapes`: a kernel, or a packed function, with the shapes of its tensors;
        - `match, shape or None, names`: sizes that a value turns out to have;
        - `branch, v, steps, value, steps, value`: one or the other.
    result : value
        What it returns.
    """

    params: tuple[tuple[Size, ...], ...]
    steps: Sequence[Any]
    result: Any


@dataclass(frozen=True)
class Mismatches:
    """What to call the sizes that are compared while a model runs, by the types that TVM's errors name.

    `declared` has the variables of `match_cast`s, `compared` what operands need of each other.
    """

    declared: Mapping[str, Sequence[str]]
    compared: Mapping[str, Sequence[str]]


@dataclass(frozen=True)
class Program:
    """A description of a compiled module.

    Attributes
    ----------
    signature : Signature
        Of `main`, without state and parameters.
    state : tuple of Input
        What `main` takes after the inputs: the parameters that a call replaces.
    copies : tuple of Input
        After them: their copies in low precision, which a call replaces, too.
    params : tuple of Input
        After them: parameters as they are, or what PREPARE makes of them.
    functions : dict of str to Function
        The Relax functions; `main` is one, PREPARE and CARRY may be.
    kernels : dict of str to Kernel
        By the names that the virtual machine calls them by.
    constants : int
        Bytes of the literal tensors.
    outputs_vary : bool
        Whether a result may have another size in another call.
    mismatches : Mismatches
        What errors of sizes call things.
    notes : tuple of str
        A line for each low-precision dtype that is stored and that the target has no fast arithmetic for.
    target : str
        What the code was generated for, as TVM writes it.
    architecture : str
        The same, as the system names it: `x86_64`.
    features : tuple of str
        LLVM's features that it needs of a processor: see `autocast.runtime.processors`.
    torch_calls : tuple of str
        The packed functions of `autocast.runtime.torch_calls` that it calls.
    """

    signature: Signature
    state: tuple[Input, ...]
    copies: tuple[Input, ...]
    params: tuple[Input, ...]
    functions: Mapping[str, Function]
    kernels: Mapping[str, Kernel]
    constants: int
    outputs_vary: bool
    mismatches: Mismatches
    notes: tuple[str, ...]
    target: str
    architecture: str
    features: tuple[str, ...]
    torch_calls: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """As JSON can say it."""
        return asdict(self)

    @classmethod
    def from_json(cls, facts: Mapping[str, Any]) -> Program:
        """What `to_json` said."""
        return cls(
            **{
                **facts,
                "signature": _signature(facts["signature"]),
                **{name: tuple(map(_input, facts[name])) for name in ("state", "copies", "params")},
                "functions": {name: Function(**function) for name, function in facts["functions"].items()},
                "kernels": {name: Kernel.from_json(kernel) for name, kernel in facts["kernels"].items()},
                "mismatches": Mismatches(**facts["mismatches"]),
                "notes": tuple(facts["notes"]),
                "features": tuple(facts["features"]),
                "torch_calls": tuple(facts.get("torch_calls", ())),
            }
        )

    def prepared(self) -> Program:
        """The same, whose parameters were prepared: nothing is left to be computed once."""
        functions = {name: function for name, function in self.functions.items() if name != PREPARE}
        return replace(self, functions=functions)


def _input(facts: Mapping[str, Any]) -> Input:
    return Input(facts["name"], facts["dtype"], _shape(facts["shape"]))


def _shape(sizes: Sequence[Any]) -> tuple[Size, ...]:
    return tuple(map(as_size, sizes))


def _signature(facts: Mapping[str, Any]) -> Signature:
    inputs = tuple(map(_input, facts["inputs"]))
    fitted = {name: _shape(shape) for name, shape in facts["fitted"].items()}
    written = tuple(facts.get("written", ()))
    outputs = _outputs(facts.get("outputs"))
    rows = tuple((at, Rows(**{**table, "count": as_size(table["count"])})) for at, table in facts.get("rows", ()))
    known = {"inputs": inputs, "fitted": fitted, "written": written, "outputs": outputs, "rows": rows}
    return Signature(**{**facts, **known})


def _outputs(facts: Any) -> Outputs:
    if isinstance(facts, Mapping):
        return Output(facts["dtype"], None if facts["shape"] is None else _shape(facts["shape"]))
    return facts if facts is None else tuple(map(_outputs, facts))
