"""When one kernel computes groups of several sizes, and that it gives the numbers of float64 for all of them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from tvm import relax

from autocast.kernels import detect_target
from autocast.kernels.matching.elementwise.rule import lower_elementwise
from autocast.kernels.matching.elementwise.sizes import of_any_size, shared
from autocast.kernels.specs.program import Program
from autocast.kernels.targets import backend_of
from autocast.kernels.targets.cpu.vector.streaming import streamed
from tests.kernels.modules import EPSILON, error, module, operators, random, run

op = relax.op

#: Of one number, of parts of a vector, on both sides of what wakes another core, and of an odd number of elements.
SHAPES = [(1, 1), (3, 1), (5, 7), (64, 64), (263, 257), (300, 1001)]


def _streams(results: Sequence[tuple[Sequence[int | str], str]]) -> bool:
    return bool(streamed(results, 16))


def update(tensor: tuple, scalar: tuple = ()) -> Program:
    """`x - rate * y` of tensors, where `rate` is one number."""
    one = (1,) * len(tensor)
    return Program(
        ((tensor, "float32"), (scalar, "float32"), (tensor, "bfloat16")),
        tensor,
        (("load", 0, tensor), ("load", 1, one), ("load", 2, tensor), ("multiply", 1, 2), ("subtract", 0, 3)),
        ((4, tensor, "float32"),),
    )


def test_programs_that_differ_in_sizes_only_share_one_for_any() -> None:
    programs = [update((4, 8)), update((8, 4)), update((5, 3))]
    assert set(shared(programs, _streams).values()) == {update(("d0", "d1"))}


def test_two_sizes_are_less_code_as_two_kernels() -> None:
    programs = [update((4, 8)), update((8, 4))]
    assert shared(programs, _streams) == dict(zip(programs, programs, strict=True))


@pytest.mark.parametrize(
    "program",
    [
        update((1, 1)),
        update(("n", 4)),
        update((4096, 4096)),
        Program((((4,), "float32"),), (3, 4), (("load", 0, (1, 4)),), ((0, (3, 4), "float32"),)),
        Program((((3, 4), "float32"),), (3, 4), (("load", 0, (3, 4)), ("column",)), ((1, (3, 4), "float32"),)),
    ],
    ids=["one number", "a size of the model's", "stored past the caches", "broadcast", "columns"],
)
def test_what_depends_on_its_size_has_a_kernel_of_its_own(program: Program) -> None:
    assert of_any_size(program, _streams) is None


def test_one_kernel_computes_every_size() -> None:
    def body(rate: relax.Expr, *tensors: relax.Expr) -> relax.Expr:
        pairs = zip(tensors[::2], tensors[1::2], strict=True)
        return relax.Tuple([op.subtract(x, op.multiply(rate, op.reshape(y, x.ty.shape))) for x, y in pairs])

    mod = module(body, ((), "float32"), *((s, "float32") for m, n in SHAPES for s in [(m, n), (m * n,)]))
    names = operators(lower_elementwise(mod, backend_of(detect_target())))
    assert names.count("elementwise_multiply_subtract_d0xd1_float32") == len(SHAPES) - 1  # not the one number
    rate = np.array(0.1, "float32")
    tensors = [random(shape, "float32", seed) for m, n in SHAPES for seed, shape in enumerate([(m, n), (m * n,)])]
    for result, x, y in zip(run(mod, rate, *tensors), tensors[::2], tensors[1::2], strict=True):
        expected = x.astype("float64") - float(rate) * y.astype("float64").reshape(x.shape)
        assert error(result, expected) < 4 * EPSILON["float32"]
