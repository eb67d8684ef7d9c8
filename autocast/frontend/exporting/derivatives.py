"""Modules that differentiate while they run: forces as gradients of an energy, Jacobians, `torch.func`.

torch.export traces above autograd, and cannot write down what autograd does there. So the operators below it are traced
while it runs, and those are what it exports. What is traced is the numbers alone: where gradients stop is lost.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch
from torch import nn
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.func import functional_call
from torch.fx.experimental.proxy_tensor import make_fx
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes


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
def traced_below_autograd(module: nn.Module) -> Iterator[None]:
    """While this is active, torch.export finds `module` to compute what it does, derivatives written out.

    Each call of its `forward` is traced by itself, with the tensors that torch.export calls it with: sizes that vary
    are the same symbols, and what is found to hold of them is noted with them.

    Raises
    ------
    RuntimeError
        The module changes attributes of its own, which nothing would do afterwards.
    Exception
        Whatever torch raises where it cannot trace the module.
    """
    original = module.forward

    @functools.wraps(original)
    def forward(*args: Any, **kwargs: Any) -> Any:
        values, nesting = pytree.tree_flatten((args, kwargs))
        places = [place for place, value in enumerate(values) if isinstance(value, torch.Tensor)]
        state, tensors = _state(module), [values[place] for place in places]

        def compute(state: dict[str, torch.Tensor], tensors: list[torch.Tensor]) -> Any:
            given = list(values)
            for place, tensor in zip(places, tensors, strict=True):
                given[place] = tensor
            args, kwargs = pytree.tree_unflatten(given, nesting)
            return functional_call(_Forward(module), {f"module.{name}": state[name] for name in state}, args, kwargs)

        trace: Callable[..., Any] = make_fx(compute, tracing_mode="symbolic", _allow_non_fake_inputs=True)
        with (
            mock.patch.object(module, "forward", original),
            _unchanged(module),
            _exporting(),
            torch.enable_grad(),
            _disable_current_modes(),
            torch._C.DisableTorchFunction(),
        ):
            graph = trace(*pytree.tree_map_only(torch.Tensor, _innermost, (state, tensors)))
        return graph(state, tensors)

    with mock.patch.object(module, "forward", forward):
        yield


def _innermost(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor without values that torch.export's own tracing wraps, as a leaf of autograd."""
    inner = tensor.elem if isinstance(tensor, FunctionalTensor) else tensor
    inner = torch._from_functional_tensor(inner) if torch._is_functional_tensor(inner) else inner
    return inner.detach().requires_grad_(tensor.requires_grad)


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
