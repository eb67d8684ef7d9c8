"""The class of a wrapped module: that of the module, but for what a call computes, and how it is copied and saved."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeVar, cast

import torch
from torch import nn

from autocast.errors import InputError
from autocast.messages import check_kind
from autocast.policy import as_policy
from autocast.wrapping.programs import OPTIONS, Programs

Module = TypeVar("Module", bound=nn.Module)

#: Where a wrapped module keeps what was compiled for it.
_COMPILED = "_autocast_compiled"


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
        `load_state_dict`, an optimizer or an assignment, are read again. So are modes of submodules, and attributes,
        the module's and those of its configuration. Where gradients are recorded and a parameter or an input requires
        them, a call is compiled by `torch.compile(backend="autocast")`, forward and backward: gradients come as from
        `module`. So is one that changes buffers (BatchNorm in training mode) or other
        attributes, that draws random numbers, whose submodules have hooks, and one that `from_torch` refuses (the
        module decides by values, or returns what is no tensor in an object). Checks of values that only raise, such as
        `assert mask.any()`, are left out otherwise.

    Warns
    -----
    FallbackWarning
        In the first call that torch's compiler runs, of a module with recurrent layers: it leaves them to torch.

    Raises
    ------
    PolicyError
        An option is none of those, or none of its legal values.
    ImportModelError
        In a call: what `from_torch` raises where `dynamic` says of which sizes the module is.
    """
    check_kind("wrap", module, nn.Module, InputError, "a torch.nn.Module")
    if (what := _no_python(module)) is not None:
        raise InputError(
            f"wrap: the module is {what}, expected one whose code is Python. Wrap the module it was made of"
        )
    as_policy(options.get("policy"), **{name: value for name, value in options.items() if name != "policy"})
    kind: Any = type(module)
    own = module.__dict__.get("forward")
    made = _class_of(kind) if own is None else _class_with(kind, _method(module, own), own)
    wrapped = cast(Module, object.__new__(made))
    kept = {name: value for name, value in module.__dict__.items() if name not in _REPLACED}
    wrapped.__dict__.update(kept, **{_COMPILED: Programs(dynamic, options)})
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
        inner = partial(function, self, **self.__dict__.get(OPTIONS, {}))
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
