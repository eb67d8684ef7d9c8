"""Which types, and which calls, are alike: what is found out about one of them holds for all.

Layers of a model repeat each other, so most calls are like one that was seen before. Their fields are read once, as
every access to a field of the IR calls into C++; whatever follows from the operator, its attributes and the types of
its operands is found out once for all that are alike.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any

import tvm
from tvm import relax
from tvm_ffi import StructuralKey

import type_hints
from autocast.ir import Bound, hides_dtype, identity, items, op_name
from autocast.ir.foreign import torch_operator
from autocast.ir.views import count, structural_equal, structural_hash
from autocast.operators import Kind, is_kind

_IntImm = tvm.tirx.IntImm
_ShapeExpr = relax.ShapeExpr
_TensorType = relax.TensorType


@dataclass(slots=True, eq=False)
class TypeFacts:
    """What is known of a type, one for all types that are structurally equal.

    `dtype` is a tensor's, None for other types and for tensors that leave it out; `elements` how many it has, None
    where run-time sizes or nothing say that; `fields` are a tuple's.
    """

    type: Any
    dtype: str | None = None
    elements: int | None = None
    fields: tuple[TypeFacts, ...] | None = None
    hides_dtype: bool = False
    retyped: dict[str, relax.TensorType] = field(default_factory=dict)

    def type_in(self, dtype: str) -> relax.TensorType:
        """The type of a tensor with element type `dtype`."""
        if dtype == self.dtype:
            return self.type
        if dtype not in self.retyped:
            shape, rank = self.type.shape, self.type.ndim
            ndim = rank if shape is None else -1  # TVM takes one of them
            self.retyped[dtype] = relax.TensorType(shape, dtype, self.type.vdevice, ndim)
        return self.retyped[dtype]


class Types:
    """The facts of types. A type is known by its address, as types are compared by structure and have no `identity`."""

    def __init__(self) -> None:
        # Types are kept, so that no others get their identities.
        self._seen: dict[int, tuple[Any, TypeFacts]] = {}
        self._alike: dict[Hashable, TypeFacts] = {}
        self._dtypes: dict[int, tuple[tvm.ir.PrimType, str]] = {}

    def of(self, ty: Any) -> TypeFacts:
        """The facts of a type."""
        key = ty.__chandle__()
        seen = self._seen.get(key)
        if seen is None:
            seen = self._seen[key] = ty, self._read(ty)
        return seen[1]

    def is_of(self, ty: Any, facts: TypeFacts) -> bool:
        """Whether these are the facts of a type: comparing is less than reading."""
        key = ty.__chandle__()
        seen = self._seen.get(key)
        if seen is not None:
            return seen[1] is facts
        if not structural_equal(ty, facts.type, False, False):
            return False
        self._seen[key] = ty, facts
        return True

    def dtype(self, element: tvm.ir.PrimType | None) -> str | None:
        """The name of an element type; TVM shares these nodes, and writes the name anew whenever it is asked."""
        if element is None:
            return None
        key = element.__chandle__()
        if key not in self._dtypes:
            self._dtypes[key] = element, element.dtype
        return self._dtypes[key][1]

    def _read(self, ty: Any) -> TypeFacts:
        if type(ty) is not _TensorType:
            return self._known(StructuralKey(ty), ty, None)
        element, shape = ty.dtype, ty.shape
        dtype = self.dtype(element)
        if type(shape) is not _ShapeExpr or ty.vdevice is not None:
            return self._known(StructuralKey(ty), ty, dtype)
        sizes = [size.value if type(size) is _IntImm else StructuralKey(size) for size in items(shape.values)]
        return self._known((dtype, *sizes), ty, dtype, sizes)

    def _known(self, key: Hashable, ty: Any, dtype: str | None, sizes: list | None = None) -> TypeFacts:
        facts = self._alike.get(key)
        if facts is None:
            facts = self._alike[key] = TypeFacts(ty, dtype, hides_dtype=hides_dtype(ty))
            if isinstance(ty, tvm.ir.TupleType):
                facts.fields = tuple(self.of(part) for part in ty.fields)
            if sizes is not None and all(isinstance(size, int) for size in sizes):
                facts.elements = 1
                for size in sizes:
                    facts.elements *= size
        return facts


@dataclass(slots=True, eq=False)
class Signature:
    """What is known of all calls that are alike; `call` is the first of them.

    `result` is the type of the variables that they are bound to, `name` the operator's, None where a function is
    called. `computed` is the type of the call itself, which may say more. `derived` is the derived operator that the
    call is, `torch` the operator that it leaves to torch. `rulings` has what the rules of the tables said, by rule.
    """

    call: relax.Call
    attrs: tvm.ir.Attrs | None
    result: TypeFacts
    computed: TypeFacts
    name: str | None
    derived: type_hints.DerivedCall | None
    is_view: bool
    hides_dtype: bool
    cast_to: str | None
    torch: str
    rulings: dict[Any, Any] = field(default_factory=dict)


class Signatures:
    """The signatures of the calls of a module, as far as they are read.

    `found` lists them. `views` has for each variable what is to be known of it: `TypeFacts`, or more where it is a name
    of something that has another type. Whoever reads a module has to enter variables before their readers.
    """

    def __init__(self, types: Types) -> None:
        self.types = types
        self.views: dict[int, Hashable] = {}
        self.found: list[Signature] = []
        self._alike: dict[tuple, list[Signature]] = {}

    def of(self, bound: Bound) -> Signature:
        """The signature of a bound call."""
        call = bound.value
        operands = list(map(self.views.get, bound.keys))
        if None in operands:
            operands = list(map(self._view, bound.args, bound.keys))
        attrs, own = call.attrs, call.ty_args
        number = None if attrs is None else structural_hash(attrs, False, False)
        key = (bound.op, number, StructuralKey(own) if count(own) else None, *operands)
        alike = self._alike.get(key)
        if alike is None:
            alike = self._alike[key] = []
        var_type, call_type = bound.var.ty, call.ty
        types = self.types
        for known in alike:
            if (
                types.is_of(var_type, known.result)
                and types.is_of(call_type, known.computed)
                and (attrs is None or structural_equal(attrs, known.attrs, False, False))
            ):
                return known
        found = self._read(bound, attrs, types.of(var_type), types.of(call_type))
        alike.append(found)
        self.found.append(found)
        return found

    def _view(self, expr: Any, key: int) -> Hashable:
        """What is to be known of an argument."""
        known = self.views.get(key)
        if known is not None:
            return known
        if isinstance(expr, relax.Tuple):
            return tuple([self._view(part, identity(part)) for part in expr.fields])
        # The value of a literal tensor may matter; a size or a number is what it says.
        return StructuralKey(expr) if isinstance(expr, relax.ShapeExpr | tvm.tirx.IntImm) else key

    def _read(self, bound: Bound, attrs: tvm.ir.Attrs | None, result: TypeFacts, computed: TypeFacts) -> Signature:
        call, name = bound.value, op_name(bound.value)
        return Signature(
            call,
            attrs,
            result,
            computed,
            name,
            type_hints.derived_name(call) if name is not None else None,
            is_kind(call, Kind.VIEW),
            result.hides_dtype or any(hides_dtype(arg.ty) for arg in bound.args),
            str(call.attrs.dtype) if name == "relax.astype" else None,
            torch_operator(call),
        )
