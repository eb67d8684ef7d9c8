"""Dimensions of inputs that torch computes from others, such as `2 * height` of images that a model halves.

A compiled function reads the dimensions of its inputs, and solves no equations. So such a dimension becomes a variable
of its own, and main begins with what it stands for:

    def main(image: R.Tensor((1, 3, image_2, 6))):
        R.match_cast(R.shape([image_2 // 2]), R.Shape([height]))
        image1 = R.match_cast(image, R.Tensor((1, 3, 2 * height, 6)))
"""

from __future__ import annotations

from typing import Any

import tvm_ffi
from tvm import relax, sym, tirx

from autocast.errors import ImportModelError


class Multiples:
    """The computed dimensions of a program's inputs."""

    def __init__(self) -> None:
        self.known: list[tuple[tirx.Var, tirx.PrimExpr]] = []
        self.inputs: list[tuple[relax.Var, relax.TensorType]] = []

    def input(self, name: str, shape: list[Any], dtype: str) -> relax.Var:
        """The variable of an input, in whose type each dimension is a number or a variable."""
        declared = [self._declared(size, f"{name}_{axis}") for axis, size in enumerate(shape)]
        var = relax.Var(name, relax.TensorType(declared, dtype))
        if any(a is not b for a, b in zip(declared, shape, strict=True)):
            self.inputs.append((var, relax.TensorType(shape, dtype)))
        return var

    def _declared(self, size: Any, name: str) -> Any:
        if isinstance(size, int | tirx.IntImm | tirx.Var):
            return size
        var = next((var for var, expr in self.known if tvm_ffi.structural_equal(expr, size)), None)
        if var is None:
            var = tirx.Var(name, "int64")
            self.known.append((var, size))
        return var

    def bind(self, builder: relax.BlockBuilder, declared: set[tirx.Var]) -> dict[str, relax.Var]:
        """Emit what binds the dimensions that no input `declared`; the inputs of computed dimensions, by name."""
        solved: dict[tirx.Var, tirx.PrimExpr] = {}
        products = []
        for var, expr in self.known:
            symbols = list(tirx.analysis.undefined_vars(expr))
            linear = sym.detect_linear_equation(expr, symbols) if len(symbols) == 1 else ()
            if not linear:
                products.append((expr, symbols))
            elif symbols[0] not in declared:
                solved.setdefault(symbols[0], tirx.floordiv(var - linear[1], linear[0]))
        for expr, symbols in products:
            if not declared.union(solved).issuperset(symbols):
                raise ImportModelError(
                    f"from_torch: an input has the dynamic dimension {expr}; expected a multiple of one dimension, and "
                    "a number, or dimensions that inputs have"
                )
        if solved:
            builder.match_cast(relax.ShapeExpr(list(solved.values())), relax.ShapeType(list(solved)))
        return {var.name: builder.match_cast(var, ty) for var, ty in self.inputs}
