"""What every converter needs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import fx
from tvm import relax

from autocast.errors import ImportModelError
from autocast.frontend.importing.importer import Importer
from autocast.ir import dtype_of, shape_of

#: Translates one node of a torch program into Relax expressions, which it emits into the importer's block.
Converter = Callable[[Importer, fx.Node], Any]


def dims(x: relax.Expr) -> tuple[Any, ...]:
    """The dimensions (int or PrimExpr) of a tensor."""
    shape = shape_of(x)
    if shape is None:
        raise ImportModelError(f"a tensor whose shape is known only at run time ({x.ty})")
    return shape


def axis_of(x: relax.Expr, axis: Any) -> int:
    """An axis counted from the first one."""
    return int(axis) % len(dims(x))


def cast(importer: Importer, x: relax.Expr, dtype: str) -> relax.Expr:
    """`x` in `dtype`."""
    return x if dtype_of(x) == dtype else importer.emit(relax.op.astype(x, dtype))
