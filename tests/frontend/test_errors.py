"""What cannot be imported faithfully is an error that names the submodule."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from autocast.errors import ImportModelError
from autocast.frontend import from_torch
from tests.frontend.helpers import Calls, assert_close, runner


def _inside(part: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Identity(), nn.ModuleDict({"part": part})["part"])


@pytest.mark.parametrize(
    ("module", "shape", "message"),
    [
        (
            Calls(lambda x: x.clone().set_(x.t())),
            (2, 3),
            r"memory of a tensor that is replaced in place: 1 call in 1 \(Calls\)",
        ),
        (
            Calls(lambda x: x.clone().resize_as_(torch.ones(3, 3))),
            (2, 3),
            r"a tensor that is made larger in place, by elements that nothing has written: 1 call in 1 \(Calls\)",
        ),
        (
            Calls(lambda x: x.clone().expand(2, 2, 3).fill_(0.5)),
            (2, 3),
            r"writing into a tensor whose elements share memory.*: 1 call in 1 \(Calls\); write into a clone of it",
        ),
        (
            Calls(lambda x: x.clone().unfold(1, 2, 2)[:, 0].mul_(2)),
            (2, 3),
            r"writing into windows of unfold that leave .* out: 1 call in 1 \(Calls\); write into slices",
        ),
        (
            Calls(lambda x: x.clone().unfold(1, 2, 2).unbind(0)[1].mul_(2)),
            (2, 3),
            r"writing into windows of unfold that leave .* out: 1 call in 1 \(Calls\); write into slices",
        ),
    ],
    ids=["set_", "resize_as_", "expand", "unfold", "unbind of unfold"],
)
def test_what_an_import_would_lose_is_an_error(module: nn.Module, shape: tuple[int, ...], message: str) -> None:
    with pytest.raises(ImportModelError, match=message):
        from_torch(_inside(module.train()), (torch.randn(shape),))


def test_windows_that_may_leave_elements_out_are_not_written_into() -> None:
    module = Calls(lambda x: x.clone().unfold(0, 2, 2)[:, 0].mul_(2))
    with pytest.raises(ImportModelError, match="writing into windows of unfold"):
        from_torch(module, (torch.ones(8, 3),), dynamic={"n": (0, 0)})
    x = torch.randn(8, 3)  # which they cover
    assert_close(runner(from_torch(module, (x,)))(x), (module(x),))


def test_dropout_in_training_mode_that_drops_nothing_is_imported() -> None:
    x = torch.randn(2, 3)
    assert_close(runner(from_torch(nn.Dropout(0.0).train(), (x,)))(x), (x,))


def test_unsupported_operators_are_listed_with_counts_and_places() -> None:
    def forward(x: torch.Tensor) -> torch.Tensor:
        return torch.linalg.qr(x).Q + torch.special.airy_ai(x) + torch.special.airy_ai(2 * x)

    with pytest.raises(ImportModelError) as error:
        from_torch(_inside(Calls(forward)), (torch.randn(3, 3),), fallback="error")
    assert "aten.special_airy_ai.default: 2 calls in 1 (Calls) x2" in str(error.value)
    assert "aten.linalg_qr.default: 1 call in 1 (Calls)" in str(error.value)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda x: (x, bool(x.any())), "torch.export cannot export Calls"),
        (lambda x: ("word", None), "the model returns nothing, expected a tensor or several"),
        (lambda x: torch.rand(3, generator=torch.Generator()) * x, r"draws from a torch\.Generator of its own"),
        (lambda x: x.nonexistent, "torch.export cannot export Calls"),
        (lambda x: x.sort(1).indices + x.max_pool(1), "torch.export cannot export Calls"),
    ],
)
def test_what_a_model_may_not_do_is_an_error(function: Callable[..., Any], message: str) -> None:
    with pytest.raises(ImportModelError, match=message):
        from_torch(Calls(function), (torch.randn(2, 3),))


def _branch(x: torch.Tensor) -> torch.Tensor:
    if x.sum() > 0:
        return x
    return -x


def _caught(x: torch.Tensor) -> torch.Tensor:
    try:
        if x.min() < 0:
            raise ValueError
    except ValueError:
        return -x
    return x


def _checked(x: torch.Tensor) -> torch.Tensor:
    if x.max() > 0:
        raise ValueError
    return x


def _caught_by_its_caller(x: torch.Tensor) -> torch.Tensor:
    try:
        return _checked(x)
    except ValueError:
        return -x


@pytest.mark.parametrize(
    "function",
    [
        _branch,
        _caught,
        _caught_by_its_caller,
        lambda x: x * 2 if x.max() > 1 else x,
        lambda x: x if bool(x.all()) else -x,
    ],
)
def test_a_decision_by_values_is_an_error_that_names_the_line_and_what_to_write(function: Callable[..., Any]) -> None:
    message = r"cannot export Calls \(.*test_errors\.py:\d+: .*x\..*\): .*\n.*choose with torch\.where"
    with pytest.raises(ImportModelError, match=message) as error:
        from_torch(Calls(function), (torch.ones(2, 3),))
    assert "TORCH_LOGS" not in str(error.value)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda x: x[0].long().bincount(), r"aten\.bincount\.default: 1 call.*its result has sizes that values decide"),
        (lambda x: torch.from_numpy(x.numpy()), "Use torch's own operations inside of the module"),
        (lambda x: x @ x, "must have same reduction dim.*\nMake sure that the module runs with the example inputs"),
        (lambda x: torch.special.airy_ai(x), "`python -m autocast.frontend` lists what can be imported"),
    ],
)
def test_what_cannot_be_imported_comes_with_what_to_try(function: Callable[..., Any], message: str) -> None:
    with pytest.raises(ImportModelError, match=message):
        from_torch(Calls(function), (torch.ones(2, 3),), fallback="error")


@pytest.mark.parametrize(
    ("tensor", "message"),
    [
        (torch.eye(2).to_sparse(), r"is a sparse tensor; expected a dense tensor of numbers\. Try tensor\.to_dense"),
        (torch.eye(2) * 1j, r"is a complex tensor; expected a dense tensor of numbers\. Pass torch\.view_as_real"),
    ],
)
def test_examples_that_are_no_dense_real_numbers_are_refused(tensor: torch.Tensor, message: str) -> None:
    with pytest.raises(ImportModelError, match=message):
        from_torch(nn.ReLU(), (tensor,))


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (_branch, r"got a function; expected a torch\.nn\.Module\.$"),
        (nn.Linear, r"got the class Linear; .* Pass an object of it: Linear\(\.\.\.\)"),
        (nn.ReLU().state_dict(), r"got a OrderedDict; .* Load a state into its module first"),
    ],
    ids=["function", "class", "state"],
)
def test_what_is_not_a_module_is_refused(module: Any, message: str) -> None:
    with pytest.raises(ImportModelError, match=message):
        from_torch(module, (torch.randn(2),))


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_torchscript_is_refused_with_the_module_that_is_expected() -> None:
    for made in (torch.jit.trace(nn.ReLU(), torch.ones(2)), torch.jit.script(nn.ReLU())):
        with pytest.raises(
            ImportModelError, match=r"which is TorchScript; expected the torch.nn.Module that torch.jit"
        ):
            from_torch(made, (torch.ones(2),))


@pytest.mark.parametrize(
    ("args", "kwargs", "message"),
    [
        (
            (),
            {},
            r"ReLU.forward\(input\) cannot be called with the example inputs: missing a required argument: 'input'",
        ),
        ((torch.ones(2),), {"mask": torch.ones(2)}, "unexpected keyword argument 'mask'. Pass what you would call"),
        ({"input": torch.ones(2)}, {}, r"example_args is a dict; expected a tuple .* by name are example_kwargs"),
        (None, {}, "example_args is a NoneType; expected a tuple"),
        ((torch.ones(2).numpy(),), {}, r"'input' is a numpy array; expected a torch tensor. Try torch.from_numpy"),
    ],
    ids=["too few", "keyword", "dictionary", "None", "numpy"],
)
def test_example_inputs_that_the_module_does_not_take_are_refused(args: Any, kwargs: Any, message: str) -> None:
    with pytest.raises(ImportModelError, match=message):
        from_torch(nn.ReLU(), args, example_kwargs=kwargs)


def test_too_many_example_inputs_are_refused() -> None:
    with pytest.raises(ImportModelError, match=r"got 2 positional example inputs, but ReLU.forward takes 1 \(input\)"):
        from_torch(nn.ReLU(), (torch.randn(2), torch.randn(2)))
