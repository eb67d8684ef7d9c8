"""What is decided by sizes that may be 1 or 0, or lead to such: `if x.shape[0] == 1: ...`.

torch.export takes sizes that vary for larger than 1, and writes down neither that it did nor what was decided by that,
in the code of a module or in torch's own. The program of 2 is that of 1, too, for nearly everything that is written:
whether a mask of one query is causal does not matter, say. So the module is called with such sizes, and compared with
what was exported.
"""

from __future__ import annotations

import contextlib
import io
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
import sympy  # type: ignore[import-untyped]
import torch
from torch import fx
from torch.export.graph_signature import InputKind, InputSpec, OutputKind
from torch.fx.experimental import symbolic_shapes
from torch.fx.experimental.sym_node import SymNode
from torch.utils import _pytree as pytree

from autocast.frontend.exporting.conditions import Assumed, Condition, is_of_memory, sizes_of
from autocast.frontend.exporting.tracing import as_it_was
from autocast.frontend.exporting.value_checks import valid_answer

#: Frames that are no code of a module: of torch, and what others generate (dataclasses, sympy, beartype, attrs). What
#: was typed at a prompt is in no file either (`<stdin>`, `<ipython-input-3>`), and is the module's own.
_WRITTEN = ("<eval_with_key>", "<frozen ", "<string>", "<lambdifygenerated", "<@beartype", "<attrs generated")
INSIDE = (str(Path(torch.__file__).parent), str(Path(__file__).parent.parent), *_WRITTEN)

#: With so many combinations of sizes for which a decision falls otherwise the module is called.
_CALLS = 3

#: Inputs of more numbers are not tried: a bound may be what an index can hold.
_MOST_NUMBERS = 2**26

#: Files of torch through which a condition is asked for.
_ASKING = ("torch/__init__.py", "torch/fx/experimental/sym_node.py", "torch/fx/experimental/symbolic_shapes.py")


class Decision(NamedTuple):
    """A condition that was asked for while a module was traced, whether it held, in which line, and whether this is
    the module's own and not torch's."""

    condition: Condition
    held: bool
    place: str
    own: bool


@contextlib.contextmanager
def noted_decisions() -> Iterator[list[Decision]]:
    """While this is active, the conditions on sizes by which something is decided that may change a number are added to
    the list."""
    ask = SymNode.guard_bool
    known: set[tuple[Any, bool]] = set()
    decisions: list[Decision] = []

    def noted(node: SymNode, file: str, line: int) -> bool:
        frame, expr = sys._getframe(1), node.expr
        while frame.f_back is not None and frame.f_code.co_filename.endswith(_ASKING):
            frame = frame.f_back
        own = not frame.f_code.co_filename.startswith(INSIDE)
        try:
            held = ask(node, file, line)
        except symbolic_shapes.GuardOnDataDependentSymNode:
            if (answer := valid_answer(INSIDE)) is None and not own:
                answer = _unless_empty(node)
            if answer is None:
                raise
            return answer
        file, function = frame.f_code.co_filename, frame.f_code.co_name
        if expr.free_symbols and (expr, own) not in known and not is_of_memory(file, function):
            known.add((expr, own))
            decisions.append(Decision(Condition(expr), held, f"{file}:{frame.f_lineno}", own))
        return held

    # By the frame of whoever asks torch tells an `assert`, which it leaves to the run, from an `if`.
    passed_over = symbolic_shapes.uninteresting_files() | {noted.__code__.co_filename}
    with (
        mock.patch.object(SymNode, "guard_bool", noted),
        mock.patch.object(symbolic_shapes, "uninteresting_files", lambda: passed_over),
    ):
        yield decisions


def _unless_empty(node: SymNode) -> bool | None:
    """What holds of sizes that values decide but for 0, which torch computes apart (`if x.numel() == 0`) to no other
    result; None where it depends on more."""
    environment = node.shape_env
    known = {symbol for symbol in node.expr.free_symbols if environment.var_to_range[symbol].lower >= 0}
    try:
        with mock.patch.object(environment, "size_like", environment.size_like | known):
            held = node.guard_size_oblivious("", 0)
    except symbolic_shapes.GuardOnDataDependentSymNode:
        return None
    alone = node.expr.xreplace(dict.fromkeys(node.expr.free_symbols, sympy.Integer(1)))
    return held if alone == sympy.sympify(held) else None


class Size(NamedTuple):
    """A size that varies: its name, the example's, and its bounds."""

    name: str
    example: int
    least: int
    largest: int | None


class Deviation(NamedTuple):
    """Sizes by name for which a module is something else than what was exported of it, and the line that decides so."""

    sizes: Mapping[str, int]
    place: str


