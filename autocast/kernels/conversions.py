"""Which kernels convert what they load, and which store what they computed narrowed.

The answers come from the tables that the kernels' rules match with. A call is looked at by itself, as the kernels that
it will share with its neighbours are not known yet.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

import tvm_ffi
from tvm import relax

from autocast.ir import is_op, op_name, permutation, shape_of
from autocast.kernels.backend import Backend
from autocast.kernels.explain import Declined
from autocast.kernels.matching.convolutions.declined import declined, has_kernel
from autocast.kernels.matching.convolutions.pooling_rule import GRADIENTS, POOLINGS
from autocast.kernels.matching.functions import operation
from autocast.kernels.matching.layout.pieces import JOINS
from autocast.kernels.matching.layout.rule import LOOKUPS, SPLITS
from autocast.kernels.matching.layout.views import VIEWS
from autocast.kernels.matching.reductions.rule import FUNCTIONS, axes_of
from autocast.kernels.matching.reductions.scatter_rule import SCATTERS
from autocast.kernels.matching.rows.losses import LOSSES, is_matrix
from autocast.kernels.matching.rows.operators import ROW_OPERATORS
from autocast.kernels.matching.rows.space import rows_of
from autocast.kernels.matching.translate import SEEDED
from autocast.kernels.specs.attention import Attention
from autocast.kernels.specs.convolutions import Convolution, Pooling, PoolingGradient, WeightGradient
from autocast.kernels.specs.layout import Move
from autocast.kernels.specs.products import GroupedProduct, Product
from autocast.kernels.specs.program import Program
from autocast.kernels.specs.recurrent import Recurrence
from autocast.kernels.specs.reductions import Reduce, Scatter
from autocast.kernels.specs.rows import Rows
from autocast.kernels.storage import LOW
from autocast.operators import Kind, is_kind, named
from autocast.operators.own import OPERATORS, Expansion


class Conversions(NamedTuple):
    """What the kernel of a call converts.

    Attributes
    ----------
    widens
        Whether it widens the argument at a position as it loads it.
    narrows
        The dtypes that it narrows the argument at a position to.
    of_inputs
        Whether it narrows only what no operator computes: what one does is read as that stores it.
    stores
        Whether it stores its result narrowed.
    computes
        Whether it stores what it rounded to a low dtype in float32, too.
    """

    widens: Callable[[int], bool] = lambda _: False
    narrows: Callable[[int], Collection[str]] = lambda _: ()
    of_inputs: bool = False
    stores: bool = False
    computes: bool = False


_NOTHING = Conversions()
_MOVES = Conversions(lambda _: True, lambda _: LOW, stores=True)
_EVERYTHING = _MOVES._replace(computes=True)


def conversions_of(call: relax.Call, backend: Backend) -> Conversions:
    """What the kernel of `call` converts, if `backend` has one."""
    name = op_name(call)
    if name is None:
        return _NOTHING
    if name in SEEDED or operation(call) is not None:
        return _EVERYTHING if backend.has(Program) else _NOTHING
    if backend.has(WeightGradient) and has_kernel(
        call
    ):  # the gradient of a weight: data and adjoint are moved before, and narrowed then
        return Conversions(narrows=lambda _: backend.multiplies, of_inputs=True)
    family = _FAMILIES.get(name)
    if family is not None:
        spec, conversions = family
        return conversions(call, backend) if backend.has(spec) else _NOTHING
    operator = OPERATORS.get(name)
    shapes = [shape_of(operand) for operand in call.args]
    if operator is not None and operator.expand is not None and None not in shapes:
        if any(0 in shape for shape in shapes if shape):
            return _EVERYTHING  # no kernel reads what has no elements
        types = tuple(tvm_ffi.StructuralKey(operand.ty) for operand in call.args)
        return _expanded(_Question(call, (name, tvm_ffi.StructuralKey(call.attrs), types)), backend)
    return _NOTHING


# ---- families of operators ----


def _anything(call: relax.Call, backend: Backend) -> Conversions:
    return _EVERYTHING


def _nothing(call: relax.Call, backend: Backend) -> Conversions:
    return _NOTHING


def _move(call: relax.Call, backend: Backend) -> Conversions:
    return _MOVES


def _permutation(call: relax.Call, backend: Backend) -> Conversions:
    """A move, unless elements stay in order: then it is a view."""
    shape = shape_of(call.args[0]) or ()
    moved = [axis for axis in permutation(call) if shape[axis] != 1]
    return _NOTHING if moved == sorted(moved) else _MOVES


def _reduction(call: relax.Call, backend: Backend) -> Conversions:
    shape = shape_of(call.args[0])
    reduces = shape and 0 not in shape and shape_of(call) is not None and axes_of(call)
    return _EVERYTHING if reduces else _NOTHING


def _row_operator(call: relax.Call, backend: Backend) -> Conversions:
    try:
        rows_of(call)
    except Declined:
        return _reduction(call, backend) if op_name(call) in FUNCTIONS else _NOTHING
    return _EVERYTHING


def _loss(call: relax.Call, backend: Backend) -> Conversions:
    return _EVERYTHING if is_matrix(call.args[LOSSES[str(op_name(call))]]) else _NOTHING


def _product(call: relax.Call, backend: Backend) -> Conversions:
    return Conversions(narrows=lambda _: backend.multiplies, of_inputs=True, stores=True)


def _convolution(call: relax.Call, backend: Backend) -> Conversions:
    """Data whose channels come first is moved before, and what moves it narrows it to any dtype."""
    if declined(call) is not None:
        return _NOTHING
    shape = shape_of(call.args[0]) or ()
    is_moved = str(call.attrs.data_layout).startswith("NC") and shape[1] != 1
    return _product(call, backend)._replace(
        narrows=lambda position: LOW if is_moved and position == 0 else backend.multiplies
    )


def _attention(call: relax.Call, backend: Backend) -> Conversions:
    """Queries, keys and values are read as they are; a bias is widened."""
    return Conversions(lambda position: position > 2, stores=True)


def _recurrence(call: relax.Call, backend: Backend) -> Conversions:
    """The weight is narrowed while it is packed, if it is an argument."""
    return Conversions(narrows=lambda position: backend.multiplies if position == 1 else (), of_inputs=True)


def _pooling_gradient(call: relax.Call, backend: Backend) -> Conversions:
    return Conversions(lambda _: True)


def _lookup_gradient(call: relax.Call, backend: Backend) -> Conversions:
    return Conversions(lambda position: position == 0)


#: By the name of an operator: the spec that its kernels have, and what those convert. Operators come from the tables
#: of the kernels' rules. Five stand here by name: phases before the rules write batch_norm as arithmetic and einsum as
#: a matmul; a permutation may turn out to be a view; astype becomes a part of the kernels around it.
_FAMILIES: dict[str, tuple[type, Callable[[relax.Call, Backend], Conversions]]] = {
    "relax.nn.batch_norm": (Program, _anything),
    "relax.collective.batch_norm": (Program, _anything),
    **dict.fromkeys(FUNCTIONS, (Reduce, _reduction)),
    **dict.fromkeys(ROW_OPERATORS, (Rows, _row_operator)),
    **dict.fromkeys(LOSSES, (Rows, _loss)),
    **dict.fromkeys((*named(Kind.PRODUCT), "relax.einsum"), (Product, _product)),
    "relax.nn.grouped_matmul": (GroupedProduct, _nothing),
    **dict.fromkeys(named(Kind.CONVOLUTION), (Convolution, _convolution)),
    **dict.fromkeys(named(Kind.ATTENTION), (Attention, _attention)),
    **dict.fromkeys(named(Kind.RECURRENCE), (Recurrence, _recurrence)),
    **dict.fromkeys((*VIEWS, *JOINS, *SPLITS, *LOOKUPS), (Move, _move)),
    **dict.fromkeys(named(Kind.VIEW), (Move, _nothing)),
    "relax.permute_dims": (Move, _permutation),
    "relax.astype": (Program, _anything),
    **dict.fromkeys(SCATTERS, (Scatter, _lookup_gradient)),
    **dict.fromkeys(POOLINGS, (Pooling, _anything)),
    **dict.fromkeys(GRADIENTS, (PoolingGradient, _pooling_gradient)),
}

# ---- operators of our own: what those convert that they are short for ----


class _Question:
    """A call, equal to those with the same operator, attributes and types."""

    def __init__(self, call: relax.Call, key: tuple) -> None:
        self.call, self.key = call, key

    def __hash__(self) -> int:
        return hash(self.key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Question) and self.key == other.key


@lru_cache(maxsize=1024)
def _expanded(question: _Question, backend: Backend) -> Conversions:
    """What those operators convert that an own one is short for. The cache keeps calls, so it is bounded."""
    call = question.call
    expand = OPERATORS[str(op_name(call))].expand
    assert expand is not None
    params = [relax.Var("x", _wide(operand.ty)) for operand in call.args]
    builder = relax.BlockBuilder()
    with builder.function("main", params):
        with builder.dataflow():
            result = expand(Expansion(relax.Call(call.op, params, call.attrs), tuple(params), builder.emit))
            results = [result] if isinstance(result, relax.Expr) else list(result)
            outputs = [builder.emit_output(field) for field in results]
        builder.emit_func_output(outputs)
    bound = {b.var: b.value for block in builder.get()["main"].body.blocks for b in block.bindings}
    readers = [_readers(param, bound, backend) for param in params]
    widens = [all(reader.widens(position) for reader, position in found) for found in readers]
    narrows = [
        [dtype for dtype in LOW if all(dtype in reader.narrows(position) for reader, position in found)]
        for found in readers
    ]
    of_inputs = any(reader.of_inputs for found in readers for reader, _ in found)
    stores = all(_stores(output, bound, backend) for output in outputs)
    return Conversions(widens.__getitem__, narrows.__getitem__, of_inputs, stores, computes=stores)


def _readers(var: relax.Var, bound: Mapping[relax.Var, Any], backend: Backend) -> list[tuple[Conversions, int]]:
    """What the readers of `var` convert, and which argument of theirs it is, in whatever shape they see it."""
    found = []
    for reader, value in bound.items():
        for position, operand in enumerate(value.args if isinstance(value, relax.Call) else ()):
            if var not in relax.analysis.free_vars(operand):
                continue
            if is_kind(value, Kind.VIEW) or is_op(value, "relax.broadcast_to"):
                found += _readers(reader, bound, backend)
            else:
                found.append((conversions_of(value, backend), position))
    return found


def _stores(var: relax.Var, bound: Mapping[relax.Var, Any], backend: Backend) -> bool:
    """Whether what computes `var` stores it narrowed."""
    value: Any = bound.get(var)
    while isinstance(value, relax.Var) or is_kind(value, Kind.VIEW):
        value = bound.get(value if isinstance(value, relax.Var) else value.args[0])
    return isinstance(value, relax.Call) and conversions_of(value, backend).stores


def _wide(type: relax.TensorType) -> relax.TensorType:
    """`type` as kernels compute in it."""
    return relax.TensorType(type.shape, "float32") if str(type.dtype) in LOW else type
