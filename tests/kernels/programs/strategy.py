"""The hypothesis strategy that draws programs: their arguments, then step after step, then which values they return."""

from __future__ import annotations

from collections.abc import Callable

import torch
from hypothesis import strategies as st

from tests.kernels.programs import elementwise, layout, products, rows
from tests.kernels.programs.program import Program
from tests.kernels.programs.writer import NothingFits, Writer

_EXTENTS = (1, 2, 3, 5, 8, 16, 17, 33)
_TORCH = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}

#: The kinds of steps; one that stands here twice is drawn twice as often.
_STEPS = (
    *(elementwise.unary, elementwise.unary, elementwise.scalar, elementwise.binary, elementwise.binary),
    *(elementwise.with_parameter, products.matmul, products.matmul, products.attention),
    *(rows.reduction, rows.repeated, rows.row, rows.norm),
    *(layout.permute, layout.reshape, layout.concat, layout.strided_slice, layout.split, layout.take),
    *(elementwise.where, products.image),
)


@st.composite
def programs(draw: Callable, low: str, *, most: int = 8, differentiable: bool = False) -> Program:
    """Programs of at most `most` steps, some with tensors in `low`; smooth ones in float32, if `differentiable`."""
    varying = not differentiable and draw(st.integers(0, 2)) == 0
    generator = torch.Generator().manual_seed(draw(st.integers(0, 9)))
    batch, width, other = (draw(st.sampled_from(_EXTENTS)) for _ in range(3))
    batch = 37 if varying else batch  # equal to no other extent: whether run-time ones are equal cannot be known
    middle = draw(st.sampled_from(_EXTENTS[1:6]))
    shapes: list[tuple[int, ...]] = [(batch, width)]
    shapes += draw(
        st.sampled_from(
            [[], [(batch, middle, width)], [(batch, middle, 6, 7)], [(batch, 1, width), (batch, 2, 5, width)]]
        )
    )
    dtype = "float32" if differentiable else draw(st.sampled_from(["float32", "float32", low]))
    inputs = []
    for number, shape in enumerate(shapes):
        value = torch.randn(shape, generator=generator)
        inputs.append((value.to(_TORCH[dtype if number else "float32"]).double(), dtype if number else "float32"))
    weights = [(width, other), (other, width), (width,), (other,), (4, middle, 3, 3), (middle, 4, 1, 1)]
    parameters = [(torch.randn(shape, generator=generator).double() * 0.3, "float32") for shape in weights]
    parameters = [(value.float().double(), kind) for value, kind in parameters]
    program = Program([*inputs, *parameters], len(inputs), varying)
    writer = Writer(draw, program, low, differentiable)
    steps = _STEPS if differentiable else (*_STEPS, elementwise.round_trip)
    for _ in range(draw(st.integers(1, most))):
        try:
            writer.one_of(steps)(writer)
        except NothingFits:
            elementwise.unary(writer)
    made = range(len(program.inputs), len(writer.values))
    results = draw(st.lists(st.sampled_from(list(made)[::-1]), max_size=2, unique=True))
    program.results = tuple(dict.fromkeys([made[-1], *results]))
    return program
