"""`autocast.wrap`: a torch module that its program calls as before, and that our kernels compute."""

from __future__ import annotations

import functools
import inspect
import operator
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from types import FunctionType
from typing import Any, TypeVar, cast

import torch
from torch import nn
from torch.utils import _pytree as pytree

from autocast import amp
from autocast.errors import FallbackWarning, ImportModelError, InputError
from autocast.frontend import from_torch
from autocast.messages import check_kind, warn
from autocast.model.value import Model
from autocast.runtime.tensors import from_tensor
from autocast.vm.compile import compile

Module = TypeVar("Module", bound=nn.Module)

#: Where a wrapped module keeps what was compiled for it.
_COMPILED = "_autocast_compiled"

_version = operator.attrgetter("_version")

#: Where one that is imported keeps what its `**kwargs` are given beside tensors: torch.export takes none of these with
#: sizes that vary.
_OPTIONS = "_autocast_options"

#: Inputs that are baked in, so that each value has a program of its own.
_CONSTANTS = (bool, int, float, str, type(None), torch.dtype, torch.device)


def wrap(module: Module, *, dynamic: Mapping[str, Any] | str | None = "auto", **options: Any) -> Module:
    """A module that is called, trained, saved and loaded as `module` is, with mixed precision, on our kernels.

    Parameters
    ----------
    module : torch.nn.Module
        It is not changed, and shares its parameters, buffers and submodules with what is returned.
    dynamic : mapping or str, optional
        As `from_torch` takes it; "auto": a size that differs from those of the calls before is dynamic from then on.
        Calls of which gradients are wanted have sizes as `torch.compile` has them.
    **options
        Of `amp.autocast`: `policy="mp1"`, `dtype="float16"`; its defaults where nothing is given.

    Returns
    -------
    torch.nn.Module
        Of a class that derives from the module's, and has its name: with its signature, attributes, methods, state
        dict and outputs (such as a ModelOutput of transformers). The first call with inputs of a kind (which there are,
        their dtypes, the values of those that are no tensors) imports and compiles; weights that were changed since, by
        `load_state_dict`, an optimizer or an assignment, are read again. What the module's code reads besides (its
        configuration, say) is as it was then. Where gradients are recorded and a parameter or an input requires them, a
        call is compiled by `torch.compile(backend="autocast")`, forward and backward: gradients come as from `module`.
        So is one that changes buffers (BatchNorm in training mode) or other attributes, that draws random numbers, and
        one that `from_torch` refuses (the module decides by values, or returns what is no tensor in an object).

    Warns
    -----
    FallbackWarning
        In the first call that torch's compiler runs, of a module with recurrent layers: it leaves them to torch.

    Raises
    ------
    ImportModelError
        In a call: what `from_torch` raises where `dynamic` says of which sizes the module is.
    """
    check_kind("wrap", module, nn.Module, InputError, "a torch.nn.Module")
    if (what := _no_python(module)) is not None:
        raise InputError(
            f"wrap: the module is {what}, expected one whose code is Python. Wrap the module it was made of"
        )
    kind: Any = type(module)
    own = module.__dict__.get("forward")
    made = _class_of(kind) if own is None else _class_with(kind, _method(module, own), own)
    wrapped = cast(Module, object.__new__(made))
    kept = {name: value for name, value in module.__dict__.items() if name not in _REPLACED}
    wrapped.__dict__.update(kept, **{_COMPILED: _Compiled(dynamic, options)})
    return wrapped


#: What a module may have of its own for its calls: another forward, and `module.compile()`, of torch's compiler.
_REPLACED = ("forward", "_compiled_call_impl")


def _no_python(module: nn.Module) -> str | None:
    """What a module is that cannot be wrapped; None where it can."""
    if isinstance(module, torch.jit.ScriptModule):
        return "a ScriptModule"
    if "_orig_mod" in module._modules:  # torch.compile's, whose class takes seconds to import
        return "what torch.compile returned"
    return "wrapped already" if _COMPILED in module.__dict__ else None


