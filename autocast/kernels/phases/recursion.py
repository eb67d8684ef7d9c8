"""Functions that call themselves on every path."""

from __future__ import annotations

import tvm
from tvm import relax

from autocast.errors import UnsupportedError
from autocast.ir import relax_functions


def check_recursion(mod: tvm.IRModule) -> tvm.IRModule:
    """UnsupportedError where a function calls itself whatever its arguments are: running it would end the process."""
    called = {var.name_hint: _called_always(function) for var, function in relax_functions(mod)}
    for name in called:
        path = _path(called, name, name)
        if path:
            calls = ", which calls ".join(f"@{callee}" for callee in path)
            raise UnsupportedError(
                f"compile: @{name} calls {calls}, on every path, so that it never returns; expected a branch without "
                "that call. Try `if condition:` around it, with the result of the last call in the other branch"
            )
    return mod


def _called_always(function: relax.Function) -> list[str]:
    """The functions of the module that are called outside of all conditionals."""
    values = (binding.value for block in function.body.blocks for binding in block.bindings)
    callees = (value.op for value in values if isinstance(value, relax.Call))
    return [callee.name_hint for callee in callees if isinstance(callee, relax.GlobalVar)]


def _path(called: dict[str, list[str]], start: str, end: str) -> list[str]:
    """Who is called on the way from one function to another; nothing where there is no way."""
    ways = {callee: [callee] for callee in called[start]}
    waiting = [*ways]
    for name in waiting:
        for callee in called.get(name, ()):
            if callee not in ways:
                ways[callee] = [*ways[name], callee]
                waiting.append(callee)
    return ways.get(end, [])
