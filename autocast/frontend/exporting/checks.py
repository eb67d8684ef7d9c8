"""What cannot be imported faithfully, found in the exported program and reported all at once."""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload
from torch.export import ExportedProgram
from torch.export.graph_signature import (
    ConstantArgument,
    OutputKind,
    SymFloatArgument,
    SymIntArgument,
    TensorArgument,
    TokenArgument,
)

from autocast.errors import ImportModelError
from autocast.frontend.nodes import module_path, operator_of
from autocast.frontend.parameters import WRITTEN
from autocast.runtime.tensors import kind_of_layout

#: What to try with tensors that cannot be imported.
_DENSE = {
    "complex": "Pass torch.view_as_real(tensor), and compute with pairs of numbers",
    "lazy": "Call the module once with the examples: module(*example_args)",
    "nested": "Pad it: torch.nested.to_padded_tensor(tensor, 0.0), with a mask",
    "quantized": "Try tensor.dequantize()",
    "sparse": "Try tensor.to_dense()",
}


def check_module(module: Any) -> None:
    """ImportModelError unless `module` is one that torch.export reads."""
    if isinstance(module, torch.jit.ScriptModule):
        raise ImportModelError(
            f"from_torch: got a {type(module).__name__}, which is TorchScript; expected the torch.nn.Module that "
            "torch.jit.trace or torch.jit.script was given. Pass that one."
        )
    if isinstance(module, torch.nn.Module):
        if getattr(module.forward, "__name__", "") == "_forward_unimplemented":
            raise ImportModelError(
                f"from_torch: {type(module).__name__} has no forward of its own; expected a module that can be called. "
                "Pass the module that calls it, or nn.Sequential(*modules)."
            )
        _check_tensors(module)
        return
    if isinstance(module, torch.export.ExportedProgram):
        return
    got, remedy = f"a {type(module).__name__}", ""
    if isinstance(module, Mapping):
        remedy = " Load a state into its module first: module.load_state_dict(...)."
    elif isinstance(module, type):
        got, remedy = f"the class {module.__name__}", f" Pass an object of it: {module.__name__}(...)."
    raise ImportModelError(f"from_torch: got {got}; expected a torch.nn.Module.{remedy}")


def _check_tensors(module: torch.nn.Module) -> None:
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        lazy = isinstance(tensor, torch.nn.parameter.UninitializedTensorMixin)
        check_dense(f"the parameter {name}", "lazy" if lazy else kind_of_layout(tensor))


def check_dense(what: str, kind: str) -> None:
    """ImportModelError where a tensor is of a `kind` that no array of numbers is."""
    if kind:
        raise ImportModelError(
            f"from_torch: {what} is a {kind} tensor; expected a dense tensor of numbers. {_DENSE[kind]}."
        )


def call_place(node: fx.Node) -> str:
    """The submodule that a node comes from, with its class: `encoder.0 (Dropout)`."""
    stack = node.meta.get("nn_module_stack") or {}
    if not stack:
        return "the model itself"
    _, kind = list(stack.values())[-1]
    name = kind.rpartition(".")[2] if isinstance(kind, str) else getattr(kind, "__name__", str(kind))
    return f"{module_path(node) or 'the model itself'} ({name})"


def _argument(node: fx.Node, name: str) -> Any:
    """The value of an operator's argument by name, positional, keyword or default."""
    for i, schema in enumerate(node.target._schema.arguments):
        if schema.name == name:
            return node.args[i] if i < len(node.args) else node.kwargs.get(name, schema.default_value)
    return None


#: (operator, when, what is wrong, what to try). The importer would compute something else without a word.
_UNFAITHFUL: tuple[tuple[str, Callable[[fx.Node], bool], str, str], ...] = (
    *(
        (f"aten.{name}", when, "memory of a tensor that is replaced in place", "compute a new tensor there")
        for name, when in (
            ("resize_as_", lambda node: True),
            ("set_", lambda node: [*node.args[:1]] != [*node.args[1:]]),  # parameters that are moved to where they are
            ("shallow_copy_data_", lambda node: [*node.args[:1]] != [*node.args[1:]]),  # `set_` since torch 2.14
        )
    ),
    (
        "aten.resize_",
        lambda node: node.meta["val"].numel() > node.args[0].meta["val"].numel(),
        "a tensor that is made larger in place, by elements that nothing has written",
        "make one of its size: x.new_empty(size)",
    ),
)


def written_by(node: fx.Node) -> list[fx.Node]:
    """The tensors that an operator writes into."""
    schema = node.target._schema.arguments
    names = [argument.name for argument in schema if argument.alias_info is not None and argument.alias_info.is_write]
    return [one for one in (_argument(node, name) for name in names) if isinstance(one, fx.Node)]


def _writes_over_itself(node: fx.Node) -> bool:
    """Whether an operator writes into a tensor whose elements share memory, as those of `expand` do: what torch makes
    of such a write when it takes it out of a program computes something else."""
    values = (one.meta.get("val") for one in written_by(node))
    return any(
        step == 0 and size != 1
        for value in values
        if isinstance(value, torch.Tensor) and value.layout == torch.strided
        for size, step in zip(value.shape, value.stride(), strict=True)
    )


def _writes_into_windows(node: fx.Node) -> bool:
    """Whether an operator writes into windows of `unfold` that leave elements out: torch makes zeros of these."""
    for view in written_by(node):
        while is_view(view):
            if view.target is torch.ops.aten.unfold.default:
                whole, axis, size, step = view.args
                length = whole.meta["val"].shape[axis]
                if not all(isinstance(one, int) for one in (length, size, step)) or size != step or length % step:
                    return True
            view = view.args[0]
    return False


