"""Say which kernel rule took what, why others declined, and which kernels the program calls in the end."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import tvm
from tvm import relax, tirx

from autocast import ir, settings

#: The attribute of a PrimFunc that names the rule that made it.
RULE = "autocast.rule"


class Declined(Exception):
    """A kernel rule does not take something; the message is the reason."""


def explain(rule: str, var: relax.Var, reason: str, *, taken: bool) -> None:
    """With AUTOCAST_DEBUG=4, print whether kernel rule `rule` takes the binding of `var`, and the reason."""
    if settings.debug().level >= 4:
        print(
            f"kernels: {rule} {'takes' if taken else 'declines'} {var.name}{reason and ': '}{reason}", file=sys.stderr
        )


def credit(before: tvm.IRModule, after: tvm.IRModule, rule: str) -> tvm.IRModule:
    """`after`, with those of its PrimFuncs that `before` has not marked as the work of `rule`."""
    known = {var.name_hint for var in before.get_global_vars()}
    functions = {
        var: function.with_attr(RULE, rule)
        for var, function in after.functions.items()
        if isinstance(function, tirx.PrimFunc) and var.name_hint not in known
    }
    return ir.with_functions(after, functions)


def summarize(mod: tvm.IRModule) -> None:
    """With AUTOCAST_DEBUG=4, print each call of the lowered module `mod`: what it calls, and the rule that made it."""
    if settings.debug().level >= 4:
        for rule, kernel, result in _calls(mod):
            print(f"kernels: {rule:<12} {kernel:<60} {result}", file=sys.stderr)


def _calls(mod: tvm.IRModule) -> Iterator[tuple[str, str, str]]:
    """The rule, the kernel or function, and the result of each call, in order."""
    for function_var, function in ir.relax_functions(mod):
        for block in function.body.blocks:
            for binding in block.bindings:
                call = binding.value
                if not isinstance(call, relax.Call):
                    continue
                callee = call.args[0] if ir.is_op(call, "relax.call_tir", "relax.call_tir_inplace") else call.op
                result = f"{function_var.name_hint}: {binding.var.name}"
                if not isinstance(callee, tvm.ir.GlobalVar):
                    yield "-", str(getattr(callee, "name", callee)), result
                elif isinstance(mod[callee], tirx.PrimFunc):
                    yield str((mod[callee].attrs or {}).get(RULE, "fallback")), callee.name_hint, result
                else:
                    yield "function", callee.name_hint, result
