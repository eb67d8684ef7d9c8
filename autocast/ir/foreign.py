"""Calls of foreign code in a module: which of them are torch's."""

from __future__ import annotations

from collections import Counter

import tvm
from tvm import relax

from autocast.ir.views import all_bindings, is_op, relax_functions
from autocast.runtime.torch_calls import PREFIX, operator_of


def packed_function(value: relax.Expr) -> str:
    """The packed function that the value of a binding is a call of, by `call_dps_packed` or `call_pure_packed`; else
    an empty text."""
    called = value.args[0] if is_op(value, "relax.call_dps_packed", "relax.call_pure_packed") else None
    return str(called.global_symbol) if isinstance(called, relax.ExternFunc) else ""


def torch_operator(value: relax.Expr) -> str:
    """The operator that the value of a binding calls torch for, "aten.linalg_qr.default"; empty where it calls none."""
    name = packed_function(value)
    return operator_of(name) if name.startswith(PREFIX) else ""


def calls_of_torch(mod: tvm.IRModule) -> dict[str, int]:
    """The operators that torch computes, and how many calls of each there are."""
    functions = [function for _, function in relax_functions(mod)]
    names = (torch_operator(binding.value) for function in functions for binding in all_bindings(function.body))
    return dict(Counter(filter(None, names)))
