"""Matrix products: from a `Product` to a TIR function that runs at the speed of the vector unit."""

from __future__ import annotations

import tvm
from tvm import tirx

from autocast.kernels.product_spec import Epilogue, Product

__all__ = ["Epilogue", "Product", "product"]


def product(spec: Product, target: tvm.target.Target, name: str) -> tirx.PrimFunc:
    """A destination-passing TIR function `name(A, B, [bias], [residual], out)` that computes `spec` on `target`.

    The function is fit for `relax.call_tir`. It has the attributes `op_pattern` = 8 (opaque: nothing is fused into it),
    `autocast.scheduled` (no schedule is wanted) and `tirx.noalias`.
    """
    raise NotImplementedError
