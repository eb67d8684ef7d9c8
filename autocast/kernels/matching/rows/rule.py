"""Replace operators that work on rows, and the elementwise operators between and around them, by single kernels."""

from __future__ import annotations

from collections.abc import Collection

import tvm
from tvm import relax

from autocast.ir import dims, op_name
from autocast.ir.rewriting import rewrite_functions
from autocast.kernels.backend import Backend
from autocast.kernels.explain import Declined, explain
from autocast.kernels.matching.clusters import Clusters
from autocast.kernels.matching.groups import Group, GroupRewriter, found_groups
from autocast.kernels.matching.rows.operators import ROW_OPERATORS, RowTranslation, is_widening
from autocast.kernels.matching.rows.space import Form, RowSpace, space_of
from autocast.kernels.matching.translate import is_rounded_load
from autocast.kernels.specs.rows import Rows

#: Bindings of one kernel: more would hold more values than there are registers, and take long to compile.
_MOST_MEMBERS = 48


def row_groups(function: relax.Function) -> tuple[relax.Function, list[Group]]:
    """The groups of a function's bindings that become row kernels, and the function with those next to each other."""
    clusters, groups = Clusters(function), []
    for var, value in clusters.bound.items():
        if op_name(value) not in ROW_OPERATORS or var in clusters.settled:
            continue
        try:
            if var not in clusters.block:
                raise Declined("its block is not one of dataflow")
            groups.append(_grown(clusters, var, space_of(value)))
        except Declined as reason:
            explain("rows", var, str(reason), taken=False)
    return clusters.reordered(function), groups


def _grown(clusters: Clusters, seed: relax.Var, space: RowSpace) -> Group:
    """The group around an operator that works on rows, settled in `clusters`."""
    translated(clusters, space, [seed])

    def fits(var: relax.Var, members: set[relax.Var]) -> bool:
        if len(members) >= _MOST_MEMBERS or not _may_join(clusters, var, members, space):
            return False
        try:
            translated(clusters, space, [*members, var])
        except Declined:
            return False
        return True

    members = clusters.grow(seed, fits)
    translation = translated(clusters, space, members)
    results = _results(clusters, members)
    outputs = [translation.output(var) for var in results]
    operators = [str(op_name(clusters.bound[var])) for var in sorted(members, key=clusters.position.__getitem__)]
    names = dict.fromkeys(name.rpartition(".")[2] for name in operators if name in ROW_OPERATORS)
    name = "_".join([*names][:3])
    program = translation.builder.finish(outputs)
    if unknown := program.undeclared_sizes():
        raise Declined(f"nothing that it reads or stores has the extent {unknown[0]}")
    clusters.settle(members)
    explain("rows", seed, f"{len(members)} operators in {name}", taken=True)
    dtypes = dict.fromkeys(dtype for _, _, dtype in outputs)
    parts = "_".join(["x".join(map(str, program.space)), *dtypes])
    spec = Rows(program, space.row_dims)
    return Group(tuple(results), tuple(translation.arguments), spec, lambda _, number: f"{name}{number}_{parts}")


def translated(clusters: Clusters, space: RowSpace, members: Collection[relax.Var]) -> RowTranslation:
    """The program of `members`.

    Raises
    ------
    Declined
        One of them cannot be computed with the others.
    """
    translation = RowTranslation(clusters, members, space)
    for var in sorted(members, key=clusters.position.__getitem__):
        translation.value(var)
    return translation


def _may_join(clusters: Clusters, var: relax.Var, members: set[relax.Var], space: RowSpace) -> bool:
    """Whether it pays to compute `var` in the kernel of `members`.

    A value of rows that needs none of them and is read elsewhere too (which labels count, say) would have to wait for
    the kernel there, and keep out what it is needed for.
    """
    value = clusters.bound[var]
    if op_name(value) is None:
        return False
    before = not any(operand in members for operand in clusters.operands[var])
    if before and len(clusters.users.get(var, ())) > 1 and space.form(dims(var)) is not Form.WHOLE:
        return False
    loaded = is_widening(value) or is_rounded_load(value, clusters.bound)
    return not loaded or value.args[0] in members


def _results(clusters: Clusters, members: set[relax.Var]) -> list[relax.Var]:
    """The members that others read. What is only widened is read in its own dtype, and widened by its readers."""
    waiting = [
        var
        for var in members
        if not isinstance(var, relax.DataflowVar) or any(user not in members for user in clusters.users.get(var, ()))
    ]
    results: set[relax.Var] = set()
    while waiting:
        var = waiting.pop()
        if is_widening(clusters.bound[var]) and isinstance(var, relax.DataflowVar):
            waiting.append(clusters.bound[var].args[0])
        else:
            results.add(var)
    return sorted(results, key=clusters.position.__getitem__)


def lower_rows(mod: tvm.IRModule, backend: Backend) -> tvm.IRModule:
    """Rewrite operators that work on rows, and the elementwise operators between and around them, to kernels.

    Before::                                       After::

        a: f32 = R.add(R.multiply(s, 0.125), m)        p: bf16 = R.call_tir(softmax0_8x12x128x128_bfloat16, (s, m))
        b: f32 = R.nn.softmax(a)
        p: bf16 = R.astype(b, "bfloat16")

    A kernel stores every value that others read; what it reads is widened as it is loaded, so casts to float32 before
    it vanish too.
    """
    mod, groups = found_groups(mod, row_groups)
    return rewrite_functions(mod, GroupRewriter, backend, groups)
