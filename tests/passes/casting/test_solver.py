"""The minimum cut against brute force over abstract problems."""

from __future__ import annotations

from itertools import product

from hypothesis import given, settings
from hypothesis import strategies as st

from autocast.passes.casting.solver import FORBIDDEN, FULL, LOW, CastProblem, CastTensor, solve, solve_greedily

_SMALL = st.integers(0, 6)
_NONE = st.just(0)
_HUGE = st.one_of(st.integers(0, 2**50), st.integers(2**31 - 3, 2**31 + 3), st.just(2**32), st.integers(0, 5))
many = settings(max_examples=150)


@st.composite
def problems(draw, weights=_SMALL, traffic=_NONE, forbidden: bool = False, follows: bool = False):
    """Problems of up to 7 free nodes and 8 tensors; what is FORBIDDEN or follows can always be satisfied."""
    free = draw(st.integers(1, 7))
    problem = CastProblem()
    for _ in range(free):
        problem.new_node(draw(traffic))
    nodes = st.integers(0, free + 1)
    for _ in range(draw(st.integers(1, 8))):
        consumers = draw(st.lists(nodes, max_size=4))
        problem.tensors.append(CastTensor(draw(nodes), draw(weights), draw(weights), consumers))
        if consumers and draw(st.booleans()):
            dear = draw(st.lists(st.sampled_from(consumers), min_size=1))
            producer = problem.tensors[-1].producer
            problem.surcharges.append(CastTensor(producer, draw(weights), draw(weights), dear))
    if forbidden:
        for _ in range(draw(st.integers(1, 3))):
            problem.tensors.append(CastTensor(FULL, 0, FORBIDDEN, draw(st.lists(nodes, max_size=3))))
    if follows:
        for _ in range(draw(st.integers(1, 3))):
            problem.follows.append((draw(st.integers(2, free + 1)), draw(nodes.filter(lambda node: node != FULL))))
    return problem


def price(problem: CastProblem, low: tuple[bool, ...]) -> tuple[int, int, int]:
    """What an assignment costs, then what it moves, then how many nodes are low: the order of preference."""
    cost = 0
    for tensor in problem.tensors + problem.surcharges:
        produced = low[tensor.producer]
        if produced and not all(low[consumer] for consumer in tensor.consumers):
            cost += tensor.widen
        if not produced and any(low[consumer] for consumer in tensor.consumers) and tensor.narrow != FORBIDDEN:
            cost += tensor.narrow
    moved = sum(extra for extra, is_low in zip(problem.traffic, low, strict=True) if not is_low)
    return cost, moved, sum(low)


def is_legal(problem: CastProblem, low: tuple[bool, ...]) -> bool:
    """Whether nothing forbidden is narrowed by a free node, and who follows follows."""
    for tensor in problem.tensors:
        wanted = any(low[consumer] for consumer in tensor.consumers if consumer != LOW)
        if tensor.narrow == FORBIDDEN and not low[tensor.producer] and wanted:
            return False
    return all(low[followed] for follower, followed in problem.follows if low[follower])


def assignments(problem: CastProblem) -> list[tuple[bool, ...]]:
    """Every legal assignment; node LOW is low and node FULL is not."""
    free = len(problem.traffic) - 2
    everything = ((True, False, *choice) for choice in product((False, True), repeat=free))
    return [low for low in everything if is_legal(problem, low)]


@given(problems())
@many
def test_no_assignment_costs_less_than_the_solution(problem):
    assert price(problem, tuple(solve(problem).low))[0] == min(price(problem, low)[0] for low in assignments(problem))


@given(problems())
@many
def test_the_cost_that_a_solution_states_is_that_of_its_assignment(problem):
    solution = solve(problem)
    assert solution.cost == price(problem, tuple(solution.low))[0]


@given(problems())
@many
def test_the_certificate_is_tight(problem):
    solution = solve(problem)
    assert solution.lower_bound == solution.cost
    assert solution.is_optimal