def _method(module: nn.Module, own: Callable[..., Any]) -> Callable[..., Any]:
    """A forward that was assigned to a module, as a method of its class."""
    if getattr(own, "__self__", None) is module:
        return cast(Any, own).__func__
    signature = inspect.signature(own)

    @functools.wraps(own)
    def method(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        return own(*args, **kwargs)

    itself = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
    method.__dict__["__signature__"] = signature.replace(parameters=[itself, *signature.parameters.values()])
    return method


@functools.cache
def _class_of(kind: type[nn.Module]) -> type[nn.Module]:
    """The class of what a module of this class is wrapped to."""
    return _class_with(kind, kind.forward)


def _class_with(kind: type[nn.Module], function: Callable[..., Any], own: Any = None) -> type[nn.Module]:
    """As `_class_of`, for what computes a call, and the forward of its own that a module has."""

    @functools.wraps(function)
    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        inner = partial(function, self, **self.__dict__.get(_OPTIONS, {}))
        call = self.__dict__[_COMPILED]
        if torch.compiler.is_dynamo_compiling() and not torch.compiler.is_exporting():
            call = _unseen(call)
        return call(self, inner, args, kwargs)

    def reduce(self: nn.Module, protocol: Any) -> Any:
        plain = object.__new__(kind)
        plain.__dict__.update({name: value for name, value in self.__dict__.items() if name != _COMPILED})
        if own is not None:
            plain.__dict__["forward"] = own
        compiled = self.__dict__[_COMPILED]
        return _wrapped_again, (plain, compiled.dynamic, compiled.options)

    members = {"forward": forward, "__reduce_ex__": reduce, "__module__": kind.__module__, "__doc__": kind.__doc__}
    return type(kind.__name__, (kind,), members)


def _unseen(call: Callable[..., Any]) -> Callable[..., Any]:
    """A call as it is where Dynamo compiles what calls it: it imports, compiles and reads addresses, none of it torch.

    Outside of Dynamo the call is made as it is, as torch's mark costs some microseconds each time.
    """
    return torch.compiler.disable(call, reason="autocast.wrap: our kernels compute this module")


def _wrapped_again(module: nn.Module, dynamic: Any, options: Mapping[str, Any]) -> nn.Module:
    return wrap(module, dynamic=dynamic, **options)


@dataclass
class _Program:
    """What inputs of one kind run.

    Attributes
    ----------
    model : Model
        The module, with casts.
    executable : callable
        The model, compiled with the weights as they were at `versions`.
    outputs : pytree.TreeSpec, optional
        How the module nests what it returns; None: one tensor.
    leaves : list
        What is at the tree's leaves: None stands for a tensor, a function for what is made of one of the model's
        results (`torch.view_as_complex`, of pairs), and ("", value) for something else.
    """

    model: Model
    executable: Callable[..., Any]
    versions: list[int]
    outputs: Any
    leaves: list[Any]

    def computed(self, tensors: list[torch.Tensor]) -> Any:
        """What the executable returns, as torch tensors: it knows from its inputs what to return, if it has any."""
        if tensors:
            return self.executable(*tensors)
        executable: Any = self.executable
        return from_tensor(executable.run(executable.arguments(())), "torch")

    def results(self, tensors: Any) -> Any:
        """What the module returns."""
        if self.outputs is None:
            return tensors
        results = iter(tensors if isinstance(tensors, tuple) else (tensors,))
        leaves = [
            next(results) if leaf is None else leaf[1] if isinstance(leaf, tuple) else leaf(next(results))
            for leaf in self.leaves
        ]
        return pytree.tree_unflatten(leaves, self.outputs)


class _Compiled:
    """The programs of a wrapped module, by the kinds of their inputs."""

    def __init__(self, dynamic: Any, options: Mapping[str, Any]) -> None:
        self.dynamic, self.options = dynamic, options
        #: None where torch's compiler runs it: a call changes more than its results, or cannot be imported.
        self._programs: dict[Any, _Program | None] = {}
        #: Where modules find parameters, buffers and submodules, and what they found there.
        self._owners: list[dict[str, Any]] = []
        self._contents: list[dict[str, Any]] = []
        #: Those of one number, by their owners and names: equal ones are not the same.
        self._numbers: list[tuple[dict[str, Any], str, torch.Tensor]] = []
        self._weights: list[torch.Tensor] = []
        self._counted: list[torch.Tensor] = []
        self._memory: list[int] = []
        self._turn = threading.RLock()
        self._by_torch: Callable[..., Any] | None = None
        #: The leaves of what the module returned when it was exported last, and how they are nested.
        self._returned: tuple[list[Any], Any] = ([], None)
        #: Whether it gave other values to its attributes then.
        self._assigns = False

    def __call__(
        self, module: nn.Module, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        if torch.compiler.is_exporting():  # for `from_torch`, among others
            before = _attributes(module)
            outputs = forward(*args, **kwargs)
            self._returned = pytree.tree_flatten(outputs)
            self._assigns = not _are_same(before, _attributes(module))
            return outputs
        if torch.is_grad_enabled() and _wants_gradients(module, args, kwargs):
            return self._traced(module, forward)(module, *args, **kwargs)
        kind, tensors = _sorted(args, kwargs)
        key = (module.training, kind, torch.is_autocast_enabled("cpu") and torch.get_autocast_dtype("cpu"))
        with self._turn:
            if not self._is_same():
                self._programs.clear()
            if key not in self._programs:
                self._programs[key] = self._imported(module, args, kwargs)
            program = self._programs[key]
            if program is not None and program.versions != (versions := self._versions()):
                program.executable, program.versions = compile(program.model), versions
        if program is None:
            return self._traced(module, forward)(module, *args, **kwargs)
        try:
            return program.results(program.computed(tensors))
        except InputError:  # of sizes for which it cannot be imported: 0, or 1 where that is another program
            if self.dynamic != "auto":
                raise
            return self._traced(module, forward)(module, *args, **kwargs)

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

    def _is_same(self) -> bool:
        """Whether the module has the tensors and submodules, in the memory, that it was imported with."""
        try:  # one comparison in C, which looks at identities first: a third of the time of asking for each by name
            if self._owners != self._contents:
                return False
        except RuntimeError:  # a tensor that took another's place was compared with it, number by number
            return False
        same = all(owner[name] is value for owner, name, value in self._numbers)
        return same and self._memory == self._addresses()

    def _addresses(self) -> list[int]:
        """Where the weights are: somebody may exchange their memory (`parameter.data = ...`, `module.to(...)`)."""
        return list(map(torch.Tensor.data_ptr, self._weights))

    def _versions(self) -> list[int]:
        """How often each weight was written; those that were made in inference mode do not count it."""
        return list(map(_version, self._counted))

    def _imported(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Program | None:
        bare, known = _without_hooks(module), inspect.signature(module.forward).parameters
        options = {name: v for name, v in kwargs.items() if name not in known and isinstance(v, _CONSTANTS)}
        bare.__dict__[_OPTIONS] = options
        others = {name: value for name, value in kwargs.items() if name not in options}
        self._remember(module)
        try:
            model = from_torch(bare, args, example_kwargs=others, dynamic=self.dynamic)
        except ImportModelError:
            if isinstance(self.dynamic, Mapping):
                raise
            return None
        leaves, outputs = self._returned
        if model.updated or self._assigns:
            return None
        model = amp.autocast(model, **self.options)
        leaves = list(map(_kept, leaves))
        nested = None if leaves == [None] and outputs.is_leaf() else outputs
        return _Program(model, compile(model), self._versions(), nested, leaves)

    def _remember(self, module: nn.Module) -> None:
        kinds = operator.attrgetter("_parameters", "_buffers", "_modules")
        self._owners = [owner for part in module.modules() for owner in kinds(part) if owner]
        self._contents = list(map(dict, self._owners))
        tensors = [
            (owner, name, value)
            for owner in self._owners
            for name, value in owner.items()
            if isinstance(value, torch.Tensor)
        ]
        self._numbers = [one for one in tensors if one[2].numel() == 1]
        self._weights = [weight for _, _, weight in tensors]
        self._counted = [weight for weight in self._weights if not weight.is_inference()]
        self._memory = self._addresses()


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
    values = (*module.parameters(), *args, *kwargs.values())
    return any(isinstance(value, torch.Tensor) and value.requires_grad for value in values)


def _of_its_own(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that calls this one, with code that no other has: torch counts compilations by code."""

    def call(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return FunctionType(call.__code__.replace(), globals(), call.__name__, None, call.__closure__)


def _kept(leaf: Any) -> Any:
    """How what the module returned at a leaf is made of the model's results: see `_Program.leaves`."""
    if isinstance(leaf, torch.Tensor):
        return torch.view_as_complex if leaf.is_complex() else None
    if isinstance(leaf, int | float | torch.SymInt | torch.SymFloat):
        return torch.Tensor.item
    return "", leaf


def _sorted(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, list[torch.Tensor]]:
    """Which inputs there are and of what kind, and the tensors among them in the order in which a model takes them."""
    values: Any = (*args, *kwargs.values())
    nesting: Any = (len(args), *kwargs)
    if not all(isinstance(value, (torch.Tensor, *_CONSTANTS)) for value in values):
        values, nesting = pytree.tree_flatten((args, kwargs))
    tensors, kinds = [], []
    for value in values:
        if isinstance(value, torch.Tensor):
            tensors.append(value)
            kinds.append((value.dtype, value.ndim))
        else:
            _check_constant(value)
            kinds.append((type(value), value))
    return (nesting, tuple(kinds)), tensors


def _check_constant(value: Any) -> None:
    if not isinstance(value, _CONSTANTS):
        raise InputError(
            f"wrap: an input is a {type(value).__name__}, expected tensors, numbers, texts, None, and tuples, lists "
            "and dictionaries of them. Keys and values of text generation are kept by autocast.generation"
        )
