"""Floating-point operations: of a model's products and convolutions, and of one compiled kernel."""

from __future__ import annotations

import tvm
from tvm import relax, tirx
from tvm.s_tir.analysis import estimate_tir_flops

from autocast import ir
from autocast.errors import InputError
from autocast.ir import main_of
from autocast.messages import check_kind
from autocast.model.value import Model
from autocast.operators import row_of
from autocast.runtime.signature import Inputs
from autocast.runtime.sizes import Size, Sizes, evaluate_all
from autocast.vm.checks import A_MODEL
from autocast.vm.dimensions import Dimensions
from autocast.vm.signatures import signature_of

#: The attribute by which a generated kernel tells its operations: a number, or an expression of its symbolic sizes.
FLOPS_ATTRIBUTE = "autocast.flops"

#: `op_pattern` of generated kernels: they may call instructions that a count over loops does not see.
_OPAQUE = 8


def calc_model_gflops(model: Model | tvm.IRModule, device: str = "cpu", args: Inputs = ()) -> float:
    """Billions of floating-point operations in the products, convolutions and attention of one call.

    A multiply-add counts as two; other operators, which are bound by memory, do not count. Nobody knows how often
    a loop, a function that calls itself, goes round: it counts once.

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
    check_kind("calc_model_gflops", model, Model | tvm.IRModule, InputError, f"an IRModule, or {A_MODEL}")
    mod = model.mod if isinstance(model, Model) else model
    main = main_of(mod)
    if main is None:
        raise InputError(
            "calc_model_gflops: the module has no Relax function 'main', expected one; try from_relax(mod)"
        )
    inputs = model.num_input if isinstance(model, Model) else len(main.params)
    dimensions = Dimensions()
    signature = signature_of(main, inputs, dimensions)
    sizes = signature.bind(signature.in_order(args))
    return _count(mod, main, dimensions, sizes, ("main",)) / 1e9


def _count(
    mod: tvm.IRModule, function: relax.Function, dimensions: Dimensions, sizes: Sizes, entered: tuple[str, ...]
) -> int:
    """The operations of a function, in the functions named `entered`, of which the last is this one."""
    return sum(_count_call(mod, call, dimensions, sizes, entered) for call in ir.parts_of(function.body, relax.Call))


def _count_call(
    mod: tvm.IRModule, call: relax.Call, dimensions: Dimensions, sizes: Sizes, entered: tuple[str, ...]
) -> int:
    def shape(value: relax.Expr) -> tuple[int, ...] | None:
        own = dimensions.shape(ir.shape_of(value) or ())
        return None if own is None else evaluate_all(own, sizes)

    if isinstance(call.op, relax.GlobalVar) and isinstance(mod[call.op], relax.Function):
        if call.op.name_hint in entered:
            return 0
        callee, inner = mod[call.op], Dimensions()
        values: dict[str, int] = {}
        for param, arg in zip(callee.params, call.args, strict=True):
            own = inner.declared(ir.shape_of(param) or ())
            values.update({size: n for size, n in zip(own, shape(arg) or (), strict=False) if isinstance(size, str)})
        return _count(mod, callee, inner, values, (*entered, call.op.name_hint))
    row = row_of(call)
    if row is None or row.flops is None:
        return 0
    results = () if isinstance(call.ty, tvm.ir.TupleType) else (call,)
    known = [None if ir.shape_of(value) is None else shape(value) for value in (*call.args, *results)]
    if None in known:
        raise InputError(f"calc_model_gflops: the sizes of {row.name} are not known from the inputs alone")
    shapes = [own or () for own in known]
    return row.flops(call, shapes[: len(call.args)], shapes[-1] if results else ())


def kernel_flops(kernel: tirx.PrimFunc, shapes: tuple[tuple[Size, ...], ...], dimensions: Dimensions) -> Size | None:
    """The operations of one call of a kernel, in terms of its symbolic sizes; None where they are not known.

    A kernel says so itself by its attribute `autocast.flops`; else its loops are counted, if their extents are numbers
    and it was not generated with instructions that such a count does not see.

    Parameters
    ----------
    shapes
        Of its tensors, in the names of `dimensions`.
    """
    attrs = kernel.attrs or {}
    if FLOPS_ATTRIBUTE in attrs:
        return dimensions.size(attrs[FLOPS_ATTRIBUTE])
    symbolic = any(not isinstance(size, int) for shape in shapes for size in shape)
    if symbolic or attrs.get("op_pattern") == _OPAQUE:
        return None
    try:
        return int(estimate_tir_flops(tvm.IRModule({"main": kernel})))
    except Exception:  # TVM's counter raises errors of several classes for loops or calls that it does not know
        return None
