"""A module as torch exports it, and what the names and bounds of its sizes are."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree

from autocast.errors import ImportModelError
from autocast.frontend.exporting.checks import is_result
from autocast.frontend.exporting.conditions import bounds_of
from autocast.frontend.exporting.containers import named_containers
from autocast.frontend.exporting.decisions import Decision, Size
from autocast.frontend.exporting.dynamic import DynamicAxis, Leaf
from autocast.frontend.exporting.small_sizes import other_program


@dataclass(frozen=True)
class Exported:
    """A module as torch exports it.

    Attributes
    ----------
    program : torch.export.ExportedProgram
        Decomposed as far as the importer needs it.
    leaves : sequence of Leaf
        Its inputs.
    axes : sequence of DynamicAxis
        Which of their axes vary.
    derivatives : tuple of str
        The functions of torch with which it differentiates while it runs; where gradients stop is not known then.
    decisions : sequence of Decision
        What the module decided by sizes.
    """

    program: torch.export.ExportedProgram
    leaves: Sequence[Leaf]
    axes: Sequence[DynamicAxis]
    derivatives: tuple[str, ...] = ()
    decisions: Sequence[Decision] = ()

    @property
    def symbols(self) -> dict[str, str]:
        """torch's symbols (`s72`) -> the names that the user gave the dimensions."""
        names: dict[str, str] = {}
        for axis, size in zip(self.axes, self._traced_sizes, strict=True):
            if _is_one_number(size):
                if axis.dim is torch.export.Dim.AUTO:
                    continue
                raise ImportModelError(
                    f"from_torch: the model works for size {size} of {self.leaves[axis.leaf].name!r}, axis {axis.axis} "
                    f"only, so it cannot be the dynamic dimension {axis.name!r}."
                )
            if not size.node.expr.is_symbol:
                continue
            other = names.setdefault(str(size.node.expr), axis.name)
            if other != axis.name and axis.dim is not torch.export.Dim.AUTO:
                raise ImportModelError(
                    f"from_torch: {other} and {axis.name} are the same size wherever the model works, so they cannot "
                    f"be two dynamic dimensions; expected one name for both: dynamic={{{other!r}: [...]}}."
                )
        return names

    @property
    def is_fixed(self) -> bool:
        """Whether a size that was to vary if it can (`Dim.AUTO`) is the example's alone."""
        return any(map(_is_one_number, self._traced_sizes))

    @property
    def _traced_sizes(self) -> list[Any]:
        """The size along each of the axes, as torch knows it in the end."""
        specs = [spec for spec in self.program.graph_signature.input_specs if spec.kind.name == "USER_INPUT"]
        nodes = {node.name: node for node in self.program.graph.nodes if node.op == "placeholder"}
        return [nodes[specs[axis.leaf].arg.name].meta["val"].shape[axis.axis] for axis in self.axes]

    def least_asked(self, name: str) -> int | None:
        """The least size that the user wants along a dimension; None where torch infers it."""
        least = [getattr(axis.dim, "min", None) for axis in self.axes if axis.name == name]
        return next((size for size in least if size is not None), None)

    def allow_one(self, program: torch.export.ExportedProgram) -> None:
        """Lower the least size, where torch infers it, from 2 to the 1 that a `Dim` with its own bounds has.

        Raises
        ------
        ImportModelError
            The module, whose `program` is as it was before it was decomposed, is another where a size is 1 or 0, and
            the user's bounds allow that.
        """
        sizes = self.sizes
        examples = {symbol: size.example for symbol, size in sizes.items()}
        for symbol, size in sizes.items():
            asked = self.least_asked(size.name)
            least = 1 if asked is None else asked
            fewer = [{**examples, symbol: few} for few in range(least, 2) if size.least <= 2]
            others = (other_program(program, given, symbol) for given in fewer)
            other = next(filter(None, others), "")
            if other and asked is not None:
                raise ImportModelError(
                    f"from_torch: the module is another where {size.name} is less than 2: {other}. Expected a least "
                    "size of 2, or a module that is the same for 1 (x.squeeze(-1) for axes that are always 1, say)"
                )
            if least < 2 and not other:
                self.bound(symbol, 1, only=2)

    @property
    def sizes(self) -> dict[str, Size]:
        """What is known of the size of each symbol."""
        examples = {axis.name: self.leaves[axis.leaf].value.shape[axis.axis] for axis in self.axes}
        known = bounds_of(self.program)
        return {
            symbol: Size(name, examples[name], *known[symbol])
            for symbol, name in self.symbols.items()
            if symbol in known
        }

    def require(self, name: str, least: int) -> bool:
        """Raise the least size of a dimension whose bounds torch infers; False where the user bounds it."""
        if self.least_asked(name) is not None:
            return False
        for symbol, known in self.symbols.items():
            if known == name:
                self.bound(symbol, least)
        return True

    def bound(self, symbol: str, least: int, only: int | None = None) -> None:
        """Have another least size; where one is given, if it is that now."""
        for known, values in self.program.range_constraints.items():
            if str(known) == symbol and only in (None, values.lower):
                self.program.range_constraints[known] = type(values)(least, values.upper)

    @property
    def output_names(self) -> tuple[str, ...]:
        """The paths of the outputs in what the module returns (`logits`, `0`), those left out that are no numbers."""
        spec = self.program.module_call_graph[0].signature.out_spec
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", category=FutureWarning)
            outputs = [s.arg for s in self.program.graph_signature.output_specs if s.kind.name == "USER_OUTPUT"]
            if spec.is_leaf() or len(outputs) != spec.num_leaves:
                return ()
            tree = pytree.tree_unflatten(list(range(len(outputs))), spec)
            with named_containers():
                paths = [path for path, _ in pytree.tree_flatten_with_path(tree)[0]]
        names = [".".join(str(getattr(k, "key", getattr(k, "idx", k))) for k in path) for path in paths]
        return tuple(name for name, arg in zip(names, outputs, strict=True) if is_result(arg))


def _is_one_number(size: Any) -> bool:
    return isinstance(size, int) or size.node.expr.is_number  # which torch may have found later
