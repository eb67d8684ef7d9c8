"""What no converter knows is left to torch: a call of a packed function, which runs the operator when the model runs.

    gv = R.call_dps_packed("torch.aten.special_airy_ai.default", (R.str("..."), x), out_ty=R.Tensor((2, 3), "float32"))

Its types are those of torch's fake tensors, with symbolic sizes. It has the dtypes of the torch module: AutoCast leaves
foreign code alone. `autocast.runtime.torch_calls` is what is called.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import tvm
from torch import fx
from tvm import relax, tirx
from tvm.script import relax as R

from autocast.errors import ImportModelError
from autocast.frontend.importer import Importer
from autocast.frontend.nodes import is_random
from autocast.frontend.strides import check_places
from autocast.runtime.torch_calls import PREFIX, Request


def call_torch(importer: Importer, node: fx.Node) -> relax.Expr | list[relax.Expr | None]:
    """The call of a node's operator by torch; for one with several results, a list of them.

    Raises
    ------
    ImportModelError
        It cannot be such a call: it is control flow, its results have shapes that depend on values, or it takes or
        returns what is no dense tensor on the CPU.
    """
    if not isinstance(node.target, torch._ops.OpOverload):
        raise ImportModelError("it is no operator that torch could be asked to run")
    if not torch._C._dispatch_has_computed_kernel_for_dispatch_key(node.target.name(), "CPU"):
        raise ImportModelError(f"torch has no kernel of it for CPUs: {importer.left[node]}")
    check_places(node)
    value = node.meta["val"]
    parts = list(value) if isinstance(value, list | tuple) else [value]
    results = [part for part in parts if part is not None]
    types = [_type(importer, part) for part in results]
    arguments = _Arguments(importer)
    args = [arguments.encoded(value) for value in node.args]
    kwargs = {name: arguments.encoded(value) for name, value in node.kwargs.items()}
    fields = [*arguments.tensors, *([relax.ShapeExpr(arguments.sizes)] if arguments.sizes else [])]
    stream = None
    if is_random(node):
        stream = importer.next_stream()
        fields.append(importer.random_state)
    outputs = [part.is_complex() for part in results]
    request = Request(args, kwargs, len(arguments.tensors), outputs, bool(arguments.sizes), stream)
    single = not isinstance(value, list | tuple)
    call = relax.op.call_dps_packed(
        f"{PREFIX}{node.target}",
        relax.Tuple([R.str(request.text()), *fields]),
        out_ty=types[0] if len(types) == 1 else types,
    )
    whole = importer.emit(call)
    if single:
        return whole
    computed = iter([whole] if len(types) == 1 else [relax.TupleGetItem(whole, i) for i in range(len(types))])
    return [None if part is None else importer.emit(next(computed)) for part in parts]


def _type(importer: Importer, value: Any) -> relax.TensorType:
    if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
        raise ImportModelError("its result is a number that depends on values; keep it a tensor: leave out .item()")
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided or value.is_quantized:
        raise ImportModelError(f"it returns {value!r:.80}; expected dense tensors")
    if any(not isinstance(size, int) and not importer.is_bound(size) for size in value.shape):
        raise ImportModelError(
            f"its result has the shape {tuple(value.shape)}, which depends on the values of a tensor; choose with "
            "torch.where(condition, a, b), whose shape does not"
        )
    return relax.TensorType(*importer.type_of(value))


class _Arguments:
    """The arguments of an operator as a request says them, and what is passed beside it."""

    def __init__(self, importer: Importer) -> None:
        self.importer = importer
        self.tensors: list[relax.Expr] = []
        self.sizes: list[tvm.ir.Expr] = []

    def encoded(self, value: Any) -> Any:
        """An argument, in the words of `Request`."""
        if isinstance(value, fx.Node):
            return self._computed(value)
        if isinstance(value, list | tuple):
            return [self.encoded(part) for part in value]
        if value is None or isinstance(value, bool | int | float | str):
            return value
        if isinstance(value, complex):
            return {"complex": [value.real, value.imag]}
        for kind, name in ((torch.dtype, "dtype"), (torch.layout, "layout"), (torch.memory_format, "memory_format")):
            if isinstance(value, kind):
                return {name: str(value).removeprefix("torch.")}
        if isinstance(value, torch.device):
            return {"device": str(value)}
        raise ImportModelError(f"an argument is a {type(value).__name__}, {value!r:.80}; expected tensors and numbers")

    def _computed(self, node: fx.Node) -> Any:
        meta, value = node.meta.get("val"), self.importer.env[node]
        if isinstance(meta, torch.Tensor):
            place = next((i for i, tensor in enumerate(self.tensors) if tensor.same_as(value)), len(self.tensors))
            self.tensors += [value] if place == len(self.tensors) else []
            return {"pairs" if meta.is_complex() else "tensor": place}
        if isinstance(value, Sequence):
            return [self._of_list(node, part, i) for i, part in enumerate(value)]
        if isinstance(value, bool | int | float):
            return value
        if isinstance(value, tirx.IntImm):
            return int(value)
        if isinstance(value, tvm.ir.Expr) and str(value.ty) == "int64":
            self.sizes.append(value)
            return {"size": len(self.sizes) - 1}
        raise ImportModelError(f"an argument is {value}, a number that is known only when the model runs")

    def _of_list(self, node: fx.Node, value: relax.Expr, index: int) -> Any:
        self.tensors.append(value)
        return {"pairs" if node.meta["val"][index].is_complex() else "tensor": len(self.tensors) - 1}
