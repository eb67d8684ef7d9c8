"""What a compiled function takes: checks inputs and converts them, and its outputs back, without copying."""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import tvm
from tvm import relax, tirx

from autocast import ir
from autocast.errors import InputError, UnsupportedError
from autocast.model.value import IMPORTED_FROM
from autocast.vm.foreign_tensors import dtype_name, is_torch
from autocast.vm.sizes import evaluate

#: The inputs of a call, in their order or by their names.
Inputs = Sequence[Any] | Mapping[str, Any]


@dataclass(frozen=True)
class Input:
    """One input of `main`: its name, dtype and shape (numbers, or expressions of symbolic dimensions)."""

    name: str
    dtype: str
    shape: tuple[Any, ...]

    def takes(self, arg: Any) -> bool:
        """Whether `arg` fits for certain, without a look at symbolic dimensions: most arguments do."""
        return (
            (is_torch(arg) or isinstance(arg, np.ndarray | tvm.runtime.Tensor))
            and tuple(arg.shape) == self.shape
            and dtype_name(arg) == self.dtype
        )

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join(str(dimension) for dimension in self.shape)}]"


@dataclass(frozen=True)
class Signature:
    """The inputs of `main` (parameters excluded) and the bounds of its symbolic dimensions, by name.

    `chosen_from` names those of which an operator takes the largest, smallest or middle element, and the operator;
    `fitted` has the shapes that `main` asserts of inputs, in terms of their dimensions. `from_torch` says whether
    examples and `dynamic=` made the shapes what they are; otherwise somebody wrote them in main's types.
    """

    inputs: tuple[Input, ...]
    upper_bounds: dict[str, int]
    lower_bounds: dict[str, int]
    chosen_from: dict[str, str]
    fitted: dict[str, tuple[Any, ...]]
    from_torch: bool

    @classmethod
    def of(cls, main: relax.Function, count: int) -> Signature:
        """The signature of `main`, whose first `count` parameters are the inputs."""
        inputs = []
        for var in main.params[:count]:
            shape, dtype = ir.shape_of(var), var.ty.dtype if ir.is_tensor(var) else None
            if shape is None or dtype is None:
                raise UnsupportedError(
                    f"compile: input {var.name} of main has type {var.ty}, expected a tensor of known rank and dtype. "
                    f"{_instead_of(var.ty)}"
                )
            inputs.append(Input(var.name, str(dtype), shape))
        return cls(
            tuple(inputs),
            _bounds(main, "tir_var_upper_bound"),
            _bounds(main, "tir_var_lower_bound"),
            _chosen_from(main),
            _fitted(main),
            (main.attrs or {}).get(IMPORTED_FROM) == "torch",
        )

    def bind(self, args: Sequence[Any]) -> dict[tirx.Var, int]:
        """Check `args` against the inputs; the values of the symbolic dimensions.

        Raises
        ------
        InputError
            Wrong number of inputs, or an input of the wrong dtype, rank or size, or beyond its dimension's bounds.
        """
        if hasattr(args, "shape") or not isinstance(args, Collection):
            what = "one tensor" if hasattr(args, "shape") else f"a {type(args).__name__}"
            raise InputError(f"main: got {what} for the inputs, expected a sequence of tensors; try [tensor]")
        if len(args) != len(self.inputs):
            names = ", ".join(f"{spec.name}: {spec}" for spec in self.inputs)
            others = "; other values were fixed when the model was imported" if self.from_torch else ""
            raise InputError(
                f"main: got {len(args)} inputs, expected {len(self.inputs)} ({names}). "
                f"Pass these alone, in this order{others}"
            )
        sizes: dict[tirx.Var, int] = {}
        later = []
        for spec, arg in zip(self.inputs, args, strict=True):
            if spec.takes(arg):
                continue
            shape, dtype = _shape_of(spec, arg), dtype_name(arg)
            if dtype != spec.dtype or len(shape) != len(spec.shape):
                raise self._mismatch(spec, arg)
            for axis, (expected, got) in enumerate(zip(spec.shape, shape, strict=True)):
                if isinstance(expected, tirx.Var) and expected not in sizes:
                    sizes[expected] = got
                    self._check_bounds(spec, axis, expected, got)
                elif not isinstance(expected, int) or expected != got:
                    later.append((spec, arg, expected, got))
        for spec, arg, expected, got in later:
            if evaluate(expected, sizes) != got:
                raise self._mismatch(spec, arg, sizes)
        for spec, arg in zip(self.inputs, args, strict=True) if self.fitted else ():
            shape = self.fitted.get(spec.name, ())
            if any(evaluate(size, sizes) not in (None, got) for size, got in zip(shape, arg.shape, strict=False)):
                raise self._mismatch(replace(spec, shape=shape), arg, sizes)
        return sizes

    def in_order(self, args: Inputs) -> Sequence[Any]:
        """Inputs as `bind` takes them: a mapping by the names of the inputs becomes a list.

        Raises
        ------
        InputError
            A mapping lacks an input, or has a name that none has.
        """
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

    def _check_bounds(self, spec: Input, axis: int, var: tirx.Var, got: int) -> None:
        if got == 0 and var.name in self.chosen_from:
            raise InputError(
                f"main: input {spec.name} has size 0 along axis {axis}, expected {var.name} of 1 at least: "
                f"{self.chosen_from[var.name]} over it has nothing to choose from. Leave it out where there are none"
            )
        upper = self.upper_bounds.get(var.name, sys.maxsize)
        lower = self.lower_bounds.get(var.name, 0)
        if not lower <= got <= upper:
            bounds = f"{lower}" if upper == sys.maxsize else f"{lower} to {upper}"
            wider = f"{min(got, lower)}" if upper == sys.maxsize else f"{min(got, lower)}, {max(got, upper)}"
            bound = "upper" if got > upper else "lower"
            raise InputError(
                f"main: input {spec.name} has size {got} along axis {axis}, expected {var.name} in {bounds}. "
                + (
                    f'Import the model with wider bounds: dynamic={{"{var.name}": ("{spec.name}", {axis}, {wider})}}'
                    if self.from_torch
                    else f"Change the bound that main has in its attribute tir_var_{bound}_bound"
                )
            )

    def _mismatch(self, spec: Input, arg: Any, sizes: dict[tirx.Var, int] | None = None) -> InputError:
        known = ", ".join(f"{var.name} = {size}" for var, size in (sizes or {}).items())
        got = f"{dtype_name(arg)}[{', '.join(str(size) for size in arg.shape)}]"
        expected = f"{spec} with {known}" if known else f"{spec}"
        return InputError(f"main: input {spec.name} is {got}, expected {expected}. {self._remedy(spec, arg)}")

    def _remedy(self, spec: Input, arg: Any) -> str:
        """What to do about an input of another dtype or shape."""
        if dtype_name(arg) != spec.dtype:
            conversion = f"to(torch.{spec.dtype})" if is_torch(arg) else f"astype({spec.dtype!r})"
            return f"Convert it: {spec.name}.{conversion}"
        if len(arg.shape) != len(spec.shape):
            other = "import the model with examples like this" if self.from_torch else "change its type in main"
            return f"Give it {len(spec.shape)} axes, or {other}"
        pairs = enumerate(zip(spec.shape, arg.shape, strict=True))
        axis = next((axis for axis, (expected, got) in pairs if isinstance(expected, int) and expected != got), None)
        if axis is None:
            return "Inputs that share a dimension must have the same size along it, and what is a multiple must be one"
        where = f"Where sizes vary along axis {axis}"
        if self.from_torch:
            return f'{where}, import the model with it: dynamic={{"n": ("{spec.name}", {axis})}}'
        shape = (f"{spec.name}_{axis}" if at == axis else size for at, size in enumerate(spec.shape))
        sizes = ", ".join(str(size) if isinstance(size, int) else f'"{size}"' for size in shape)
        type = f'{spec.name}: R.Tensor(({sizes}{"," * (len(spec.shape) == 1)}), "{spec.dtype}")'
        return f"{where}, give that size a name in main's signature: {type}"


