"""NaN, infinities, zeros, subnormal, tiny and huge numbers through every operator that is not elementwise, as in torch.

torch computes in float32 what is stored in 16 bits, and rounds the result: its own 16-bit kernels differ among each
other. `DIFFERS` lists what is not torch's, with the reason.
"""

from __future__ import annotations

from fnmatch import fnmatch
from functools import cache
from itertools import chain, islice, product

import numpy as np
import pytest
import torch
import tvm
from tvm import relax

from tests.kernels.compiling import machine_of
from tests.kernels.modules import EPSILON, NUMPY, module
from tests.kernels.special_cases import CASES, SPECIAL, SPECIAL_FLOAT16, Case

_FLUSHED = "the processor's conversion to bfloat16 makes zero of subnormal numbers"
_PADDING = "zeros of the padding are multiplied, and 0 * inf is NaN; some of torch's kernels skip them"
_HIDDEN = "what a causal mask hides is not multiplied by 0, but for the rest of a tile; how many that are is a CPU's"

#: (dtype, operator, special number), as patterns: why it is not what torch gives.
DIFFERS = {
    ("bfloat16", "*", "subnormal"): _FLUSHED,
    ("bfloat16", "variance of *", "tiny"): _FLUSHED,
    ("*", "conv2d with special weights", "*"): _PADDING,
    ("*", "depthwise conv2d", "*"): _PADDING,
    ("bfloat16", "conv1d", "*"): _PADDING,
    ("*", "resize", "*"): "a neighbour of weight 0 is not read; torch multiplies it by 0, which may give NaN",
    ("*", "* with a special mask", "-inf"): "softmax of a row of -inf is NaN by Relax's definition; torch gives 0",
    ("*", "causal attention with special keys", "*"): "what a causal mask hides is not read; torch adds -inf to it",
    ("*", "causal attention with special values", "*inf"): _HIDDEN,
    ("*", "causal attention with special values", "NaN"): _HIDDEN,
    ("*", "max_pool2d backward", "NaN"): "of several NaN the first gets the adjoint, in torch the last",
}

#: Roundings that a result may be off by, of the largest one; terms of a sum, each of which is rounded to the smallest
#: number of its dtype where it is subnormal.
_ROUNDINGS, _TERMS = 64, 40
_SMALLEST = {"float32": 2.0**-149, "bfloat16": 2.0**-133, "float16": 2.0**-24}


def _reason(dtype: str, name: str, special: str) -> str | None:
    asked = (dtype, name, special)
    matching = [why for row, why in DIFFERS.items() if all(map(fnmatch, asked, row))]
    return matching[0] if matching else None


def _data(case: Case, dtype: str, number: float, *, everywhere: bool) -> list[np.ndarray]:
    """Normally distributed numbers: special ones in a tenth of the places, or as special as all of a tensor can be."""
    rng = np.random.default_rng(0)
    arrays = []
    for at, shape in enumerate(case.shapes):
        x = rng.standard_normal(shape)
        if everywhere and at == case.special[0]:
            x = x * number if np.isfinite(number) and number else np.full(shape, number)
        elif not everywhere and at in case.special:
            x[rng.random(shape) < 0.1] = number
        with np.errstate(over="ignore"):
            arrays.append(x.astype(NUMPY.get(dtype, dtype)))
    return arrays


def _differing(got: np.ndarray, expected: np.ndarray, dtype: str) -> np.ndarray:
    finite = np.isfinite(expected) & np.isfinite(got)
    largest = np.abs(expected[finite]).max(initial=0)
    allowed = _ROUNDINGS * EPSILON[dtype] * largest + _TERMS / 2 * _SMALLEST[dtype]
    with np.errstate(invalid="ignore"):
        close = finite & (np.abs(got - expected) <= allowed)
    return ~(close | (got == expected) | (np.isnan(got) & np.isnan(expected)))


#: The cases of each dtype.
_NAMES = {
    "float32": list(CASES),
    "bfloat16": [name for name in CASES if name != "group_norm"],  # which TVM refuses in bfloat16
    "float16": [name for name in CASES if name.split()[0] in ("sort", "topk", "softmax", "std", "max_pool2d")],
}


@cache
def _compiled(dtype: str) -> relax.VirtualMachine:
    """One program of all cases of a dtype, side by side."""
    cases = [CASES[name] for name in _NAMES[dtype]]

    def body(*arguments: relax.Expr) -> relax.Expr:
        rest = iter(arguments)
        return relax.Tuple([case.body(*islice(rest, len(case.shapes))) for case in cases])

    return machine_of(module(body, *[(shape, dtype) for case in cases for shape in case.shapes]))


@cache
def _results(dtype: str, special: str, everywhere: bool) -> dict[str, tuple[list[np.ndarray], np.ndarray]]:
    """The data and the result of each case, by its name."""
    number = (SPECIAL_FLOAT16 if dtype == "float16" else SPECIAL)[special]
    data = {name: _data(CASES[name], dtype, number, everywhere=everywhere) for name in _NAMES[dtype]}
    results = _compiled(dtype)["main"](*map(tvm.runtime.tensor, chain.from_iterable(data.values())))
    return {name: (arrays, got.numpy()) for (name, arrays), got in zip(data.items(), results, strict=True)}


@pytest.mark.parametrize(("name", "dtype"), [(name, dtype) for dtype, names in _NAMES.items() for name in names])
def test_special_numbers_come_out_as_in_torch(name: str, dtype: str) -> None:
    for special, everywhere in product(SPECIAL, (False, True)):
        if _reason(dtype, name, special) is not None:
            continue
        arrays, got = _results(dtype, special, everywhere)[name]
        result = CASES[name].torch(*[torch.from_numpy(array.astype("float32")) for array in arrays])
        rounded = result.to(getattr(torch, str(got.dtype)))
        wrong = _differing(got.astype("float64"), rounded.double().numpy(), dtype)
        where = f"{special} {'everywhere' if everywhere else 'in a tenth of the places'}"
        assert not wrong.any(), f"{where}: got {got[wrong][0]}, torch {result.numpy(force=True)[wrong][0]}"


@pytest.mark.parametrize("row", DIFFERS)
def test_what_is_listed_as_different_is_in_the_table(row: tuple[str, str, str]) -> None:
    assert any(fnmatch(name, row[1]) for name in CASES)
    assert any(fnmatch(special, row[2]) for special in SPECIAL)
