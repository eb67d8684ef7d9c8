"""TVM's own passes as phases of the pipeline."""

from __future__ import annotations

from collections.abc import Callable
from unittest import mock

import tvm
from tvm import relax, te, tirx, topi
from tvm.topi.image import resize

from autocast.ir import is_tir_group, relax_functions
from autocast.kernels.backend import Backend
from autocast.kernels.contexts import changed_context
from autocast.kernels.fallback.found_sizes import behind_finders, finders_of

#: Operators that TVM may fuse to one kernel. It writes out a value wherever it is used, so that a long chain in which
#: each value is used twice, such as a hash, would grow without bound.
_FUSED_OPERATORS = 12

#: TVM's number for what nothing is fused with.
_OPAQUE = 8


def sequence(*passes: tvm.transform.Pass) -> Callable[[tvm.IRModule, Backend], tvm.IRModule]:
    """TVM's passes, one after the other, for the target of a backend."""

    def run(mod: tvm.IRModule, backend: Backend) -> tvm.IRModule:
        with backend.target:
            return tvm.transform.Sequential(list(passes))(mod)

    return run


def legalize(mod: tvm.IRModule, backend: Backend) -> tvm.IRModule:
    """Operators as PrimFuncs; fusion crashes at fields of literal tuples, which legalized operators may leave."""
    legalized = relax.transform.LegalizeOps({"relax.scatter_nd": _scatter_nd, "relax.image.resize2d": _resize2d})
    tidied = relax.transform.CanonicalizeBindings()
    return sequence(legalized, tidied, relax.transform.AnnotateTIROpPattern())(mod, backend)


def _scatter_nd(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """As TVM's, which compares sizes such as `3 * n` by their addresses: the updates get those of the data."""

    def scatter(data: te.Tensor, indices: te.Tensor, updates: te.Tensor) -> te.Tensor:
        batch = len(indices.shape) - 1
        rest = data.shape[int(indices.shape[-1]) :]
        if not all(isinstance(size, tirx.IntImm | tirx.Var) for size in rest):
            updates = te.compute([*updates.shape[:batch], *rest], lambda *place: updates(*place), "updates")
        return topi.scatter_nd(data, topi.transpose(indices, [batch, *range(batch)]), updates, call.attrs.reduction)

    return builder.call_te(scatter, *call.args)


def _resize2d(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """As TVM's, which asks how often a size divides another also where it is known at run time only."""
    divides = resize.can_convert_multiply_to_intdiv

    def known_to_divide(size: tirx.Expr, other: tirx.Expr) -> bool:
        return isinstance(size, tirx.IntImm) and bool(divides(size, other))

    with mock.patch.object(resize, divides.__name__, known_to_divide):
        return call.op.get_attr("FLegalize")(builder, call)


def fuse(mod: tvm.IRModule, backend: Backend) -> tvm.IRModule:
    """Neighbouring operators as one PrimFunc, in an order in which sizes that values decide are found before they are
    read.

    TVM fails where one of them takes a size as a number that is no dimension of the others: it defines that twice. Then
    those that take numbers stay apart.
    """
    fused = sequence(relax.transform.FuseOps(), relax.transform.FuseTIR())
    with changed_context(config={"relax.FuseOps.max_depth": _FUSED_OPERATORS}):
        try:
            result = fused(mod, backend)
        except tvm.error.InternalError:
            result = fused(_with_numbers_apart(mod), backend)
    return behind_finders(result, finders_of(mod))


def _with_numbers_apart(mod: tvm.IRModule) -> tvm.IRModule:
    """The module with PrimFuncs that take numbers, such as `shape_to_tensor(n, result)`, as opaque ones."""
    result = mod.clone()
    for var, function in mod.functions.items():
        if isinstance(function, tirx.PrimFunc) and any(isinstance(p.ty, tvm.ir.PrimType) for p in function.params):
            result[var] = function.with_attr("op_pattern", _OPAQUE)
    return result


def fuse_existing(mod: tvm.IRModule, backend: Backend) -> tvm.IRModule:
    """The groups of PrimFuncs that a module came with as one PrimFunc each."""
    if not any(is_tir_group(function) for _, function in relax_functions(mod)):
        return mod
    return sequence(relax.transform.FuseTIR())(mod, backend)