def _instead_of(type: tvm.ir.Type) -> str:
    """What to declare in place of an input of `type`."""
    if isinstance(type, tvm.ir.TupleType):
        return "autocast.from_relax(mod) passes the fields of a tuple as inputs of their own"
    if isinstance(type, relax.ShapeType):
        return "autocast.from_relax(mod) passes its sizes as a tensor; symbolic dimensions of another may say them, too"
    if isinstance(type, tvm.ir.PrimType):
        if "float" in str(type):
            return f"Take a tensor without dimensions, or bind it: main.bind_params({{var: tirx.const(0.5, '{type}')}})"
        return "autocast.from_relax(mod) passes a whole number as a tensor; or bind it: function.bind_params"
    if isinstance(type, relax.TensorType):
        return "Declare its dtype and dimensions, symbolic ones where sizes vary: R.Tensor((n, 8), 'float32')"
    return "Compute it in main"


def _bounds(main: relax.Function, attribute: str) -> dict[str, int]:
    bounds = main.attrs.get(attribute, {}) if main.attrs else {}
    return {str(name): int(bound) for name, bound in (bounds or {}).items()}


#: Operators that are not defined on no elements.
_CHOICES = ("relax.argmax", "relax.argmin", "relax.max", "relax.median", "relax.min")


def _chosen_from(main: relax.Function) -> dict[str, str]:
    """The symbolic dimensions that one of `_CHOICES` reduces, each with the operator."""
    found: dict[str, str] = {}

    for call in ir.parts_of(main, relax.Call):
        shape = ir.shape_of(call.args[0]) if ir.is_op(call, *_CHOICES) else None
        if shape:
            axes = range(len(shape)) if call.attrs.axis is None else call.attrs.axis
            for axis in [axes] if isinstance(axes, int) else axes:
                if isinstance(shape[axis], tirx.Var):
                    found[shape[axis].name] = str(ir.op_name(call))
    return found


def _fitted(main: relax.Function) -> dict[str, tuple[Any, ...]]:
    """The shapes that `main` casts its arguments to: a multiple of 2, say, of a dimension that it halves."""
    casts = [b for block in main.body.blocks for b in block.bindings if isinstance(b, relax.MatchCast)]
    shapes = {cast.value.name: ir.shape_of(cast.var) for cast in casts if isinstance(cast.value, relax.Var)}
    return {name: shape for name, shape in shapes.items() if shape is not None}


def _shape_of(spec: Input, arg: Any) -> tuple[int, ...]:
    if not (is_torch(arg) or isinstance(arg, np.ndarray | tvm.runtime.Tensor)):
        raise InputError(
            f"main: input {spec.name} is a {type(arg).__name__}, expected a torch tensor, numpy array or TVM tensor "
            f"of {spec}. Try torch.as_tensor({spec.name}, dtype=torch.{spec.dtype})"
        )
    return tuple(int(size) for size in arg.shape)
