"""What calls of a wrapped module run: a program for each kind of inputs, or torch's compiler."""

from __future__ import annotations

import inspect
import threading
import warnings
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, is_dataclass
from functools import partial
from types import FunctionType
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy
from torch.utils import _pytree as pytree

from autocast import amp
from autocast.errors import DrawnNumberWarning, FallbackWarning, ImportModelError, InputError
from autocast.frontend import from_torch
from autocast.frontend.exporting.turns import owner
from autocast.frontend.watching import is_watched
from autocast.messages import warn
from autocast.model.value import Model
from autocast.runtime.tensors import from_tensor
from autocast.vm.compile import compile
from autocast.wrapping.results import Results, Returned
from autocast.wrapping.settings import Settings
from autocast.wrapping.weights import Hooks, Weights

#: Where a module that is imported keeps what its `**kwargs` are given beside tensors: torch.export takes none of these
#: with sizes that vary.
OPTIONS = "_autocast_options"

#: Inputs that are baked in, so that each value has a program of its own.
_CONSTANTS = (bool, int, float, str, type(None), torch.dtype, torch.device)


#: For how many values of a module's attributes, or of numbers among its inputs, there are programs: torch's compiler
#: knows which of them matter.
_MOST_SETTINGS = 8


@dataclass
class _Program:
    """What inputs of one kind run.

    Attributes
    ----------
    model : Model
        The module, with casts.
    executable : callable
        The model, compiled with the weights as they were after these `writes`.
    results : Results, optional
        How the module nests what it returns; None: one tensor.
    """

    model: Model
    executable: Callable[..., Any]
    writes: tuple[int, bytes]
    results: Results | None

    def compile_again(self, writes: tuple[int, bytes]) -> None:
        """With the weights as they are now, for the sizes that calls have had."""
        self.model = getattr(self.executable, "model", self.model)
        self.executable, self.writes = compile(self.model), writes

    def computed(self, tensors: list[torch.Tensor]) -> Any:
        """What the executable returns, as torch tensors: it knows from its inputs what to return, if it has any."""
        if tensors:
            return self.executable(*tensors)
        executable: Any = self.executable
        return from_tensor(executable.run(executable.arguments(())), "torch")


class _State:
    """What a module is imported with."""

    def __init__(self, module: nn.Module) -> None:
        self.weights, self.settings = Weights(module), Settings(module)

    def number(self) -> int | None:
        """Which values of its settings the module has, of those that there were, from 0; None where it is not what it
        was otherwise."""
        return self.settings.number() if self.weights.are_here() and self.weights.are_constants() else None

    def forget(self) -> None:
        """Look at what holds weights, and at modes, alone from now on."""
        self.weights.forget_constants()
        self.settings.forget()


