"""Python's numbers of sizes that vary, and what is cut, counted and scaled by them: one program for all sizes."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import autocast
from autocast.errors import FallbackWarning, ImportModelError
from autocast.frontend import from_torch
from tests.frontend.helpers import Calls, assert_close, operators, relative_error

_SIZES = {"batch": (0, 0), "n": (0, 1)}


def _length(x: torch.Tensor) -> int:
    return x.shape[1]


def _scaled(function: Callable[[int], Any]) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda x: x * function(_length(x))


def _up_to(function: Callable[[int], int]) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda x: x[:, : function(_length(x))]


#: Rows that are multiplied by what Python computes of their length.
_NUMBERS: dict[str, Callable[[int], Any]] = {
    "1 / math.sqrt(n)": lambda n: 1 / math.sqrt(n),
    "float(n)": lambda n: float(n),
    "n ** -0.5": lambda n: n**-0.5,
    "math.log(n)": lambda n: math.log(n + 1),
    "math.log(n, 8)": lambda n: math.log(n + 1, 8),
    "math.log(max(n, 8)) / math.log(8)": lambda n: math.log(max(n, 8)) / math.log(8),
    "math.exp, sin, tanh": lambda n: math.exp(-n / 10) + math.sin(n) + math.tanh(n),
    "max(1.0, n / 8)": lambda n: max(1.0, n / 8),
    "abs, mod": lambda n: abs(n / 3 - 2) + n % 3.0 + abs(n - 5),
    "2 ** n": lambda n: 2 ** min(n, 20),
    "int((n - 12) / 2), which may be negative": lambda n: int((n - 12) / 2),
}

#: Ends of slices.
_ENDS: dict[str, Callable[[int], int]] = {
    "int(n / 2)": lambda n: int(n / 2),
    "int(n * 0.7)": lambda n: int(n * 0.7),
    "round(n * 0.7)": lambda n: round(n * 0.7),
    "round(n * 0.5)": lambda n: round(n * 0.5),
    "int(math.sqrt(n))": lambda n: int(math.sqrt(n)),
    "math.isqrt(n)": lambda n: math.isqrt(n),
    "math.ceil(n / 2)": lambda n: math.ceil(n / 2),
    "min(n, 8) - (n & 1)": lambda n: min(n, 8) - (n & 1),
    "divmod": lambda n: divmod(n, 3)[0],
}


def _attention(x: torch.Tensor, scale: Any = None) -> torch.Tensor:
    return F.scaled_dot_product_attention(x[None], x[None] * 0.5, x[None], scale=scale)


def _triangle(x: torch.Tensor) -> torch.Tensor:
    rows, columns = torch.tril_indices(_length(x), _length(x))
    return x[:, rows, columns]


#: Functions of torch that are given sizes.
_FUNCTIONS: dict[str, Callable[[torch.Tensor], Any]] = {
    "len": lambda x: x / len(x) + torch.arange(len(x))[:, None],
    "full": lambda x: torch.full((len(x), 3), math.log(_length(x) + 1)) + x.sum(),
    "full_like": lambda x: torch.empty_like(x).fill_(1 / _length(x)),
    "alpha": lambda x: torch.add(x, x + 1, alpha=1 / _length(x)),
    "padded by a number": lambda x: F.pad(x, (1, _length(x) // 2), value=math.sqrt(_length(x))),
    "masked by a number": lambda x: x.masked_fill(x > 0, -math.sqrt(_length(x))),
    "attention of a size": _attention,
    "attention by a scale": lambda x: _attention(x, 1 / math.sqrt(len(x))),
    "interpolate": lambda x: F.interpolate(x[:, None], size=int(_length(x) * 1.5), mode="linear"),
    "topk": lambda x: x.topk(max(1, int(_length(x) * 0.7)), 1)[0],
    "tensor_split": lambda x: torch.cat(x.tensor_split(3, 1)[::-1], 1),
    "chunk": lambda x: torch.cat(x.chunk(2, 1)[::-1], 1),
    "unfold": lambda x: F.pad(x, (1, 1)).unfold(1, 3, 1),
    "fill_diagonal_": lambda x: (x[:, :, None] * x[:, None])[0].fill_diagonal_(-1.0) + (x * 2).fill_diagonal_(7)[:1],
    "diagonal": lambda x: (x[:, :, None] * x[:, None]).diagonal(1, 1, 2),
    "tril by a size": lambda x: torch.tril(torch.ones(_length(x), _length(x)), _length(x) // 2) * x[:, None],
    "triu by a size": lambda x: torch.triu(x, 1 - _length(x) // 2),
    "tril_indices": lambda x: _triangle(x[:, :, None] * x[:, None]),
    "tril_indices below": lambda x: torch.tril_indices(_length(x), _length(x), -1) + len(x),
    "triu_indices above": lambda x: torch.triu_indices(_length(x), _length(x), 1) + len(x),
    "triu_indices below": lambda x: torch.triu_indices(_length(x), _length(x), -1) + len(x),
    "triu_indices of a rectangle": lambda x: torch.triu_indices(len(x), _length(x), -1) + len(x),
    "combinations": lambda x: torch.combinations(x[0]),
    "combinations with replacement": lambda x: torch.combinations(x[0], with_replacement=True),
    "kron": lambda x: torch.kron(x, torch.tensor([[[1.0], [2.0]]])),
    "cdist": lambda x: torch.cdist(x[:, :, None], x[:1, :, None] + 9),
    "one_hot": lambda x: F.one_hot(torch.arange(_length(x)).flip(0), _length(x)) + len(x),
    "logspace": lambda x: torch.logspace(0, 1, _length(x)) + x,
    "numel of shapes": lambda x: x / x.shape.numel() + x.reshape(-1, x.size()[1:].numel()) * x.shape[:1].numel(),
    "take_along_dim": lambda x: x.take_along_dim(x.argsort(1), 1) + torch.take_along_dim(x, x.argmax(1)[:, None], -1),
    "take_along_dim of rows": lambda x: torch.take_along_dim(x, torch.tensor([[0], [0]]), 0),
    "take_along_dim of all": lambda x: x.take_along_dim(x.flatten().argsort()),
    "multi_dot": lambda x: torch.linalg.multi_dot([x, x.T, x, x[0]]),
    "fftfreq": lambda x: torch.fft.fftfreq(_length(x), 0.5) + x,
    "rfftfreq": lambda x: torch.fft.rfftfreq(_length(x)) + x[:, :1],
    "tensordot": lambda x: torch.tensordot(x, x[:, None], ([-2], [0])) + torch.tensordot(x.T, x, 1)[:, None],
}

_CASES = {
    **{name: _scaled(function) for name, function in _NUMBERS.items()},
    **{name: _up_to(function) for name, function in _ENDS.items()},
    **_FUNCTIONS,
}

#: Cases of which one program is made: an import takes longer than all that most of them compute. Of one element torch
#: makes one chunk, so that two are another program's.
_ALL = [name for name in _CASES if name != "chunk"]
_AT_ONCE = [["chunk"], *(_ALL[at : at + 9] for at in range(0, len(_ALL), 9))]


@pytest.mark.parametrize("names", _AT_ONCE, ids=", ".join)
def test_one_program_is_right_for_all_sizes(names: list[str]) -> None:
    module = Calls(lambda x: tuple(_CASES[name](x) for name in names))
    model = from_torch(module, (torch.randn(2, 9),), dynamic=_SIZES, fallback="error")
    for shape in ((3, 9), (2, 4), *([] if names == ["chunk"] else [(1, 1)]), (2, 10), (1, 90)):
        x = torch.randn(shape)
        results = model(x) if len(names) > 1 else [model(x)]
        for name, got, expected in zip(names, results, module(x), strict=True):
            assert relative_error(got, expected) <= 1e-5, (name, shape)


@pytest.mark.parametrize("how", [{"dim": 1}, {"spacing": [0.5, 2.0], "edge_order": 2}], ids=str)
def test_gradients_of_neighbours(how: dict[str, Any]) -> None:
    module = Calls(lambda x: torch.gradient(x, **how))
    model = from_torch(module, (torch.randn(4, 9),), dynamic={"m": ("*", 0, 3, 64), "n": ("*", 1, 3, 64)})
    for shape in ((3, 3), (5, 17)):
        x = torch.randn(shape)
        assert_close(tuple(model(x)) if isinstance(model(x), tuple | list) else (model(x),), module(x))


@pytest.mark.parametrize("name", ["1 / math.sqrt(n)", "int(n * 0.7)", "tril_indices", "math.log(n)"])
def test_wrapped_modules_compute_them(name: str) -> None:
    module = Calls(_CASES[name])
    wrapped = autocast.wrap(module, dynamic=_SIZES, policy="mp0")
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("error", FallbackWarning)
        for shape in ((2, 9), (3, 9), (2, 4), (1, 1)):
            x = torch.randn(shape)
            assert_close((wrapped(x),), (module(x),))


@pytest.mark.parametrize("file", ["<stdin>", "<ipython-input-3-0f1e2d>"])
def test_code_that_was_typed_at_a_prompt_is_a_module_s_own(file: str) -> None:
    typed: dict[str, Any] = {}
    text = "def typed(x):\n    if x.isnan().any():\n        raise ValueError\n    return x / len(x)"
    exec(compile(text, file, "exec"), typed)
    model = from_torch(Calls(typed["typed"]), (torch.randn(2, 9),), dynamic=_SIZES)
    x = torch.randn(3, 4)
    assert_close((model(x),), (x / 3,))


class Started(torch.nn.Module):
    """Counts rows in two files, the second one behind a decision by a flag."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("started", torch.tensor(True))
        files: list[dict[str, Any]] = [{}, {}]
        for place, file in enumerate(files):
            exec(compile("def counted(x):\n    return x / len(x)", f"<counted {place}>", "exec"), file)
        self.first, self.second = (file["counted"] for file in files)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        return self.second(x) if self.started else x


