"""The backward operator of attention: probabilities are computed again from queries and keys, and never kept.

With P = softmax(S), S = scale Q K' + bias and the adjoint G of P V:

    dV = P' G,    dP = G V',    dS = P (dP - sum(dP P)),    dQ = scale dS K,    dK = scale dS' Q,    dbias = dS

Source: Dao et al., "FlashAttention", 2022, appendix B.2.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tvm
from tvm import relax

from autocast.errors import UnsupportedError
from autocast.ir.views import dtype_of, shape_of
from autocast.operators.operator import Expansion, define, like
from autocast.operators.own.softmax import softmax_adjoint

op = relax.op

#: (batch, sequence, heads, depth) to (batch, heads, sequence, depth), and back.
HEADS_FIRST = [0, 2, 1, 3]
_TRANSPOSED = [0, 1, 3, 2]


def _result(call: relax.Call) -> tvm.ir.Type:
    return like(0, 1, 2, 4)(call) if len(call.args) > 4 else like(0, 1, 2)(call)


def _product(left: relax.Expr, right: relax.Expr) -> relax.Expr:
    """A product of matrices of either precision, accumulated and answered in float32 (or float64)."""
    wide = "float64" if dtype_of(left) == "float64" else "float32"
    return op.matmul(left, right, out_dtype=wide)


def _scale(call: relax.Call) -> float:
    if call.attrs.scale is not None:
        return float(call.attrs.scale)
    depth = (shape_of(call.args[0]) or (None,))[-1]
    if isinstance(depth, int):
        return depth**-0.5
    raise UnsupportedError(f"{call.op.name}: got a run-time head depth and no scale; pass scale=")


def _causal_mask(kind: str, queries: Any, keys: Any) -> relax.Expr:
    """A (queries, keys) bool mask, true where a query may see a key."""
    offset: Any = 0
    if kind == "BottomRight":
        difference = keys - queries
        offset = abs(difference) if isinstance(difference, int) else tvm.tirx.abs(difference)
    rows = op.arange(offset, queries + offset, 1, "int64")
    return op.greater_equal(op.expand_dims(rows, 1), op.arange(0, keys, 1, "int64"))


def check_no_window(call: relax.Call) -> None:
    """UnsupportedError for attention within a window."""
    if call.attrs.window_size is not None:
        raise UnsupportedError(
            f"{call.op.name}: got window_size={call.attrs.window_size}, expected None; pass the window as a bias of "
            "0 and -inf"
        )


def masked_scores(
    call: relax.Call,
    query: relax.Expr,
    key: relax.Expr,
    bias: relax.Expr | None,
    emit: Callable[[relax.Expr], relax.Var],
) -> relax.Var:
    """Scale Q K' + bias, -inf where a query may not see a key: (batch, heads, queries, keys), float32 or float64.

    Parameters
    ----------
    call
        The attention, or its backward operator: its attributes say how to scale and mask.
    query, key
        With their heads first.
    bias
        Broadcast to the scores; None where there is none.
    emit
        Binds an expression to a variable.

    Raises
    ------
    UnsupportedError
        The call has a window, or no scale and a head depth that only the run time knows.
    """
    check_no_window(call)
    attributes = call.attrs
    scores = emit(_product(query, op.permute_dims(key, _TRANSPOSED)))
    wide = dtype_of(scores)
    scores = emit(scores * relax.const(_scale(call), wide))
    if bias is not None:
        scores = emit(scores + (bias if dtype_of(bias) == wide else op.astype(bias, wide)))
    if attributes.causal_mask is not None:
        allowed = emit(_causal_mask(str(attributes.causal_mask), *(shape_of(scores) or ())[2:]))
        scores = emit(op.where(allowed, scores, relax.const(float("-inf"), wide)))
    return scores


def _probabilities(e: Expansion, query: relax.Expr, key: relax.Expr, bias: relax.Expr | None) -> relax.Var:
    """softmax(scale Q K' + bias), with heads first, in float32."""
    scores = masked_scores(e.call, query, key, bias, e.emit)
    probabilities = e.emit(op.nn.softmax(scores, -1))
    if bias is None:
        return probabilities
    # The softmax of a row that lets nothing pass is NaN. No adjoint reaches it, but 0 * NaN would reach everything.
    wide = dtype_of(scores)
    is_hidden = op.equal(scores, relax.const(float("-inf"), wide))
    return e.emit(op.where(is_hidden, relax.const(0.0, wide), probabilities))


def _attention(e: Expansion) -> list[relax.Expr]:
    query, key, value, g = (e.emit(op.permute_dims(operand, HEADS_FIRST)) for operand in e.operands[:4])
    bias = e.operands[4] if len(e.operands) > 4 else None
    storage = dtype_of(query)
    p = _probabilities(e, query, key, bias)
    wide = dtype_of(p)

    def stored(expr: relax.Expr) -> relax.Expr:
        return expr if storage == wide else e.emit(op.astype(expr, storage))

    def transposed(expr: relax.Expr) -> relax.Expr:
        return e.emit(op.permute_dims(expr, _TRANSPOSED))

    dp = e.emit(_product(g, transposed(value)))
    ds = e.emit(softmax_adjoint(p, dp, -1))
    scaled = stored(e.emit(ds * relax.const(_scale(e.call), wide)))
    adjoints = [
        e.emit(_product(scaled, key)),
        e.emit(_product(transposed(scaled), query)),
        e.emit(_product(transposed(stored(p)), g)),
    ]
    results: list[relax.Expr] = [op.permute_dims(stored(adjoint), HEADS_FIRST) for adjoint in adjoints]
    if bias is not None:
        repeated = [axis for axis, size in enumerate(shape_of(bias) or ()) if isinstance(size, int) and size == 1]
        results.append(op.sum(ds, repeated, keepdims=True) if repeated else ds)
    return results


attention_backward = define(
    "relax.grad.attention_backward",
    "q k v g bias?",
    result=_result,
    expand=_attention,
    summary="The adjoints of queries, keys, values (batch, sequence, heads, depth), and of the bias if there is one",
    attributes="relax.attrs.AttentionAttrs",
    multiplies=True,
)
