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

import math
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple

import tvm
import tvm_ffi

from autocast.errors import AutocastError

#: Nodes are of these classes, or of some that derive from them; those below are written in their own ways.
_FAMILIES = (
    *("ir.Attrs", "ir.Expr", "ir.GlobalInfo", "ir.Range", "ir.Span", "ir.Type", "relax.expr.Binding"),
    *("relax.expr.BindingBlock", "s_tir.MatchBufferRegion", "te.CommReducer", "tirx.IndexMap", "tirx.IterVar"),
    *("tirx.Layout", "tirx.Stmt"),
)
ARRAY, MAP, TENSOR = "ffi.Array", "ffi.Map", "ffi.Tensor"
OP, SOURCE_NAME, TARGET, ENV_FUNC = "ir.Op", "ir.SourceName", "target.Target", "ir.EnvFunc"

#: How deep nodes may be nested: TVM walks them, and frees them, by recursion.
DEEPEST = 2000


class SerializationError(AutocastError):
    """A module holds something that is no data, or data describe no module."""


class NodeClass(NamedTuple):
    """A class of nodes: its key, its number in this process, and the names, types and readers of its fields."""

    key: str
    number: int
    names: tuple[str, ...]
    types: tuple[str, ...]
    getters: tuple[Callable[[Any], Any], ...]


@cache
def class_of(key: str) -> NodeClass:
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
    return NodeClass(
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
            self.classes[key] = (key, () if key in WRITTEN else class_of(key).names)
        numbers = [self._numbers[one.__chandle__()] for one in values if _is_node(one)]
        depth = 1 + max((self._depths[number] for number in numbers), default=0)
        if depth > DEEPEST:
            raise SerializationError(
                f"nodes are nested more than {DEEPEST} deep, expected expressions that are bound to variables"
            )
        if key == TENSOR:
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
        if key in WRITTEN:
            values = WRITTEN[key](node)
            return key, [""] * len(values), values
        found = class_of(key)
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
WRITTEN: dict[str, Callable[[Any], Sequence[Any]]] = {
    ARRAY: list,
    MAP: lambda node: [one for pair in node.items() for one in pair],
    TENSOR: lambda node: (),
    OP: lambda node: (node.name,),
    SOURCE_NAME: lambda node: (node.name,),
    ENV_FUNC: lambda node: (node.name,),
    TARGET: lambda node: (str(node),),
}
