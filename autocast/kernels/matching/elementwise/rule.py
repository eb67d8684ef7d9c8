"""Replace groups of elementwise operators by generated kernels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import tvm
from tvm import relax
from tvm.relax.expr_functor import mutator

from autocast.ir import dims, is_op, relax_functions, same_shape, shape_of, storage
from autocast.ir.rewriting import reads_of, rewrite_functions
from autocast.kernels.backend import Backend
from autocast.kernels.explain import explain
from autocast.kernels.matching.clusters import Clusters
from autocast.kernels.matching.elementwise.sizes import shared
from autocast.kernels.matching.functions import operation
from autocast.kernels.matching.kernel_rewriter import KernelRewriter
from autocast.kernels.matching.translate import Translation, declined
from autocast.kernels.specs.program import Program
from autocast.kernels.storage import LOW
from autocast.operators import Kind, is_kind

#: The most operators in one kernel: more of them gain nothing, and compile slowly.
_MEMBERS = 64


@dataclass
class _Group:
    """Bindings of one shape that a kernel computes; `outputs` are those that others read."""

    members: list[relax.Var]
    translation: Translation
    outputs: list[relax.Var] = field(default_factory=list)
    program: Program | None = None


def _groups(function: relax.Function) -> tuple[relax.Function, list[_Group]]:
    """The function with the members of each group next to each other, and its groups."""
    clusters = Clusters(function)
    fit: set[relax.Var] = set()
    for var, value in clusters.bound.items():
        if not (is_op(value, "relax.astype") or is_kind(value, Kind.ELEMENTWISE) or operation(value) is not None):
            continue
        reason = declined(var, value) if var in clusters.block else "its block is not one of dataflow"
        explain("elementwise", var, reason or "", taken=reason is None)
        if reason is None:
            fit.add(var)
    loads = {var for var in fit if _is_load(clusters.bound, var, fit)}
    groups = []
    for seed in sorted(fit, key=lambda var: (var in loads, clusters.position[var])):
        if seed in clusters.settled:
            continue
        space = dims(seed)

        def fits(var: relax.Var, members: set[relax.Var], space: tuple = space) -> bool:
            return var in fit and var not in loads and len(members) < _MEMBERS and same_shape(shape_of(var), space)

        members = clusters.grow(seed, fits)
        if clusters.is_convex(members):
            clusters.settle(members)
            ordered = sorted(members, key=clusters.position.__getitem__)
            groups.append(_Group(ordered, Translation(clusters.bound, members, space)))
    function = clusters.reordered(function)
    _choose_outputs(function, groups)
    return function, groups


def _is_load(bound: Mapping[relax.Var, relax.Expr], var: relax.Var, fit: set[relax.Var]) -> bool:
    """Whether `var` widens what is in memory: each kernel that reads it does that itself, so it holds none together.

    Without this the gradient of an activation would be computed in the forward, with the activation, and kept wide.
    """
    value = bound[var]
    if not is_op(value, "relax.astype") or storage(var) != "float32" or storage(value.args[0]) not in LOW:
        return False
    return value.args[0] not in fit


def _choose_outputs(function: relax.Function, groups: list[_Group]) -> None:
    """Find what each group has to store: from the results backwards, what others read after all is absorbed."""
    group_of = {member: group for group in groups for member in group.members}
    needed = set(reads_of(function.body.body))
    for block in reversed(function.body.blocks):
        for binding in reversed(block.bindings):
            group = group_of.get(binding.var)
            if group is None:
                if binding.var in needed or not isinstance(block, relax.DataflowBlock):
                    needed.update(reads_of(binding.value))
                continue
            if group.program is not None:
                continue
            group.outputs = [member for member in group.members if member in needed]
            outputs = [group.translation.output(member) for member in group.outputs]
            group.program = group.translation.builder.finish(outputs)
            needed.update(a for a in group.translation.arguments if isinstance(a, relax.Var))


@mutator
class _Elementwise(KernelRewriter):
    def __init__(self, mod: tvm.IRModule, backend: Backend, groups: list[_Group]):
        super().__init__(mod, backend)
        self.group_of = {member: group for group in groups for member in group.outputs}
        programs = [group.program for group in groups if group.program is not None and group.outputs]
        self.programs = shared(programs, backend.streams)
        self.results: dict[relax.Var, relax.Expr] = {}

    def rewrite(self, binding: relax.VarBinding) -> relax.Expr | None:
        group = self.group_of.get(binding.var)
        if group is None:
            return None
        if binding.var not in self.results:
            self.compute(group)
        return self.results[binding.var]

    def compute(self, group: _Group) -> None:
        """Emit the call of the kernel of `group`."""
        assert group.program is not None
        program = self.programs[group.program]
        unnamed = ("load", "constant", "round_bfloat16", "round_float16")
        functions = [step[0] for step in program.steps if step[0] not in unnamed] or ["cast"]
        name = "_".join(["elementwise", *functions[:4], "x".join(map(str, program.space)), program.outputs[0][2]])
        kernel = self.kernel(program, lambda _: name)
        types = [relax.TensorType(dims(output), storage(output)) for output in group.outputs]
        arguments = [self.new(argument) for argument in group.translation.arguments]
        call = relax.call_tir(kernel, arguments, types if len(types) > 1 else types[0])
        if len(types) == 1:
            self.results[group.outputs[0]] = call
            return
        whole = self.emit(call)
        self.results.update((output, relax.TupleGetItem(whole, i)) for i, output in enumerate(group.outputs))


def lower_elementwise(mod: tvm.IRModule, backend: Backend) -> tvm.IRModule:
    """Rewrite elementwise operators to kernels, one for each maximal convex group of one shape.

    Before::                                       After::

        a: f32 = R.astype(x, "float32")                p: bf16 = R.call_tir(elementwise_add_tanh_4x8_bfloat16, (x, y))
        b: f32 = R.tanh(R.add(a, y))
        p: bf16 = R.astype(b, "bfloat16")

    Casts are loads and stores of the kernels, and so are the views and broadcasts before them. What others read is
    stored, everything else stays in registers.
    """
    functions, groups = {}, []
    for var, function in relax_functions(mod):
        functions[var], found = _groups(function)
        groups += found
    reordered = tvm.IRModule(
        {**dict(mod.functions.items()), **functions}, attrs=mod.attrs, global_infos=mod.global_infos
    )
    return rewrite_functions(reordered, _Elementwise, backend, groups)
