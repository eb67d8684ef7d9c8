"""Operators of torch that the importer left to torch, as these operators."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from tvm import relax

from autocast.ir import is_op
from autocast.ir.foreign import packed_function
from autocast.runtime.found_sizes import CHECK, RELATIONS
from autocast.runtime.torch_calls import BACKWARD, PREFIX, Request, adjoints_of, called, operator_of, value_of
from autocast.torch_target.asked import Asked, Row, Value


def is_of_torch(call: relax.Call) -> bool:
    """Whether this is a call of an operator of torch's whose results are all tensors, and not random, or of its
    gradient, or a check of sizes."""
    name = packed_function(call)
    if name == CHECK:
        return True
    if not name.startswith(PREFIX):
        return False
    given = call.args[1].fields if is_op(call, "relax.call_dps_packed") else call.args[1:]
    request = Request.parse(str(given[0].value))
    if name.startswith(BACKWARD):
        return request.stream is None and not request.writes
    returns = _operator(name)._schema.returns
    return request.stream is None and (request.writes or len(returns) == len(request.outputs))


def _operator(name: str) -> Any:
    namespace, operator, overload = operator_of(name).split(".")
    return getattr(getattr(getattr(torch.ops, namespace), operator), overload)


def _call(asked: Asked) -> Value:
    return _answer(asked.args[0], *asked.args[1])


def _found(asked: Asked) -> Value:
    """What has sizes that values decide, or such sizes when they are checked."""
    name, text, *values = asked.args
    return _checked(text, *values) if name == CHECK else _answer(name, text, *values)


def _checked(conditions: str, sizes: tuple[Value, ...], sides: tuple[Value, ...]) -> tuple[Value, ...]:
    for at, (relation, text) in enumerate(json.loads(conditions)):
        torch.ops.aten._assert_scalar.default(RELATIONS[relation](sides[2 * at], sides[2 * at + 1]), f"expected {text}")
    return sizes


def _answer(name: str, text: str, *values: Value) -> Value:
    request = Request.parse(text)
    sizes = values[request.tensors] if request.sizes else ()
    if name.startswith(BACKWARD):
        tensors, adjoints = values[: request.tensors], values[request.tensors + request.sizes :]
        found = torch.ops.autocast.gradient.default(name, text, list(tensors), list(sizes), list(adjoints))
        return found[0] if len(request.wanted) == 1 else tuple(found[i] for i in range(len(request.wanted)))
    args = [value_of(value, values, sizes) for value in request.args]
    kwargs = {key: value_of(value, values, sizes) for key, value in request.kwargs.items()}
    result = called(_operator(name), request)(*args, **kwargs)
    if request.writes:  # None comes first where the operator returns nothing
        result = result[-1] if len(request.outputs) == 1 else result[-len(request.outputs) :]
    if len(request.outputs) == 1:
        return _pairs(result) if request.outputs[0] else result
    return tuple(_pairs(result[i]) if is_complex else result[i] for i, is_complex in enumerate(request.outputs))


@torch.library.custom_op("autocast::gradient", mutates_args=())
def _gradient(
    name: str, text: str, tensors: list[torch.Tensor], sizes: list[int], adjoints: list[torch.Tensor]
) -> list[torch.Tensor]:
    """What the packed function `torch.backward.` computes, as one operator.

    Inside an operator torch records no gradients in this thread, but in another.
    """
    with ThreadPoolExecutor(1, "autocast") as thread:
        found = thread.submit(adjoints_of, _operator(name), Request.parse(text), tensors, sizes, adjoints).result()
    return [adjoint.clone(memory_format=torch.contiguous_format) for adjoint in found]


@_gradient.register_fake
def _(
    name: str, text: str, tensors: list[torch.Tensor], sizes: list[int], adjoints: list[torch.Tensor]
) -> list[torch.Tensor]:
    wanted = (tensors[place] for place in Request.parse(text).wanted)
    return [torch.empty_like(tensor, memory_format=torch.contiguous_format) for tensor in wanted]


def _pairs(value: Value) -> Value:
    return torch.view_as_real(value.resolve_conj())


ROWS: dict[str, Row] = {"call_dps_packed": _call, "call_pure_packed": _found}
