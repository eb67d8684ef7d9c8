"""Seeded dropout and random numbers in numpy."""

from __future__ import annotations

import math

import numpy as np

from autocast.operators.own.dropout import LAST_SHIFT, ROUNDS, UNIFORM_SCALE, UNIFORM_SHIFT, random_bits
from autocast.operators.own.noise import SECOND


def scramble(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """lowbias32 of `a ^ b`."""
    x = a ^ b
    for shift, factor in ROUNDS:
        x = (x ^ (x >> np.uint32(shift))) * np.uint32(factor)
    return x ^ (x >> np.uint32(LAST_SHIFT))


def bits_of(shape: tuple[int, ...], seed: int = 0, step: int = 0, stream: int = 0) -> np.ndarray:
    """The random bits of every element."""

    def word(value: int) -> np.ndarray:
        return np.array([value % 2**32], "uint32")

    position = np.arange(math.prod(shape), dtype="uint32")
    return random_bits(scramble, position, word(seed), word(step), word(stream), word).reshape(shape)


def kept(shape: tuple[int, ...], rate: float, seed: int = 0, step: int = 0, stream: int = 0) -> np.ndarray:
    """Which elements are kept."""
    return uniform(shape, seed, step, stream) >= np.float32(rate)


def uniform(shape: tuple[int, ...], seed: int = 0, step: int = 0, stream: int = 0) -> np.ndarray:
    """Numbers from 0 to below 1, in float32."""
    return (bits_of(shape, seed, step, stream) >> np.uint32(UNIFORM_SHIFT)) * np.float32(UNIFORM_SCALE)


def normal(shape: tuple[int, ...], seed: int = 0, step: int = 0, stream: int = 0) -> np.ndarray:
    """Standard normal numbers, in float64."""
    length, angle = (uniform(shape, seed, step, one).astype("float64") for one in (stream, stream + SECOND))
    return np.sqrt(-2 * np.log(1 - length)) * np.cos(2 * np.pi * angle)
