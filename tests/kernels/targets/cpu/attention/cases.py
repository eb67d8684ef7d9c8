"""Attention kernels beside float64 numpy: any specification, read and written through its own views."""

from __future__ import annotations

from typing import Any

import numpy as np

from autocast.kernels.specs.attention import Attention, OperandView, Step
from autocast.kernels.specs.sizes import Size, dimension, evaluated
from tests.kernels.targets.cpu.dtypes import DTYPES, ROUNDING

STORED = {**DTYPES, "bool": np.bool_}
#: Relative error of the powers of two, for probabilities that are multiplied as bfloat16 and as float32.
POWER = {"bfloat16": 5e-6, "float32": 3e-7}


def heads(
    batch: int | str,
    queries: int | str,
    keys: int | str,
    count: int,
    depth: int,
    dtype: str = "float32",
    *,
    group: int = 1,
    heads_first: bool = False,
    extra: tuple[tuple[tuple[int | str, ...], str], ...] = (),
    **more: Any,
) -> Attention:
    """Attention over (batch, sequence, heads, depth), or with heads first; `group` heads share a head of K and V."""
    own, leading = count // group, (dimension(batch), count // group, group)

    def shape(length: int | str, heads: int) -> tuple[int | str, ...]:
        return (batch, heads, length, depth) if heads_first else (batch, length, heads, depth)

    def view(argument: int, length: int | str, heads: int, inner: int) -> OperandView:
        rows = depth if heads_first else heads * depth
        head = dimension(length) * depth if heads_first else depth
        inside = head if inner else 0
        return OperandView(argument, 0, (dimension(length) * heads * depth, head * (inner or 1), inside), rows)

    arguments = ((shape(queries, count), dtype), (shape(keys, own), dtype), (shape(keys, own), dtype), *extra)
    return Attention(
        arguments=arguments,
        out=(shape(queries, count), dtype),
        leading=leading,
        queries=dimension(queries),
        keys=dimension(keys),
        depth=depth,
        value_depth=depth,
        query=view(0, queries, count, group),
        key=view(1, keys, own, 0),
        value=view(2, keys, own, 0),
        result=view(len(arguments), queries, count, group),
        **({"steps": (Step("scale", depth**-0.5),)} | more),
    )


class Case:
    """A specification with random operands; `sizes` gives its named dimensions."""

    def __init__(self, spec: Attention, **sizes: int) -> None:
        self.spec, self.sizes = spec, sizes
        rng = np.random.default_rng(0)

        def random(shape: tuple[int | str, ...], dtype: str) -> np.ndarray:
            known = tuple(sizes[dim] if isinstance(dim, str) else dim for dim in shape)
            return (rng.random(known) < 0.7) if dtype == "bool" else rng.standard_normal(known).astype(STORED[dtype])

        self.arguments = [random(*argument) for argument in spec.arguments]

    def poisoned(self) -> np.ndarray:
        """Memory for the result, full of NaN."""
        shape = tuple(self.sizes[dim] if isinstance(dim, str) else dim for dim in self.spec.out[0])
        return np.full(shape, np.nan, STORED[self.spec.out[1]])

    def number(self, size: Size) -> int:
        return evaluated(size, self.sizes)

    def matrices(self, view: OperandView, array: np.ndarray, rows: int, columns: int) -> np.ndarray:
        """The matrices of a view of `array`, for all leading indices, as float64."""
        strides = [self.number(size) * array.itemsize for size in (*view.leading, view.rows, view.columns)]
        shape = (*(self.number(extent) for extent in self.spec.leading), rows, columns)
        start = self.number(view.offset)
        seen = np.lib.stride_tricks.as_strided(array.reshape(-1)[start:], shape, strides)
        return seen.astype(np.float64)

    def expected(self, pairs: bool) -> tuple[np.ndarray, np.ndarray]:
        """The result in float64, and how far from it each element may be.

        A score is a float32 sum of `depth` products; what it is off by, the relative errors of the power, of the sum
        over the keys and of rounding probabilities to bfloat16 (`pairs`) all scale a weight; storing rounds once more.
        """
        spec = self.spec
        queries, keys = self.number(spec.queries), self.number(spec.keys)
        q = self.matrices(spec.query, self.arguments[spec.query.argument], queries, spec.depth)
        k = self.matrices(spec.key, self.arguments[spec.key.argument], keys, spec.depth)
        v = self.matrices(spec.value, self.arguments[spec.value.argument], keys, spec.value_depth)
        scores = q @ k.swapaxes(-1, -2)
        size = float((np.abs(q) @ np.abs(k).swapaxes(-1, -2)).max())
        for step in spec.steps:
            tensor = None
            if step.view is not None:
                tensor = self.matrices(step.view, self.arguments[step.view.argument], queries, keys)
            scores, size = _applied(step, scores, size, tensor)
        if spec.causal is not None:
            offset = abs(keys - queries) if spec.causal == "difference" else int(spec.causal)
            scores = np.where(np.tri(queries, keys, offset, dtype=bool), scores, -np.inf)
        with np.errstate(invalid="ignore"):
            weights = np.exp(scores - scores.max(-1, keepdims=True))
            weights = weights / weights.sum(-1, keepdims=True)
        if spec.zero_empty:
            weights = np.nan_to_num(weights)
        exact = weights @ v
        relative = 4 * (spec.depth + 2) * ROUNDING["float32"] * size + keys * ROUNDING["float32"]
        relative += 2 * POWER["bfloat16" if pairs else "float32"] + (2 * ROUNDING["bfloat16"] if pairs else 0.0)
        allowed = relative * (weights @ np.abs(v)) + 1.01 * ROUNDING[spec.out[1]] * np.abs(exact) + 1e-7
        return exact, allowed

    def check(self, out: np.ndarray, pairs: bool) -> None:
        """Fail unless every element of `out`, the kernel's output, is where it may be, and NaN where NaN is due."""
        exact, allowed = self.expected(pairs)
        got = self.matrices(self.spec.result, out, *exact.shape[-2:])
        wrong = ~((np.abs(got - exact) <= allowed) | (np.isnan(exact) & np.isnan(got)))
        assert not wrong.any(), (
            f"{wrong.sum()} of {wrong.size} elements are off, the first at {np.argwhere(wrong)[0]}: "
            f"got {got[wrong][0]}, expected {exact[wrong][0]} within {allowed[wrong][0]}"
        )


def _applied(step: Step, scores: np.ndarray, size: float, tensor: np.ndarray | None) -> tuple[np.ndarray, float]:
    if tensor is None:
        return scores * step.value, size * abs(step.value)
    if step.kind == "add":
        finite = np.abs(tensor[np.abs(tensor) < 1e30])
        return scores + tensor, size + float(finite.max(initial=0.0))
    return np.where(tensor.astype(bool) == (step.kind == "keep"), scores, step.value), size


def bias(
    argument: int, batch: int | str, heads: int, queries: int | str, keys: int | str, group: int = 1
) -> OperandView:
    """A view of a tensor of that shape; where an extent is 1 it is repeated."""

    def stride(extent: int | str, below: Size) -> Size:
        return 0 if extent == 1 else below

    of_query = dimension(keys)
    of_head = of_query * dimension(queries)
    of_batch = of_head * heads
    leading = (stride(batch, of_batch), stride(heads, of_head * group), stride(heads, of_head))
    return OperandView(argument, 0, leading, stride(queries, of_query))
