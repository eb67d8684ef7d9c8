"""The parameters of an exported program: one for each piece of memory, under the name that torch gives it first.

What of them the program changes has an update: the output of the program that replaces it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
import tvm
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, InputSpec

from autocast.frontend.writes import Writes
from autocast.ir import ALIGNMENT
from autocast.runtime.tensors import copy_into

#: Kinds of outputs that replace what the module keeps. torch 2.9 does not have all of them.
WRITTEN = ("BUFFER_MUTATION", "PARAMETER_MUTATION")

_Identity = tuple[int, int, tuple[int, ...], tuple[int, ...], torch.dtype]


@dataclass(frozen=True)
class Parameter:
    """A parameter or buffer of the torch module.

    Attributes
    ----------
    name, value
        As in the module's state; they share memory.
    placeholders
        The inputs of the program that stand for it.
    update
        The output of the program that replaces it after a call, if there is one.
    """

    name: str
    value: torch.Tensor
    placeholders: tuple[str, ...]
    update: str | None = None

    def as_tvm(self) -> tvm.runtime.Tensor:
        """The value; it shares torch's memory where that has a layout and an alignment that TVM takes."""
        return share(self.value)


def parameters(program: ExportedProgram, module: torch.nn.Module) -> list[Parameter]:
    """Parameters and buffers of state that the program uses, tied ones once, in the order of the module's state.

    torch.export names a tied weight once for each place that it is registered at (`transformer.wte.weight`,
    `lm_head.weight`): they are one Parameter, named as `module.named_parameters()` does.
    """
    used = {node.name for node in program.graph.nodes if node.op == "placeholder" and node.users}
    outputs = _written(program)
    placeholders: dict[_Identity, list[str]] = {}
    values: dict[_Identity, tuple[str, torch.Tensor]] = {}
    updates: dict[_Identity, str] = {}
    for spec in program.graph_signature.input_specs:
        if spec.kind is InputKind.PARAMETER or is_state(program, spec):
            value = program.constants[spec.target] if spec.persistent is False else program.state_dict[spec.target]
            values.setdefault(_identity(value), (spec.target, value))
            placeholders.setdefault(_identity(value), []).append(spec.arg.name)
            if spec.target in outputs:
                updates[_identity(value)] = outputs[spec.target]
    order: dict[_Identity, str] = {}
    for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
        order.setdefault(_identity(tensor), name)
    known = sorted(values, key=list(order).index) if values.keys() <= order.keys() else list(values)
    result = []
    for identity in known:
        name, value = values[identity]
        names = tuple(n for n in placeholders[identity] if n in used)
        if names or identity in updates:
            result.append(Parameter(order.get(identity, name), value, names, updates.get(identity)))
    return result


def other_names(program: ExportedProgram, module: torch.nn.Module, kept: Mapping[str, torch.Tensor]) -> dict[str, str]:
    """Names in the module's state that no parameter of the model has, and which parameter is the same tensor, or "".

    A weight that is tied has several names, and a program does not read all that a checkpoint holds (a BatchNorm's
    `num_batches_tracked` in evaluation, a pooler whose result nobody returns, a flag that is known).
    """
    names = {_identity(value): name for name, value in kept.items()}
    others = {name: names.get(_identity(v), "") for name, v in program.state_dict.items() if name not in kept}
    known = torch.nn.Module.state_dict(module).keys() - program.state_dict.keys() - kept.keys()
    return others | dict.fromkeys(sorted(known), "")


def is_state(program: ExportedProgram, spec: InputSpec) -> bool:
    """Whether an input of the program is a buffer that a checkpoint holds or that a call changes.

    Complex ones that nothing changes are constants.
    """
    if spec.kind is not InputKind.BUFFER or spec.target in _written(program):
        return spec.kind is InputKind.BUFFER
    return spec.persistent is not False and not program.state_dict[spec.target].is_complex()


def _written(program: ExportedProgram) -> dict[str | None, str]:
    """The parameters and buffers that the program changes, and the output that replaces each."""
    specs = program.graph_signature.output_specs
    return {spec.target: spec.arg.name for spec in specs if spec.kind.name in WRITTEN}


def state_of(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Parameters and buffers under all their names."""
    parameters = dict(module.named_parameters(remove_duplicate=False))
    return {**parameters, **dict(module.named_buffers(remove_duplicate=False))}


def share(value: torch.Tensor) -> tvm.runtime.Tensor:
    """A TVM tensor on the memory of a torch tensor, or on a copy where that is not aligned as kernels presume.

    Complex numbers are pairs of real ones.
    """
    value = _plain(value).cpu().contiguous()
    return tvm.runtime.from_dlpack(value if value.data_ptr() % ALIGNMENT == 0 else value.clone())


def writes_to(tensors: Mapping[str, torch.Tensor], params: Mapping[str, tvm.runtime.Tensor]) -> Writes:
    """What counts the writes to the tensors that have these names in a model, and repeats them where it has copies."""
    known = {name: value.detach() for name, value in tensors.items() if name in params}
    pairs = [(value, params[name]) for name, value in known.items()]
    copies = [(value, copy) for value, copy in pairs if copy.data_ptr() != _plain(value).data_ptr()]

    def repeat() -> None:
        for value, copy in copies:
            copy_into(copy, share(value))

    return Writes(known.values(), repeat if copies else None)


def _plain(value: torch.Tensor) -> torch.Tensor:
    """A tensor that TVM has as well: its numbers are real, and all there."""
    value = value.detach()
    if value.is_complex():
        value = torch.view_as_real(value.resolve_conj())
    return value if value.layout is torch.strided else value.to_dense()


def _identity(tensor: torch.Tensor) -> _Identity:
    """Equal for two names of the same memory. Empty tensors have no memory: each is itself."""
    pointer = tensor.data_ptr() if tensor.layout is torch.strided and tensor.numel() else 0
    return pointer or id(tensor), tensor.storage_offset(), tuple(tensor.shape), tuple(tensor.stride()), tensor.dtype
