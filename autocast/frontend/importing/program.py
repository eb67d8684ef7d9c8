"""From an exported torch program to a Relax module: its inputs, parameters, bounds and outputs around its nodes."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import sympy  # type: ignore[import-untyped]
import torch
import tvm
from torch import fx
from torch.export.graph_signature import ConstantArgument, InputKind, OutputKind, OutputSpec
from tvm import relax, tirx

from autocast.frontend.importing.importer import Importer
from autocast.frontend.importing.randomness import next_random_state
from autocast.frontend.names import variable_name
from autocast.frontend.nodes import control_flow
from autocast.frontend.splitting.constants import as_constant
from autocast.ir import Place, PlacedBuilder, is_tensor
from autocast.model.value import CONTROL_FLOW, IMPORTED_FROM, OWN_BACKWARD


class ProgramImporter(Importer):
    """Translates one exported program."""

    def translate(self) -> tvm.IRModule:
        """The module: `main` takes the user's inputs, the parameters, and `random_state` where something is random."""
        self.block_builder = PlacedBuilder()
        inputs = self._input_variables()
        taken = {var.name for var in inputs}
        weights = []
        for parameter in self.parameters:
            name = variable_name(parameter.name)
            name = f"p_{name}" if name in taken else name
            weights.append(relax.Var(name, relax.TensorType(*self.type_of(parameter.value))))
        by_placeholder = {n: var for p, var in zip(self.parameters, weights, strict=True) for n in p.placeholders}
        by_placeholder |= {var.name: var for var in inputs}
        updates = [i for i, parameter in enumerate(self.parameters) if parameter.update is not None]
        positions = {var.name: position for position, var in enumerate(inputs)}
        written = [positions[str(spec.target)] for spec in self._writes()]
        attrs = {"num_input": len(inputs), IMPORTED_FROM: "torch", **self._bounds()}
        flow = control_flow(self.program.graph)
        attrs |= {name: found for name, found in ((OWN_BACKWARD, self.own_backward), (CONTROL_FLOW, flow)) if found}
        with self.block_builder.function("main", [*inputs, *weights, self.random_state], attrs=attrs):
            # A dataflow block cannot hold an If: of a model that has one, TVM makes blocks of what is between.
            with nullcontext() if flow else self.block_builder.dataflow():
                declared = {size for var in inputs for size in var.ty.shape.values if isinstance(size, tirx.Var)}
                by_placeholder |= self.multiples.bind(self.block_builder, declared)
                outputs = self._outputs(self.translate_graph(self.program.graph, by_placeholder))
                if self.streams:
                    outputs.append(self.emit(next_random_state(self.random_state)))
                    updates.append(len(weights))
                result = self.block_builder.emit_output(outputs[0] if len(outputs) == 1 else relax.Tuple(outputs))
            self.block_builder.emit_func_output(result)
        mod = self.block_builder.get()
        for name, places in (("updates", updates), ("written", written)):
            if places:
                mod["main"] = mod["main"].with_attr(name, places)
        return mod

    def _input_variables(self) -> list[relax.Var]:
        placeholders = {node.name: node for node in self.program.graph.nodes if node.op == "placeholder"}
        result = []
        for spec in self.program.graph_signature.input_specs:
            if spec.kind is InputKind.USER_INPUT and not isinstance(spec.arg, ConstantArgument):
                node = placeholders[spec.arg.name]
                result.append(self.multiples.input(spec.arg.name, self.shape(node), self.dtype(node)))
        return result

    def _bounds(self) -> dict[str, dict[str, int]]:
        """The ranges of the symbolic dimensions, under the names of attributes that TVM's memory planner reads."""
        lower: dict[str, int] = {}
        upper: dict[str, int] = {}
        computed = {str(expr): var for var, expr in self.multiples.known}
        for symbol, value_range in self.program.range_constraints.items():
            variable = self.symbols.get(str(symbol))
            if variable is None and computed:
                variable = computed.get(str(self.size(symbol)))
            if isinstance(variable, tirx.Var):
                lower[variable.name] = max(int(value_range.lower), lower.get(variable.name, 0))
                if isinstance(value_range.upper, sympy.Integer) and int(value_range.upper) < 2**31:
                    upper[variable.name] = min(int(value_range.upper), upper.get(variable.name, 2**31))
        return {k: v for k, v in (("tir_var_lower_bound", lower), ("tir_var_upper_bound", upper)) if v}

    def _outputs(self, node: fx.Node) -> list[relax.Expr]:
        """The user's outputs (torch's None: one that was not asked for), then what is written into inputs, then the new
        buffers."""
        self.block_builder.place = Place()
        self._materialize(node, "")
        kinds = [spec.kind for spec in self.program.graph_signature.output_specs]
        values = [
            v
            for v, kind in zip(node.args[0], kinds, strict=True)
            if kind is OutputKind.USER_OUTPUT and isinstance(v, fx.Node | int | float)
        ]
        by_name = {value.name: value for value in node.args[0] if isinstance(value, fx.Node)}
        updates = [by_name[parameter.update] for parameter in self.parameters if parameter.update is not None]
        written = [by_name[spec.arg.name] for spec in self._writes()]
        return [self._output(value) for value in [*values, *written, *updates]]

    def _output(self, value: Any) -> relax.Expr:
        """A result; a number is a 0-d tensor of as many bits as Python's: bool, int64 or float64."""
        if not isinstance(value, fx.Node):
            return as_constant(torch.tensor(value, dtype=torch.float64 if isinstance(value, float) else None))
        result = self.env[value]
        is_known = isinstance(result, relax.Expr) and is_tensor(result)
        return result if is_known else self.number(result, "int64")

    def _writes(self) -> list[OutputSpec]:
        """The outputs that are written into inputs."""
        specs = self.program.graph_signature.output_specs
        return [spec for spec in specs if spec.kind is OutputKind.USER_INPUT_MUTATION]
