"""`torch.export` with its checks, and errors that say where in the model it stopped and what to write there instead."""

from __future__ import annotations

import contextlib
import inspect
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree as pytree

from autocast.errors import ImportModelError
from autocast.frontend.exporting.autocast_blocks import write_out_blocks
from autocast.frontend.exporting.checks import check_dense, check_faithful, check_signature
from autocast.frontend.exporting.conditions import can_all_be_tried
from autocast.frontend.exporting.containers import named_containers
from autocast.frontend.exporting.copies import broadcast_copies, without_idle_dropout
from autocast.frontend.exporting.decisions import Decision, noted_decisions
from autocast.frontend.exporting.derivatives import Derivatives, traced_below_autograd
from autocast.frontend.exporting.dynamic import DynamicAxis, Leaf, export_shapes, grown, input_leaves, parse
from autocast.frontend.exporting.exported import Exported
from autocast.frontend.exporting.number_buffers import flags, known_numbers, number_buffers
from autocast.frontend.exporting.numbers_of_sizes import (
    Conversion,
    files_of,
    noted_conversions,
    symbolic_conversions,
    symbolic_functions,
)
from autocast.frontend.exporting.one_name import read_by_one_name
from autocast.frontend.exporting.recurrent_layers import whole_recurrences
from autocast.frontend.exporting.remedies import place, remedy
from autocast.frontend.exporting.rewritten import rewritten_functions
from autocast.frontend.exporting.rewritten_layers import rewritten_layers
from autocast.frontend.exporting.size_checks import allow_smaller, check_conditions, check_decisions, to_be_tried
from autocast.frontend.exporting.stops import mark_detached, mark_replayed, marking_stops, pass_over_writes
from autocast.frontend.exporting.tracing import (
    as_it_was,
    left_if_raised,
    no_cache,
    no_gradients,
    no_guess,
    uncompiled,
    unlogged,
    unmoved,
)
from autocast.frontend.nodes import mark_conversions
from autocast.frontend.splitting.decompose import decompose
from autocast.frontend.splitting.single_calls import copied
from autocast.messages import beginning
from autocast.runtime.tensors import kind_of_layout, memory_of


@named_containers()
def export(
    module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], dynamic: Mapping[str, Any] | None
) -> Exported:
    """Export a module, without key/value caches.

    Parameters
    ----------
    module, args, kwargs
        What is exported, and its example inputs.
    dynamic
        As `from_torch` takes it.

    Raises
    ------
    ImportModelError
        The inputs or `dynamic` do not fit the module, torch cannot export it, or an import would not be faithful.
    """
    leaves = input_leaves(module, args, kwargs)
    _check_inputs(module, args, kwargs, leaves)
    axes = parse(dynamic, leaves)
    refusals: list[ImportModelError] = []
    fixed: Exported | None = None
    with noted_conversions() as conversions:
        for way in _ways(module, conversions, refusals):
            try:
                with contextlib.ExitStack() as known:
                    for context in way:
                        known.enter_context(context())
                    exported = _export(module, args, kwargs, leaves, axes, conversions)
            except ImportModelError as error:
                refusals.append(error)
            else:
                if not (conversions and exported.is_fixed):
                    return exported
                fixed = fixed or exported
    if fixed is not None:
        return fixed
    raise refusals[0] from refusals[0].__cause__


#: What a module is traced with: something is known there that torch would not know.
_Known = Callable[[], contextlib.AbstractContextManager[None]]


def _ways(
    module: torch.nn.Module, conversions: Sequence[Conversion], refusals: Sequence[ImportModelError]
) -> Iterator[Sequence[_Known]]:
    """The ways to export a module: as it is, then what torch is to know where it stopped, or fixed a size.

    Meanwhile `conversions` grow. A size that became a number is none in the lines that follow, and a module stops at a
    decision by a value: what comes behind is seen when this is known.
    """
    yield []
    buffers: list[list[tuple[torch.nn.Module, str]]] = []
    if any("data-dependent" in str(refusal) for refusal in refusals):
        numbers, of_state = number_buffers(module), flags(module)
        buffers = [numbers] * bool(numbers) + [[*numbers, *of_state]] * bool(of_state)
    for values in ([], *([partial(known_numbers, some)] for some in buffers)):
        if values:
            yield values
        seen: set[Any] = set()
        while seen != (files := files_of(conversions)):
            seen = files
            yield [partial(symbolic_conversions, conversions), *values]


