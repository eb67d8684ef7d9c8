"""Casts, quantization and sampling: the author chose these dtypes."""

from __future__ import annotations

from type_hints.helpers import cast, full, untouched
from type_hints.registry import rule

RULES = (
    rule("relax.astype", cast(), why="a cast already: the AutoCast pass reuses, skips or cancels it by itself"),
    rule("relax.wrap_param", cast(), why="a parameter with the cast that its author asked for"),
    rule("relax.nn.seeded_normal", full(1), why="drawn in float32: its argument is but a shape, and read by nothing"),
    rule("relax.nn.seeded_uniform", full(1), why="drawn in float32: 16 bits would round to 1, and repeat themselves"),
    rule("relax.nn.stochastic_round", full(1), why="rounded once, from float32: random bits decide what is lost"),
    rule("relax.quantize", full(2), why="rounds to integers: jumps; TVM refuses it in bfloat16"),
    rule("relax.dequantize", untouched(), why="data is integer, and its result's dtype is the author's choice"),
    rule(
        "relax.multinomial_from_uniform",
        full(2),
        why="compares a uniform sample with cumulated probabilities: rounding biases the draw",
    ),
    rule("relax.shape_to_tensor", untouched(), why="integers have no precision to choose"),
    rule("relax.tensor_to_shape", untouched(), why="integers have no precision to choose"),
)
