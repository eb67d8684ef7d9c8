"""Modules of one expression."""

from __future__ import annotations

import torch
import tvm

from tests.fuzz.generator import parse


def module_of(expression: str, shapes: dict[str, tuple[int, ...]]) -> tuple[tvm.IRModule, list[torch.Tensor]]:
    """A module that returns an expression of float64 tensors, int64 (i...) and bool ones (c...); and the operands."""
    generator = torch.Generator().manual_seed(0)
    operands, types = [], []
    for name, shape in shapes.items():
        dtype = {"i": "int64", "c": "bool"}.get(name[0], "float64")
        types.append(f'{name}: R.Tensor({shape!r}, "{dtype}")')
        if dtype == "float64":
            operands.append(torch.randn(shape, generator=generator, dtype=torch.float64))
        else:
            operands.append(torch.randint(0, 3, shape, generator=generator).to(getattr(torch, dtype)))
    mod = parse(
        "@I.ir_module\nclass Module:\n    @R.function\n"
        f"    def main({', '.join(types)}):\n        y = {expression}\n        return y\n"
    )
    return mod, operands
