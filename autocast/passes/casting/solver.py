"""The cheapest valid choice of precisions, found exactly as a minimum s-t cut.

This file knows no TVM: a `CastProblem` is integers only. Node `LOW` is the source of the cut and node `FULL` its
sink; every other node is one free decision (which side of the cut it lies on says whether it runs in low precision or
in float32).

A tensor costs its `widen` weight when it is produced low and at least one consumer wants float32, and its `narrow`
weight in the opposite case. Both are cuts. With producer `p`, consumers `c1..cn` and one auxiliary node a direction:

    p --widen--> x --inf--> c1..cn         c1..cn --inf--> y --narrow--> p

Cutting `p -> x` is the one cast that all float32 consumers share; cutting `y -> p` the one that all low consumers
share. By duality no assignment costs less than the maximum flow, which is therefore reported as a certificate.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from itertools import chain

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components, maximum_flow

LOW, FULL = 0, 1
#: A narrowing weight: this tensor may never be narrowed for the sake of a consumer that is free to choose.
FORBIDDEN = -1

# scipy keeps capacities, flows and their differences in 32 bits: an infinite edge may carry a whole flow backwards.
_LARGEST = 2**30 - 1
_INFINITE = 2**30


@dataclass(slots=True, eq=False)
class CastTensor:
    """One tensor: the node that produces it, the nodes that consume it, and what a cast in either direction costs."""

    producer: int
    widen: int
    narrow: int
    consumers: list[int] = field(default_factory=list)


@dataclass(slots=True)
class CastProblem:
    """Tensors and free nodes of one module.

    A cast costs more where some consumer that wants it cannot convert what it loads: `surcharges` has what that is, for
    these consumers alone. Its entries weigh as tensors do, and are no casts.

    `traffic[node]` says how much more a free node reads and writes in float32 than in low precision: it decides between
    assignments whose casts weigh the same. `follows` lists pairs (a, b): where a is low, b must be low too.
    """

    traffic: list[int] = field(default_factory=lambda: [0, 0])
    tensors: list[CastTensor] = field(default_factory=list)
    surcharges: list[CastTensor] = field(default_factory=list)
    follows: list[tuple[int, int]] = field(default_factory=list)

    def new_node(self, traffic: int = 0) -> int:
        """Add a free node and return its number."""
        self.traffic.append(traffic)
        return len(self.traffic) - 1

    def casts(self, low: list[bool]) -> list[int]:
        """The tensors (by their index) that an assignment casts."""
        # A forbidden one is a constant, which is folded.
        return [at for at, tensor in enumerate(self.tensors) if tensor.narrow != FORBIDDEN and _is_cast(tensor, low)]

    def cost(self, low: list[bool], casts: list[int] | None = None) -> int:
        """The total weight of an assignment's `casts`."""
        paid = [self.tensors[at] for at in (self.casts(low) if casts is None else casts)]
        paid += [surcharge for surcharge in self.surcharges if _is_cast(surcharge, low)]
        return sum([tensor.widen if low[tensor.producer] else tensor.narrow for tensor in paid])


def _is_cast(tensor: CastTensor, low: list[bool]) -> bool:
    """Whether some consumer wants a tensor in another precision than it is produced in."""
    produced = low[tensor.producer]
    for consumer in tensor.consumers:  # noqa: SIM110 - a generator for each tensor would take half of the time
        if low[consumer] is not produced:
            return True
    return False


@dataclass(frozen=True, slots=True)
class Solution:
    """An assignment (`low[node]`), its cost, and a proof: no valid assignment costs less than `lower_bound`."""

    low: list[bool]
    cost: int
    lower_bound: int

    @property
    def is_optimal(self) -> bool:
        """Whether the certificate is tight."""
        return self.cost == self.lower_bound


def solve(problem: CastProblem) -> Solution:
    """The cheapest assignment; among equally cheap ones that of least traffic, then that with the most float32.

    The cheapest assignments are the sets that no edge with spare capacity leaves, once the flow is maximal. So a second
    flow, over edges that are infinite where capacity was spare and weigh the traffic, finds the best of them.
    """
    sources, targets, weights, constant = _edges(problem)
    count = 1 + max(int(sources.max(initial=FULL)), int(targets.max(initial=FULL)), len(problem.traffic) - 1)
    (tied_sources, tied_targets), flow = _maximum_flow(sources, targets, weights, count)
    if any(problem.traffic):
        traffic = np.zeros(count, np.int64)
        traffic[: len(problem.traffic)] = problem.traffic
        relevant = (tied_sources != FULL) & (tied_targets != LOW)
        tied_sources, tied_targets = tied_sources[relevant], tied_targets[relevant]
        traffic[tied_targets[tied_sources == LOW]] = 0  # low in every cheapest assignment
        chosen = np.flatnonzero(traffic)
        (tied_sources, tied_targets), _ = _maximum_flow(
            np.concatenate([tied_sources, np.full(chosen.size, LOW)]),
            np.concatenate([tied_targets, chosen]),
            np.concatenate([np.full(tied_sources.size, -1), traffic[chosen]]),
            count,
        )
    low = _reachable(tied_sources, tied_targets, count)[: len(problem.traffic)]
    return Solution(low, problem.cost(low), flow + constant)


