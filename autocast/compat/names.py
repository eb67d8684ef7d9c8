"""What other systems' operators are called here, and what of ours a model has."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from types import MappingProxyType
from typing import Any, NoReturn

import tvm

from autocast.errors import PolicyError, UnsupportedError
from autocast.ir import all_bindings, op_name, relax_functions
from autocast.messages import check_value, nearest
from autocast.vm.torch_devices import checked_device

#: An operator's name in another system -> those of the operators of Relax that it becomes.
Names = Mapping[str, tuple[str, ...]]


def table(text: str) -> dict[str, tuple[str, ...]]:
    """Names, from lines of `theirs: ours, ...`, or `theirs, theirs: ours` where several mean the same."""
    names: dict[str, tuple[str, ...]] = {}
    for line in text.strip().splitlines():
        theirs, ours = line.split(":")
        for name in theirs.split(","):
            names[name.strip()] = tuple(ours.replace(",", " ").split())
    return names


def operators_of(mod: tvm.IRModule) -> set[str]:
    """The operators that a module calls, as `nn.relu`."""
    names = (op_name(binding.value) for _, function in relax_functions(mod) for binding in all_bindings(function.body))
    return {name.removeprefix("relax.") for name in names if name is not None}


def translated(theirs: Iterable[str] | None, names: Names, called: Collection[str]) -> tuple[str, ...]:
    """Our operators for `theirs`, of which a model calls `called`; names that are not in the table are ours already.

    Of one that may be several of ours those count that are called; all, if none is, so that the policy says so.
    """
    found: list[str] = []
    for name in theirs or ():
        ours = names.get(name, (name,))
        found += [each for each in ours if each in called] or ours[:1]
    return tuple(found)


def check_names(what: str, names: Any) -> None:
    """PolicyError unless `names` are texts, several of them, or None."""
    check_value(what, "names", names, _are_names, PolicyError, "a list of names, such as ['relu'], or None")


def _are_names(names: Any) -> bool:
    return names is None or (not isinstance(names, str) and all(isinstance(name, str) for name in names))


def check_device(device: object, what: str) -> None:
    """Raise UnsupportedError unless `device` (None, "cpu", or an object whose text says so) is the CPU."""
    text = "cpu" if device is None else str(device).lower().removesuffix("(0)").removesuffix(":0")
    if text not in ("cpu", "cpuplace", "cpuplace()", "place(cpu)"):
        raise UnsupportedError(
            f"{what}: got {device!r}, expected the CPU, which is all that models are compiled for; try {what}='cpu', "
            "or leave it out"
        )


def measured_device(device: object) -> str:
    """The name of a device on which models are measured: the CPU's, as `check_device` takes it, or one of torch's.

    Raises
    ------
    UnsupportedError
        There is no such device: it lists those that there are.
    """
    try:
        check_device(device, "device")
    except UnsupportedError:
        return checked_device(device)
    return "cpu"


def missing(
    where: str,
    name: str,
    known: Iterable[str],
    remedy: str = "",
    instead: Mapping[str, str] = MappingProxyType({}),
) -> AttributeError:
    """The error for a name that another system has in the module or object `where`, and that there is not here.

    It says what is in place of the name, which `instead` knows, or else the nearest of `known` and a remedy.
    """
    public = [each for each in known if not each.startswith("_")]
    near = f"nearest: {nearest(name, public)}" + (f"; {remedy}" if remedy else "")
    return AttributeError(f"{where} has no {name!r}; {instead.get(name, near)}", name=name)


def named(
    module: str, names: Collection[str], remedy: str = "", instead: Mapping[str, str] = MappingProxyType({})
) -> Callable[[str], NoReturn]:
    """The `__getattr__` of a module: it raises `missing`."""

    def fail(name: str) -> NoReturn:
        raise missing(module, name, names, remedy, instead)

    return fail
