"""The error function's relatives, in float64: `erf` and `erfc` are the C library's."""

from __future__ import annotations

import math

from tvm import tirx

from autocast.operators.own.special.scalars import INFINITY, NAN, Scalar, choose, let, number, of_libm, polynomial

#: From here on erfcx is its asymptotic series, of which so many terms are as exact as float64.
_FAR, _TERMS = 12.0, 11

#: Winitzki's constant: with it the first guess of an inverse is right to 2e-3.
_GUESS = 0.147


def erfc(x: Scalar) -> Scalar:
    """1 - erf(x)."""
    return of_libm("erfc", x)


def erfcx(x: Scalar) -> Scalar:
    """exp(x²) erfc(x).

    Source: NIST Digital Library of Mathematical Functions, 7.12.1.
    """
    terms = [1.0]
    for k in range(1, _TERMS):
        terms.append(-terms[-1] * (2 * k - 1) / 2)

    def of(square: Scalar) -> Scalar:
        far = polynomial(number(1) / square, terms) / (x * number(math.sqrt(math.pi)))
        return tirx.Select(x >= number(_FAR), far, tirx.exp(square) * erfc(x))

    return let(x * x, of)


def _inverse(size: Scalar, rest: Scalar) -> Scalar:
    """y >= 0 with erf(y) = size and erfc(y) = rest, of which the smaller one is exact: a guess, and Halley's steps.

    Source: Sergei Winitzki, "A handy approximation for the error function and its inverse", 2008 (the guess).
    """
    slope = number(2 / math.sqrt(math.pi))

    def guess(logarithm: Scalar) -> Scalar:
        half = let(
            number(2 / (math.pi * _GUESS)) + logarithm * number(0.5),
            lambda t: tirx.sqrt(t * t - logarithm / number(_GUESS)) - t,
        )
        return tirx.sqrt(tirx.max(half, number(0)))

    def step(y: Scalar) -> Scalar:
        excess = tirx.Select(size < rest, size - tirx.erf(y), erfc(y) - rest)
        return let(excess, lambda e: y + e / (slope * tirx.exp(-y * y) - y * e))

    def steps(y: Scalar, count: int) -> Scalar:
        return let(step(y), lambda better: steps(better, count - 1)) if count else y

    return let(guess(tirx.log(rest * (number(2) - rest))), lambda y: steps(y, 3))


def erfinv(x: Scalar) -> Scalar:
    """y with erf(y) = x; infinite at -1 and 1, NaN beyond."""
    size = tirx.abs(x)
    y = choose((size < number(1), _inverse(size, number(1) - size)), (size == number(1), INFINITY), otherwise=NAN)
    return let(y, lambda y: tirx.Select(x < number(0), -y, y))


def log_ndtr(x: Scalar) -> Scalar:
    """The logarithm of the probability that a normal number is below x."""
    at = x * number(math.sqrt(0.5))
    low = tirx.log(let(-at, erfcx) * number(0.5)) - x * x * number(0.5)
    return tirx.Select(x < number(-1), low, of_libm("log1p", erfc(at) * number(-0.5)))


def ndtri(p: Scalar) -> Scalar:
    """x that a normal number is below with the probability p; infinite at 0 and 1, NaN beyond."""
    rest = number(2) * tirx.min(p, number(1) - p)
    y = _inverse(tirx.abs(number(2) * p - number(1)), rest) * number(math.sqrt(2))
    y = choose((rest > number(0), y), (rest == number(0), INFINITY), otherwise=NAN)
    return let(y, lambda y: tirx.Select(p < number(0.5), -y, y))
