"""The gamma function's logarithm and its derivatives, and the zeta function of Hurwitz, in float64."""

from __future__ import annotations

import math
from fractions import Fraction

from tvm import tirx

from autocast.operators.own.special.scalars import INFINITY, NAN, Scalar, choose, let, number, of_libm

#: How far sums are taken one by one, and how many terms of Euler and Maclaurin's formula give the rest.
_STEPS, _TERMS = 10, 10


def _bernoulli(count: int) -> list[Fraction]:
    """The Bernoulli numbers B_2, B_4, ..."""
    numbers = [Fraction(1)]
    for n in range(1, 2 * count + 1):
        numbers.append(-sum((math.comb(n + 1, k) * numbers[k] for k in range(n)), Fraction(0)) / (n + 1))
    return numbers[2::2]


_BERNOULLI = _bernoulli(_TERMS)


def lgamma(x: Scalar) -> Scalar:
    """log |gamma(x)|."""
    return of_libm("lgamma", x)


def digamma(x: Scalar) -> Scalar:
    """The derivative of lgamma: where x is below 1/2, by its reflection; NaN at the poles but that of 0.

    Source: NIST Digital Library of Mathematical Functions, 5.5.2, 5.5.4 and 5.11.2.
    """
    reflected = x < number(0.5)

    def right(z: Scalar) -> Scalar:
        passed = number(0)
        for i in range(_STEPS):
            passed = passed + number(1) / (z + number(i))

        def far(y: Scalar) -> Scalar:
            series = number(0)
            for k in range(_TERMS, 0, -1):
                series = (series + number(float(_BERNOULLI[k - 1] / (2 * k)))) / (y * y)
            return tirx.log(y) - number(0.5) / y - series

        return let(z + number(_STEPS), far) - passed

    def whole(angle: Scalar) -> Scalar:
        left = tirx.Select(reflected, number(math.pi) * tirx.cos(angle) / tirx.sin(angle), number(0))
        return let(tirx.Select(reflected, number(1) - x, x), right) - left

    distance = x - tirx.floor(x + number(0.5))  # to the nearest pole: exact
    pole = tirx.Select(x == number(0), -of_libm("copysign", INFINITY, x), NAN)
    is_pole = tirx.And(reflected, distance == number(0))
    value = let(distance * number(math.pi), whole)
    return choose((is_pole, pole), (x == INFINITY, INFINITY), otherwise=value)


def zeta(s: Scalar, q: Scalar) -> Scalar:
    """The sum of (q + k)^-s over all k >= 0; infinite at its poles, NaN where it has no real value.

    Where q < 0, the terms below zero are the difference of two sums of terms above it.

    Source: NIST Digital Library of Mathematical Functions, 25.11.5 (Euler and Maclaurin's formula).
    """
    zero, one = number(0), number(1)

    def below(distance: Scalar) -> Scalar:
        """From the distance of the last term below zero."""
        even = tirx.floor(s * number(0.5)) * number(2) == s
        sign = tirx.Select(even, one, -one)
        return (_sum(s, one - distance) + sign * _sum(s, distance)) - sign * _sum(s, one - q)

    value = tirx.if_then_else(q > zero, _sum(s, q), let(-q - tirx.floor(-q), below))
    return choose(
        (s == one, INFINITY),
        (tirx.Not(s > one), NAN),
        (tirx.And(q <= zero, tirx.floor(q) == q), INFINITY),
        (tirx.And(q < zero, tirx.floor(s) != s), NAN),
        (q == INFINITY, zero),
        otherwise=value,
    )


def _sum(s: Scalar, q: Scalar) -> Scalar:
    """The sum for q > 0."""
    first = number(0)
    for k in range(_STEPS):
        first = first + tirx.pow(q + number(k), -s)

    def rest(a: Scalar) -> Scalar:
        series, factor = a / (s - number(1)) + number(0.5), s / a
        for j in range(1, _TERMS + 1):
            series = series + factor * number(float(_BERNOULLI[j - 1] / math.factorial(2 * j)))
            factor = factor * (s + number(2 * j - 1)) * (s + number(2 * j)) / (a * a)
        return tirx.pow(a, -s) * series

    return first + let(q + number(_STEPS), rest)


def polygamma(x: Scalar, n: int) -> Scalar:
    """The derivative of order n >= 1 of digamma.

    Source: NIST Digital Library of Mathematical Functions, 25.11.12.
    """
    sign = 1 if n % 2 else -1
    return zeta(number(n + 1), x) * number(sign * math.factorial(n))
