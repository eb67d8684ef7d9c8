"""Modules as data and back: no text is parsed and nothing runs, nodes of known classes are made from their fields.

A module becomes nodes in an order in which each refers to earlier ones only, by number, so what was shared stays
shared: variables, symbolic sizes, types. The values of constants are kept beside them. TVM's own way to do this crashes
in its wheels of 0.27 with newer versions of tvm-ffi.

    {"classes": [["ir.PrimType", ["span", "dtype"]], ["ir.Var", ["span", "ty", "name"]], ...],
     "nodes": [[0, null, "int64"], [1, null, 0, "n"], ...],
     "functions": 93, "attrs": 94, "global_infos": 95}

A node is the number of its class, and its fields. JSON says what they are where TVM knows them to be numbers, strings,
truth values or dtypes. In fields and containers that may hold anything, a number is that of a node, and numbers and
dtypes are written ["int", 3], ["float", 0.5], ["dtype", "float32"].
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple

import tvm
import tvm_ffi
from tvm import relax

from autocast.errors import AutocastError
from autocast.messages import reason

#: Nodes are of these classes, or of some that derive from them; those below are written in their own ways.
_FAMILIES = (
    *("ir.Attrs", "ir.Expr", "ir.GlobalInfo", "ir.Range", "ir.Span", "ir.Type", "relax.expr.Binding"),
    *("relax.expr.BindingBlock", "s_tir.MatchBufferRegion", "te.CommReducer", "tirx.IndexMap", "tirx.IterVar"),
    *("tirx.Layout", "tirx.Stmt"),
)
_ARRAY, _MAP, _TENSOR = "ffi.Array", "ffi.Map", "ffi.Tensor"
_OP, _SOURCE_NAME, _TARGET, _ENV_FUNC = "ir.Op", "ir.SourceName", "target.Target", "ir.EnvFunc"

#: What an `EnvFunc` may be: TVM's functions that infer types.
_ENV_FUNCS = "tvm.relax.type."

#: Fields that are written as JSON has them.
_PLAIN = {"bool": bool, "int": int, "str": str}

#: Types that have literal values, or may have.
_ANYTHING = {"Any", "Object", "bool", "dtype", "float", "int", "str"}
_WORD = re.compile(r"[\w.]+")

#: Fields that may be empty although their types do not say so.
_MAY_BE_EMPTY = {"span", "attrs"}

#: How deep nodes may be nested: TVM walks them, and frees them, by recursion.
DEEPEST = 2000

_make = tvm_ffi.get_global_func("ffi.MakeObjectFromPackedArgs")
_array, _map = tvm_ffi.get_global_func("ffi.Array"), tvm_ffi.get_global_func("ffi.Map")
_dtype = cache(tvm_ffi.dtype)


class SerializationError(AutocastError):
    """A module holds something that is no data, or data describe no module."""


class _Class(NamedTuple):
    """A class of nodes: its key, its number in this process, and the names, types and readers of its fields."""

    key: str
    index: int
    names: tuple[str, ...]
    types: tuple[str, ...]
    getters: tuple[Callable[[Any], Any], ...]


@cache
def _class_of(key: str) -> _Class:
    """The class of a key; SerializationError where nodes of it are no data."""
    try:
        info = tvm_ffi.core._lookup_or_register_type_info_from_type_key(key)
    except ValueError:
        raise SerializationError(f"TVM {tvm.__version__} has no class {key!r}") from None
    lineage = [info]
    while lineage[0].parent_type_info is not None:
        lineage.insert(0, lineage[0].parent_type_info)
    if not {one.type_key for one in lineage} & {*_FAMILIES}:
        raise SerializationError(f"a {key} is no data")
    fields = [field for one in lineage for field in one.fields]
    return _Class(
        key,
        info.type_index,
        tuple(field.name for field in fields),
        tuple(str(field.ty) for field in fields),
        tuple(field.getter for field in fields),
    )


def to_data(mod: tvm.IRModule) -> tuple[dict[str, Any], list[tvm.runtime.Tensor]]:
    """A module as what JSON can say, and the tensors of its constants.

    Raises
    ------
    SerializationError
        The module holds what is no data: Python functions, compiled modules; or is nested too deep.
    """
    if getattr(mod, "pyfuncs", None):
        raise SerializationError(f"the module has Python functions, {sorted(mod.pyfuncs)}, which are no data")
    writer = _Writer()
    parts = {"functions": mod.functions, "attrs": mod.attrs, "global_infos": mod.global_infos}
    numbers = {name: None if part is None else writer.number(part) for name, part in parts.items()}
    classes = [[key, names] for key, names in writer.classes.values()]
    return {"classes": classes, "nodes": writer.nodes, **numbers}, writer.tensors


class _Writer:
    """Numbers nodes, each after those that it refers to."""

    def __init__(self) -> None:
        self.nodes: list[list[Any]] = []
        self.tensors: list[tvm.runtime.Tensor] = []
        self.classes: dict[str, tuple[str, tuple[str, ...]]] = {}
        self._numbers: dict[int, int] = {}
        self._depths: list[int] = []
        self._class_numbers: dict[str, int] = {}
        #: Nodes that were numbered: were one freed, another might get its address.
        self._alive: list[Any] = []

    def number(self, root: Any) -> int:
        """The number of a node; those that it is made of are numbered before it."""
        pending = [(root, *self._parts(root))]
        while pending:
            node, key, types, values = pending[-1]
            if node.__chandle__() in self._numbers:
                pending.pop()
                continue
            new = [one for one in values if _is_node(one) and one.__chandle__() not in self._numbers]
            if new:
                pending += [(one, *self._parts(one)) for one in reversed(new)]
                continue
            pending.pop()
            self._add(node, key, types, values)
        return self._numbers[root.__chandle__()]

    def _add(self, node: Any, key: str, types: Sequence[str], values: Sequence[Any]) -> None:
        if key not in self._class_numbers:
            self._class_numbers[key] = len(self._class_numbers)
            self.classes[key] = (key, () if key in _WRITTEN else _class_of(key).names)
        numbers = [self._numbers[one.__chandle__()] for one in values if _is_node(one)]
        depth = 1 + max((self._depths[number] for number in numbers), default=0)
        if depth > DEEPEST:
            raise SerializationError(
                f"nodes are nested more than {DEEPEST} deep, expected expressions that are bound to variables"
            )
        if key == _TENSOR:
            fields = [len(self.tensors)]
            self.tensors.append(node)
        else:
            fields = [self._encoded(type_, one) for type_, one in zip(types, values, strict=True)]
        self._numbers[node.__chandle__()] = len(self.nodes)
        self.nodes.append([self._class_numbers[key], *fields])
        self._depths.append(depth)
        self._alive.append(node)

    def _parts(self, node: Any) -> tuple[str, Sequence[str], Sequence[Any]]:
        """The key of a node's class, and the types and values of its fields."""
        info = getattr(type(node), "__tvm_ffi_type_info__", None)
        if info is None:
            raise SerializationError(f"a {type(node).__name__} is no data")
        key = info.type_key
        if key in _WRITTEN:
            values = _WRITTEN[key](node)
            return key, [""] * len(values), values
        found = _class_of(key)
        return key, found.types, [getter(node) for getter in found.getters]

    def _encoded(self, type_: str, value: Any) -> Any:
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, tvm_ffi.dtype):
            return str(value) if type_ == "dtype" else ["dtype", str(value)]
        if isinstance(value, str):
            return str(value)
        if isinstance(value, int):
            return value if type_ == "int" else ["int", value]
        if isinstance(value, float):
            number = value if math.isfinite(value) else str(value)
            return number if type_ == "float" else ["float", number]
        if _is_node(value):
            return self._numbers[value.__chandle__()]
        raise SerializationError(f"a {type(value).__name__}, {value!r:.100}, is no data")


