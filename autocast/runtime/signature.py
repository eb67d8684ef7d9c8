"""What a compiled function takes: checks inputs and converts them, and its outputs back, without copying."""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from autocast.errors import InputError
from autocast.runtime.results import Outputs
from autocast.runtime.rows import Rows
from autocast.runtime.sizes import Size, evaluate, text_of
from autocast.runtime.tensors import dtype_name, is_array, is_torch, kind_of_layout

#: The inputs of a call, in their order or by their names.
Inputs = Sequence[Any] | Mapping[str, Any]


def described(value: Any) -> tuple[Any, ...]:
    """All that `Signature.bind` asks of an argument: it need not be asked again of one that is described alike.

    Nested tensors of torch raise when they are asked for their shape: `bind` is to refuse them.
    """
    shape = None if getattr(value, "is_nested", False) else getattr(value, "shape", None)
    return type(value), shape, getattr(value, "dtype", None), getattr(value, "layout", None)


@dataclass(frozen=True)
class Input:
    """One input of `main`: its name, dtype and shape (numbers, or sizes that a call says)."""

    name: str
    dtype: str
    shape: tuple[Size, ...]

    def takes(self, arg: Any) -> bool:
        """Whether `arg` fits for certain, without a look at symbolic dimensions: most arguments do."""
        return is_array(arg) and tuple(arg.shape) == self.shape and dtype_name(arg) == self.dtype

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join(map(text_of, self.shape))}]"


