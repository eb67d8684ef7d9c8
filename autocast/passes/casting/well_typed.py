"""The types of the module that goes in, asked of TVM once for calls that are alike.

TVM checks the types of a module by inferring that of every call again, which takes longer than to read it. In a plain
module, one function of known sizes that calls operators, the types of operands, the operator and its attributes say
what the type is: what is right for one call is right for all that have the same `Signature`.
"""

from __future__ import annotations

from collections.abc import Iterable

import tvm
from tvm import relax

from autocast.errors import IllFormedModuleError
from autocast.ir import ConstantExpr, Reading, check_well_formed, relax_functions
from autocast.ir.nodes import typed_call
from autocast.ir.views import structural_equal
from autocast.passes.casting.signatures import Signature

#: What a plain module binds beside calls: names, groups and fields.
_NAMING = (relax.Var, relax.DataflowVar, relax.Tuple, relax.TupleGetItem, ConstantExpr)


def check_types(mod: tvm.IRModule, reading: Reading, signatures: Iterable[Signature]) -> None:
    """Raise IllFormedModuleError unless the types in `mod` are right.

    Parameters
    ----------
    mod
        The module, in which all but types was checked: see `check_well_formed`.
    reading
        What was read of it.
    signatures
        Those of all its calls.
    """
    builder = relax.BlockBuilder(mod)
    if not (_is_plain(reading) and all(_is_inferred(builder, signature) for signature in signatures)):
        check_well_formed("AutoCast", mod, IllFormedModuleError)


def _is_plain(reading: Reading) -> bool:
    """Whether nothing but calls is left to check."""
    functions = [function for _, function in relax_functions(reading.mod)]
    sizes = [
        size
        for function in functions
        for found in (relax.analysis.defined_symbolic_vars, relax.analysis.free_symbolic_vars)
        for size in found(function)
    ]
    if len(functions) > 1 or sizes:
        return False
    return all(
        isinstance(bound.binding, relax.VarBinding)
        and type(bound.value) in _NAMING
        and structural_equal(bound.var.ty, bound.value.ty, False, False)
        for bound in reading.beside_calls
    )


def _is_inferred(builder: relax.BlockBuilder, signature: Signature) -> bool:
    """Whether TVM infers the type that calls have, and their variables, for those of a signature.

    A call of an operator that has effects may stand in some functions only.
    """
    call = signature.call
    if signature.name is None or signature.result is not signature.computed or not call.op.get_attr("FPurity"):
        return False
    try:
        inferred = builder.normalize(typed_call(None, call.op, call.args, signature.attrs, call.ty_args)).ty
    except Exception:
        return False  # the check of the whole module says why
    return structural_equal(inferred, call.ty, False, False)
