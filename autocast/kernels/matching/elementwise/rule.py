"""Replace groups of elementwise operators by generated kernels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import tvm
from tvm import relax

from autocast.ir import dims, is_op, same_shape, shape_of, storage
from autocast.ir.rewriting import reads_of, rewrite_functions
from autocast.kernels.backend import Backend
from autocast.kernels.explain import explain
from autocast.kernels.matching.clusters import Clusters
from autocast.kernels.matching.elementwise.sizes import shared
from autocast.kernels.matching.functions import operation
from autocast.kernels.matching.groups import Group, GroupRewriter, found_groups
from autocast.kernels.matching.translate import Translation, declined
from autocast.kernels.specs.program import Program
from autocast.kernels.storage import LOW
from autocast.operators import Kind, is_kind

#: The most operators in one kernel: more of them gain nothing, and compile slowly.
_MEMBERS = 64


def _groups(function: relax.Function) -> tuple[relax.Function, list[Group]]:
    """The function with the bindings of each group next to each other, and its groups, each of one shape."""
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
    found = []
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
            found.append((ordered, Translation(clusters.bound, members, space)))
    function = clusters.reordered(function)
    return function, _with_results(function, found)


def _is_load(bound: Mapping[relax.Var, relax.Expr], var: relax.Var, fit: set[relax.Var]) -> bool:
    """Whether `var` widens what is in memory: each kernel that reads it does that itself, so it holds none together.

    Without this the gradient of an activation would be computed in the forward, with the activation, and kept wide.
    """
    value = bound[var]
    if not is_op(value, "relax.astype") or storage(var) != "float32" or storage(value.args[0]) not in LOW:
        return False
    return value.args[0] not in fit


def _with_results(function: relax.Function, found: list[tuple[list[relax.Var], Translation]]) -> list[Group]:
    """What each group has to store: from the results backwards, what others read after all is absorbed."""
    number_of = {member: number for number, (members, _) in enumerate(found) for member in members}
    groups: dict[int, Group] = {}
    needed = set(reads_of(function.body.body))
    for block in reversed(function.body.blocks):
        for binding in reversed(block.bindings):
            number = number_of.get(binding.var)
            if number is None:
                if binding.var in needed or not isinstance(block, relax.DataflowBlock):
                    needed.update(reads_of(binding.value))
            elif number not in groups:
                members, translation = found[number]
                results = tuple(member for member in members if member in needed)
                program = translation.builder.finish([translation.output(member) for member in results])
                groups[number] = Group(results, tuple(translation.arguments), program, _title)
                needed.update(a for a in translation.arguments if isinstance(a, relax.Var))
    return [group for group in groups.values() if group.results]


def _title(program: Program, number: int) -> str:
    """The name of a kernel; equal ones get a suffix."""
    unnamed = ("load", "constant", "round_bfloat16", "round_float16", "unfused")
    functions = [step[0] for step in program.steps if step[0] not in unnamed] or ["cast"]
    return "_".join(["elementwise", *functions[:4], "x".join(map(str, program.space)), program.outputs[0][2]])


def lower_elementwise(mod: tvm.IRModule, backend: Backend) -> tvm.IRModule:
    """Rewrite elementwise operators to kernels, one for each maximal convex group of one shape.

    Before::                                       After::

        a: f32 = R.astype(x, "float32")                p: bf16 = R.call_tir(elementwise_add_tanh_4x8_bfloat16, (x, y))
        b: f32 = R.tanh(R.add(a, y))
        p: bf16 = R.astype(b, "bfloat16")

    Casts are loads and stores of the kernels, and so are the views and broadcasts before them. What others read is
    stored, everything else stays in registers.
    """
    mod, groups = found_groups(mod, _groups)
    programs = shared([group.spec for group in groups], backend.streams)
    groups = [replace(group, spec=programs[group.spec]) for group in groups]
    return rewrite_functions(mod, GroupRewriter, backend, groups)
