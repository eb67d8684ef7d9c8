"""Find attention in a graph: one operator, or products on either side of a softmax."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tvm import relax

from autocast.ir import dims, is_op, number_of, op_name, same_shape, storage
from autocast.kernels.explain import Declined
from autocast.kernels.storage import LOW


@dataclass(frozen=True)
class GraphStep:
    """A step of `spec.Attention` whose tensor is an expression, aligned with scores of the shape `space`."""

    kind: str
    value: float = 0.0
    tensor: relax.Expr | None = None
    space: tuple = ()


@dataclass
class Match:
    """Attention as the graph has it.

    Attributes
    ----------
    query, key, value
        The operands.
    heads_second_last
        Whether they are (batch, sequence, heads, depth); else (..., sequence, depth).
    key_transposed
        Whether the key is (..., depth, sequence).
    steps, causal
        What is done to the scores before the softmax.
    result
        The variable that holds softmax(scores) V.
    """

    query: relax.Expr
    key: relax.Expr
    value: relax.Expr
    heads_second_last: bool
    key_transposed: bool
    steps: list[GraphStep]
    causal: int | str | None
    result: relax.Var


class Graph:
    """What the matcher asks about a function."""

    def __init__(
        self, bound: dict[relax.Var, relax.Expr], users: dict[relax.Var, list[relax.Var]], uses: Counter
    ) -> None:
        self.bound, self.users, self.uses = bound, users, uses

    def value_of(self, expr: relax.Expr) -> Any:
        """What `expr` is bound to; None for a parameter, and for what is no variable."""
        return self.bound.get(expr) if isinstance(expr, relax.Var) else None

    def only_user(self, var: relax.Var) -> relax.Var | None:
        """The one variable that is computed from `var`; None where it has several readers, or is returned."""
        readers = self.users.get(var, [])
        return readers[0] if len(readers) == 1 and self.uses[var] == 1 and readers[0] in self.bound else None

    def widened(self, expr: relax.Expr) -> relax.Expr:
        """What `expr` is the float32 form of."""
        value = self.value_of(expr)
        if is_op(value, "relax.astype") and storage(expr) == "float32" and storage(value.args[0]) in LOW:
            return value.args[0]
        return expr

    def mask_of(self, bias: relax.Expr) -> relax.Expr | None:
        """The bool tensor of which `bias` is 0 where it is true and -inf where it is false."""
        value = self.value_of(bias)
        if is_op(value, "relax.where") and number_of(value.args[1]) == 0 and number_of(value.args[2]) == float("-inf"):
            return value.args[0]
        return None


def match(graph: Graph, var: relax.Var, call: Any) -> Match | None:
    """Attention whose result is `var`, bound to `call`; None where that is something else.

    Raises
    ------
    Declined
        It is attention, but of a form that no kernel computes.
    """
    if is_op(call, "relax.nn.attention", "relax.nn.attention_bias"):
        return _operator(graph, var, call)
    if is_op(call, "relax.matmul"):
        return _products(graph, var, call)
    return None


def _operator(graph: Graph, var: relax.Var, call: relax.Call) -> Match:
    if call.attrs.window_size is not None:
        raise Declined("it has a sliding window")
    query, key, value = call.args[:3]
    batch, queries, heads, depth = dims(query)
    if call.attrs.scale is None and not isinstance(depth, int):
        raise Declined("its depth is a run-time dimension, and it has no scale")
    scale = depth**-0.5 if call.attrs.scale is None else float(call.attrs.scale)
    steps = [GraphStep("scale", scale)]
    if len(call.args) > 3:
        space = (batch, heads, queries, dims(key)[1])
        mask = graph.mask_of(call.args[3])
        steps.append(
            GraphStep("add", 0.0, graph.widened(call.args[3]), space)
            if mask is None
            else GraphStep("keep", float("-inf"), mask, space)
        )
    causal = {None: None, "TopLeft": 0, "BottomRight": "difference"}[
        None if call.attrs.causal_mask is None else str(call.attrs.causal_mask)
    ]
    return Match(query, key, value, True, False, steps, causal, var)


def _products(graph: Graph, var: relax.Var, call: relax.Call) -> Match | None:
    """matmul(softmax(steps(matmul(q, k'))), v), with casts and reshapes of the scores anywhere."""
    if len(dims(call.args[0])) < 2 or len(dims(call.args[1])) < 2:
        return None
    probabilities = _before(graph, call.args[0], ("relax.astype", "relax.reshape"))
    softmax = graph.value_of(probabilities)
    if not is_op(softmax, "relax.nn.softmax"):
        return None
    rank = len(dims(softmax))
    if int(softmax.attrs.axis) % rank != rank - 1:
        raise Declined("its softmax is not over the keys")
    _read_once(graph, call.args[0], probabilities, "its probabilities are read elsewhere too")
    steps: list[GraphStep] = []
    scores = softmax.args[0]
    while not is_op(value := graph.value_of(scores), "relax.matmul"):
        rule = _STEPS.get(op_name(value) or "")
        if rule is None:
            if not steps and not isinstance(value, relax.Call):
                return None  # the softmax of something else
            raise Declined(f"its scores come from {op_name(value) or 'elsewhere'}")
        if graph.uses[scores] != 1:
            raise Declined("its scores are read elsewhere too")
        scores = rule(graph, scores, value, steps)
    if graph.uses[scores] != 1:
        raise Declined("its scores are read elsewhere too")
    if len(dims(value.args[0])) < 2 or len(dims(value.args[1])) < 2:
        raise Declined("its scores come from the product of a vector")
    return Match(value.args[0], value.args[1], call.args[1], False, True, steps, None, var)


def _before(graph: Graph, expr: relax.Expr, moves: tuple[str, ...]) -> relax.Expr:
    """What `expr` was before `moves`; a reshape counts where it keeps the last two dimensions."""
    while is_op(value := graph.value_of(expr), *moves) and _keeps_matrices(expr, value):
        expr = value.args[0]
    return expr


def _keeps_matrices(expr: relax.Expr, value: relax.Call) -> bool:
    return is_op(value, "relax.astype") or (
        len(dims(value.args[0])) >= 2 and same_shape(dims(expr)[-2:], dims(value.args[0])[-2:])
    )


def _read_once(graph: Graph, last: relax.Expr, first: relax.Expr, reason: str) -> None:
    """Raise Declined unless what lies from `first` up to `last` is read by the next of them only."""
    while True:
        if graph.uses[last] != 1:
            raise Declined(reason)
        if last.same_as(first):
            return
        last = graph.value_of(last).args[0]


# ---- what is done to scores: each answers what they were before, and puts its step first ----


def _same(graph: Graph, scores: relax.Var, value: relax.Call, steps: list[GraphStep]) -> relax.Expr:
    if not _keeps_matrices(scores, value):
        raise Declined("its scores are reshaped")
    before = value.args[0]
    if storage(scores) in LOW and storage(before) == "float32" and is_op(graph.value_of(before), "relax.matmul"):
        raise Declined("its scores are rounded")
    return before


def _scaled(graph: Graph, scores: relax.Var, value: relax.Call, steps: list[GraphStep]) -> relax.Expr:
    left, right = value.args
    factor = number_of(right)
    if factor is None and is_op(value, "relax.multiply"):
        factor, left = number_of(left), right
    if factor is None or (factor == 0 and is_op(value, "relax.divide")):
        raise Declined("its scores are multiplied by a tensor")
    steps.insert(0, GraphStep("scale", 1 / factor if is_op(value, "relax.divide") else factor))
    return left


def _added(graph: Graph, scores: relax.Var, value: relax.Call, steps: list[GraphStep]) -> relax.Expr:
    left, right = value.args
    if not _from_product(graph, left):
        left, right = right, left
    if not same_shape(dims(left), dims(scores)):
        raise Declined("its scores are broadcast")
    mask = graph.mask_of(right)
    steps.insert(
        0,
        GraphStep("add", 0.0, graph.widened(right), dims(scores))
        if mask is None
        else GraphStep("keep", float("-inf"), mask, dims(scores)),
    )
    return left


def _masked(graph: Graph, scores: relax.Var, value: relax.Call, steps: list[GraphStep]) -> relax.Expr:
    mask, *choices = value.args
    kind, (kept, filled) = ("keep", choices) if number_of(choices[1]) is not None else ("drop", choices[::-1])
    number = number_of(filled)
    if number is None or not same_shape(dims(kept), dims(scores)):
        raise Declined("its scores are replaced by a tensor, or broadcast")
    steps.insert(0, GraphStep(kind, number, mask, dims(scores)))
    return kept


def _from_product(graph: Graph, expr: relax.Expr) -> bool:
    """Whether scores, rather than a bias, lead to `expr`."""
    value = graph.value_of(expr)
    while op_name(value) in _STEPS:
        operands = value.args[1:] if is_op(value, "relax.where") else value.args
        scores = [operand for operand in operands if isinstance(operand, relax.Var) and graph.uses[operand] == 1]
        if not scores:
            return False
        value = graph.value_of(scores[0])
    return is_op(value, "relax.matmul")


_STEPS: dict[str, Callable[[Graph, relax.Var, relax.Call, list[GraphStep]], relax.Expr]] = {
    "relax.astype": _same,
    "relax.reshape": _same,
    "relax.multiply": _scaled,
    "relax.divide": _scaled,
    "relax.add": _added,
    "relax.where": _masked,
}
