"""A module as torch exports it, and what the names and bounds of its sizes are."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch
from torch.utils import _pytree as pytree

from autocast.errors import ImportModelError
from autocast.frontend.checks import is_result
from autocast.frontend.decisions import Decision, Size
from autocast.frontend.dynamic import DynamicAxis, Leaf


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
        specs = [spec for spec in self.program.graph_signature.input_specs if spec.kind.name == "USER_INPUT"]
        nodes = {node.name: node for node in self.program.graph.nodes if node.op == "placeholder"}
        names: dict[str, str] = {}
        for axis in self.axes:
            size = nodes[specs[axis.leaf].arg.name].meta["val"].shape[axis.axis]
            if isinstance(size, int):
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

    def allow_one(self, dropped: Collection[str], negative: Collection[str]) -> None:
        """Lower the least size, where torch infers it, from 2 to the 1 that a `Dim` with its own bounds has; not that
        of symbols of `negative`, by which other sizes are computed.

        Raises
        ------
        ImportModelError
            The module drops an axis where a symbol of `dropped` is 1, which the bounds of its `Dim` allow.
        """
        names = {name for symbol, name in self.symbols.items() if symbol in dropped}
        larger = {name for symbol, name in self.symbols.items() if symbol in negative}
        bounded = {axis.name: getattr(axis.dim, "min", 2) for axis in self.axes if hasattr(axis.dim, "__name__")}
        if wrong := [name for name in sorted(names) if bounded.get(name, 2) < 2]:
            raise ImportModelError(
                f"from_torch: the module drops an axis (squeeze) where {' or '.join(wrong)} is 1, and its tensors have "
                "another rank then. Expected a least size of 2, or squeeze of axes that are always 1: x.squeeze(-1)"
            )
        inferred = {axis.name for axis in self.axes} - bounded.keys() - names - larger
        for symbol, name in self.symbols.items():
            for known, values in self.program.range_constraints.items():
                if str(known) == symbol and name in inferred and values.lower == 2:
                    self.program.range_constraints[known] = type(values)(1, values.upper)

    @property
    def sizes(self) -> dict[str, Size]:
        """What is known of the size of each symbol."""
        examples = {axis.name: self.leaves[axis.leaf].value.shape[axis.axis] for axis in self.axes}
        known = {str(symbol): values for symbol, values in self.program.range_constraints.items()}
        return {
            symbol: Size(
                name, examples[name], int(bounds.lower), int(bounds.upper) if bounds.upper.is_Integer else None
            )
            for symbol, name in self.symbols.items()
            if (bounds := known.get(symbol))
        }

    def require(self, name: str, least: int) -> bool:
        """Raise the least size of a dimension whose bounds torch infers; False where the user bounds it."""
        if any(axis.name == name and hasattr(axis.dim, "__name__") for axis in self.axes):
            return False
        for known, values in self.program.range_constraints.items():
            if self.symbols.get(str(known)) == name:
                self.program.range_constraints[known] = type(values)(least, values.upper)
        return True

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
            paths = [path for path, _ in pytree.tree_flatten_with_path(tree)[0]]
        names = [".".join(str(getattr(k, "key", getattr(k, "idx", k))) for k in path) for path in paths]
        return tuple(name for name, arg in zip(names, outputs, strict=True) if is_result(arg))
