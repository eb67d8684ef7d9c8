"""The signature of a Relax function: see `autocast.runtime.signature`."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax, tirx

from autocast import ir
from autocast.errors import UnsupportedError
from autocast.kernels.phases.slices import may_end_before
from autocast.model.value import IMPORTED_FROM, without_updates, written_of
from autocast.runtime.results import Output, Outputs
from autocast.runtime.signature import Input, Signature
from autocast.runtime.sizes import Size
from autocast.vm.dimensions import Dimensions
from autocast.vm.row_numbers import rows_of

#: Operators that are not defined on no elements.
_CHOICES = ("relax.argmax", "relax.argmin", "relax.max", "relax.median", "relax.min")


def signature_of(main: relax.Function, count: int, dimensions: Dimensions | None = None) -> Signature:
    """The signature of `main`, whose first `count` parameters are the inputs.

    `dimensions` knows the names of its symbolic dimensions afterwards.

    Raises
    ------
    UnsupportedError
        An input is no tensor of known rank and dtype.
    """
    dimensions = Dimensions() if dimensions is None else dimensions
    inputs = []
    for var in main.params[:count]:
        shape, dtype = ir.shape_of(var), var.ty.dtype if ir.is_tensor(var) else None
        if shape is None or dtype is None:
            raise UnsupportedError(
                f"compile: input {var.name} of main has type {var.ty}, expected a tensor of known rank and dtype. "
                f"{_instead_of(var.ty)}"
            )
        inputs.append(Input(var.name, str(dtype), dimensions.declared(shape)))
    return Signature(
        tuple(inputs),
        _bounds(main, "tir_var_upper_bound"),
        _bounds(main, "tir_var_lower_bound"),
        _chosen_from(main, dimensions),
        _fitted(main, dimensions),
        IMPORTED_FROM in (main.attrs or {}),
        written_of(main),
        None if may_end_before(main) else _outputs(without_updates(main, main.ret_ty), dimensions),
        rows_of(main, count, dimensions),
    )


def _outputs(type: tvm.ir.Type, dimensions: Dimensions) -> Outputs:
    if isinstance(type, tvm.ir.TupleType):
        return tuple(_outputs(field, dimensions) for field in type.fields)
    if not isinstance(type, relax.TensorType):
        return None
    shape: tuple[Any, ...] | None = ir.shape_in(type) or ((None,) * type.ndim if type.ndim > 0 else None)
    sizes = shape and tuple(None if size is None else dimensions.size(size) for size in shape)
    return Output(None if type.dtype is None else str(type.dtype), () if type.ndim == 0 else sizes)


def _instead_of(type: tvm.ir.Type) -> str:
    """What to declare in place of an input of `type`."""
    if isinstance(type, tvm.ir.TupleType):
        return "autocast.from_relax(mod) passes the fields of a tuple as inputs of their own"
    if isinstance(type, relax.ShapeType):
        return "autocast.from_relax(mod) passes its sizes as a tensor; symbolic dimensions of another may say them, too"
    if isinstance(type, tvm.ir.PrimType):
        if "float" in str(type):
            return f"Take a tensor without dimensions, or bind it: main.bind_params({{var: tirx.const(0.5, '{type}')}})"
        return "autocast.from_relax(mod) passes a whole number as a tensor; or bind it: function.bind_params"
    if isinstance(type, relax.TensorType):
        return "Declare its dtype and dimensions, symbolic ones where sizes vary: R.Tensor((n, 8), 'float32')"
    return "Compute it in main"


def _bounds(main: relax.Function, attribute: str) -> dict[str, int]:
    bounds = main.attrs.get(attribute, {}) if main.attrs else {}
    return {str(name): int(bound) for name, bound in (bounds or {}).items()}


def _chosen_from(main: relax.Function, dimensions: Dimensions) -> dict[str, str]:
    """The symbolic dimensions that one of `_CHOICES` reduces, each with the operator."""
    found: dict[str, str] = {}

    for call in ir.parts_of(main, relax.Call):
        shape = ir.shape_of(call.args[0]) if ir.is_op(call, *_CHOICES) else None
        if shape:
            axes = range(len(shape)) if call.attrs.axis is None else call.attrs.axis
            for axis in [axes] if isinstance(axes, int) else axes:
                if isinstance(shape[axis], tirx.Var):
                    found[str(dimensions.declare(shape[axis]))] = str(ir.op_name(call))
    return found


def _fitted(main: relax.Function, dimensions: Dimensions) -> dict[str, tuple[Size, ...]]:
    """The shapes that `main` casts its arguments to: a multiple of 2, say, of a dimension that it halves."""
    casts = [b for block in main.body.blocks for b in block.bindings if isinstance(b, relax.MatchCast)]
    shapes = {cast.value.name: ir.shape_of(cast.var) for cast in casts if isinstance(cast.value, relax.Var)}
    return {name: dimensions.declared(shape) for name, shape in shapes.items() if shape is not None}