def _maximum_flow(
    sources: np.ndarray, targets: np.ndarray, weights: np.ndarray, count: int
) -> tuple[tuple[np.ndarray, np.ndarray], int]:
    """The edges (in order) with spare capacity after a maximum flow from LOW to FULL, and its value; -1 is infinite.

    scipy works on 32-bit capacities and wraps silently beyond. So capacities are divided by a unit; where that rounds,
    what is left after the flow is divided by a smaller one, until the unit is 1 and nothing was rounded. What a rounded
    flow leaves over is less than a unit on each edge of its cut, which bounds the next unit.
    """
    units = _units(sources, targets, weights, count)
    infinite = int(np.maximum(weights, 0).sum()) + 1
    # scipy's flow has an entry for each edge and for its reverse. So has this graph: their entries are the same.
    edges, places = np.unique(
        np.concatenate([sources * count + targets, targets * count + sources]), return_inverse=True
    )
    places = places[: sources.size]
    rows, columns = edges // count, (edges % count).astype(np.int32)
    pointers = np.searchsorted(rows, np.arange(count + 1)).astype(np.int32)
    spare, capacity = np.zeros(edges.size, np.int64), np.zeros(edges.size, np.int32)
    spare[places] = np.where(weights < 0, infinite, weights)
    capacity[places] = np.where(weights < 0, _INFINITE, weights // units)
    is_exact = not np.any(np.where(weights < 0, 0, weights % units))
    node_units = np.ones(count, np.int64)
    node_units[np.where(sources > FULL, sources, targets)] = units
    node_units[FULL] = 1
    free_ends = np.where(rows > FULL, rows, columns)
    value = 0
    while True:
        graph = csr_array((capacity, columns, pointers), shape=(count, count))
        moved = maximum_flow(graph, LOW, FULL, method="dinic").flow.data * node_units[free_ends]
        spare -= moved
        value += int(moved[pointers[LOW] : pointers[LOW + 1]].sum())
        if is_exact:
            left = spare > 0
            return (rows[left], columns[left]), value
        unit = -(-np.count_nonzero(spare) * int(node_units.max()) // _LARGEST)
        capacity = np.minimum(spare // unit, _INFINITE).astype(np.int32)
        is_exact, node_units = unit == 1, np.full(count, unit, np.int64)


def _units(sources: np.ndarray, targets: np.ndarray, weights: np.ndarray, count: int) -> np.ndarray:
    """What each edge's weight is divided by at first: one divisor of all where no flow exceeds 32 bits then.

    Free nodes that are not connected to each other do not share a flow, so each component is divided by the greatest
    common divisor of its own weights: that is nearly always enough to fit 32 bits without rounding.
    """
    finite = np.maximum(weights, 0)
    cuts = [finite.sum()] + [
        finite[border].sum() for border in (sources == LOW, targets == FULL) if np.all(weights[border] >= 0)
    ]
    common = max(int(np.gcd.reduce(finite, initial=0)), 1)
    if max(finite.max(initial=0), min(cuts)) <= _LARGEST * common:
        return np.full(weights.size, common, np.int64)
    free = (sources > FULL) & (targets > FULL)
    inner = csr_array((np.ones(free.sum(), np.int8), (sources[free], targets[free])), shape=(count, count))
    component = connected_components(inner, directed=False)[1][np.where(sources > FULL, sources, targets)]
    divisors = np.zeros(count, np.int64)
    np.gcd.at(divisors, component, finite)
    divisors = np.maximum(divisors, 1)
    # No flow exceeds what leaves the source, what enters the sink, or all finite edges together.
    largest, total = np.zeros(count, np.int64), np.zeros(count, np.int64)
    np.maximum.at(largest, component, finite)
    np.add.at(total, component, finite)
    for border in (sources == LOW, targets == FULL):
        across = np.zeros(count, np.int64)
        np.add.at(across, component[border], finite[border])
        across[component[border & (weights < 0)]] = np.iinfo(np.int64).max
        total = np.minimum(total, across)
    largest = np.maximum(largest, total)
    return (divisors * np.maximum(-(-largest // divisors // _LARGEST), 1))[component]


def _edges(problem: CastProblem) -> tuple[np.ndarray, np.ndarray, np.ndarray, int]:
    """The edges of the cut graph (weight -1: infinite), parallel ones merged, and the cost that no choice can avoid."""
    edges: list[tuple[int, int, int]] = [(low_node, followed, -1) for low_node, followed in problem.follows]
    auxiliary = len(problem.traffic)
    for tensor in chain(problem.tensors, problem.surcharges):
        producer, consumers, widen, narrow = tensor.producer, tensor.consumers, tensor.widen, tensor.narrow
        if len(consumers) == 1:  # FORBIDDEN is what an infinite edge weighs
            edges.append((producer, consumers[0], widen))
            if narrow != FORBIDDEN or consumers[0] != LOW:
                edges.append((consumers[0], producer, narrow))
            continue
        readers = set(consumers)
        wanting_full = [consumer for consumer in readers if consumer not in (producer, LOW)]
        wanting_low = [consumer for consumer in readers if consumer not in (producer, FULL)]
        if FULL in readers:
            edges.append((producer, FULL, widen))
        elif len(wanting_full) == 1:
            edges.append((producer, wanting_full[0], widen))
        elif wanting_full and producer != FULL:
            edges.append((producer, auxiliary, widen))
            edges.extend([(auxiliary, consumer, -1) for consumer in wanting_full])
            auxiliary += 1
        if narrow == FORBIDDEN:
            edges.extend([(consumer, producer, -1) for consumer in wanting_low if consumer != LOW])
        elif LOW in readers:
            edges.append((LOW, producer, narrow))
        elif len(wanting_low) == 1:
            edges.append((wanting_low[0], producer, narrow))
        elif wanting_low and producer != LOW:
            edges.extend([(consumer, auxiliary, -1) for consumer in wanting_low])
            edges.append((auxiliary, producer, narrow))
            auxiliary += 1
    return _merged(np.fromiter(chain.from_iterable(edges), np.int64, 3 * len(edges)).reshape(-1, 3), auxiliary)


def _merged(edges: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, int]:
    """The edges (source, target, weight) of `_edges` that some choice cuts, between `count` nodes."""
    sources, targets, weights = edges.T
    is_inevitable = (sources == LOW) & (targets == FULL)
    constant = int(np.maximum(weights[is_inevitable], 0).sum())
    is_choice = (sources != targets) & (sources != FULL) & (targets != LOW) & (weights != 0) & ~is_inevitable
    pairs, places = np.unique(sources[is_choice] * count + targets[is_choice], return_inverse=True)
    merged, is_infinite = np.zeros(pairs.size, np.int64), np.zeros(pairs.size, bool)
    np.add.at(merged, places, np.maximum(weights[is_choice], 0))
    is_infinite[places[weights[is_choice] < 0]] = True
    merged[is_infinite] = -1
    return pairs // count, pairs % count, merged, constant


def _reachable(sources: np.ndarray, targets: np.ndarray, count: int) -> list[bool]:
    """The nodes that the source still reaches over edges with spare capacity: the smallest low side of a cut."""
    pointers, indices = np.searchsorted(sources, np.arange(count + 1)).tolist(), targets.tolist()
    seen = [False] * count
    seen[LOW] = True
    queue = deque([LOW])
    while queue:
        node = queue.popleft()
        for target in indices[pointers[node] : pointers[node + 1]]:
            if not seen[target]:
                seen[target] = True
                queue.append(target)
    return seen


def solve_greedily(problem: CastProblem) -> list[bool]:
    """One pass in program order: each free node takes the precision that most of the tensors it consumes have by then.

    This is what RAF's AutoCast and most others do; it is here to be compared with. Ties go to low precision, and a
    node that consumes nothing follows the nodes it is tied to.
    """
    count = len(problem.traffic)
    consumed: list[list[CastTensor]] = [[] for _ in range(count)]
    for tensor in problem.tensors:
        for consumer in tensor.consumers:
            consumed[consumer].append(tensor)
    tied: list[list[int]] = [[] for _ in range(count)]
    for node, followed in problem.follows:
        tied[node].append(followed)
    low = [False] * count
    low[LOW] = True
    for node in range(FULL + 1, count):
        votes = [low[tensor.producer] for tensor in consumed[node]]
        forbidden = any(tensor.narrow == FORBIDDEN for tensor in consumed[node])
        agrees = 2 * sum(votes) >= len(votes) if votes else bool(tied[node])
        low[node] = agrees and not forbidden and all(low[followed] for followed in tied[node])
    return low