@dataclass(frozen=True)
class Signature:
    """The inputs of `main` (parameters excluded) and the bounds of its symbolic dimensions, by name.

    `chosen_from` names those of which an operator takes the largest, smallest or middle element, and the operator;
    `fitted` has the shapes that `main` asserts of inputs, in terms of their dimensions. `is_imported` says whether
    examples and `dynamic=` made the shapes what they are; otherwise somebody wrote them in main's types. `written` are
    the positions of the inputs that a call writes into, in the order of main's last results, which are written.
    `outputs` are all that is returned, those among it. `rows` are positions of inputs that number rows of tables.
    """

    inputs: tuple[Input, ...]
    upper_bounds: dict[str, int]
    lower_bounds: dict[str, int]
    chosen_from: dict[str, str]
    fitted: dict[str, tuple[Size, ...]]
    is_imported: bool
    written: tuple[int, ...] = ()
    outputs: Outputs = None
    rows: tuple[tuple[int, Rows], ...] = ()

    def bind(self, args: Sequence[Any]) -> dict[str, int]:
        """Check `args` against the inputs; the values of the symbolic dimensions.

        Raises
        ------
        InputError
            Wrong number of inputs, or an input of the wrong dtype, rank or size, or beyond its dimension's bounds.
        """
        if len(args) != len(self.inputs):
            names = ", ".join(f"{spec.name}: {spec}" for spec in self.inputs)
            others = "; other values were fixed when the model was imported" if self.is_imported else ""
            raise InputError(
                f"main: got {len(args)} inputs, expected {len(self.inputs)} ({names}). "
                f"Pass these alone, in this order{others}"
            )
        sizes: dict[str, int] = {}
        later = []
        for spec, arg in zip(self.inputs, args, strict=True):
            if spec.takes(arg):
                continue
            shape, dtype = _shape_of(spec, arg), dtype_name(arg)
            if dtype != spec.dtype or len(shape) != len(spec.shape):
                raise self._mismatch(spec, arg)
            for axis, (expected, got) in enumerate(zip(spec.shape, shape, strict=True)):
                if isinstance(expected, str) and expected not in sizes:
                    sizes[expected] = got
                    self._check_bounds(spec, axis, expected, got)
                elif not isinstance(expected, int) or expected != got:
                    later.append((spec, arg, expected, got))
        for spec, arg, expected, got in later:
            if evaluate(expected, sizes) != got:
                raise self._mismatch(spec, arg, sizes)
        for spec, arg in zip(self.inputs, args, strict=True) if self.fitted else ():
            fitted = self.fitted.get(spec.name, ())
            if any(evaluate(size, sizes) not in (None, got) for size, got in zip(fitted, arg.shape, strict=False)):
                raise self._mismatch(replace(spec, shape=fitted), arg, sizes)
        return sizes

    def check_rows(self, args: Sequence[Any], sizes: Mapping[str, int]) -> None:
        """Check that the rows exist which inputs number, InputError if not; `args` and `sizes` are those of `bind`."""
        for position, rows in self.rows:
            rows.check(self.inputs[position].name, args[position], sizes)

    def in_order(self, args: Inputs) -> Sequence[Any]:
        """Inputs as `bind` takes them: a mapping by the names of the inputs becomes a list.

        Raises
        ------
        InputError
            They are neither a sequence nor a mapping; or a mapping lacks an input, or has a name that none has.
        """
        if hasattr(args, "shape") or not isinstance(args, Collection):
            what = "one tensor" if hasattr(args, "shape") else f"a {type(args).__name__}"
            raise InputError(f"main: got {what} for the inputs, expected a sequence of tensors; try [tensor]")
        if not isinstance(args, Mapping):
            return args
        names = [spec.name for spec in self.inputs]
        if args.keys() != set(names):
            wrong = [f"{name} is missing" for name in names if name not in args]
            wrong += [f"{name} is none of them" for name in args if name not in names]
            raise InputError(
                f"main: got inputs by the names {list(args)}, expected {names}: {'; '.join(wrong)}. Pass each of the "
                "inputs once, by its name, or all of them in this order"
            )
        return [args[name] for name in names]

    def in_places(self, inputs: Sequence[Any], named: Mapping[str, Any]) -> tuple[Any, ...]:
        """Inputs as `bind` takes them, of the first ones and the others by their names; InputError as `in_order`."""
        names = [spec.name for spec in self.inputs]
        if twice := named.keys() & set(names[: len(inputs)]):
            raise InputError(f"main: got {min(twice)} by its place and by its name, expected it once")
        return (*inputs, *replace(self, inputs=self.inputs[len(inputs) :]).in_order(named))

    def _check_bounds(self, spec: Input, axis: int, name: str, got: int) -> None:
        if got == 0 and name in self.chosen_from:
            raise InputError(
                f"main: input {spec.name} has size 0 along axis {axis}, expected {name} of 1 at least: "
                f"{self.chosen_from[name]} over it has nothing to choose from. Leave it out where there are none"
            )
        upper = self.upper_bounds.get(name, sys.maxsize)
        lower = self.lower_bounds.get(name, 0)
        if not lower <= got <= upper:
            bounds = f"of {lower} or more" if upper == sys.maxsize else f"in {lower} to {upper}"
            wider = f"{min(got, lower)}" if upper == sys.maxsize else f"{min(got, lower)}, {max(got, upper)}"
            bound = "upper" if got > upper else "lower"
            raise InputError(
                f"main: input {spec.name} has size {got} along axis {axis}, expected {name} {bounds}. "
                + (
                    f'Import the model with wider bounds: dynamic={{"{name}": ("{spec.name}", {axis}, {wider})}}'
                    if self.is_imported
                    else f"Change the bound that main has in its attribute tir_var_{bound}_bound"
                )
            )

    def _mismatch(self, spec: Input, arg: Any, sizes: dict[str, int] | None = None) -> InputError:
        known = ", ".join(f"{name} = {size}" for name, size in (sizes or {}).items())
        got = f"{dtype_name(arg)}[{', '.join(str(size) for size in arg.shape)}]"
        expected = f"{spec} with {known}" if known else f"{spec}"
        return InputError(f"main: input {spec.name} is {got}, expected {expected}. {self._remedy(spec, arg)}")

    def _remedy(self, spec: Input, arg: Any) -> str:
        """What to do about an input of another dtype or shape."""
        if dtype_name(arg) != spec.dtype:
            conversion = f"to(torch.{spec.dtype})" if is_torch(arg) else f"astype({spec.dtype!r})"
            return f"Convert it: {spec.name}.{conversion}"
        if len(arg.shape) != len(spec.shape):
            other = "import the model with examples like this" if self.is_imported else "change its type in main"
            return f"Give it {len(spec.shape)} axes, or {other}"
        pairs = enumerate(zip(spec.shape, arg.shape, strict=True))
        axis = next((axis for axis, (expected, got) in pairs if isinstance(expected, int) and expected != got), None)
        if axis is None:
            return "Inputs that share a dimension must have the same size along it, and what is a multiple must be one"
        where = f"Where sizes vary along axis {axis}"
        if self.is_imported:
            return f'{where}, import the model with it: dynamic={{"n": ("{spec.name}", {axis})}}'
        shape = (f"{spec.name}_{axis}" if at == axis else size for at, size in enumerate(spec.shape))
        sizes = ", ".join(str(size) if isinstance(size, int) else f'"{text_of(size)}"' for size in shape)
        type = f'{spec.name}: R.Tensor(({sizes}{"," * (len(spec.shape) == 1)}), "{spec.dtype}")'
        return f"{where}, give that size a name in main's signature: {type}"


def _shape_of(spec: Input, arg: Any) -> tuple[int, ...]:
    if not is_array(arg):
        kind = kind_of_layout(arg)
        got = f"a {kind} {'torch tensor' if is_torch(arg) else 'array'}" if kind else f"a {type(arg).__name__}"
        remedies = {
            "sparse": f"{spec.name}.to_dense()",
            "quantized": f"{spec.name}.dequantize()",
            "nested": "padding it",
            "masked": f"{spec.name}.filled(0)",
        }
        raise InputError(
            f"main: input {spec.name} is {got}, expected a torch tensor, numpy array or TVM tensor of {spec}. Try "
            + remedies.get(kind, f"torch.as_tensor({spec.name}, dtype=torch.{spec.dtype})")
        )
    return tuple(int(size) for size in arg.shape)
