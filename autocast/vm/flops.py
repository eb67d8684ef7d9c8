"""Floating-point operations: of a model's products and convolutions, and of one compiled kernel."""

from __future__ import annotations

from math import prod

import tvm
from tvm import relax, tirx
from tvm.s_tir.analysis import estimate_tir_flops

from autocast import ir
from autocast.errors import InputError
from autocast.model.value import Model
from autocast.operators import row_of
from autocast.vm.signature import Inputs, Signature
from autocast.vm.sizes import Sizes, evaluate, evaluate_all
from autocast.vm.workspace import sizes_of_call

#: The attribute by which a generated kernel tells its operations: a number, or an expression of its symbolic sizes.
FLOPS_ATTRIBUTE = "autocast.flops"

#: The attribute of products: the axis of their first argument that is summed; the last argument is the output.
SUMMED_AXIS_ATTRIBUTE = "autocast.summed_axis"

#: `op_pattern` of generated kernels: they may call instructions that a count over loops does not see.
_OPAQUE = 8

_Shapes = list[tuple[int, ...]]


def calc_model_gflops(model: Model | tvm.IRModule, device: str = "cpu", args: Inputs = ()) -> float:
    """Billions of floating-point operations in the products, convolutions and attention of one call.

    A multiply-add counts as two; other operators, which are bound by memory, do not count.

    Parameters
    ----------
    model : Model or IRModule
        Its `main` is counted, and the Relax functions that it calls.
    device : str
        Accepted as RAF accepts it; the count does not depend on it.
    args : sequence of tensors, or dict of str to tensor
        The inputs, in their order or by their names: their shapes give symbolic dimensions their values.

    Raises
    ------
    InputError
        The inputs do not fit, or leave the size of a product unknown.
    """
    mod = model.mod if isinstance(model, Model) else model
    main = mod["main"]
    inputs = model.num_input if isinstance(model, Model) else len(main.params)
    signature = Signature.of(main, inputs)
    sizes = signature.bind(signature.in_order(args))
    return _count(mod, main, sizes) / 1e9


def _count(mod: tvm.IRModule, function: relax.Function, sizes: Sizes) -> int:
    return sum(_count_call(mod, call, sizes) for call in ir.parts_of(function.body, relax.Call))


def _count_call(mod: tvm.IRModule, call: relax.Call, sizes: Sizes) -> int:
    if isinstance(call.op, relax.GlobalVar) and isinstance(mod[call.op], relax.Function):
        callee = mod[call.op]
        shapes = [evaluate_all(ir.shape_of(arg) or (), sizes) or () for arg in call.args]
        return _count(mod, callee, _sizes_of(callee, shapes))
    row = row_of(call)
    if row is None or row.flops is None:
        return 0
    known = [evaluate_all(ir.shape_of(value) or (None,), sizes) for value in (*call.args, call)]
    *shapes, result = (shape or () for shape in known)
    if None in known:
        raise InputError(f"calc_model_gflops: the sizes of {row.name} are not known from the inputs alone")
    return row.flops(call, shapes, result)


def _sizes_of(function: relax.Function, shapes: _Shapes) -> dict[tirx.Var, int]:
    pairs = (
        pair
        for param, shape in zip(function.params, shapes, strict=True)
        for pair in zip(ir.shape_of(param) or (), shape, strict=False)
    )
    return {dimension: size for dimension, size in pairs if isinstance(dimension, tirx.Var)}


def kernel_flops(kernel: tirx.PrimFunc, shapes: _Shapes) -> int | None:
    """The operations of one call of a kernel whose tensor arguments have `shapes`; None where they are not known.

    A kernel says so itself by its attribute `autocast.flops` or, a product, `autocast.summed_axis`; else its loops are
    counted, if their extents are numbers and it was not generated with instructions that such a count does not see.
    """
    attrs = kernel.attrs or {}
    if FLOPS_ATTRIBUTE in attrs:
        return evaluate(attrs[FLOPS_ATTRIBUTE], sizes_of_call(kernel, shapes))
    if SUMMED_AXIS_ATTRIBUTE in attrs:
        return 2 * prod(shapes[-1]) * shapes[0][int(attrs[SUMMED_AXIS_ATTRIBUTE])]
    buffers = [param for param in kernel.params if isinstance(param.ty, tirx.buffer.BufferType)]
    symbolic = any(not isinstance(dimension, tirx.IntImm) for buffer in buffers for dimension in buffer.shape)
    if symbolic or attrs.get("op_pattern") == _OPAQUE:
        return None
    try:
        return int(estimate_tir_flops(tvm.IRModule({"main": kernel})))
    except Exception:  # TVM's counter raises errors of several classes for loops or calls that it does not know
        return None
