"""Epilogues for the tests of products and convolutions, and what they compute in float64."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from scipy import special

from autocast.kernels.specs.epilogue import Epilogue, Operand
from autocast.kernels.specs.program import ProgramBuilder
from tests.kernels.targets.cpu.dtypes import ROUNDING, SMALLEST

ACTIVATIONS: dict[str | None, Callable[..., np.ndarray]] = {
    None: lambda x: x,
    "relu": lambda x: np.maximum(x, 0),
    "gelu": lambda x: 0.5 * x * (1 + special.erf(x / np.sqrt(2))),
    "gelu_tanh": lambda x: 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))),
    "silu": lambda x: x * special.expit(x),
    "tanh": np.tanh,
    "sigmoid": special.expit,
    "clip": np.clip,
    "leakyrelu": lambda x, slope: np.where(x < 0, slope * x, x),
}
#: The numbers that some of them have.
NUMBERS = {"clip": (-0.5, 0.75), "leakyrelu": (0.1,)}
#: The largest slope of any activation above; gelu's is 1.13.
STEEPEST = 1.2


def epilogue(
    *,
    scale: float | None = None,
    bias: str | None = None,
    activation: str | None = None,
    residual: str | None = None,
    residual_scale: float | None = None,
    residual_first: bool = False,
    gate: str | None = None,
    roundings: tuple[str | None, str | None] = (None, None),
) -> Epilogue:
    """`gate * (activation(scale * sum + bias) + residual_scale * residual)`, of which most may be missing.

    `bias`, `residual` and `gate` are the dtypes that these are stored in; `roundings` are made before the activation
    and before the residual, which may come before the activation.
    """
    builder = ProgramBuilder(())
    operands: list[Operand] = []

    def load(dtype: str, per_column: bool) -> int:
        operands.append(Operand(dtype, per_column))
        return builder.step("load", len(operands) - 1)

    def scaled(step: int, factor: float | None) -> int:
        return step if factor is None else builder.step("multiply", step, builder.constant(factor))

    value = scaled(builder.step("sum"), scale)
    if bias:
        value = builder.step("add", value, load(bias, True))
    for kind, dtype in zip(("residual", "activation")[:: 1 if residual_first else -1], roundings, strict=True):
        value = builder.step(f"round_{dtype}", value) if dtype else value
        if kind == "activation" and activation:
            value = builder.step(activation, value, *map(builder.constant, NUMBERS.get(activation, ())))
        if kind == "residual" and residual:
            value = builder.step("add", value, scaled(load(residual, False), residual_scale))
    if gate:
        builder.step("multiply", value, load(gate, False))
    return Epilogue(tuple(builder.steps), tuple(operands))


def evaluated(
    epilogue: Epilogue, sums: np.ndarray, error: np.ndarray, operands: Sequence[np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    """An epilogue's result in float64, and how far from it a kernel's float32 may be whose sums are off by `error`."""
    values: list[tuple[np.ndarray, np.ndarray | float]] = []
    sizes = np.abs(sums)
    for head, *rest in epilogue.steps:
        if head == "sum":
            values.append((sums, error))
        elif head == "load":
            values.append((operands[rest[0]].astype(np.float64), 0.0))
        elif head == "constant":
            values.append((np.float64(rest[0]), 0.0))
        else:
            values.append(_applied(head, [values[number] for number in rest]))
        sizes = sizes + np.abs(values[-1][0])
    exact, error = values[-1]
    return exact, error + 8 * ROUNDING["float32"] * sizes


def _applied(
    head: str, operands: Sequence[tuple[np.ndarray, np.ndarray | float]]
) -> tuple[np.ndarray, np.ndarray | float]:
    (x, error), *others = operands
    if head == "add":
        return x + others[0][0], error + others[0][1]
    if head == "multiply":
        y, other = others[0]
        return x * y, np.abs(y) * error + np.abs(x) * other + error * other
    if head.startswith("round_"):
        dtype = head.removeprefix("round_")
        return x, error + ROUNDING[dtype] * np.abs(x) * 1.01 + SMALLEST[dtype]
    return ACTIVATIONS[head](x, *(number for number, _ in others)), STEEPEST * error