@given(problems())
@many
def test_of_equally_cheap_assignments_the_one_with_the_fewest_low_nodes_is_taken(problem):
    assert price(problem, tuple(solve(problem).low)) == min(price(problem, low) for low in assignments(problem))


@given(problems(traffic=st.integers(0, 9)))
@many
def test_traffic_decides_ties_and_nothing_else(problem):
    assert price(problem, tuple(solve(problem).low)) == min(price(problem, low) for low in assignments(problem))


@given(problems(traffic=_HUGE, weights=_HUGE, forbidden=True, follows=True))
@many
def test_weights_far_beyond_32_bits_are_exact(problem):
    solution = solve(problem)
    assert price(problem, tuple(solution.low)) == min(price(problem, low) for low in assignments(problem))
    assert solution.lower_bound == solution.cost


@given(problems(forbidden=True, traffic=st.integers(0, 3)))
@many
def test_a_forbidden_tensor_is_never_narrowed_for_a_free_node(problem):
    low = tuple(solve(problem).low)
    assert is_legal(problem, low)
    assert price(problem, low) == min(price(problem, other) for other in assignments(problem))


@given(problems(follows=True, traffic=st.integers(0, 3)))
@many
def test_a_node_that_follows_is_low_only_where_the_other_is(problem):
    low = tuple(solve(problem).low)
    assert is_legal(problem, low)
    assert price(problem, low) == min(price(problem, other) for other in assignments(problem))


@given(problems(forbidden=True))
@many
def test_greedy_never_costs_less(problem):
    assert solve(problem).cost <= problem.cost(solve_greedily(problem))


@given(problems(weights=st.integers(1, 6)))
@many
def test_the_casts_of_an_assignment_are_the_tensors_that_somebody_wants_in_the_other_precision(problem):
    low = solve(problem).low
    cast = [at for at, t in enumerate(problem.tensors) if any(low[c] != low[t.producer] for c in t.consumers)]
    assert problem.casts(low) == cast


def test_two_consumers_in_the_other_precision_share_one_cast():
    problem = CastProblem(tensors=[CastTensor(FULL, 1, 1, [LOW, LOW])])
    assert solve(problem).cost == 1


def test_a_free_node_between_two_low_ones_is_low():
    problem = CastProblem()
    node = problem.new_node()
    problem.tensors += [CastTensor(LOW, 1, 1, [node]), CastTensor(node, 1, 1, [LOW])]
    assert solve(problem).low[node]


def test_a_free_node_between_two_float32_ones_is_float32():
    problem = CastProblem()
    node = problem.new_node(traffic=100)
    problem.tensors += [CastTensor(FULL, 1, 1, [node]), CastTensor(node, 1, 1, [FULL])]
    assert not solve(problem).low[node]


def test_a_problem_without_tensors_costs_nothing():
    solution = solve(CastProblem())
    assert (solution.cost, solution.lower_bound, solution.low) == (0, 0, [True, False])


def test_greedy_follows_the_majority_of_what_a_node_consumes():
    problem = CastProblem()
    node = problem.new_node()
    problem.tensors += [CastTensor(FULL, 1, 1, [node]), CastTensor(FULL, 1, 1, [node]), CastTensor(LOW, 1, 1, [node])]
    assert not solve_greedily(problem)[node]
    problem.tensors += [CastTensor(LOW, 1, 1, [node])]
    assert solve_greedily(problem)[node]


def test_infinite_edges_carry_flows_of_more_than_32_bits():
    # Many tensors in a row: the flow of all of them passes the edges from one auxiliary node to its consumers.
    problem = CastProblem()
    shared = problem.new_node()
    others = [problem.new_node() for _ in range(9)]
    problem.tensors.append(CastTensor(LOW, 2**40 + 1, 1, [shared, *others]))
    problem.tensors += [CastTensor(node, 2**39 + 7 * node, 3, [FULL]) for node in others]
    solution = solve(problem)
    assert solution.cost == solution.lower_bound == 2**40 + 1
