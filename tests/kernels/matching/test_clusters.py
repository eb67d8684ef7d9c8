"""Sets of bindings that may become one kernel, compared with a search for paths in the graph that they make."""

from __future__ import annotations

from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st
from tvm import relax

from autocast.kernels.matching.clusters import Clusters

op = relax.op


def graph(pairs: Iterable[tuple[int, int]]) -> relax.Function:
    """A function of additions, each of two of the values before it."""
    x = relax.Var("x", relax.TensorType((2,), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            values = [x]
            for left, right in pairs:
                values.append(builder.emit(op.add(values[left % len(values)], values[right % len(values)])))
            output = builder.emit_output(values[-1])
        builder.emit_func_output(output)
    return builder.get()["main"]


def has_detour(clusters: Clusters, members: set[relax.Var]) -> bool:
    """Whether a path leaves `members` and comes back, where settled sets are single bindings."""
    waiting = [user for member in members for user in clusters.users.get(member, ()) if user not in members]
    seen: set[relax.Var] = set()
    while waiting:
        var = waiting.pop()
        if var in members:
            return True
        if var not in seen:
            group = clusters.settled.get(var, frozenset((var,)))
            seen |= group
            waiting += [user for member in group for user in clusters.users.get(member, ()) if user not in seen]
    return False


@given(
    st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), min_size=3, max_size=12),
    st.lists(st.sets(st.integers(0, 12), min_size=1, max_size=3), min_size=1, max_size=12),
)
def test_a_set_is_convex_if_no_path_through_settled_sets_leaves_it_and_comes_back(
    pairs: list[tuple[int, int]], asked: list[set[int]]
) -> None:
    clusters = Clusters(graph(pairs))
    for places in asked:
        members = {clusters.variables[place % len(clusters.variables)] for place in places} - set(clusters.settled)
        if not members:
            continue
        assert clusters.is_convex(members) == (not has_detour(clusters, members))
        if clusters.is_convex(members):
            clusters.settle(members)
