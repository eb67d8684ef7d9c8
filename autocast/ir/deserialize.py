"""Data that `to_data` wrote become a module again, or an error, whoever wrote them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import tvm
import tvm_ffi
from tvm import relax

from autocast.ir.serialize import (
    ARRAY,
    DEEPEST,
    ENV_FUNC,
    MAP,
    OP,
    SOURCE_NAME,
    TARGET,
    TENSOR,
    WRITTEN,
    NodeClass,
    SerializationError,
    class_of,
)
from autocast.messages import reason

#: What an `EnvFunc` may be: TVM's functions that infer types.
_ENV_FUNCS = "tvm.relax.type."

#: Fields that are written as JSON has them.
_PLAIN = {"bool": bool, "int": int, "str": str}

#: Types that have literal values, or may have.
_ANYTHING = {"Any", "Object", "bool", "dtype", "float", "int", "str"}
_WORD = re.compile(r"[\w.]+")

#: Fields that may be empty although their types do not say so.
_MAY_BE_EMPTY = {"span", "attrs"}

_make = tvm_ffi.get_global_func("ffi.MakeObjectFromPackedArgs")
_array, _map = tvm_ffi.get_global_func("ffi.Array"), tvm_ffi.get_global_func("ffi.Map")
_dtype = cache(tvm_ffi.dtype)


def from_data(data: Any, tensors: Sequence[tvm.runtime.Tensor]) -> tvm.IRModule:
    """The module that `to_data` wrote.

    Data from anywhere may be tried: they are a module whose nodes have fields of the right classes, or an error. What
    the nodes mean is not looked at: see `check_well_formed`.

    Raises
    ------
    SerializationError
        `data` are not what `to_data` makes, or need an operator or a class that is not registered in this process.
    """
    try:
        reader = _Reader(data["classes"], tensors)
        for fields in data["nodes"]:
            reader.add(fields)
        functions, attrs, global_infos = (reader.root(data[name]) for name in ("functions", "attrs", "global_infos"))
        if any(infos is None for infos in global_infos.values()):
            raise SerializationError("an element of the global_infos is empty")
        return tvm.IRModule(
            dict(functions.items()), None if attrs is None else dict(attrs.items()), dict(global_infos.items())
        )
    except SerializationError:
        raise
    except Exception as error:
        # TVM's setters raise many kinds of errors, in many words, where a value is not what the field takes.
        raise SerializationError(f"the data describe no module: {type(error).__name__}: {reason(error)}") from error


class _Reader:
    """Makes nodes, in the order in which they were numbered."""

    def __init__(self, classes: Any, tensors: Sequence[tvm.runtime.Tensor]) -> None:
        self.nodes: list[Any] = []
        self._depths: list[int] = []
        self._tensors = tensors
        self._classes = [key if key in WRITTEN else self._same_class(key, names) for key, names in classes]

    def _same_class(self, key: str, names: Any) -> NodeClass:
        found = class_of(key)
        if tuple(names) != found.names:
            raise SerializationError(
                f"a {key} has the fields {names}, and in TVM {tvm.__version__} {list(found.names)}: another version of "
                "TVM wrote it"
            )
        return found

    def root(self, number: Any) -> Any:
        return None if number is None else self._node(number)

    def add(self, fields: Any) -> None:
        """Make the next node."""
        kind, *values = fields
        self._depth = 0
        found = self._classes[_natural(kind)]
        self.nodes.append(self._written(found, values) if isinstance(found, str) else self._made(found, values))
        if self._depth >= DEEPEST:
            raise SerializationError(f"nodes are nested more than {DEEPEST} deep")
        self._depths.append(self._depth + 1)

    def _node(self, number: Any) -> Any:
        node = self.nodes[_natural(number)]
        self._depth = max(self._depth, self._depths[number])
        return node

    def _made(self, found: NodeClass, values: Sequence[Any]) -> Any:
        arguments: list[Any] = [found.number]
        for name, type_, value in zip(found.names, found.types, values, strict=True):
            if value is None and name not in _MAY_BE_EMPTY and not type_.endswith("None"):
                raise SerializationError(f"the field {name} of a {found.key} is empty")
            arguments += [name, self._decoded(type_, value)]
        node = _make(*arguments)
        if found.key == "ir.Call":
            _check_call(node)
        return node

    def _written(self, key: str, values: list[Any]) -> Any:
        if key == TENSOR:
            (number,) = values
            return self._tensors[_natural(number)]
        decoded = [self._decoded("", value) for value in values]
        # Attributes may be None; no list of TVM's looks for an element that is.
        if None in values and (key != MAP or not all(isinstance(one, str) for one in decoded[::2])):
            raise SerializationError(f"an element of a {key} is empty")
        if key == ARRAY:
            return _array(*decoded)
        if key == MAP:
            return _map(*decoded)
        (name,) = decoded
        if not isinstance(name, str):
            raise SerializationError(f"a {key} is written as {name!r:.100}, expected a string")
        return _NAMED[key](name)

    def _decoded(self, type_: str, value: Any) -> Any:
        """The value of a field of a type, as TVM writes it; empty for what may hold anything."""
        if type_ in _PLAIN:
            if type(value) is not _PLAIN[type_]:
                raise SerializationError(f"{value!r:.100} is not of the type {type_}")
            return value
        if type_ == "float":
            return _float(value)
        if type_ == "dtype" and isinstance(value, str):
            return _dtype(value)
        if type(value) is int:
            return self._node(value)
        if value is None:
            return None
        if type_ and not _ANYTHING & {*_WORD.findall(type_)}:
            raise SerializationError(f"{value!r:.100} is not of the type {type_}")  # TVM would make an expression of it
        if isinstance(value, bool | str):
            return value
        tag, item = value
        return _LITERALS[tag](item)


def _check_call(call: Any) -> None:
    """Raise SerializationError where TVM would look into a callee or attributes without looking what they are."""
    if isinstance(call.op, tvm.ir.Op):
        expected = call.op.attrs_type_key
        found = None if call.attrs is None else type(call.attrs).__tvm_ffi_type_info__.type_key
        if expected.startswith("relax.attrs.") and found != expected:
            raise SerializationError(f"a call of {call.op.name} has {found}, expected {expected}")
    elif not isinstance(call.op.ty, relax.FuncType):
        raise SerializationError(f"a {type(call.op).__name__} is called that is no function")


def _natural(value: Any) -> int:
    """A number of a node or class: never negative, where Python counts from the end."""
    if type(value) is not int or value < 0:
        raise SerializationError(f"{value!r:.100} is the number of no node")
    return value


def _int(value: Any) -> int:
    if type(value) is not int:
        raise SerializationError(f"{value!r:.100} is no whole number")
    return value


def _float(value: Any) -> float:
    if type(value) not in (int, float) and value not in ("inf", "-inf", "nan"):
        raise SerializationError(f"{value!r:.100} is no number")
    return float(value)


#: What reads a value by the word before it.
_LITERALS: dict[str, Callable[[Any], Any]] = {"int": _int, "float": _float, "dtype": _dtype}


def _op(name: str) -> tvm.ir.Op:
    try:
        return tvm.ir.Op.get(name)
    except Exception:
        raise SerializationError(
            f"there is no operator {name!r} here; try to register it, or to import the package that does, first"
        ) from None


def _env_func(name: str) -> Any:
    if not name.startswith(_ENV_FUNCS):
        raise SerializationError(f"the function {name!r} is no data, expected one of {_ENV_FUNCS}*")
    return tvm.ir.EnvFunc.get(name)


#: What nodes are made from that are written as a string.
_NAMED: dict[str, Callable[[str], Any]] = {
    OP: _op,
    SOURCE_NAME: tvm.ir.SourceName,
    ENV_FUNC: _env_func,
    TARGET: lambda text: tvm.target.Target(json.loads(text)),
}