def _export(
    module: torch.nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    leaves: Sequence[Leaf],
    axes: Sequence[DynamicAxis],
    conversions: Sequence[Conversion],
) -> Exported:
    """What `export` does, of the `axes` that vary; `conversions` are noted meanwhile."""
    derivatives = Derivatives()
    try:
        try:
            exported, program = _exported(module, args, kwargs, leaves, axes, derivatives)
        except Exception as error:
            if not derivatives.names:
                raise
            try:
                with traced_below_autograd(module):
                    exported, program = _exported(module, args, kwargs, leaves, axes, contextlib.nullcontext())
                exported = replace(exported, derivatives=tuple(sorted(derivatives.names)))
            except Exception as of_derivatives:
                raise (of_derivatives if axes else error) from None
    except ImportModelError:
        raise
    except Exception as error:
        text = beginning(error)
        static = _static(module, args, kwargs, axes, differentiates=bool(derivatives.names))
        raise ImportModelError(
            f"from_torch: torch.export cannot export {type(module).__name__}{place(error, conversions)}: {text}\n"
            f"{remedy(text, axes, conversions)}{static}"
        ) from error
    allow_smaller(exported, program, module, (args, kwargs))
    check_conditions(exported, module)
    exported.allow_one(program)
    check_decisions(exported, module, (args, kwargs))
    return exported


#: What torch says where it could not prove a condition for all sizes of a dimension.
_UNPROVEN = ("satisfy the generated guard", "Expected op to be '=='")


def _exported(
    module: torch.nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    leaves: Sequence[Leaf],
    axes: Sequence[DynamicAxis],
    noting: contextlib.AbstractContextManager[Any],
) -> tuple[Exported, torch.export.ExportedProgram]:
    """What is imported of a module, and the program that torch exported while `noting` what the module calls; where
    torch could not prove what it assumes of the sizes along `axes`, one of which it proves nothing."""
    with noting:
        try:
            program, decisions = _traced(module, args, kwargs, leaves, axes)
        except Exception as error:
            tried = to_be_tried(axes)
            if not tried or not any(text in str(error) for text in _UNPROVEN):
                raise
            try:
                (program, decisions), axes = _traced(module, args, kwargs, leaves, tried), tried
            except Exception:
                raise error from None
            if not can_all_be_tried(program):
                raise
    with no_gradients(module), noted_decisions() as of_tables:
        exported = _decomposed(program, leaves, axes)
    return replace(exported, decisions=[*decisions, *of_tables]), program


def _traced(
    module: torch.nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    leaves: Sequence[Leaf],
    axes: Sequence[DynamicAxis],
) -> tuple[torch.export.ExportedProgram, Sequence[Decision]]:
    shapes = export_shapes(axes, module, args, kwargs)
    with (
        as_it_was(module),
        no_gradients(module),
        no_cache(module, kwargs),
        no_guess(),
        uncompiled(),
        unmoved(),
        unlogged(),
        warnings.catch_warnings(),
    ):
        # torch 2.13 warns about its own pytrees, and about constants that tracing models makes from tensors.
        warnings.simplefilter("ignore")
        examples, named = grown(axes, leaves, _apart(module, (args, kwargs)))
        with (
            left_if_raised(),
            marking_stops(),
            rewritten_layers(),
            whole_recurrences(),
            rewritten_functions(),
            symbolic_functions(),
            noted_decisions() as decisions,
        ):
            program = torch.export.export(module, examples, named, dynamic_shapes=shapes, strict=False)
        read_by_one_name(program)
        return program, decisions


