"""What is otherwise around a module while torch traces it, and is as it was afterwards."""

from __future__ import annotations

import contextlib
import logging
import operator
import sys
from collections.abc import Iterator, Mapping, Sequence
from types import FunctionType, ModuleType
from typing import Any
from unittest import mock

import torch
from torch.fx._lazy_graph_module import _use_lazy_graph_module
from torch.nn.modules import transformer

from autocast.errors import ImportModelError

#: What torch logs beside an error: shapes that do not fit (since 2.14), and code that it looked for in vain.
_LOGS = ("torch._subclasses.fake_tensor", "torch.fx.experimental.symbolic_shapes")


class _WithoutGraph:
    """Standard error, but for the graph up to where torch stopped: torch prints it beside the error, and once more."""

    def __init__(self, stream: Any) -> None:
        self._stream, self._is_graph = stream, False

    def write(self, text: str) -> int:
        was_graph, self._is_graph = self._is_graph, text.lstrip().startswith("def forward(self")
        is_its_end = was_graph and text == "\n"
        return len(text) if self._is_graph or is_its_end else self._stream.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextlib.contextmanager
def unlogged() -> Iterator[None]:
    """Without what torch logs and prints beside an error, which says it all."""
    levels = {log: log.level for log in map(logging.getLogger, _LOGS)}
    for log in levels:
        log.setLevel(logging.CRITICAL)
    try:
        with contextlib.redirect_stderr(_WithoutGraph(sys.stderr)):
            yield
    finally:
        for log, level in levels.items():
            log.setLevel(level)


def uncompiled() -> contextlib.AbstractContextManager[None]:
    """Modules that torch makes of graphs are compiled when they are called: of about twenty two are."""
    return _use_lazy_graph_module(True)


@contextlib.contextmanager
def as_it_was(module: torch.nn.Module) -> Iterator[None]:
    """Give a module its attributes back: what its forward keeps for later calls has no values while torch traces.

    Raises
    ------
    ImportModelError
        Forward made a buffer that is state: torch takes it for another one, and writes it to an input.
    """
    before = [_Before(part) for part in module.modules()]
    try:
        with _kept_as_attributes([one.part for one in before]):
            yield
        for one in before:
            if made := one.made_buffers():
                raise ImportModelError(
                    f"from_torch: {type(one.part).__name__} makes the buffers {', '.join(made)} in its first call, "
                    "expected to be there. Try to call the module once with the example inputs before it is imported"
                )
    finally:
        for one in before:
            one.give_back()


class _Before:
    """Attributes of a module and of the objects that it has, and what is in lists and dictionaries, as its hooks."""

    def __init__(self, part: torch.nn.Module) -> None:
        self.part = part
        holders = [part.__dict__, *map(attributes_of, part.__dict__.values())]
        inner = [value for held in holders for value in held.values() if isinstance(value, dict | list)]
        self._known: list[tuple[Any, Any]] = [
            (value, dict(value) if isinstance(value, dict) else list(value)) for value in (*holders, *inner)
        ]
        self._buffers = {name for name, buffer in part._buffers.items() if buffer is not None}

    def made_buffers(self) -> list[str]:
        return [name for name, buffer in self.part._buffers.items() if not (buffer is None or name in self._buffers)]

    def give_back(self) -> None:
        """Make entries what they were; those that are it stay untouched, as other threads may call the module."""
        for known, before in self._known:
            if isinstance(known, list):
                if len(known) != len(before) or any(map(operator.is_not, known, before)):
                    known[:] = before
                continue
            for name in known.keys() - before.keys():
                del known[name]
            for name, value in before.items():
                if name not in known or known[name] is not value:
                    known[name] = value


@contextlib.contextmanager
def _kept_as_attributes(parts: Sequence[torch.nn.Module]) -> Iterator[None]:
    """Buffers that forward makes and that no state has are plain attributes, which who was around gives back."""
    known = {id(part._buffers) for part in parts}
    for part in parts:
        for name in part._non_persistent_buffers_set & part._buffers.keys():
            if part._buffers[name] is None:
                part.__dict__[name] = part._buffers.pop(name)
    register = torch.nn.Module.register_buffer

    def registered(part: torch.nn.Module, name: str, tensor: torch.Tensor | None, persistent: bool = True) -> None:
        if persistent or id(part._buffers) not in known or part._buffers.get(name) is not None:
            register(part, name, tensor, persistent)
        else:
            part._buffers.pop(name, None)
            part.__dict__[name] = tensor

    with mock.patch.object(torch.nn.Module, "register_buffer", registered):
        yield


def attributes_of(value: Any) -> dict[str, Any]:
    """The attributes of an object that is no module, tensor, class or function, nor one of this package's."""
    if isinstance(value, torch.nn.Module | torch.Tensor | type | FunctionType | ModuleType):
        return {}
    return {} if type(value).__module__.startswith("autocast.") else getattr(value, "__dict__", None) or {}


@contextlib.contextmanager
def no_guess() -> Iterator[None]:
    """Without the look at values by which layers of `nn.Transformer` guess that a mask is causal: they apply the mask
    itself unless `is_causal` tells them."""
    guess = transformer._detect_is_causal_mask
    transformer._detect_is_causal_mask = lambda mask, is_causal=None, size=None: is_causal is True
    try:
        yield
    finally:
        transformer._detect_is_causal_mask = guess


@contextlib.contextmanager
def unmoved() -> Iterator[None]:
    """Modules that are moved to where they are (`self.layer.to(x.device)`) stay as they are."""
    move = torch.nn.Module._apply

    def apply(module: torch.nn.Module, function: Any, recurse: bool = True) -> torch.nn.Module:
        tensors = (*module.parameters(recurse), *module.buffers(recurse))
        return module if all(function(tensor) is tensor for tensor in tensors) else move(module, function, recurse)

    with mock.patch.object(torch.nn.Module, "_apply", apply):
        yield


@contextlib.contextmanager
def left_if_raised() -> Iterator[None]:
    """A submodule that raises within `try` is left again: torch's tracer would take it for where it is, and stop."""
    call = torch.fx.Tracer.call_module

    def called(tracer: torch.fx.Tracer, *args: Any) -> Any:
        depth = len(tracer.module_stack)
        try:
            return call(tracer, *args)
        except Exception:
            while len(tracer.module_stack) > depth:
                tracer.module_stack.popitem()
            raise

    with mock.patch.object(torch.fx.Tracer, "call_module", called):
        yield


@contextlib.contextmanager
def no_cache(module: torch.nn.Module, kwargs: Mapping[str, Any]) -> Iterator[None]:
    """Switch key/value caches off in the configurations of a Hugging Face model, and back on afterwards."""
    configs = {id(c): c for c in (getattr(m, "config", None) for m in module.modules()) if c is not None}
    changed = [c for c in configs.values() if getattr(c, "use_cache", False) is True and "use_cache" not in kwargs]
    try:
        for config in changed:
            config.use_cache = False
        yield
    finally:
        for config in changed:
            config.use_cache = True


def no_gradients(module: torch.nn.Module) -> torch.no_grad | torch.inference_mode:
    """Of a module that was made in inference mode, that mode: nothing else may read its tensors through a view."""
    tensors = [*module.parameters(), *module.buffers()]
    return torch.inference_mode() if any(tensor.is_inference() for tensor in tensors) else torch.no_grad()
