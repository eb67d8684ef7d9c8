"""`Model`: an IRModule and its parameters, the value that every stage of the project takes and returns."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import Any

import tvm
import tvm_ffi
from tvm import relax

from autocast.container import Container, LayoutError, read, to_bytes, write
from autocast.errors import IllFormedModuleError, InputError
from autocast.ir.foreign import calls_of_torch
from autocast.ir.views import same_shape, shape_in
from autocast.messages import shown
from autocast.model import files, saving
from autocast.model.mode import training_mode

#: The attribute of `main` that says who imported it, "torch" or "onnx"; modules from elsewhere do not have it.
IMPORTED_FROM = "imported_from"

#: The attribute of `main` that has the names in the source's checkpoints that no parameter has: of each, the parameter
#: that it is another name of, or "" for what the model does not read.
OTHER_NAMES = "other_names"

#: The attribute of `main` that names the functions of the source that have a backward of their own, which nobody kept.
OWN_BACKWARD = "own_backward"

#: The attribute of `main` that names torch's operators of control flow in it. Of the functions that these call, torch
#: does not tell where gradients stop.
CONTROL_FLOW = "control_flow"

#: What compiles a model that is called, for this machine's CPU: it builds on models, which know nothing more of it.
_COMPILER = "autocast.vm"

#: What a file of parameters is marked with.
_PARAMETERS = files.Kind("autocast.parameters/1", "Model.save_params")


#: How the names are written that a Model has, for messages.
_NAMES = {"frozen": "frozenset({'0.running_mean'})", "output_names": "('logits',)"}


@dataclass(frozen=True, eq=False, repr=False)
class Model:
    """A Relax module together with the values of its parameters.

    Attributes
    ----------
    mod : tvm.IRModule
        `main` takes (inputs..., parameters...) in that order, and its attribute `num_input` is the number of inputs. It
        returns one tensor or a flat tuple of tensors. Where it has the attribute `updates`, an array of integers, each
        of its last results replaces the parameter at that position (0: the first after the inputs) for the next call.
        Where it has the attribute `written`, each of the results before those is written into the input at that
        position when a call ends.
    params : dict of str to tvm.runtime.Tensor
        In the order of main's trailing parameters, keyed by the names of the source framework
        (`bert.encoder.layer.0.output.dense.weight`). They share memory with the source's
        tensors where that is possible.
    report : object, optional
        What the last pass had to say (a CastReport after AutoCast).
    output_names : tuple of str
        One name for each output where the source names them (`logits`), else empty.
    frozen : frozenset of str
        Parameters that training leaves alone: torch's buffers, and what needs no gradient.
    reimport : callable, optional
        Makes this model for inputs of other shapes, which it is given in the order of the inputs: what `from_torch`
        with `dynamic="auto"` leaves here. A file has none, nor has what `replace` makes with another module or other
        parameters.

    writes : callable, optional
        How many times the torch tensors were written that `params` share memory with: grows with each.

    Two models are equal only if they are the same object, so a Model can key a cache.
    """

    mod: tvm.IRModule
    params: dict[str, tvm.runtime.Tensor] = field(default_factory=dict)
    report: Any = None
    output_names: tuple[str, ...] = ()
    frozen: frozenset[str] = frozenset()
    reimport: Callable[[Sequence[Sequence[int]]], Model] | None = None
    writes: Callable[[], int] | None = None

    @property
    def main(self) -> relax.Function:
        """The Relax function that a call runs."""
        return self.mod["main"]

    @property
    def num_input(self) -> int:
        """How many of main's parameters are inputs."""
        return int(self.main.attrs["num_input"])

    @property
    def input_names(self) -> tuple[str, ...]:
        """The names of the inputs, in the order in which a call takes them."""
        return tuple(var.name for var in self.main.params[: self.num_input])

    @property
    def updated(self) -> tuple[str, ...]:
        """The parameters that a call replaces, in the order of the results that replace them; empty: a pure model."""
        names = tuple(self.params)
        return tuple(names[position] for position in updates_of(self.main))

    @property
    def written(self) -> tuple[str, ...]:
        """The inputs that a call writes into, in the order of the results that are written."""
        return tuple(self.input_names[position] for position in written_of(self.main))

    @property
    def fallbacks(self) -> dict[str, int]:
        """The operators of torch that torch computes when the model runs, and how many calls of each there are."""
        return calls_of_torch(self.mod)

    @property
    def num_results(self) -> int:
        """How many of main's outputs are results: the others are written into inputs, or replace parameters."""
        return len(_outputs(self.main)) - len(written_of(self.main)) - len(updates_of(self.main))

    def __call__(self, *args: Any, device: str = "cpu", **kwargs: Any) -> Any:
        """Run the model once, from the parameters that it has.

        A model is a value, so a call leaves `params` as they are, and the next one starts from them again; to go on
        from what a call made of the parameters, call `autocast.vm.compile(model)`.

        Parameters
        ----------
        *args : torch.Tensor, numpy.ndarray or tvm.runtime.Tensor
            The first inputs, with the shapes and dtypes of main's parameters.
        device : str
            As `autocast.vm.compile` takes it: our kernels on this machine's CPU, or a device of torch's.
        **kwargs
            The remaining inputs, by name (`model(input_ids=..., attention_mask=...)`).

        Returns
        -------
        One tensor or a tuple of tensors, of the kind that was passed in.

        Raises
        ------
        InputError
            An input is missing, unknown, given twice, or of another shape or dtype.
        """
        compile = import_module(_COMPILER).compile
        return compile(self, device)(*self.bind_inputs(*args, **kwargs))

    def bind_inputs(self, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """The inputs in the order of `input_names`; InputError where one is missing, unknown or given twice."""
        names = self.input_names
        bound = dict(zip(names, args, strict=False))
        twice = sorted(bound.keys() & kwargs.keys())
        bound.update(kwargs)
        if len(args) > len(names) or twice or bound.keys() != set(names):
            missing = [name for name in names if name not in bound]
            lacking = f" {', '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing." if missing else ""
            binding = " autocast.from_relax(mod, params) binds those that never change." * (not self.params)
            raise InputError(
                f"Model: got {len(args)} inputs by their places and {sorted(kwargs)} by name, expected each of the "
                f"{len(names)} inputs {list(names)} once.{lacking} Pass them in this order, or by name.{binding}"
            )
        return tuple(bound[name] for name in names)

    def __repr__(self) -> str:
        inputs = ", ".join(f"{var.name}: {var.ty}" for var in self.main.params[: self.num_input])
        cast = f"; {self.report.summary()}" if hasattr(self.report, "summary") else ""
        training = training_mode(self.mod)
        mode = f"; in training mode: {training}" if training else ""
        return f"Model({inputs}; {len(self.params)} parameters{mode}{cast})"

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Pickled and copied deeply as the file that `save` writes, with parameters of its own."""
        return _from_bytes, (to_bytes(saving.FORMAT, *saving.parts_of(self)),)

    def __copy__(self) -> Model:
        return self.replace()

    def script(self) -> str:
        """The module as TVMScript, to read: TVM's parser does not take it back where it has constants; see `save`."""
        return str(self.mod.script())

    def replace(self, *, mod: tvm.IRModule | None = None, **changes: Any) -> Model:
        """A new Model with some fields changed; the parameters are shared, never copied."""
        if mod is not None or "params" in changes:
            changes.setdefault("reimport", None)
        return replace(self, mod=self.mod if mod is None else mod, **changes)

    def save(self, path: str | os.PathLike[str], *, key: bytes | None = None) -> Path:
        """Write the whole model to one file, which `autocast.load` reads: module, parameters, report and names.

        The file is whole or is not there, whatever happens. See docs/files.md for what is in it.

        Parameters
        ----------
        path : path
            The folders above it are made if they are missing.
        key : bytes, optional
            Sign the file with this key.

        Raises
        ------
        ArtifactError
            The file cannot be written, or the module has something that is no data: a Python function, a compiled
            module.
        """
        return write(path, saving.FORMAT, *saving.parts_of(self), key=key)

    def save_params(self, path: str | os.PathLike[str]) -> Path:
        """Write the parameters, each in the dtype that it is stored in, to a safetensors file; atomic, so kill-safe."""
        return _PARAMETERS.save(path, {name: tensor.numpy() for name, tensor in self.params.items()}, {})

    def load_params(self, path: str | os.PathLike[str]) -> Model:
        """This model with the parameters of a file that `save_params` of one like it wrote.

        Raises
        ------
        CheckpointError
            The file cannot be read, or its tensors have other names, shapes or dtypes than this model's parameters.
        """
        tensors = _PARAMETERS.load(path).tensors
        files.check_fits(
            tensors, self.params, "what Model.save_params wrote of the same model, autocast by the same policy"
        )
        return self.replace(params={name: tvm.runtime.tensor(tensors[name]) for name in self.params})

    def __post_init__(self) -> None:
        if not isinstance(self.mod, tvm.IRModule) or not isinstance(self.params, Mapping):
            got = f"a {type(self.mod).__name__} and parameters in a {type(self.params).__name__}"
            raise IllFormedModuleError(
                f"Model: got {got}, expected a tvm.IRModule and a dictionary of tensors by their names; try "
                "autocast.from_relax(mod, params)"
            )
        for name, value in self.params.items():
            if not isinstance(name, str) or not isinstance(value, tvm_ffi.Tensor):
                raise IllFormedModuleError(
                    f"Model: params has {name!r}: a {type(value).__name__}, expected tensors of TVM by their names; "
                    "try autocast.from_relax(mod, params), which makes them of arrays"
                )
        for field_, kind in (("frozen", frozenset | set), ("output_names", tuple | list)):
            value = getattr(self, field_)
            if not isinstance(value, kind) or not all(isinstance(name, str) for name in value):
                raise IllFormedModuleError(f"Model: {field_} is {shown(value)}, expected names: {_NAMES[field_]}")
        names = {gv.name_hint for gv in self.mod.get_global_vars()}
        if "main" not in names:
            raise IllFormedModuleError(f"Model: the module has no function 'main', only {sorted(names)}.")
        attrs = self.main.attrs
        if attrs is None or "num_input" not in attrs:
            raise IllFormedModuleError("Model: main has no attribute 'num_input'; use autocast.from_relax to build it.")
        expected = len(self.main.params) - self.num_input
        if len(self.params) != expected:
            raise IllFormedModuleError(f"Model: got {len(self.params)} parameters, but main takes {expected}.")
        self._check_updates()
        if unknown := sorted(self.frozen - self.params.keys()):
            raise IllFormedModuleError(f"Model: frozen names {unknown}, which are no parameters; see model.params.")

    def _check_updates(self) -> None:
        positions, params = updates_of(self.main), list(self.params)
        outputs = _outputs(self.main)
        if len(set(positions)) != len(positions) or not set(positions) <= set(range(len(params))):
            raise IllFormedModuleError(
                f"Model: main has updates={positions}, expected different positions among its {len(params)} parameters."
            )
        written = written_of(self.main)
        if len(set(written)) != len(written) or not set(written) <= set(range(self.num_input)):
            raise IllFormedModuleError(
                f"Model: main has written={written}, expected different positions among its {self.num_input} inputs."
            )
        replaced = [*written, *(self.num_input + position for position in positions)]
        if len(replaced) > len(outputs):
            raise IllFormedModuleError(
                f"Model: main has {len(positions)} updates and {len(written)} inputs that are written, but returns "
                f"{len(outputs)} tensors."
            )
        for position, output in zip(reversed(replaced), reversed(outputs), strict=False):
            param = self.main.params[position]
            if not _same_type(output, param.ty):
                name = param.name if position < self.num_input else params[position - self.num_input]
                raise IllFormedModuleError(
                    f"Model: the update of {name} is {output}, expected {param.ty} as the parameter; try an astype or "
                    "a reshape of what main returns."
                )


def load(path: str | os.PathLike[str], *, key: bytes | None = None) -> Model:
    """The model that `Model.save` wrote, which computes the same, to the bit.

    The file is checked whole before anything of it is used, and nothing in it is run. Parameters are not copied: they
    are pages of the file, read when they are first used and shared by the processes that load it. What is written to
    them stays in this process. The file must not be changed in place as long as the model is used.

    Parameters
    ----------
    path : path
    key : bytes, optional
        The key that the file must be signed with.

    Raises
    ------
    ArtifactError
        There is no such file, it was damaged, it is of another kind or version, it is not signed with the key, or it
        needs an operator that is not registered in this process.
    """
    return _model_in(read(path, saving.FORMAT, key=key))


def _from_bytes(data: bytes) -> Model:
    return _model_in(read(data, saving.FORMAT))


def _model_in(container: Container) -> Model:
    fields = saving.fields_of(container)
    with container.reading("its model"):
        try:
            model = Model(**fields)
        except (IllFormedModuleError, LookupError, TypeError, ValueError, AttributeError) as error:
            raise LayoutError(f"{type(error).__name__}: {error}") from error
        saving.check_params(model.params, model.main.params[model.num_input :])
    return model


def updates_of(main: relax.Function) -> tuple[int, ...]:
    """The attribute `updates`: which parameter (0: the first after the inputs) each of the last results replaces."""
    return tuple(int(position) for position in (main.attrs or {}).get("updates", ()))


def _same_type(one: tvm.ir.Type, other: tvm.ir.Type) -> bool:
    """Whether two tensors have one dtype and sizes that are equal, however they are written: `b`, `1 + (b - 1)`."""
    if tvm_ffi.structural_equal(one, other):
        return True
    if not (isinstance(one, relax.TensorType) and isinstance(other, relax.TensorType) and one.dtype == other.dtype):
        return False
    return same_shape(shape_in(one), shape_in(other))


def written_of(main: relax.Function) -> tuple[int, ...]:
    """The attribute `written`: which input each of the results before those that replace parameters is written into."""
    return tuple(int(position) for position in (main.attrs or {}).get("written", ()))


def without_updates(main: relax.Function, result: tvm.ir.Type) -> tvm.ir.Type:
    """The type of what a call of `main` returns, which makes `result`: its last results replace parameters."""
    count = len(updates_of(main))
    fields = result.fields[: len(result.fields) - count] if count else [result]
    return fields[0] if len(fields) == 1 else tvm.ir.TupleType(fields)


def _outputs(main: relax.Function) -> tuple[tvm.ir.Type, ...]:
    """The type of each tensor that `main` returns."""
    return tuple(main.ret_ty.fields) if isinstance(main.ret_ty, tvm.ir.TupleType) else (main.ret_ty,)
