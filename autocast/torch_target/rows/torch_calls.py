"""Operators of torch that the importer left to torch, as these operators."""

from __future__ import annotations

from typing import Any

import torch
from tvm import relax

from autocast.ir import op_name
from autocast.runtime.torch_calls import BACKWARD, PREFIX, Request, operator_of
from autocast.torch_target.asked import Asked, Row, Value


def is_of_torch(call: relax.Call) -> bool:
    """Whether this is a call of an operator of torch's whose results are all tensors, and not random."""
    if op_name(call) != "relax.call_dps_packed" or not isinstance(call.args[0], relax.ExternFunc):
        return False
    name = str(call.args[0].global_symbol)
    if not name.startswith(f"{PREFIX}aten.") or name.startswith(BACKWARD):
        return False
    request = Request.parse(str(call.args[1].fields[0].value))
    returns = _operator(name)._schema.returns
    return request.stream is None and len(returns) == len(request.outputs)


def _operator(name: str) -> Any:
    namespace, operator, overload = operator_of(name).split(".")
    return getattr(getattr(getattr(torch.ops, namespace), operator), overload)


def _call(asked: Asked) -> Value:
    name, (text, *values) = asked.args
    request = Request.parse(text)
    sizes = values[request.tensors] if request.sizes else ()
    args = [_argument(value, values, sizes) for value in request.args]
    result = _operator(name)(*args, **{key: _argument(value, values, sizes) for key, value in request.kwargs.items()})
    if len(request.outputs) == 1:
        return _pairs(result) if request.outputs[0] else result
    return tuple(_pairs(result[i]) if is_complex else result[i] for i, is_complex in enumerate(request.outputs))


def _pairs(value: Value) -> Value:
    return torch.view_as_real(value.resolve_conj())


def _argument(argument: Any, tensors: list[Value], sizes: Any) -> Value:
    """What stands for an argument in a request."""
    if isinstance(argument, list | tuple):
        return [_argument(part, tensors, sizes) for part in argument]
    if not isinstance(argument, dict):
        return argument
    ((kind, value),) = argument.items()
    if kind in ("tensor", "pairs"):
        return torch.view_as_complex(tensors[value]) if kind == "pairs" else tensors[value]
    if kind == "size":
        return sizes[value]
    if kind == "complex":
        return complex(*value)
    return torch.device(value) if kind == "device" else getattr(torch, value)


ROWS: dict[str, Row] = {"call_dps_packed": _call}