def _apart(module: torch.nn.Module, example: Any) -> Any:
    """Example inputs that share no memory with others, or the module's own: writing into one would change another."""
    known = {_memory(tensor) for tensor in (*module.parameters(), *module.buffers())}

    def other(value: Any) -> Any:
        if isinstance(value, torch.Tensor) and _memory(value) in known:
            return value.detach().clone().requires_grad_(value.requires_grad)
        known.add(_memory(value))
        return value

    return pytree.tree_map(other, example)


def _memory(value: Any) -> int:
    """What values that share memory have in common: a tensor's storage, else the object itself."""
    strided = isinstance(value, torch.Tensor) and value.layout == torch.strided
    return memory_of(value) if strided else id(value)


def _decomposed(program: torch.export.ExportedProgram, leaves: Sequence[Leaf], axes: Sequence[DynamicAxis]) -> Exported:
    check_faithful(program)
    _erase_failed(program)
    broadcast_copies(program)
    write_out_blocks(program)
    without_idle_dropout(program)
    mark_conversions(program)
    pass_over_writes(program)
    mark_detached(program)
    with uncompiled():
        program = decompose(program)
    mark_replayed(program)
    check_signature(program)
    return Exported(program, leaves, axes)


def _erase_failed(program: torch.export.ExportedProgram) -> None:
    """Erase what failed within `try`, of which torch.export keeps the call: it has no result, and would fail again."""
    for node in reversed(program.graph.nodes):
        returns = getattr(getattr(node.target, "_schema", None), "returns", ())
        if returns and not node.users and node.meta.get("val") is None:
            program.graph.erase_node(node)


def exported_already(
    program: torch.export.ExportedProgram, args: Any, kwargs: Any, dynamic: Any
) -> tuple[Exported, torch.nn.Module]:
    """What `export` makes of a module, of a program that torch exported, and the module that is in it.

    Raises
    ------
    ImportModelError
        Examples or dynamic dimensions are given, which the program has itself; or as `export`.
    """
    if args is not None or kwargs is not None or dynamic is not None:
        raise ImportModelError(
            "from_torch: got an ExportedProgram with examples or dynamic=, expected it alone: it has its own. Try "
            "from_torch(program), or torch.export.export(module, args, dynamic_shapes=...) for other ones"
        )
    module = program.module()
    leaves = input_leaves(module, *(program.example_inputs or ((), {})))
    return _decomposed(copied(program), leaves, []), module


def _check_inputs(module: torch.nn.Module, example_args: Any, example_kwargs: Any, leaves: Sequence[Leaf]) -> None:
    """ImportModelError unless the example inputs are what the module's `forward` takes."""
    try:
        inspect.signature(module.forward).bind(*example_args, **example_kwargs)
    except TypeError as error:
        names = ", ".join(inspect.signature(module.forward).parameters)
        raise ImportModelError(
            f"from_torch: {type(module).__name__}.forward({names}) cannot be called with the example inputs: {error}. "
            "Pass what you would call the module with, as example_args=(...) and example_kwargs={...}."
        ) from error
    for leaf in leaves:
        if isinstance(leaf.value, torch.Tensor):
            kind = "complex" if leaf.value.is_complex() else kind_of_layout(leaf.value)
            check_dense(f"the example input {leaf.name!r}", kind)
        if isinstance(leaf.value, np.ndarray):
            raise ImportModelError(
                f"from_torch: the example input {leaf.name!r} is a numpy array; expected a torch tensor. Try "
                "torch.from_numpy(array)."
            )


def _static(
    module: torch.nn.Module, args: Any, kwargs: Any, axes: Sequence[DynamicAxis], *, differentiates: bool
) -> str:
    """That a module which is refused with dynamic dimensions is not without them, where that is so."""
    if not axes:
        return ""
    written_out = traced_below_autograd(module) if differentiates else contextlib.nullcontext()
    try:
        with (
            as_it_was(module),
            no_gradients(module),
            no_cache(module, kwargs),
            unlogged(),
            warnings.catch_warnings(),
            written_out,
            whole_recurrences(),
        ):
            warnings.simplefilter("ignore")
            torch.export.export(module, args, kwargs, strict=False)
    except Exception:
        return ""
    return " Without dynamic=, for inputs of these sizes alone, torch exports it."
