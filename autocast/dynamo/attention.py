"""Attention as one operator, forward and backward: its probabilities are computed again, and never kept.

torch splits `scaled_dot_product_attention` into products and a softmax, whose probabilities the backward graph reads,
before a backend sees it; or makes one operator of it that says nothing of its mask's gradient. So in Dynamo's graph

    y = scaled_dot_product_attention(q, k, v, mask, dropout_p=0.1)

becomes operators of ours, and nothing is kept but `q`, `k`, `v`, `mask` and what was dropped, a byte for each score:

    y = autocast.attention(q, k, v, mask, 0.1, ..., kept)
    dq, dk, dv, dmask = autocast.attention_backward(q, k, v, mask, 0.1, ..., kept, dy)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx
from torch.nn import functional
from tvm import relax

from autocast.dynamo.adjoints import adjoints
from autocast.dynamo.statistics import define
from autocast.frontend.converters import attention as frontend
from autocast.frontend.converters.helpers import cast, dims
from autocast.frontend.importing.importer import Importer
from autocast.ir import dtype_of

op = relax.op

#: Those of torch's function, then which probabilities are kept, of those that `dropout_p` may drop.
_ARGUMENTS = (
    "Tensor query, Tensor key, Tensor value, Tensor? attn_mask, float dropout_p, bool is_causal, float? scale,"
    " bool enable_gqa, Tensor? kept"
)


def _result(query: Any, key: Any, value: Any, *others: Any) -> torch.Tensor:
    """(batch, heads, queries, depth), in memory with its heads last where the last argument says so."""
    batch, heads, queries, _ = query.shape
    depth = value.shape[-1]
    if others[-1]:
        result: torch.Tensor = query.new_empty(batch, queries, heads, depth).transpose(1, 2)
        return result
    return torch.empty((batch, heads, queries, depth), dtype=query.dtype, device=query.device)


def _adjoints(query: Any, key: Any, value: Any, attn_mask: Any, *others: Any) -> tuple[torch.Tensor, ...]:
    mask = query.new_empty(0 if attn_mask is None else attn_mask.shape)
    return torch.empty_like(query), torch.empty_like(key), torch.empty_like(value), mask


ATTENTION = define(f"attention({_ARGUMENTS}, bool heads_last) -> Tensor", _result)

ATTENTION_BACKWARD = define(
    f"attention_backward({_ARGUMENTS}, Tensor grad) -> (Tensor, Tensor, Tensor, Tensor)", _adjoints
)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    query, key, value, mask, *ctx.attributes, kept, _ = inputs
    ctx.save_for_backward(query, key, value, mask, kept)


def _backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
    *operands, kept = ctx.saved_tensors
    results = ATTENTION_BACKWARD(*operands, *ctx.attributes, kept, grad)
    return *(x if needed else None for x, needed in zip(results, ctx.needs_input_grad, strict=False)), *[None] * 6


torch.library.register_autograd(ATTENTION._schema.name, _backward, setup_context=_keep)


def scaled_dot_product_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    heads_last: bool = False,
) -> torch.Tensor:
    """torch's function of this name, as AOTAutograd is to trace it."""
    rank = query.dim()
    if rank > 4 or key.dim() != rank or value.dim() != rank or dropout_p == 1:
        return functional.scaled_dot_product_attention(
            query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
        )
    query, key, value = (x[(None,) * (4 - rank)] for x in (query, key, value))
    batch = torch.broadcast_shapes(*(x.shape[:1] for x in (query, key, value)))
    if not enable_gqa:
        batch = torch.broadcast_shapes(*(x.shape[:2] for x in (query, key, value)))
    query, key, value = (x.expand(*batch, *x.shape[len(batch) :]) for x in (query, key, value))
    kept = None
    if dropout_p:
        scores = query.new_zeros(*query.shape[:3], key.shape[2])
        kept = torch.ops.aten.bernoulli.p(scores, 1 - dropout_p).to(torch.bool)
    result: torch.Tensor = ATTENTION(
        query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa, kept, heads_last
    )
    return result[(0,) * (4 - rank)]


def with_attention(graph: fx.GraphModule) -> None:
    """Have a graph of Dynamo's, and the graphs in it, call the function above."""
    for module in graph.modules():
        if not isinstance(module, fx.GraphModule):
            continue
        for node in module.graph.find_nodes(op="call_function", target=functional.scaled_dot_product_attention):
            node.target = scaled_dot_product_attention
            result = node.meta.get("example_value")
            if isinstance(result, torch.Tensor) and result.dim() == 4:
                node.kwargs = {**node.kwargs, "heads_last": bool(result.stride(1) < result.stride(2))}
        module.recompile()


# ---- what these operators are in Relax ----


def attention(importer: Importer, node: fx.Node) -> relax.Expr:
    """Forward: as the function is imported, with what is dropped given."""
    if node.args[8] is None:
        return frontend.attention(importer, node, None)
    return frontend.attention(importer, node, lambda x: _dropped(importer, node, x))


