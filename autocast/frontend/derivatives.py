"""Modules that differentiate while they run: forces as gradients of an energy, Jacobians, `torch.func`.

torch.export traces above autograd, and cannot write down what autograd does there. So the operators below it are traced
first, and those are exported. What is traced is the numbers alone: where gradients stop is lost.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch
from torch import nn
from torch.func import functional_call
from torch.fx.experimental.proxy_tensor import make_fx
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree


class Derivatives(TorchFunctionMode):
    """While this is active, it notes which functions of torch differentiate or batch other functions: `names`."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.autograd.grad:
            self.names.add("torch.autograd.grad")
        elif torch._C._functorch.peek_interpreter_stack() is not None:
            self.names.add("torch.func")
        return func(*args, **(kwargs or {}))


@contextlib.contextmanager
def traced_below_autograd(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[None]:
    """While this is active, `module` computes what it does with inputs like these, derivatives written out.

    Raises
    ------
    RuntimeError
        The module changes attributes of its own, which nothing would do afterwards.
    Exception
        Whatever torch raises where it cannot trace the module.
    """
    values, nesting = pytree.tree_flatten((args, kwargs))
    places = [place for place, value in enumerate(values) if isinstance(value, torch.Tensor)]

    def compute(state: dict[str, torch.Tensor], tensors: list[torch.Tensor]) -> Any:
        given = list(values)
        for place, tensor in zip(places, tensors, strict=True):
            given[place] = tensor
        args, kwargs = pytree.tree_unflatten(given, nesting)
        return functional_call(_Forward(module), {f"module.{name}": state[name] for name in state}, args, kwargs)

    with _unchanged(module), _exporting(), torch.enable_grad():
        trace: Callable[..., Any] = make_fx(compute, tracing_mode="fake", _allow_non_fake_inputs=True)
        graph = trace(_state(module), [values[place] for place in places])

    @functools.wraps(module.forward)
    def forward(*args: Any, **kwargs: Any) -> Any:
        given = pytree.tree_leaves((args, kwargs))
        return graph(_state(module), [value for value in given if isinstance(value, torch.Tensor)])

    with mock.patch.object(module, "forward", forward):
        yield


class _Forward(nn.Module):
    """The `forward` of a module, without its hooks: these are called around what is exported."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.module.forward(*args, **kwargs)


def _state(module: nn.Module) -> dict[str, torch.Tensor]:
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}


@contextlib.contextmanager
def _exporting() -> Iterator[None]:
    """While this is active, modules that ask are told that they are exported."""
    with contextlib.ExitStack() as told:
        for flag in ("_is_compiling_flag", "_is_exporting_flag"):
            told.enter_context(mock.patch.object(torch.compiler, flag, True))
        yield


@contextlib.contextmanager
def _unchanged(module: nn.Module) -> Iterator[None]:
    """RuntimeError if attributes of a module, or of one in it, are others afterwards; they are put back."""
    before = [(part, dict(vars(part))) for part in module.modules()]
    yield
    changed = []
    for part, attributes in before:
        now = vars(part)
        names = [name for name in {**attributes, **now} if now.get(name) is not attributes.get(name)]
        for name in names:
            now.pop(name, None)
            if name in attributes:
                now[name] = attributes[name]
        changed += names
    if changed:
        raise RuntimeError(f"the module changes its attributes {', '.join(sorted(changed))}")
