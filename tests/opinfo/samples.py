"""The operators that torch tests itself with, and samples of their arguments."""

from __future__ import annotations

import contextlib
import importlib
import sys
import types
import unittest
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.utils import _pytree as pytree


def import_table(module: str, name: str) -> list[Any]:
    """A table of torch's; its modules ask for `expecttest`, of which they need a base class of tests alone."""
    with contextlib.suppress(ImportError):
        import expecttest  # type: ignore[import-not-found]  # noqa: F401
    stand_in = types.ModuleType("expecttest")
    stand_in.TestCase = unittest.TestCase  # type: ignore[attr-defined]
    sys.modules.setdefault("expecttest", stand_in)
    return list(getattr(importlib.import_module(f"torch.testing._internal.{module}"), name))


#: What computes nothing that could be compared: the memory that it returns is not written.
_UNDEFINED = frozenset({"empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided"})


class Sample(NamedTuple):
    """A call of an operator or a module: a module of its tensors, all else that it was called with fixed; whether what
    it returns is defined, or torch does not write it."""

    module: nn.Module
    tensors: tuple[torch.Tensor, ...]
    defined: bool = True

    @property
    def empty(self) -> bool:
        """Whether a tensor has no elements."""
        return any(tensor.numel() == 0 for tensor in self.tensors)


class Operator:
    """One row of torch's table: an operator, or a variant of one."""

    def __init__(self, info: Any, dtypes: Sequence[torch.dtype]) -> None:
        self.info = info
        self.name = f"{info.name}.{info.variant_test_name}" if info.variant_test_name else str(info.name)
        self.dtype = next((dtype for dtype in dtypes if dtype in info.dtypes), None)

    def samples(self, count: int | None) -> list[Sample]:
        """The first `count` samples and two of empty tensors; None: all of them."""
        torch.manual_seed(0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            rows = self.info.sample_inputs("cpu", self.dtype, requires_grad=False)
            defined = self.info.name not in _UNDEFINED
            found = [
                sample_of(self.info.op, (row.input, *row.args), row.kwargs)._replace(defined=defined) for row in rows
            ]
        return first_of(found, count)


def first_of(samples: list[Sample], count: int | None) -> list[Sample]:
    """The first `count` samples and two of empty tensors; None: all of them."""
    if count is None:
        return samples
    return samples[:count] + [sample for sample in samples[count:] if sample.empty][:2]


def sample_of(called: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Sample:
    """The call of a function or a module with these arguments, each of its tensors an input."""
    leaves, spec = pytree.tree_flatten((args, kwargs))
    places = [place for place, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
    training = isinstance(called, nn.Module) and called.training
    return Sample(_Call(called, leaves, spec, places).train(training), tuple(leaves[place] for place in places))


class _Call(nn.Module):
    def __init__(self, called: Callable[..., Any], leaves: list[Any], spec: Any, places: list[int]) -> None:
        super().__init__()
        self.called, self.spec, self.places = called, spec, places
        self.leaves = [None if place in places else leaf for place, leaf in enumerate(leaves)]

    def forward(self, *tensors: torch.Tensor) -> Any:
        """What is returned for other tensors in the places of the sample's; complex ones as pairs."""
        leaves = list(self.leaves)
        for place, tensor in zip(self.places, tensors, strict=True):
            leaves[place] = tensor
        args, kwargs = pytree.tree_unflatten(leaves, self.spec)
        return pytree.tree_map(_paired, self.called(*args, **kwargs))


def _paired(value: Any) -> Any:
    is_complex = isinstance(value, torch.Tensor) and value.is_complex()
    return torch.view_as_real(value.resolve_conj()) if is_complex else value


def operators(*parts: str, dtype: str | None = None) -> Iterator[Operator]:
    """The operators that take a dtype (None: float32, or else int64), and whose name has one of `parts` in it, if there
    are any."""
    dtypes = [getattr(torch, dtype)] if dtype else [torch.float32, torch.int64]
    for info in import_table("common_methods_invocations", "op_db"):
        operator = Operator(info, dtypes)
        if operator.dtype is not None and (not parts or any(part in operator.name for part in parts)):
            yield operator