def _is_node(value: Any) -> bool:
    return isinstance(value, tvm_ffi.core.CObject)


#: What nodes of some classes are written as, in place of their fields; for a tensor it is its number.
_WRITTEN: dict[str, Callable[[Any], Sequence[Any]]] = {
    _ARRAY: list,
    _MAP: lambda node: [one for pair in node.items() for one in pair],
    _TENSOR: lambda node: (),
    _OP: lambda node: (node.name,),
    _SOURCE_NAME: lambda node: (node.name,),
    _ENV_FUNC: lambda node: (node.name,),
    _TARGET: lambda node: (str(node),),
}


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
        self._classes = [key if key in _WRITTEN else self._same_class(key, names) for key, names in classes]

    def _same_class(self, key: str, names: Any) -> _Class:
        found = _class_of(key)
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

    def _made(self, found: _Class, values: Sequence[Any]) -> Any:
        arguments: list[Any] = [found.index]
        for name, type_, value in zip(found.names, found.types, values, strict=True):
            if value is None and name not in _MAY_BE_EMPTY and not type_.endswith("None"):
                raise SerializationError(f"the field {name} of a {found.key} is empty")
            arguments += [name, self._decoded(type_, value)]
        node = _make(*arguments)
        if found.key == "ir.Call" and not isinstance(node.op, tvm.ir.Op) and not isinstance(node.op.ty, relax.FuncType):
            # TVM looks into the type of a function that is called, without looking whether it is one.
            raise SerializationError(f"a {type(node.op).__name__} is called that is no function")
        return node

    def _written(self, key: str, values: list[Any]) -> Any:
        if key == _TENSOR:
            (number,) = values
            return self._tensors[_natural(number)]
        decoded = [self._decoded("", value) for value in values]
        # Attributes may be None; no list of TVM's looks for an element that is.
        if None in values and (key != _MAP or not all(isinstance(one, str) for one in decoded[::2])):
            raise SerializationError(f"an element of a {key} is empty")
        if key == _ARRAY:
            return _array(*decoded)
        if key == _MAP:
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
        return {"int": _int, "float": _float, "dtype": _dtype}[tag](item)


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
    _OP: _op,
    _SOURCE_NAME: tvm.ir.SourceName,
    _ENV_FUNC: _env_func,
    _TARGET: lambda text: tvm.target.Target(json.loads(text)),
}