def deviation(
    program: torch.export.ExportedProgram,
    module: torch.nn.Module,
    example: tuple[Sequence[Any], Mapping[str, Any]],
    decisions: Sequence[Decision],
    sizes: Mapping[str, Size],
    assumed: Assumed,
) -> Deviation | None:
    """Sizes for which a decision falls otherwise than it did, and the module returns something else; None if none are
    found.

    Parameters
    ----------
    program, module, example
        What was exported, of what, with which inputs.
    decisions
        What the module decided.
    sizes
        By torch's symbol what there is to know of a size. Those of which nothing is decided stay as they are.
    assumed
        What holds of all sizes that may come.
    """
    agree: dict[tuple[int, ...], bool | None] = {}
    usual = {symbol: max(size.example, size.least, 2) for symbol, size in sizes.items()}
    ranges = {size.name: (size.least, size.largest) for size in sizes.values()}
    for decision in decisions:
        if not decision.condition.symbols <= sizes.keys():
            continue  # of sizes that values decide
        asked = {symbol: sizes[symbol].name for symbol in decision.condition.symbols}
        follow = {name for name, one in assumed.derived.items() if one.symbols.intersection(asked.values())}
        columns = assumed.combinations(follow & ranges.keys() | set(asked.values()), ranges)
        held = decision.condition.hold({symbol: columns[name] for symbol, name in asked.items()})
        for row in np.flatnonzero(held != decision.held)[:_CALLS]:
            named = {name: int(column[row]) for name, column in columns.items()}
            sized = {symbol: named.get(size.name, usual[symbol]) for symbol, size in sizes.items()}
            key = tuple(sized.values())
            if key not in agree:
                agree[key] = agrees(program, module, example, sized)
            if agree[key] or (agree[key] is None and not decision.own):
                continue
            if not agrees(program, module, example, usual):
                return None  # a module of chance, say, of which such a comparison says nothing
            return Deviation({name: named[name] for name in asked.values()}, decision.place)
    return None


def agrees(
    program: torch.export.ExportedProgram, module: torch.nn.Module, example: Any, values: Mapping[str, int]
) -> bool | None:
    """Whether the module, called with sizes, returns what its program does; None where the module fails, or inputs
    would be too large."""
    leaves, nesting = pytree.tree_flatten((tuple(example[0]), dict(example[1])))
    shapes = [
        sizes_of(node.meta["val"].shape, values) if isinstance(leaf, torch.Tensor) else None
        for leaf, (node, _) in zip(leaves, _inputs(program, InputKind.USER_INPUT), strict=True)
    ]
    if sum(math.prod(shape) for shape in shapes if shape is not None) > _MOST_NUMBERS:
        return None
    inputs = [leaf if shape is None else _resized(leaf, shape) for leaf, shape in zip(leaves, shapes, strict=True)]
    args, kwargs = pytree.tree_unflatten(_copied(inputs), nesting)
    with as_it_was(module), _buffers_as_they_were(module), torch.random.fork_rng(devices=()):
        torch.manual_seed(0)
        try:
            with contextlib.redirect_stderr(io.StringIO()):  # where graphs of Dynamo's write what fails
                expected = pytree.tree_leaves(module(*args, **kwargs))
        except Exception:
            return None
        torch.manual_seed(0)
        try:
            got = _run(program, _copied(inputs))
            return len(got) == len(expected) and all(map(_near, got, expected))
        except Exception:
            return False


def _copied(inputs: Sequence[Any]) -> list[Any]:
    """Inputs that may be written into."""
    return [
        value.detach().clone().requires_grad_(value.requires_grad) if isinstance(value, torch.Tensor) else value
        for value in inputs
    ]


def _inputs(program: torch.export.ExportedProgram, *kinds: InputKind) -> list[tuple[fx.Node, InputSpec]]:
    nodes = program.graph.find_nodes(op="placeholder")
    pairs = zip(nodes, program.graph_signature.input_specs, strict=True)
    return [(node, spec) for node, spec in pairs if not kinds or spec.kind in kinds]


def _run(program: torch.export.ExportedProgram, inputs: Sequence[Any]) -> list[Any]:
    """The outputs of a program, of any sizes, bounds or not."""
    given = iter(inputs)
    state = {**program.state_dict, **program.constants}
    values = []
    for _, spec in _inputs(program):
        value = next(given) if spec.kind is InputKind.USER_INPUT else state[spec.target]
        values.append(value.clone() if spec.kind is InputKind.BUFFER else value)
    outputs = fx.Interpreter(program.graph_module).run(*values, enable_io_processing=False)
    specs = program.graph_signature.output_specs
    return [value for value, spec in zip(outputs, specs, strict=True) if spec.kind is OutputKind.USER_OUTPUT]


def _resized(value: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
    """The values of an example, again where there are more; no two of them equal, which might hide what is computed."""
    if not value.numel():
        return value.new_zeros(shape)
    for axis, size in enumerate(shape):
        if size != value.shape[axis]:
            value = value.index_select(axis, torch.arange(size, device=value.device) % value.shape[axis])
    if not value.is_floating_point():
        return value
    numbers = torch.rand(value.shape, generator=torch.Generator().manual_seed(0)).to(value.device)
    return value + (0.1 * numbers).to(value.dtype)


def _near(got: Any, expected: Any) -> bool:
    if not isinstance(got, torch.Tensor) or not isinstance(expected, torch.Tensor):
        return True
    if got.shape != expected.shape or got.dtype != expected.dtype:
        return False
    return torch.allclose(got.double(), expected.double(), rtol=1e-2, atol=1e-3, equal_nan=True)


@contextlib.contextmanager
def _buffers_as_they_were(module: torch.nn.Module) -> Iterator[None]:
    """What a call changes of the module's buffers is undone; others are not written, which would count as a change."""
    before = [(buffer, buffer.clone(), _version(buffer)) for buffer in module.buffers()]
    try:
        yield
    finally:
        for buffer, value, version in before:
            if version is None or _version(buffer) != version:
                buffer.copy_(value)


def _version(tensor: torch.Tensor) -> int | None:
    return None if tensor.is_inference() else tensor._version