def _dropped(importer: Importer, node: fx.Node, x: relax.Expr) -> relax.Expr:
    """Probabilities, or their adjoints, where they are kept, scaled; 0 elsewhere."""
    dtype, rate = str(dtype_of(x)), float(importer.arg(node, 4, "dropout_p"))
    kept = cast(importer, importer.arg(node, 8, "kept"), dtype)
    return importer.emit(op.multiply(x, importer.emit(op.multiply(kept, relax.const(1 / (1 - rate), dtype)))))


def attention_backward(importer: Importer, node: fx.Node) -> list[Any]:
    """The adjoints of queries, keys, values and the mask, each of the shape of its own; None where there is none."""
    query, key, value, mask = (importer.arg(node, i, "") for i in range(4))
    keys, values = (frontend.repeat_heads(importer, x, dims(query)[1]) for x in (key, value))
    bias, allowed, causal = frontend.mask_of(importer, node, 4)
    scale, grad = frontend.scale_of(importer, node), importer.arg(node, 9, "grad")
    by_size = scale if isinstance(scale, relax.Expr) else None
    if by_size is not None:
        query, scale = importer.emit(op.multiply(query, by_size)), 1.0
    if allowed is not None:
        grad = importer.emit(op.where(allowed, grad, relax.const(0.0, dtype_of(grad))))
    scores = bias, causal, scale
    if node.args[8] is None:
        of_query, *of_keys, of_bias = _fused(importer, (query, keys, values, grad), *scores)
    else:
        of_query, *of_keys, of_bias = _with_dropout(importer, node, (query, keys, values, grad), allowed, *scores)
    if by_size is not None:
        of_query = importer.emit(op.multiply(of_query, by_size))
    of_keys = [_own_heads(importer, x, own) for x, own in zip(of_keys, (key, value), strict=True)]
    given: Any = node.args[3]
    if given is None or dtype_of(mask) == "bool" or importer.constants.get(given) is not None:
        return [of_query, *of_keys, None]
    if dims(mask)[-1] == 1 and dims(of_bias)[-1] != 1:
        of_bias = importer.emit(op.sum(of_bias, -1, keepdims=True))
    of_bias = importer.emit(op.reshape(of_bias, importer.shape(given)))
    return [of_query, *of_keys, cast(importer, of_bias, str(dtype_of(mask)))]


def _fused(
    importer: Importer,
    operands: Sequence[relax.Expr],
    bias: relax.Expr | None,
    causal: bool,
    scale: float | None,
) -> list[Any]:
    """By our backward operator, which has the sequence before the heads."""
    *factors, grad = (importer.emit(op.permute_dims(x, [0, 2, 1, 3])) for x in operands)
    call = op.nn.attention(*factors, bias=bias, scale=scale, causal_mask="TopLeft" if causal else None)
    of_factors, of_bias = (results := list(adjoints(importer, call, grad)))[:3], results[3:]
    return [*(importer.emit(op.permute_dims(x, [0, 2, 1, 3])) for x in of_factors), *(of_bias or [None])]


def _with_dropout(
    importer: Importer,
    node: fx.Node,
    operands: Sequence[relax.Expr],
    allowed: relax.Expr | None,
    bias: relax.Expr | None,
    causal: bool,
    scale: float | None,
) -> list[Any]:
    """With P = softmax(S) and D that which drops: dV = D(P)' G, dS = P (D(G V') - sum(D(G V') P))."""
    query, key, value, grad = operands
    emit, dtype = importer.emit, str(dtype_of(query))

    def transposed(x: relax.Expr) -> relax.Expr:
        return emit(op.permute_dims(x, [0, 1, 3, 2]))

    p = frontend.probabilities_of(importer, query, key, bias, causal, scale)
    if allowed is not None:  # the others are NaN
        p = emit(op.where(allowed, p, relax.const(0.0, dtype)))
    of_value = emit(op.matmul(transposed(_dropped(importer, node, p)), grad))
    of_p = _dropped(importer, node, emit(op.matmul(grad, transposed(value))))
    of_scores = adjoints(importer, op.nn.softmax(p, -1), of_p, result=p)[0]
    scale = int(dims(query)[-1]) ** -0.5 if scale is None else scale
    scaled = emit(op.multiply(of_scores, relax.const(scale, dtype)))
    results = [emit(op.matmul(scaled, key)), emit(op.matmul(transposed(scaled), query)), of_value]
    if bias is None:
        return [*results, None]
    repeated = [axis for axis, size in enumerate(dims(bias)) if isinstance(size, int) and size == 1]
    return [*results, emit(op.sum(of_scores, repeated, keepdims=True)) if repeated else of_scores]


def _own_heads(importer: Importer, x: relax.Expr, own: relax.Expr) -> relax.Expr:
    """The sums over the queries' heads that each head of `own` served."""
    batch, heads, sequence, depth = dims(own)
    if heads == dims(x)[1]:
        return x
    return importer.emit(op.sum(importer.emit(op.reshape(x, [batch, heads, -1, sequence, depth])), 2))