def is_view(node: fx.Node) -> bool:
    """Whether a result has the memory of the first argument, or is one of several that have."""
    if isinstance(node.target, OpOverload):
        return any(one.alias_info for one in node.target._schema.returns)
    return node.target is operator.getitem


#: Why an operator is not imported that nobody has written a converter for.
NO_CONVERTER = "no converter"


def check_faithful(program: ExportedProgram) -> None:
    """ImportModelError if the program, as exported, holds operators that an import would silently turn into others."""
    rules = {name: (when, what, remedy) for name, when, what, remedy in _UNFAITHFUL}
    found: dict[tuple[str, str], list[str]] = {}
    for node in call_nodes(program):
        if _writes_over_itself(node):
            what = "writing into a tensor whose elements share memory, as those of expand do"
            found.setdefault((what, "write into a clone of it"), []).append(call_place(node))
        if _writes_into_windows(node):
            what = "writing into windows of unfold that leave elements of the tensor out"
            found.setdefault((what, "write into slices of the tensor"), []).append(call_place(node))
        rule = rules.get(str(node.target).rpartition(".")[0])
        if rule is not None and rule[0](node):
            found.setdefault(rule[1:], []).append(call_place(node))
    if found:
        lines = [f"  {what}: {_where(places)}; {remedy}" for (what, remedy), places in found.items()]
        raise ImportModelError("from_torch: the model cannot be imported faithfully:\n" + "\n".join(lines))


def check_supported(left: Mapping[fx.Node, str]) -> None:
    """ImportModelError that lists every operator without a converter, with its count and where it comes from."""
    if left:
        raise ImportModelError(
            f"from_torch: these operators cannot be imported:\n{listed(left)}\n"
            "Write the submodules with other operators, or leave them out of the model that you import; `python -m "
            "autocast.frontend` lists what can be imported, and without fallback='error' the rest is left to torch."
        )


def listed(left: Mapping[fx.Node, str]) -> str:
    """A line for each operator that no converter takes, with why, its count and where it comes from."""
    missing: dict[tuple[str, str], list[str]] = {}
    for node, why in left.items():
        why = "" if why == NO_CONVERTER else f" ({why.partition(chr(10))[0]})"
        missing.setdefault((str(operator_of(node)), why), []).append(call_place(node))
    return "\n".join(f"  {name}: {_where(places)}{why}" for (name, why), places in sorted(missing.items()))


def is_result(arg: Any) -> bool:
    """Whether an output of a program is one of the model: a tensor, a number or a size, not None nor a word."""
    if isinstance(arg, ConstantArgument):
        return isinstance(arg.value, int | float)
    return isinstance(arg, TensorArgument | SymIntArgument | SymFloatArgument)


def check_signature(program: ExportedProgram) -> None:
    """ImportModelError if the program changes what is no state of the module, or returns what is no number."""
    results = [spec.arg for spec in program.graph_signature.output_specs if spec.kind is OutputKind.USER_OUTPUT]
    writes = any(spec.kind is OutputKind.USER_INPUT_MUTATION for spec in program.graph_signature.output_specs)
    if not writes and not any(map(is_result, results)):
        raise ImportModelError("from_torch: the model returns nothing, expected a tensor or several. Return a result.")
    for spec in program.graph_signature.output_specs:
        if spec.kind in (OutputKind.USER_INPUT_MUTATION, OutputKind.TOKEN) or spec.kind.name in WRITTEN:
            continue
        if spec.kind is not OutputKind.USER_OUTPUT:
            raise ImportModelError(
                f"from_torch: the model writes into {spec.target!r} when it runs ({spec.kind.name}); return the new "
                "value instead."
            )
        if not is_result(spec.arg) and not isinstance(spec.arg, ConstantArgument):
            raise ImportModelError(
                f"from_torch: the output {spec.arg.name!r} is a {type(spec.arg).__name__}, expected tensors or "
                "numbers. Compute it outside of the module."
            )
    for spec in program.graph_signature.input_specs:
        if getattr(spec.arg, "class_fqn", "") == "torch._C.Generator":
            raise ImportModelError(
                "from_torch: the module draws from a torch.Generator of its own, whose state torch.export does not "
                "keep; expected the one that there is. Leave generator= out (from_torch(seed=...) says where numbers "
                "start), or draw them before and pass them as a tensor."
            )
        if not isinstance(spec.arg, TensorArgument | ConstantArgument | TokenArgument):
            raise ImportModelError(
                f"from_torch: the input {spec.arg.name!r} is a {type(spec.arg).__name__}; only tensors can vary from "
                "call to call. Pass a tensor, or a plain Python number that stays what it is."
            )


def call_nodes(program: ExportedProgram) -> Iterable[fx.Node]:
    """The calls of operators in a program, also those in its branches and loops."""
    for module in program.graph_module.modules():
        if isinstance(module, fx.GraphModule):
            for node in module.graph.nodes:
                if node.op == "call_function" and isinstance(node.target, torch._ops.OpOverload):
                    yield node


def _where(places: Sequence[str], limit: int = 6) -> str:
    counts = Counter(places)
    shown = [f"{place} x{count}" if count > 1 else place for place, count in list(counts.items())[:limit]]
    more = f" and {len(counts) - limit} more modules" if len(counts) > limit else ""
    return f"{len(places)} call{'s' if len(places) > 1 else ''} in {', '.join(shown)}{more}"