class Programs:
    """The programs of a wrapped module, by the kinds of their inputs."""

    def __init__(self, dynamic: Any, options: Mapping[str, Any]) -> None:
        self.dynamic, self.options = dynamic, options
        #: None where torch's compiler runs it: a call changes more than its results, or cannot be imported.
        self._programs: dict[Any, _Program | None] = {}
        self._state: _State | None = None
        self._hooks: Hooks | None = None
        self._turn = threading.RLock()
        self._by_torch: Callable[..., Any] | None = None
        #: What the module returned when it was exported last.
        self._returned: Returned | None = None
        #: Whether it gave other values to its attributes then.
        self._assigns = False
        #: How often something else than plain values was another, so that all programs went.
        self._renewals = 0

    def __call__(
        self, module: nn.Module, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        importer, here = owner(), threading.get_ident()
        if torch.compiler.is_exporting() and importer in (None, here):  # for `from_torch`, among others
            before = _attributes(module)
            outputs = forward(*args, **kwargs)
            self._returned = Returned(module, args, kwargs, outputs)
            self._assigns = not _are_same(before, _attributes(module))
            return outputs
        if importer == here or is_watched():  # an import compares the module with what was exported of it
            return forward(*args, **kwargs)
        with self._turn:
            if self._hooks is None or not self._hooks.are_here():
                self._hooks, self._by_torch = Hooks(module), None  # torch's compiler looks for hooks once
                self._programs.clear()
        if torch.is_grad_enabled() and _wants_gradients(module, args, kwargs):
            return self._traced(module, forward)(module, *args, **kwargs)
        if self._state is None and any(map(is_lazy, (*module.parameters(), *module.buffers()))):
            return forward(*args, **kwargs)  # which says how large these are
        kind, tensors = _sorted(args, kwargs)
        if kind is None:
            return self._traced(module, forward)(module, *args, **kwargs)
        modes = torch.get_default_dtype(), torch.is_autocast_enabled("cpu") and torch.get_autocast_dtype("cpu")
        with self._turn:
            number = self._state.number() if self._state else None
            if self._state is None or number is None:
                self._renewals += self._state is not None and self._state.weights.are_here()
                self._programs.clear()
                self._state, number = _State(module), 0
                if self._renewals >= _MOST_SETTINGS:
                    self._state.forget()
            key = (kind, number, *modes)
            if key not in self._programs and self._are_numbers_many(key):
                return self._traced(module, forward)(module, *args, **kwargs)
            if key not in self._programs:
                program = self._imported(module, self._state, number, args, kwargs)
                if self._assigns and self._state.settings.forget():
                    self._programs.clear()
                    key = (kind, 0, *modes)
                self._programs[key] = program
            program = self._programs[key]
            if program is not None and program.writes != (writes := self._state.weights.writes()):
                program.compile_again(writes)
        if program is None:
            results = self._traced(module, forward)(module, *args, **kwargs)
            with self._turn:
                if self._state and not self._state.weights.are_constants():  # the call itself has written to some
                    self._state.weights.keep_constants()
                    self._programs = {key: None for key, program in self._programs.items() if program is None}
            return results
        try:
            computed = program.computed(tensors)
            return computed if program.results is None else program.results(computed, tensors)
        except InputError:  # of sizes for which it cannot be imported: 0, or 1 where that is another program
            if self.dynamic != "auto":
                raise
            return self._traced(module, forward)(module, *args, **kwargs)

    def _are_numbers_many(self, key: tuple[Any, ...]) -> bool:
        """Whether there are programs for many values of the numbers among the inputs: torch's compiler takes all."""
        family = _without_numbers(key)
        return sum(_without_numbers(known) == family for known in self._programs) >= _MOST_SETTINGS

    def _traced(self, module: nn.Module, forward: Callable[..., Any]) -> Callable[..., Any]:
        """The module's forward as torch's compiler runs it, which knows when to compile it again."""
        from autocast.dynamo import backend  # takes seconds to import, which most inference does not need

        with self._turn:
            if self._by_torch is None:
                _warn_of_recurrences(module)
                compiled = partial(backend, options=self.options)
                whole = _of_its_own(forward.func)  # type: ignore[attr-defined]
                self._by_torch = torch.compile(whole, backend=compiled, dynamic=None if self.dynamic else False)
            return self._by_torch

    def _imported(
        self, module: nn.Module, state: _State, number: int, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> _Program | None:
        self._assigns = False
        if max(number, self._renewals) >= _MOST_SETTINGS or (
            self._hooks and self._hooks.are_any
        ):  # which may keep what they see
            return None
        bare, known = _without_hooks(module), inspect.signature(module.forward).parameters
        options = {name: v for name, v in kwargs.items() if name not in known and isinstance(v, _CONSTANTS)}
        bare.__dict__[OPTIONS] = options
        others = {name: value for name, value in kwargs.items() if name not in options}
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error", DrawnNumberWarning)  # torch's compiler draws again in each call
                model = from_torch(bare, args, example_kwargs=others, dynamic=self.dynamic)
        except DrawnNumberWarning:
            return None
        except ImportModelError:
            if not isinstance(self.dynamic, str | None):
                raise
            return None
        if model.reimport is not None:
            model = model.replace(reimport=partial(self._imported_again, model.reimport))
        if model.updated or self._assigns:
            return None
        model = amp.autocast(model, **self.options)
        assert self._returned is not None  # by the import
        return _Program(model, compile(model), state.weights.writes(), self._returned.results(module, args, kwargs))

    def _imported_again(self, reimport: Callable[..., Model], shapes: Sequence[Sequence[int]]) -> Model:
        """The module for other sizes; no other thread looks at its weights meanwhile, which have no values then."""
        with self._turn:
            return reimport(shapes)


def _warn_of_recurrences(module: nn.Module) -> None:
    """A FallbackWarning where torch's compiler passes over functions that call a recurrent layer, without a word."""
    layers = [name or "the module" for name, part in module.named_modules() if isinstance(part, nn.RNNBase)]
    if layers and not torch._dynamo.config.allow_rnn:
        warn(
            f"wrap: {', '.join(layers)}: torch's compiler, which runs calls with gradients and those that change "
            "state, takes no recurrent layers: torch runs what calls one, without casts. Try "
            "autocast.training.Trainer, whose kernels train them",
            FallbackWarning,
        )


def _without_hooks(module: nn.Module) -> nn.Module:
    """The module without the hooks of its own, which torch calls around each call of what was compiled."""
    bare = object.__new__(type(module))
    bare.__dict__.update(module.__dict__)
    for name in ("_forward_hooks", "_forward_pre_hooks"):
        bare.__dict__[name] = OrderedDict()
    return bare


#: Attributes in which torch keeps the parameters of a recurrent layer once more: its calls bring them up to date.
_PARAMETERS_AGAIN = ("_flat_weights", "_flat_weight_refs")


def _attributes(module: nn.Module) -> list[Any]:
    """What is in the attributes of a module and its parts, but for buffers."""
    return pytree.tree_leaves(
        [
            value
            for part in module.modules()
            for name, value in part.__dict__.items()
            if value is not part._buffers and not (isinstance(part, nn.RNNBase) and name in _PARAMETERS_AGAIN)
        ]
    )


def _are_same(before: list[Any], after: list[Any]) -> bool:
    """Whether attributes are what they were: plain values by value, all else by itself."""
    pairs = zip(before, after, strict=False)
    equal = (a is b or (type(a) is type(b) and isinstance(a, _CONSTANTS) and a == b) for a, b in pairs)
    return len(before) == len(after) and all(equal)


def _wants_gradients(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    if any(parameter.requires_grad for parameter in module.parameters()):
        return True
    return any(isinstance(value, torch.Tensor) and value.requires_grad for value in pytree.tree_leaves((args, kwargs)))


def _of_its_own(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that calls this one, with code that no other has: torch counts compilations by code."""

    def call(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return FunctionType(call.__code__.replace(), globals(), call.__name__, None, call.__closure__)


def _sorted(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, list[torch.Tensor]]:
    """Which inputs there are and of what kind, and the tensors among them in the order in which a model takes them.

    The kind is None where torch's compiler alone takes one: an instance of a dataclass.
    """
    values: Any = (*args, *kwargs.values())
    nesting: Any = (len(args), *kwargs)
    if not all(isinstance(value, (torch.Tensor, *_CONSTANTS)) for value in values):
        values, nesting = pytree.tree_flatten((args, kwargs))
    tensors, kinds = [], []
    for value in values:
        if isinstance(value, torch.Tensor):
            tensors.append(value)
            kinds.append((value.dtype, value.ndim))
        elif is_dataclass(value):
            return None, []
        else:
            _check_constant(value)
            kinds.append((type(value), value))
    return (nesting, tuple(kinds)), tensors


def _without_numbers(key: tuple[Any, ...]) -> tuple[Any, ...]:
    """The key of a program but for the values of numbers among its inputs."""
    (nesting, kinds), *others = key
    return nesting, tuple(kind[0] if kind[0] in (int, float) else kind for kind in kinds), *others


def _check_constant(value: Any) -> None:
    if not isinstance(value, _CONSTANTS):
        raise InputError(
            f"wrap: an input is a {type(value).__name__}, expected tensors, numbers, texts, None, and tuples, lists, "
            "dictionaries and dataclasses of them. Keys and values of text generation are kept by autocast.generation"
        )
