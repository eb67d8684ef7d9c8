"""What a caller does with results changes neither the model nor other calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import tvm
from tvm import relax
from tvm.script import ir as I
from tvm.script import relax as R
from tvm.script import tirx as T

import autocast
from autocast import vm


@I.ir_module
class _Aliases:
    """Parameters and constants among the results: as they are, in tuples, viewed, from a branch, through a function."""

    @R.function
    def with_square(q: R.Tensor((8,), "float32")) -> R.Tuple(R.Tensor((8,), "float32"), R.Tensor((8,), "float32")):
        b = R.square(q)
        t = (q, b)
        return t

    @R.function
    def main(x: R.Tensor((4, 8), "float32"), flag: R.Tensor((), "bool"), p: R.Tensor((8,), "float32")):
        cls = _Aliases
        a = R.exp(x)
        c = R.const(np.arange(3), "float32")
        if flag:
            branch = p
        else:
            branch = R.negative(p)
        through = cls.with_square(p)
        view = R.reshape(p, R.shape([2, 4]))
        pair = (p, a)
        nested = (pair, c)
        return (a, p, c, branch, through, view, nested)


def _flat(value: Any) -> list[torch.Tensor]:
    return [tensor for field in value for tensor in _flat(field)] if isinstance(value, list | tuple) else [value]


@pytest.mark.parametrize("flag", [True, False])
def test_results_that_are_overwritten_come_out_whole_again(flag: bool) -> None:
    parameter = np.linspace(1, 2, 8, dtype="float32")
    executable = vm.compile(autocast.from_relax(_Aliases, params={"p": parameter}))
    x = torch.zeros(4, 8)
    first = _flat(executable(x, torch.tensor(flag)))
    expected = [tensor.clone() for tensor in first]
    for tensor in first:
        tensor.fill_(float("nan"))
    for got, want in zip(_flat(executable(x, torch.tensor(flag))), expected, strict=True):
        torch.testing.assert_close(got, want, rtol=0, atol=0)


def test_a_tuple_of_one_result_stays_a_tuple() -> None:
    @I.ir_module
    class Single:
        @R.function
        def main(x: R.Tensor((3,), "float32"), p: R.Tensor((3,), "float32")):
            t = (p,)
            return t

    (result,) = vm.compile(autocast.from_relax(Single, params={"p": np.ones(3, "float32")}))(np.zeros(3, "float32"))
    np.testing.assert_array_equal(result, np.ones(3))


@pytest.mark.parametrize("alone", [True, False], ids=["alone", "in a tuple"])
def test_a_result_of_a_size_that_data_say_is_no_tuple(alone: bool) -> None:
    @I.ir_module
    class Slice:
        @R.function
        def main(x: R.Tensor(("n",), "float32"), size: R.Tensor((1,), "int64")):
            end = T.int64()
            _ = R.match_cast(R.tensor_to_shape(size), R.Shape([end]))
            y = R.strided_slice(x, (R.prim_value(0),), (R.prim_value(1),), (end,))
            z = R.exp(y)
            return z

    mod = Slice
    if not alone:
        main = mod["main"]
        result = relax.Tuple([main.body.body])
        body = relax.BlockBuilder().normalize(relax.SeqExpr(main.body.blocks, result))
        mod = tvm.IRModule({"main": relax.Function(main.params, body, None, main.is_pure, main.attrs)})
    got = vm.compile(mod)(np.zeros(5, "float32"), np.array([3]))
    assert isinstance(got, tuple) != alone
    np.testing.assert_array_equal(got if alone else got[0], [1, 1])


def test_a_tuple_from_a_branch_stays_that_tuple() -> None:
    @I.ir_module
    class Branches:
        @R.function
        def main(flag: R.Tensor((), "bool"), p: R.Tensor((3,), "float32")):
            if flag:
                t = (p, flag)
            else:
                t = (R.negative(p), flag)
            return t

    executable = vm.compile(autocast.from_relax(Branches, params={"p": np.ones(3, "float32")}))
    negated, flag = executable(np.array(False))
    np.testing.assert_array_equal(negated, -np.ones(3))
    assert not flag


@I.ir_module
class _GivenBack:
    """A function and a branch that give back what they are given, which a kernel reads afterwards."""

    @R.function(private=True)
    def same(q: R.Tensor((17, 4), "float32")) -> R.Tuple(R.Tensor((17, 4), "float32"), R.Tensor((17, 4), "float32")):
        b = R.nn.softmax(q)
        return (q, b)

    @R.function
    def main(x: R.Tensor((17, 4), "float32"), flag: R.Tensor((), "bool")):
        cls = _GivenBack
        a = R.nn.log_softmax(x)
        if flag:
            branch = a
        else:
            branch = x
        b = R.nn.softmax(a)
        c = R.sort(x)
        through = cls.same(c)
        first = through[0]
        d = R.nn.softmax(c)
        return (branch, b, first, d)


def test_what_a_branch_or_a_function_gives_back_is_not_overwritten() -> None:
    x = torch.randn(17, 4, generator=torch.Generator().manual_seed(0))
    branch, _, first, _ = vm.compile(_GivenBack)(x, torch.tensor(True))
    torch.testing.assert_close(branch, x.log_softmax(-1))
    torch.testing.assert_close(first, x.sort().values)


class _Returns(torch.nn.Module):
    """Returns what a function makes of an input, a parameter and a buffer, all of zeros."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function
        self.weight = torch.nn.Parameter(torch.zeros(4))
        self.register_buffer("kept", torch.zeros(4))

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(x, self.weight, self.kept)


_RUNS: dict[str, Callable[[torch.nn.Module], Any]] = {
    "compiled": lambda module: vm.compile(_imported(module)),
    "at once": lambda module: vm.compile(_imported(module), mode="dynamic_hybrid"),
    "to_torch": lambda module: autocast.to_torch(_imported(module)),
    "torch:cpu": lambda module: vm.compile(_imported(module), "torch:cpu", mode="eager"),
    "wrap": autocast.wrap,
}


def _imported(module: torch.nn.Module) -> autocast.Model:
    return autocast.from_torch(module, (torch.zeros(4),))


@pytest.mark.parametrize("run", _RUNS)
@pytest.mark.parametrize(
    "function",
    [
        lambda x, w, b: x.clone(),
        lambda x, w, b: torch.cat([x]),
        lambda x, w, b: (x + 0, x * 1, x.clone().view(2, 2)),
        lambda x, w, b: (y := x + 1, y.clone()),
        lambda x, w, b: (x * 2, w.detach().clone(), b.clone()),
        lambda x, w, b: torch.ones(4),
    ],
    ids=["a copy", "joined", "as it was", "twice", "parameters", "a literal"],
)
def test_who_changes_a_result_changes_nothing_else(function: Callable[..., Any], run: str) -> None:
    module, x = _Returns(function).eval(), torch.zeros(4)
    call = _RUNS[run](module)
    with torch.no_grad():
        expected = [tensor.clone() for tensor in _flat((module(torch.zeros(4)),))]
        for _ in range(2):
            results = _flat((call(x),))
            for number, (got, want) in enumerate(zip(results, expected, strict=True)):
                torch.testing.assert_close(got, want, rtol=0, atol=0)
                got.add_(5 + number)
            for number, (got, want) in enumerate(zip(results, expected, strict=True)):
                torch.testing.assert_close(got, want + 5 + number, rtol=0, atol=0)
        assert not x.any() and not module.weight.any() and not module.kept.any()
