"""Seeded dropout in numpy."""

from __future__ import annotations

import math

import numpy as np

from autocast.operators.own.dropout import LAST_SHIFT, ROUNDS, UNIFORM_SCALE, UNIFORM_SHIFT, random_bits


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
    uniform = (bits_of(shape, seed, step, stream) >> np.uint32(UNIFORM_SHIFT)) * np.float32(UNIFORM_SCALE)
    return uniform >= np.float32(rate)
