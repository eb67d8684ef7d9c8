"""`dynamic="auto"`: a model is imported again when it meets sizes that it was not imported for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree
from tvm import tirx

from autocast.errors import ImportModelError
from autocast.frontend.exporting.dynamic import DynamicAxis
from autocast.model.value import Model

#: The least size that is no constant to torch.export.
_VARIES = 2


class Reimport:
    """Imports a torch module for other sizes than those of its examples.

    An axis along which two sizes were met is dynamic from then on. Axes of different inputs are taken for one dimension
    as long as they are at the same place and had the same size in each call; torch finds others, and the bounds.

    Parameters
    ----------
    import_ : callable
        Makes a model of example inputs by their places, those by names, and the axes that are dynamic.
    args, kwargs
        The first examples. Of their tensors only types are kept.
    """

    def __init__(
        self,
        import_: Callable[[tuple[Any, ...], dict[str, Any], tuple[DynamicAxis, ...]], Model],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
    ) -> None:
        self._import = import_
        flat, self._tree = pytree.tree_flatten((tuple(args), dict(kwargs)))
        self._flat = [v.new_empty(()).expand(v.shape) if isinstance(v, torch.Tensor) else v for v in flat]
        self._tensors = [i for i, value in enumerate(flat) if isinstance(value, torch.Tensor)]
        self._met: list[Sequence[Sequence[int]]] = [[tuple(flat[i].shape) for i in self._tensors]]
        self._made: Model | None = None

    def __call__(self, shapes: Sequence[Sequence[int]]) -> Model:
        """The model for inputs of these shapes, and of all that were met before.

        Raises
        ------
        ImportModelError
            torch cannot export the module so, or not with these sizes.
        """
        if self._made is None or not _takes(self._made, shapes):
            met = [*self._met, [tuple(shape) for shape in shapes]]
            axes = self._axes(met)
            args, kwargs = self._examples(axes, met)
            made = self._import(args, kwargs, axes)
            if not _takes(made, shapes):
                types = ", ".join(f"{var.name}: {var.ty}" for var in made.main.params[: made.num_input])
                raise ImportModelError(f"torch exports it for {types}, which leaves no room for the shapes {met[-1]}")
            self._met, self._made = met, made
        return self._made

    def _axes(self, met: Sequence[Sequence[Sequence[int]]]) -> tuple[DynamicAxis, ...]:
        names: dict[tuple[int, ...], str] = {}
        axes = []
        for i, place in enumerate(self._tensors):
            for axis in range(self._flat[place].dim()):
                sizes = tuple(call[i][axis] for call in met)
                if len(set(sizes)) > 1:
                    like = sum(key[0] == axis for key in names)
                    name = names.setdefault((axis, *sizes), f"axis{axis}" + f"_{like}" * bool(like))
                    axes.append(DynamicAxis(place, axis, torch.export.Dim.AUTO, name))
        return tuple(axes)

    def _examples(self, axes: Sequence[DynamicAxis], met: Sequence[Sequence[Sequence[int]]]) -> Any:
        """Examples whose sizes along `axes` vary: those of the first call without 0 or 1 there, if there is one."""
        places = [(self._tensors.index(axis.leaf), axis.axis) for axis in axes]
        calls = sorted(met, key=lambda call: min(call[i][axis] for i, axis in places) < _VARIES)
        flat = list(self._flat)
        for i, place in enumerate(self._tensors):
            shape = list(flat[place].shape)
            for axis in (axis for owner, axis in places if owner == i):
                shape[axis] = next((call[i][axis] for call in calls if call[i][axis] >= _VARIES), _VARIES)
            flat[place] = flat[place].new_zeros(shape)
        return pytree.tree_unflatten(flat, self._tree)


def _takes(model: Model, shapes: Sequence[Sequence[int]]) -> bool:
    """Whether inputs of these shapes are of the model's types, bounds aside."""
    sizes: dict[tirx.Var, int] = {}
    for var, shape in zip(model.main.params, shapes, strict=False):
        for declared, size in zip(var.ty.shape.values, shape, strict=True):
            expected = sizes.setdefault(declared, size) if isinstance(declared, tirx.Var) else int(declared)
            if expected != size:
                return False
    return True
