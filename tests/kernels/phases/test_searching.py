"""Medians, sorts, means of what is scattered and lookups that TVM gets wrong: by our kernels, and by torch's."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from tvm import relax

import autocast
from autocast import vm
from autocast.errors import InputError, UnsupportedError
from tests.kernels.modules import module

op = relax.op

_NAN = float("nan")
_ROWS = torch.tensor([[3.0, _NAN, 1.0, 7.0], [4.0, 2.0, float("inf"), 9.0], [8.0, -5.0, 6.0, _NAN]])
_CUBE = torch.arange(24.0).sin().reshape(2, 3, 4)
_PLACES = torch.tensor([[1], [-1], [1]])

#: The body of a function, its arguments, and what torch makes of them.
_CASES: dict[str, tuple[Callable[..., relax.Expr], tuple[torch.Tensor, ...], Callable[..., object]]] = {
    "the median of rows with NaN": (lambda x: op.median(x, 1), (_ROWS,), lambda x: tuple(x.median(1))),
    "the median of all, one of them NaN": (op.median, (_ROWS,), torch.median),
    "the median of all keeps all axes": (
        lambda x: op.median(x, keepdims=True),
        (_CUBE,),
        lambda x: x.median().reshape(1, 1, 1),
    ),
    "the median of two axes": (
        lambda x: op.median(x, [2, 0]),
        (_CUBE,),
        lambda x: x.permute(1, 0, 2).flatten(1).median(1).values,
    ),
    "the median of two axes that are kept": (
        lambda x: op.median(x, [0, -1], keepdims=True),
        (_CUBE,),
        lambda x: x.permute(1, 0, 2).flatten(1).median(1).values[None, :, None],
    ),
    "the median of integers": (
        lambda x: op.median(x, 0, keepdims=True),
        (torch.tensor([[5, 1], [3, 2], [4, 9], [1, 8]]),),
        lambda x: tuple(x.median(0, keepdim=True)),
    ),
    "one element, sorted": (op.sort, (torch.tensor(3.0),), lambda x: x),
    "the place of one element": (lambda x: op.argsort(x, dtype="int64"), (torch.tensor(3.0),), torch.argsort),
    "the mean of what is scattered to elements": (
        lambda x, i, y: op.scatter_elements(x, i, y, 1, "mean"),
        (_CUBE[0], torch.tensor([[0, 2, 0]]), torch.tensor([[1.0, 2.0, 4.0]])),
        lambda x, i, y: x.scatter_reduce(1, i, y, "mean"),
    ),
    "the mean of integers that are scattered": (
        lambda x, i, y: op.scatter_elements(x, i, y, 0, "mean"),
        (torch.tensor([1, -4]), torch.tensor([1, 1]), torch.tensor([2, 3])),
        lambda x, i, y: x.scatter_reduce(0, i, y, "mean"),
    ),
    "the mean of blocks that are scattered": (
        lambda x, i, y: op.scatter_nd(x, i, y, "mean"),
        (_CUBE[0], _PLACES, torch.ones(3, 4)),
        lambda x, i, y: x.scatter_reduce(0, (i % 3).expand_as(y), y, "mean"),
    ),
    **{
        f"truth values that are scattered, {reduction}": (
            lambda x, i, y, reduction=reduction: op.scatter_elements(x, i, y, 0, reduction),
            (
                torch.tensor([True, True, False, False]),
                torch.tensor([1, 1, 2, 2]),
                torch.tensor([True, False, True, False]),
            ),
            lambda x, i, y, name=name: x.scatter_reduce(0, i, y, name),
        )
        for reduction, name in (("add", "sum"), ("mul", "prod"), ("max", "amax"), ("min", "amin"))
    },
    "blocks of truth values that are scattered": (
        lambda x, i, y: op.scatter_nd(x, i, y, "add"),
        (_CUBE[0] > 2, _PLACES, _CUBE[1, :, :] > 0),
        lambda x, i, y: x.index_put((i[:, 0],), y, accumulate=True),
    ),
    "NaN, where there is no such element": (
        lambda x, i: op.take(x, i, None, "nan"),
        (_ROWS[1], torch.tensor([-1, 0, 4])),
        lambda x, i: torch.tensor([_NAN, x[0], _NAN]),
    ),
    "NaN, where there are no such rows": (
        lambda x, i: op.take(x, i, 1, "nan"),
        (_CUBE, torch.tensor([[2, -1], [3, 0]])),
        lambda x, i: torch.where((i < 3) & (i >= 0), x.transpose(1, 2)[..., i % 3], _NAN).permute(0, 2, 3, 1),
    ),
    "the nearest, where nothing was promised": (
        lambda x, i: op.take(x, i, 0, "fast"),
        (_CUBE, torch.tensor([-1, 1, 7])),
        lambda x, i: x[[0, 1, 1]],
    ),
    "more of the largest than there are": (
        lambda x: op.topk(x, 7, -1, "values"),
        (_CUBE,),
        lambda x: x.sort(-1, descending=True).values,
    ),
    "a number below 0 is all": (lambda x: op.topk(x, -3, 0, "values"), (_CUBE,), lambda x: x.sort(0, True).values),
    "more of the smallest than there are": (
        lambda x: op.topk(x, 4, 1, largest=False, dtype="int64"),
        (_CUBE,),
        lambda x: tuple(x.sort(1)),
    ),
    "NaN is after all boundaries": (
        lambda x, y: op.bucketize(x, y),
        (_ROWS, torch.tensor([1.0, 4.0, 8.0])),
        torch.bucketize,
    ),
}


@pytest.mark.parametrize("by", ["kernels", "torch"])
@pytest.mark.parametrize("case", _CASES)
def test_what_tvm_gets_wrong_is_as_torch_has_it(case: str, by: str) -> None:
    body, arguments, reference = _CASES[case]
    model = autocast.from_relax(module(body, *((x.shape, str(x.dtype).removeprefix("torch.")) for x in arguments)))
    run = vm.compile(model) if by == "kernels" else autocast.to_torch(model)
    torch.testing.assert_close(run(*arguments), reference(*arguments), equal_nan=True)


def test_the_median_of_as_many_elements_as_a_call_has() -> None:
    executable = vm.compile(module(lambda x: op.median(x, 0), (("n", 4), "float32")))
    for count in (1, 2, 3):
        for got, expected in zip(executable(_ROWS[:count]), _ROWS[:count].median(0), strict=True):
            torch.testing.assert_close(got, expected, equal_nan=True)
    both = vm.compile(module(lambda x: op.median(x, [0, 2]), (("n", 3, "m"), "float32")))
    x = np.arange(30, dtype="float32").reshape(5, 3, 2)
    np.testing.assert_array_equal(both(x), np.sort(x.transpose(1, 0, 2).reshape(3, 10))[:, 4])


def test_more_than_there_are_in_a_call_is_an_error() -> None:
    executable = vm.compile(module(lambda x: op.topk(x, 3, 0, "values"), (("n",), "float32")))
    assert executable(np.array([1.0, 4.0, 2.0, 3.0], "float32")).tolist() == [4, 3, 2]
    with pytest.raises(InputError, match="needs 3 to be at most n"):
        executable(np.array([1.0, 2.0], "float32"))


def test_no_integer_is_nan() -> None:
    model = autocast.from_relax(
        module(lambda x, i: op.take(x, i, 0, "nan"), ((4,), "int64"), ((2,), "int64")),
    )
    for call in (vm.compile, autocast.to_torch):
        with pytest.raises(
            UnsupportedError, match=r"relax.take\(mode='nan'\) of numbers of .*int64, which have no NaN"
        ):
            call(model)


@pytest.mark.parametrize("count", [3, 5])
def test_nan_is_after_as_many_boundaries_as_a_call_has(count: int) -> None:
    executable = vm.compile(module(op.bucketize, (("n",), "float32"), (("m",), "float32")))
    got = executable(np.array([np.nan, -1.0], "float32"), np.arange(count, dtype="float32"))
    assert got.tolist() == [count, 0]
