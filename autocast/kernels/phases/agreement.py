"""Sizes that an operator needs to be the same, checked at run time where nobody can know before that they are."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeAlias

import tvm
from tvm import relax, tirx
from tvm.relax.expr_functor import mutator

from autocast.ir import all_bindings, op_name, relax_functions, shape_in, shape_of
from autocast.ir.rewriting import BindingRewriter, rewrite_functions

#: A size: known now, or at run time.
Size: TypeAlias = Any

Shape: TypeAlias = tuple[Size, ...]

#: Two sizes, and whether the first may also be less than the second.
Pair: TypeAlias = "tuple[Size, Size, bool]"

_PREFIX = "sizes_of_"


def check_agreement(mod: tvm.IRModule) -> tvm.IRModule:
    """Check at run time what TVM's types promise only where sizes are known: that operands fit each other.

    Before::                                        After::

        y = R.reshape(x, R.shape([n, 2]))           gv = R.shape([n * 2 - 6, n * 2, 6])
                                                    sizes_of_y = R.match_cast(gv, R.Shape([0, n * 2, 6]))
                                                    y = R.reshape(x, R.shape([n, 2]))

    Kernels read as many elements as the one size says, wherever they are. It is their difference that is matched: TVM
    takes `R.match_cast(R.shape([m]), R.Shape([n]))` for a new name of m, and forgets it.
    """
    values = [binding.value for _, function in relax_functions(mod) for binding in all_bindings(function.body)]
    return rewrite_functions(mod, _Checked) if any(map(_open_pairs, values)) else mod


class Compared(NamedTuple):
    """What one `match_cast` of `check_agreement` compares."""

    name: str
    left: Size
    right: Size
    less: bool
    type: relax.ShapeType


def compared_sizes(binding: relax.Binding) -> Compared | None:
    """What a binding compares; None where it is no `match_cast` of `check_agreement`."""
    name = binding.var.name
    if not isinstance(binding, relax.MatchCast) or not name.startswith(_PREFIX):
        return None
    _, left, right, *marks = binding.ty.values
    return Compared(name.removeprefix(_PREFIX), left, right, bool(marks), binding.ty)


def _reshape(call: relax.Call, new: Shape, old: Shape) -> Iterator[Pair]:
    yield (elements := (math.prod(new), math.prod(old), False))
    open_sizes = [size for size in new if not isinstance(size, int)]
    if len(open_sizes) > 1 and not _fits(*elements):
        yield from ((0, size, True) for size in open_sizes)  # two below 0 would make as many elements


def _broadcast(call: relax.Call, new: Shape, old: Shape) -> Iterator[Pair]:
    yield from ((to, size, False) for to, size in zip(reversed(new), reversed(old), strict=False) if size != 1)


def _product(call: relax.Call, result: Shape, left: Shape, right: Shape) -> Iterator[Pair]:
    yield left[-1], right[-2:][0], False


def _convolution(call: relax.Call, result: Shape, data: Shape, weight: Shape) -> Iterator[Pair]:
    channels = data[str(call.attrs.data_layout).index("C")]
    inputs = weight[str(call.attrs.kernel_layout).index("I")]
    yield channels, inputs if str(op_name(call)).endswith("_transpose") else inputs * call.attrs.groups, False


def _channels(call: relax.Call, result: Shape, data: Shape, *parameters: Shape) -> Iterator[Pair]:
    yield from ((data[call.attrs.channel_axis], parameter[0], False) for parameter in parameters)


def _attention(call: relax.Call, result: Shape, query: Shape, key: Shape, value: Shape, *bias: Shape) -> Iterator[Pair]:
    yield query[3], key[3], False
    yield key[1], value[1], False
    for scores in bias:
        yield from _broadcast(call, (query[0], query[2], query[1], key[1]), scores)


def _gather_nd(call: relax.Call, result: Shape, data: Shape, indices: Shape) -> Iterator[Pair]:
    yield from ((*sizes, False) for sizes in zip(data[: call.attrs.batch_dims], indices, strict=False))


def _same(call: relax.Call, result: Shape, left: Shape, right: Shape) -> Iterator[Pair]:
    yield from ((*sizes, False) for sizes in zip(left, right, strict=True))


def _batch(call: relax.Call, result: Shape, left: Shape, right: Shape) -> Iterator[Pair]:
    yield left[0], right[0], False


def _nll(call: relax.Call, result: Shape, scores: Shape, targets: Shape, *weights: Shape) -> Iterator[Pair]:
    classes = min(1, len(scores) - 1)
    yield from ((*sizes, False) for sizes in zip((*scores[:classes], *scores[2:]), targets, strict=True))
    yield from ((scores[classes], weight[0], False) for weight in weights)


def _einsum(call: relax.Call, result: Shape, *operands: Shape) -> Iterator[Pair]:
    sizes: dict[str, Size] = {}
    terms = str(call.attrs.subscripts).replace(" ", "").partition("->")[0].split(",")
    for term, operand in zip(terms, operands, strict=True):
        for letter, size in zip(term, operand, strict=False) if "." not in term else ():
            yield size, sizes.setdefault(letter, size), False


def _elements(call: relax.Call, result: Shape, data: Shape, indices: Shape, *updates: Shape) -> Iterator[Pair]:
    axis = int(call.attrs.axis) % len(data)
    yield from ((*sizes, True) for at, sizes in enumerate(zip(indices, data, strict=True)) if at != axis)
    yield from ((*sizes, True) for update in updates for sizes in zip(indices, update, strict=True))


def _topk(call: relax.Call, result: Shape, data: Shape) -> Iterator[Pair]:
    yield int(call.attrs.k), data[int(call.attrs.axis)], True


#: What has to fit, by operator. Where operands of other operators might not, TVM does not know the result's shape, and
#: there is no kernel.
_PAIRS: dict[str, Callable[..., Iterator[Pair]]] = {
    "relax.reshape": _reshape,
    "relax.broadcast_to": _broadcast,
    "relax.matmul": _product,
    **{f"relax.nn.conv{rank}d{kind}": _convolution for rank in (1, 2, 3) for kind in ("", "_transpose")},
    "relax.nn.group_norm": _channels,
    "relax.nn.instance_norm": _channels,
    "relax.nn.attention": _attention,
    "relax.nn.attention_bias": _attention,
    "relax.nn.cross_entropy_with_logits": _same,
    "relax.nn.nll_loss": _nll,
    "relax.einsum": _einsum,
    "relax.gather_elements": _elements,
    "relax.scatter_elements": _elements,
    "relax.gather_nd": _gather_nd,
    "relax.image.grid_sample": _batch,
    "relax.topk": _topk,
}


def _open_pairs(value: relax.Expr) -> list[Pair]:
    """The pairs of sizes that may not fit."""
    pairs = _PAIRS.get(str(op_name(value)))
    if pairs is None:
        return []
    types = [type for argument in value.args for type in getattr(argument.ty, "fields", (argument.ty,))]
    shapes = [shape_in(type) for type in types if isinstance(type, relax.TensorType)]
    result = () if isinstance(value.ty, tvm.ir.TupleType) else shape_of(value)
    if result is None or None in shapes:
        return []
    return [pair for pair in pairs(value, result, *shapes) if not _fits(*pair)]


def _fits(left: Size, right: Size, less: bool) -> bool:
    if isinstance(left, int) and isinstance(right, int):
        return True  # TVM has compared them
    left, right = _expression(left), _expression(right)
    analyzer = tvm.sym.Analyzer()
    return analyzer.can_prove(left <= right) if less else analyzer.can_prove_equal(left, right)


def _expression(size: Size) -> tirx.Expr:
    return tvm.tirx.convert(size).astype("int64")


@mutator
class _Checked(BindingRewriter):
    def rewrite(self, binding: relax.VarBinding) -> relax.Expr | None:
        pairs = _open_pairs(binding.value)
        for left, right, less in pairs:
            left, right = _expression(left), _expression(right)
            more = tirx.max(left - right, 0) if less else left - right
            # A variable: TVM computes no sizes that are matched themselves.
            marks = [0] if less else []  # tell the two kinds of comparison apart
            compared = self.emit(relax.ShapeExpr([more, left, right, *marks]))
            self.builder_.match_cast(compared, relax.ShapeType([0, left, right, *marks]), _PREFIX + binding.var.name)
        return self.visit_expr(binding.value) if pairs else None
