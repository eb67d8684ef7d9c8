"""Where in the torch module each value comes from, kept on its variable.

A variable's span names the submodule (`bert.encoder.layer.0.attention.self`), as a span of a compiler names a file. It
is not printed and makes no two modules different. Regions to recompute are found by it (`autocast.training.recompute`).
"""

from __future__ import annotations

import tvm
from torch import fx
from tvm import relax


def module_path(node: fx.Node) -> str:
    """The dotted path of the submodule that a node comes from; empty for the model itself."""
    stack = node.meta.get("nn_module_stack") or {}
    if not stack:
        return ""
    path, _ = list(stack.values())[-1]
    return path.removeprefix("L[").removeprefix("'self'].")


class PlacedBuilder(relax.BlockBuilder):
    """A builder whose variables say where they come from: `place`, which the importer sets."""

    place = ""

    def emit(self, expr: relax.Expr, name_hint: str = "") -> relax.Var:
        """Bind `expr` to a new variable of the current dataflow block."""
        value = self.normalize(expr)
        span = tvm.ir.Span(tvm.ir.SourceName(self.place), 0, 0, 0, 0) if self.place else None
        var = relax.DataflowVar(self.get_unique_name(name_hint or "lv"), value.ty, span)
        self.emit_normalized(relax.VarBinding(var, value))
        return var
