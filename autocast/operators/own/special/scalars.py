"""What special functions are written with: numbers of TIR in float64."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TypeAlias

import tvm
from tvm import tirx

#: A number of TIR; those here are float64.
Scalar: TypeAlias = tvm.ir.Expr

INFINITY, NAN = (tirx.const(value, "float64") for value in (math.inf, math.nan))


def let(value: Scalar, body: Callable[[Scalar], Scalar]) -> Scalar:
    """`body(value)`, where the value is computed once however often the body has it."""
    name = tirx.Var("v", value.ty)
    return tirx.Let(name, value, body(name))


def number(value: float) -> Scalar:
    """A literal."""
    return tirx.const(float(value), "float64")


def polynomial(x: Scalar, coefficients: Sequence[float]) -> Scalar:
    """The sum of `coefficients[k] * x**k`, by Horner's rule."""
    total = number(coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        total = total * x + number(coefficient)
    return total


def choose(*cases: tuple[Scalar, Scalar], otherwise: Scalar) -> Scalar:
    """The value of the first case whose condition is true; all are computed."""
    for condition, value in reversed(cases):
        otherwise = tirx.Select(condition, value, otherwise)
    return otherwise


def of_libm(name: str, *arguments: Scalar) -> Scalar:
    """A function of the C library."""
    return tirx.call_pure_extern("float64", name, *arguments)
