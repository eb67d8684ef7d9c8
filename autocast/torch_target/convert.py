"""A model as a torch module: the same operators, in the same order, each written as torch has it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch
import tvm
from torch import fx
from tvm import relax

from autocast.errors import UnsupportedError
from autocast.frontend.splitting.reserved import in_writing
from autocast.ir import all_bindings, first_order, op_name, relax_functions, whereabouts, with_functions
from autocast.ir.private import private_functions, recursive_functions
from autocast.kernels.phases.expand import expand_operators
from autocast.kernels.phases.integers import multiply_integers
from autocast.kernels.phases.widen import multiply_in_float32
from autocast.kernels.storage import LOW
from autocast.model.value import OTHER_NAMES, Model, updates_of, written_of
from autocast.operators.dtypes import unfit
from autocast.runtime.tensors import from_tensor
from autocast.torch_target.asked import Value
from autocast.torch_target.control_flow import ControlFlow
from autocast.torch_target.inputs import check_inputs
from autocast.torch_target.module import TorchModel
from autocast.torch_target.other_names import know, show
from autocast.torch_target.parts import base_of
from autocast.torch_target.placing import place_with
from autocast.torch_target.recursion import Loop, loop_of
from autocast.torch_target.rows import ROWS
from autocast.torch_target.rows.gradients import is_fused
from autocast.torch_target.rows.torch_calls import is_of_torch
from autocast.torch_target.statistics import is_over_batch

_ATTENTION_BACKWARD = "relax.grad.attention_backward"
_BATCH_NORM_BACKWARD = "relax.grad.batch_norm_backward"


def to_torch(model: Model, *, exact: bool = True, fused: bool = False, widened: Collection[str] = ()) -> fx.GraphModule:
    """A torch module that computes what a model does, by torch's operators.

    Parameters
    ----------
    model : Model
        As it was imported, or with casts, or a training step.
    exact : bool
        Products of 16 bits whose result is float32 are computed in float32, which takes twice as long: torch's for CPUs
        answer in 16 bits. False rounds them so, as `torch.autocast` does.
    fused : bool
        The adjoints of attention without a bias are computed by torch's kernels for it, through `torch.func.vjp`, which
        torch neither exports nor differentiates. False writes them out: they hold the scores of all queries and keys.
    widened : collection of str
        Dtypes whose products, attention and recurrences are computed in float32, and rounded: those of
        `multiplied_slowly(device)`, say.

    Returns
    -------
    torch.fx.GraphModule
        Takes the model's inputs, in their order, and returns its outputs: one tensor or a tuple. Casts are calls of
        `to`. Parameters have their names in torch, and share the model's memory; those that a call of the model
        replaces are buffers with copies of their own, which each call changes in place. Dimensions that are dynamic in
        the model are here, too. `print(module.code)` shows it. The nodes' `meta` has the submodules and regions that
        they come from. An eager call with inputs of other dtypes, ranks or sizes, or of another number, is an
        InputError.

    Raises
    ------
    UnsupportedError
        Some of the model's operators have no row in `autocast.torch_target.rows`: all of them, with counts.
    """
    converted = _converted(model, exact, fused, widened)
    module = TorchModel(converted.root, converted.graph, "Model")
    inputs = [node.target for node in converted.graph.find_nodes(op="placeholder")]
    check_inputs(module, model.main, inputs)
    know(module, model.main.attrs.get(OTHER_NAMES, {}))
    show(module, converted.renamed)
    return module


def to_graph(model: Model, *, widened: Collection[str]) -> tuple[torch.nn.Module, fx.Graph]:
    """The graph of `to_torch(exact=False)`, and what holds what it reads: no Python is written and compiled for it."""
    converted = _converted(model, False, False, widened)
    show(converted.root, converted.renamed)
    return converted.root, converted.graph


def _converted(model: Model, exact: bool, fused: bool, widened: Collection[str]) -> _Converter:
    """The graph of a model, made."""
    check_model("to_torch", model)
    mod = expand_operators(_with_private(model.mod), lambda call: _stays(call, fused=fused))
    mod = multiply_in_float32(multiply_integers(mod, ["float64"]), widened)
    functions = {var.name_hint: function for var, function in relax_functions(mod)}
    loops = {
        name: loop for name, function in functions.items() if (loop := loop_of(function, mod.get_global_var(name)))
    }
    others = {name: functions[name] for name in private_functions(functions) if name not in loops}
    _check(mod, {*loops, *others})
    converter = _Converter(mod, model, exact, loops, others)
    converter.convert_main()
    return converter


def multiplied_slowly(device: torch.device) -> frozenset[str]:
    """The dtypes of 16 bits that torch multiplies far more slowly than float32 on a device.

    On CPUs without instructions for them, or where torch is built without oneDNN: on a Zen 3 a convolution takes 30 to
    40 times as long, a product of 1,024 rows 6 to 9 times.
    """
    if device.type != "cpu":
        return frozenset()
    if not torch.backends.mkldnn.is_available():
        return frozenset(LOW)
    supported = {
        "bfloat16": torch.ops.mkldnn._is_mkldnn_bf16_supported(),
        "float16": torch.ops.mkldnn._is_mkldnn_fp16_supported(),
    }
    return frozenset(name for name, is_supported in supported.items() if not is_supported)


def _with_private(mod: tvm.IRModule) -> tvm.IRModule:
    """The functions beside main as private ones: none is called alone.

    Those that read sizes off their arguments are inlined, as the caller may know them, and all beside a loop; else each
    is written out when a call of it is met, without a copy.
    """
    others = {var: function for var, function in relax_functions(mod) if var.name_hint != "main"}
    public = {var: function for var, function in others.items() if "global_symbol" in (function.attrs or {})}
    mod = with_functions(mod, {var: function.without_attr("global_symbol") for var, function in public.items()})
    has_sizes = any(map(relax.analysis.defined_symbolic_vars, others.values()))
    has_loops = bool(recursive_functions({var.name_hint: function for var, function in others.items()}))
    return first_order(mod, inline_private=has_sizes or has_loops)


def _stays(call: relax.Call, *, fused: bool) -> bool:
    """Whether a call becomes what its operator is in torch; others are written out."""
    name = op_name(call)
    if name == _ATTENTION_BACKWARD:
        return fused and is_fused(call)
    return is_over_batch(call) if name == _BATCH_NORM_BACKWARD else _has_row(call)


def _has_row(call: relax.Call) -> bool:
    name = (op_name(call) or "").removeprefix("relax.")
    return name in ROWS and (name not in ("call_dps_packed", "call_pure_packed") or is_of_torch(call))


def check_model(caller: str, model: Any) -> None:
    """Raise an error that names the caller, unless `model` is a Model."""
    if not isinstance(model, Model):
        raise UnsupportedError(
            f"{caller}: got a {type(model).__name__}, expected a Model: autocast.from_torch(module, example_args) or "
            "autocast.from_relax(mod, params)"
        )


def _check(mod: tvm.IRModule, known: Collection[str]) -> None:
    """Raise an error that lists all that has no meaning in torch, but for calls of functions that are known."""
    unknown: Counter[str] = Counter()
    for var, function in relax_functions(mod):
        for binding in all_bindings(function.body):
            value = binding.value
            if (
                isinstance(value, relax.Call)
                and not _has_row(value)
                and getattr(value.op, "name_hint", "") not in known
            ):
                unknown[_name(value)] += 1
            dtype, advice = unfit(value, kernels=False)
            if advice:
                raise UnsupportedError(
                    f"to_torch: torch does not compute {op_name(value)} of {dtype}, bound to "
                    f"{whereabouts(binding.var, var.name_hint)}. Expected {advice}"
                )
    if unknown:
        listed = ", ".join(f"{name} ({count})" for name, count in sorted(unknown.items()))
        raise UnsupportedError(
            f"to_torch: nothing says what these are in torch: {listed}. Expected operators with a row in "
            "autocast.torch_target.rows; autocast.compile runs the model with kernels of its own"
        )


def _name(call: relax.Call) -> str:
    """What a call calls: of foreign code, its name, too."""
    name = op_name(call)
    if name is None:
        return (
            f"a call of the function {getattr(call.op, 'name_hint', call.op)}, which is no loop: one calls itself as "
            "the last thing that it does, and nowhere else"
        )
    callee = call.args[0] if call.args else None
    foreign = getattr(callee, "global_symbol", None) or getattr(callee, "name_hint", None)
    return f"{name} of {foreign}" if foreign and name.startswith("relax.call_") else name


class _Converter(ControlFlow):
    """Makes the graph of `main`."""

    def __init__(
        self,
        mod: tvm.IRModule,
        model: Model,
        exact: bool,
        loops: Mapping[str, Loop],
        others: Mapping[str, relax.Function],
    ) -> None:
        super().__init__(exact, loops, others)
        self.main = mod["main"]
        self.model = model
        #: Of parameters that are held at other names: where they are.
        self.renamed = in_writing(model.params.keys())

    def convert_main(self) -> None:
        """Put all of `main` into the graph."""
        count = self.model.num_input
        for var in self.main.params[:count]:
            self.bind(var, self.input(var.name))
        names = [self.renamed.get(name, name) for name in self.model.params]
        updates, written = updates_of(self.main), written_of(self.main)
        for position, (name, var) in enumerate(zip(self.model.params, self.main.params[count:], strict=True)):
            self.hold(name, names[position], is_state=position in updates)
            self.bind(var, self.tracer.held(names[position]))
        outputs = self.sequence(self.main.body)
        if updates or written:
            outputs = outputs if isinstance(outputs, tuple) else (outputs,)
            replaced = [self.values[self.main.params[position]] for position in written]
            replaced += [self.tracer.held(names[position]) for position in updates]
            outputs = self.updated(list(outputs), replaced)
        outputs = self.apart(outputs, set())
        self.graph.output(self.tracer.create_arg(outputs))
        self.tidy()
        tensors = [node for node in self.graph.find_nodes(op="placeholder") if "shape" in node.meta]
        place_with([*tensors, *self.graph.find_nodes(op="get_attr")], self.graph)

    def apart(self, result: Value, seen: set[fx.Node]) -> Value:
        """Results that share memory with no input, parameter or constant, nor with one of those before, `seen`."""
        if isinstance(result, tuple):
            return tuple(self.apart(part, seen) for part in result)
        if not isinstance(result, fx.Proxy | torch.Tensor):
            return result
        result = self.tracer.proxied(result)
        base = base_of(result.node)
        is_shared = base.op in ("placeholder", "get_attr") or base in seen
        seen.add(base)
        return result.clone() if is_shared else result

    def hold(self, name: str, place: str, *, is_state: bool) -> None:
        """Put a parameter at its place; state is a buffer with a copy."""
        value = from_tensor(self.model.params[name], "torch")
        *path, last = place.split(".")
        owner = self.root
        for part in path:
            if part not in owner._modules:
                owner.add_module(part, torch.nn.Module())
            owner = owner.get_submodule(part)
        if is_state:
            owner.register_buffer(last, value.clone())
        else:
            trained = value.is_floating_point() and name not in self.model.frozen
            owner.register_parameter(last, torch.nn.Parameter(value, requires_grad=trained))

    def updated(self, outputs: list[Value], replaced: Sequence[Value]) -> Value:
        """The results, after the rest of what main returns was written into inputs, or has replaced the state.

        What could be a view of what is about to change is copied first. State is no way for gradients, which a call
        would otherwise take back through all calls before it.
        """
        changed = {value.node for value in replaced}
        results = [self.own(value, changed) for value in outputs[: len(outputs) - len(replaced)]]
        news = [self.own(value, changed) for value in outputs[len(results) :]]
        written = len(replaced) - len(self.model.updated)
        for number, (old, value) in enumerate(zip(replaced, news, strict=True)):
            old.copy_(value if number < written else value.detach())
        return results[0] if len(results) == 1 else tuple(results)

    def own(self, value: Value, changed: Collection[fx.Node]) -> Value:
        """A value that no update changes: state is read anew by a node of its own."""
        base = base_of(value.node)
        return value.clone() if base.op == "get_attr" or base in changed else value
