"""What is handed to the wrong place is an error of ours, that says what was expected, at every public entry."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import autocast
import type_hints
from autocast import amp, vm
from autocast.errors import AutocastError, CastingRuleError
from autocast.model import Model

_NET = torch.nn.Linear(3, 2).eval()
_X = torch.ones(1, 3)
_MODEL = autocast.from_torch(_NET, (_X,))

#: Of each, one that is of no use anywhere else.
_VALUES = {
    "None": None,
    "3": 3,
    "a text": "x",
    "a torch module": _NET,
    "a tensor": _X,
    "an empty list": [],
    "an object": object(),
    "a model": _MODEL,
    "an IRModule": _MODEL.mod,
    "a Relax function": _MODEL.main,
}

#: Public entries, and what each does take.
_ENTRIES: dict[str, tuple[Callable[[Any], Any], tuple[str, ...]]] = {
    "from_relax": (autocast.from_relax, ("a Relax function", "an IRModule")),
    "from_relax: params": (lambda v: autocast.from_relax(_MODEL.mod, v), ("None",)),
    "from_relax: function": (lambda v: autocast.from_relax(_MODEL.mod, _MODEL.params, function=v), ("None",)),
    "from_torch": (lambda v: autocast.from_torch(v, (_X,)), ("a torch module",)),
    "from_torch: example_args": (lambda v: autocast.from_torch(_NET, v), ("a tensor",)),
    "from_torch: example_kwargs": (lambda v: autocast.from_torch(_NET, (_X,), example_kwargs=v), ("None",)),
    "from_torch: dynamic": (lambda v: autocast.from_torch(_NET, (_X,), dynamic=v), ("None",)),
    "compile": (vm.compile, ("a model", "an IRModule")),
    "compile: device": (lambda v: vm.compile(_MODEL, v), ()),
    "compile: opt_level": (lambda v: vm.compile(_MODEL, opt_level=v), ("3",)),
    "an executable": (vm.compile(_MODEL), ("a tensor",)),
    "a model": (_MODEL, ("a tensor",)),
    "Model": (Model, ("an IRModule",)),
    "Model: params": (lambda v: Model(_MODEL.mod, v), ()),
    "autocast": (amp.autocast, ("a model", "an IRModule")),
    "autocast: policy": (lambda v: amp.autocast(_MODEL, policy=v), ("None",)),
    "autocast: dtype": (lambda v: amp.autocast(_MODEL, dtype=v), ("None",)),
    "cast_parameters": (amp.cast_parameters, ()),
    "profile_vm_model": (lambda v: vm.profile_vm_model(v, "cpu", [_X], number=1, repeat=1), ("a model", "an IRModule")),
    "profile_vm_model: args": (lambda v: vm.profile_vm_model(_MODEL, "cpu", v), ()),
    "profile_vm_model: number": (lambda v: vm.profile_vm_model(_MODEL, "cpu", [_X], number=v, repeat=1), ("3",)),
    "get_peak_memory": (lambda v: vm.get_peak_memory(v, "cpu", [_X]), ("a model", "an IRModule")),
    "get_peak_memory: args": (lambda v: vm.get_peak_memory(_MODEL, "cpu", v), ()),
    "Policy.parse": (amp.Policy.parse, ()),
    "CustomTypeHint": (amp.CustomTypeHint, ()),
    "CustomTypeHint: a rule": (
        lambda v: amp.CustomTypeHint({"gelu": v}),
        ("a torch module", "a model", "a Relax function"),  # which can be called
    ),
    "low": (type_hints.low, ("3", "an empty list")),
    "low: keep": (lambda v: type_hints.low(2, keep=v), ("3", "an empty list")),
    "follow: leader": (lambda v: type_hints.follow(2, leader=v), ("None",)),
    "TupleType": (type_hints.TupleType, ("an empty list",)),
}


@pytest.mark.parametrize("entry", _ENTRIES)
def test_what_an_entry_does_not_take_is_an_error_of_ours(entry: str) -> None:
    call, taken = _ENTRIES[entry]
    for name, value in _VALUES.items():
        if name not in taken:
            with pytest.raises((AutocastError, CastingRuleError)) as error:
                call(value)
            assert str(error.value), f"{entry} of {name}"
