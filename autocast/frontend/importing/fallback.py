"""What no converter knows is left to torch: a call of a packed function, which runs the operator when the model runs.

    gv = R.call_dps_packed("torch.aten.special_airy_ai.default", (R.str("..."), x), out_ty=R.Tensor((2, 3), "float32"))

Its types are those of torch's fake tensors, with symbolic sizes. Results whose sizes values decide are returned
(`call_pure_packed`), and matched with them (`found_sizes`). It has the dtypes of the torch module: AutoCast leaves
foreign code alone. `autocast.runtime.torch_calls` is what is called.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
import tvm
from torch import fx
from tvm import relax, tirx
from tvm.script import relax as R

from autocast.errors import ImportModelError
from autocast.frontend.converters.strides import check_places
from autocast.frontend.exporting.rewritten import CALLED
from autocast.frontend.importing.importer import Importer
from autocast.frontend.nodes import is_random, operator_of
from autocast.ir import is_tensor
from autocast.runtime.torch_calls import FOUND, PREFIX, Request

#: What returns the factors of its matrices transposed where these lie row by row. The backward graph, which solves by
#: these factors, was made for matrices that lie as they did in torch; here all lie row by row.
BY_LAYOUT = (torch.ops.aten._linalg_det.default, torch.ops.aten._linalg_slogdet.default)


def call_torch(importer: Importer, node: fx.Node) -> relax.Expr | list[relax.Expr | None]:
    """The call of a node's operator by torch; for one with several results, a list of them.

    Raises
    ------
    ImportModelError
        It cannot be such a call: it is control flow, or it takes or returns what is no dense tensor on the CPU.
    """
    operator = operator_of(node)
    if not isinstance(operator, torch._ops.OpOverload):
        raise ImportModelError("it is no operator that torch could be asked to run")
    if not torch._C._dispatch_has_computed_kernel_for_dispatch_key(operator.name(), "CPU"):
        raise ImportModelError(f"torch has no kernel of it for CPUs: {importer.left[node]}")
    check_places(node)
    value = node.meta["val"]
    parts = list(value) if isinstance(value, list | tuple) else [value]
    results = [part for part in parts if part is not None]
    is_found = [_is_found(importer, part) for part in results]
    types = [
        relax.TensorType(dtype=importer.type_of(part)[1], ndim=len(importer.type_of(part)[0]))
        if any(is_found)
        else _type(importer, part)
        for part in results
    ]
    arguments = _Arguments(importer, operator in BY_LAYOUT)
    writes = operator is not node.target
    args = [] if writes else [arguments.encoded(value) for value in node.args]
    kwargs = {name: arguments.encoded(value) for name, value in node.kwargs.items()}
    fields = [*arguments.tensors, *([relax.ShapeExpr(arguments.sizes)] if arguments.sizes else [])]
    stream = None
    if is_random(node):
        stream = importer.next_stream()
        fields.append(importer.random_state)
    outputs = [part.is_complex() for part in results]
    request = Request(args, kwargs, len(arguments.tensors), outputs, bool(arguments.sizes), stream, writes=writes)
    text, single, name = R.str(request.text()), len(types) == 1, CALLED.get(str(operator), str(operator))
    if any(is_found):
        ty = types[0] if single else relax.TupleType(types)
        call = relax.op.call_pure_packed(f"{FOUND}{name}", text, *fields, ty_args=ty)
    else:
        given, out = relax.Tuple([text, *fields]), types[0] if single else types
        call = relax.op.call_dps_packed(f"{PREFIX}{name}", given, out_ty=out)
    whole = importer.emit(call)
    computed = [whole] if single else [importer.emit(relax.TupleGetItem(whole, i)) for i in range(len(types))]
    if any(is_found):
        match = partial(importer.found.match_tensor, importer.block_builder, node)
        computed = [
            match(one, part.shape, partial(_type, importer, part)) for one, part in zip(computed, results, strict=True)
        ]
    if not isinstance(value, list | tuple):
        return computed[0]
    remaining = iter(computed)
    return [None if part is None else next(remaining) for part in parts]


def _type(importer: Importer, value: torch.Tensor) -> relax.TensorType:
    return relax.TensorType(*importer.type_of(value))


def _is_found(importer: Importer, value: Any) -> bool:
    """Whether a result has sizes that values decide."""
    if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
        raise ImportModelError("its result is a number that depends on values; keep it a tensor: leave out .item()")
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided or value.is_quantized:
        raise ImportModelError(f"it returns {value!r:.80}; expected dense tensors")
    return any(not isinstance(size, int) and not importer.found.knows(size) for size in value.shape)


class _Arguments:
    """The arguments of an operator as a request says them, and what is passed beside it."""

    def __init__(self, importer: Importer, by_layout: bool) -> None:
        self.importer, self.by_layout = importer, by_layout
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
            kind = "columns" if self.by_layout and not meta.is_contiguous() else "tensor"
            return {"pairs" if meta.is_complex() else kind: self._place(value)}
        if isinstance(value, relax.Expr) and is_tensor(value):
            return {"number": self._place(value)}
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

    def _place(self, tensor: relax.Expr) -> int:
        """Where a tensor is among those that are passed."""
        place = next((i for i, passed in enumerate(self.tensors) if passed.same_as(tensor)), len(self.tensors))
        self.tensors += [tensor] if place == len(self.tensors) else []
        return place

    def _of_list(self, node: fx.Node, value: relax.Expr, index: int) -> Any:
        self.tensors.append(value)
        return {"pairs" if node.meta["val"][index].is_complex() else "tensor": len(self.tensors) - 1}
