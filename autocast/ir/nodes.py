"""Nodes of the IR from parts of others: the constructors of TVM's classes convert and check each part again."""

from __future__ import annotations

from collections.abc import Sequence

import tvm
import tvm_ffi
from tvm import relax

_call = tvm_ffi.get_global_func("ir.Call")
_variables = {
    relax.Var: tvm_ffi.get_global_func("ir.Var"),
    relax.DataflowVar: tvm_ffi.get_global_func("relax.DataflowVar"),
}
_binding = tvm_ffi.get_global_func("relax.VarBinding")
_NO_TYPE = tvm.ir.Type.missing()


def typed_call(
    type: tvm.ir.Type | None,
    op: relax.Expr,
    args: Sequence[relax.Expr],
    attrs: tvm.ir.Attrs | None,
    types: Sequence = (),
) -> relax.Call:
    """A call of this type, None where it is not known yet; `types` are its type arguments."""
    return _call(_NO_TYPE if type is None else type, op, args, attrs, types, None)


def variable(kind: type[relax.Var], name: str, type: tvm.ir.Type, span: tvm.ir.Span | None = None) -> relax.Var:
    """A `relax.Var` or `relax.DataflowVar`."""
    return _variables[kind](name, type, span)


def binding_of(var: relax.Var, value: relax.Expr) -> relax.VarBinding:
    """A `relax.VarBinding`."""
    return _binding(var, value, None)