@pytest.mark.parametrize("dynamic", [_SIZES, "auto"], ids=str)
@pytest.mark.filterwarnings("ignore::autocast.errors.ReimportWarning")
def test_sizes_become_numbers_in_several_files(dynamic: Any) -> None:
    """A size that one file makes a number of is none in the next, which is found when the first leaves it a size."""
    model, x = from_torch(Started(), (torch.randn(2, 9),), dynamic=dynamic), torch.randn(3, 9)
    assert_close((model(x),), (x / 9,))


def test_names_that_a_file_has_are_what_they_were() -> None:
    """`float`, `int` and `len` are others while a module is exported that calls them with sizes."""
    before = dict(globals())
    from_torch(Calls(lambda x: x[:, : int(_length(x) * 0.7)] / len(x)), (torch.randn(2, 9),), dynamic=_SIZES)
    assert globals() == before


def test_a_number_of_sizes_is_a_number_of_the_program() -> None:
    """Not a constant, nor a call of torch: a few operators without dimensions."""
    model = from_torch(Calls(_scaled(lambda n: math.sqrt(n))), (torch.randn(2, 9),), dynamic=_SIZES)
    assert operators(model)["sqrt"] == 1
    assert not model.fallbacks


_REFUSED = {
    "rows": (lambda x: torch.stack([row * 2 for row in x]), r"test_numbers_of_sizes.py:\d+: .*loop over rows"),
    "unbind": (lambda x: torch.stack(x.unbind(0)), r"test_numbers_of_sizes.py:\d+: .*loop over rows"),
    "range": (lambda x: sum(x[:, i] for i in range(_length(x))), r"test_numbers_of_sizes.py:\d+: .*loop over rows"),
    "parts": (lambda x: x.split(4, 1)[1], r"cuts tensors \(chunk, split\) into as many parts"),
    "halves": (lambda x: x.unflatten(1, (2, -1)), r"n == \(?2\*\(?n // 2.*2 \* torch.export.Dim"),
    "three of some": (lambda x: torch.combinations(x[0], 3), "r=3 of a dimension that varies; expected 1 or 2"),
    "decimals": (_scaled(lambda n: round(n / 3, 1)), "computed of sizes by round of 2 numbers; expected one of"),
}


@pytest.mark.parametrize(("function", "message"), _REFUSED.values(), ids=_REFUSED)
def test_what_differs_from_size_to_size_is_refused(function: Any, message: str) -> None:
    with pytest.raises(ImportModelError, match=f"(?s){message}"):
        from_torch(Calls(function), (torch.randn(3, 8),), dynamic=_SIZES)


def test_the_least_size_is_one_for_which_the_program_holds() -> None:
    """Four elements are two chunks of two, where three were asked for; five are three."""
    model = from_torch(Calls(lambda x: x.chunk(3, 1)[-1]), (torch.randn(2, 9),), dynamic=_SIZES)
    assert model.main.attrs["tir_var_lower_bound"]["n"] == 5
    x = torch.randn(2, 5)
    assert_close((model(x),), (x.chunk(3, 1)[-1],))


def test_multiples_are_said_to_be_such() -> None:
    half = torch.export.Dim("half", min=1)
    module = Calls(lambda x: x.unflatten(1, (2, _length(x) // 2)).transpose(1, 2))
    model = from_torch(module, (torch.randn(2, 8),), dynamic={"args.0": {1: 2 * half}})
    for size in (2, 6, 34):
        x = torch.randn(2, size)
        assert_close((model(x),), (module(x),))
