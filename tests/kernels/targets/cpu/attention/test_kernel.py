"""Attention kernels against float64: layouts, masks, groups of heads, run-time sizes, on every instruction set."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
import tvm

from autocast.kernels.specs.attention import Attention, OperandView, Step
from autocast.kernels.targets.cpu.attention.kernel import attention
from autocast.kernels.targets.cpu.instruction_sets import instruction_set
from tests.kernels.compiling import compile_kernels
from tests.kernels.targets.cpu.attention.cases import Case, bias, heads
from tests.kernels.targets.cpu.guards import Guarded
from tests.kernels.targets.cpu.products.cases import CPUS, runs_here, target_of

INFINITY = float("inf")


def _fused(dtype: str) -> Attention:
    """Q, K and V side by side in one tensor, as GPT-2's projection writes them."""
    batch, length, count, depth = 2, 19, 3, 8
    wide = 3 * count * depth
    views = [OperandView(0, part * count * depth, (length * wide, depth), wide) for part in range(3)]
    result = OperandView(1, 0, (length * count * depth, depth), count * depth)
    return Attention(
        arguments=(((batch, length, wide), dtype),),
        out=((batch, length, count * depth), dtype),
        leading=(batch, count),
        queries=length,
        keys=length,
        depth=depth,
        value_depth=depth,
        query=views[0],
        key=views[1],
        value=views[2],
        result=result,
        steps=(Step("scale", 0.5),),
        causal=0,
    )


def _biased(
    kind: str, shape: tuple, dtype: str, value: float = 0.0, *, queries: int = 21, group: int = 1, **more: Any
) -> Attention:
    """Two steps: a scale, and a tensor of `shape` over (batch, heads, queries, keys) = (2, 4, 21, 37)."""
    steps = (Step("scale", 0.25), Step(kind, value, bias(3, *shape, group=group)))
    return heads(2, queries, 37, 4, 16, "float32", group=group, extra=((shape, dtype),), steps=steps, **more)


def _cached(dtype: str, queries: int | str, keys: int | str, group: int = 1) -> Attention:
    """A mask of queries by keys over a cache that is longer than a block of keys."""
    shape = (2, 1, queries, keys)
    steps = (Step("scale", 0.25), Step("keep", -INFINITY, bias(3, *shape, group=group)))
    return heads(2, queries, keys, 4, 16, dtype, group=group, extra=((shape, "bool"),), steps=steps, zero_empty=True)


#: Specifications by what is special about them, with the sizes that they leave to run time.
SPECS: dict[str, tuple[Attention, dict[str, int]]] = {
    "bfloat16": (heads(2, 65, 65, 3, 64, "bfloat16"), {}),
    "float32": (heads(1, 50, 33, 2, 64, "float32"), {}),
    "float16": (heads(1, 17, 40, 2, 32, "float16"), {}),
    "odd depth and keys, heads first": (heads(2, 7, 13, 3, 33, "bfloat16", heads_first=True), {}),
    "depth 1": (heads(1, 5, 6, 1, 1, "bfloat16"), {}),
    "deep heads": (heads(1, 9, 20, 1, 256, "bfloat16"), {}),
    "one query": (heads(2, 1, 129, 4, 32, "bfloat16", group=2), {}),
    "few queries of grouped heads": (heads(2, 3, 129, 4, 64, "float32", group=2), {}),
    "few queries, causal": (heads(1, 2, 40, 2, 128, "bfloat16", causal=5, heads_first=True), {}),
    "one query and keys at run time": (heads(1, 1, "k", 2, 16, "float16"), {"k": 77}),
    "one key": (heads(2, 3, 1, 2, 8, "bfloat16"), {}),
    "many blocks of keys": (heads(1, 70, 1001, 1, 40, "bfloat16"), {}),
    "causal": (heads(1, 150, 150, 2, 16, "bfloat16", causal=0), {}),
    "causal, more keys": (heads(1, 5, 300, 2, 16, "float32", causal=295), {}),
    "causal, fewer keys": (heads(1, 90, 20, 1, 16, "float32", causal=3), {}),
    "causal from the difference": (heads(1, "q", "k", 2, 16, "bfloat16", causal="difference"), {"q": 30, "k": 200}),
    "grouped heads": (heads(2, 30, 30, 6, 16, "bfloat16", group=3), {}),
    "all sizes at run time": (heads("b", "q", "k", 2, 24, "bfloat16"), {"b": 3, "q": 41, "k": 67}),
    "no key block is whole": (heads("b", "q", "k", 2, 24, "float32"), {"b": 1, "q": 1, "k": 1}),
    "negative scale": (heads(1, 9, 11, 2, 8, "float32", steps=(Step("scale", -0.5),)), {}),
    "no scale": (heads(1, 9, 11, 2, 8, "float32", steps=()), {}),
    "fused projection": (_fused("bfloat16"), {}),
    "bias of every head": (_biased("add", (1, 4, 21, 37), "float32"), {}),
    "bias of bfloat16 for grouped heads": (_biased("add", (2, 4, 21, 37), "bfloat16", group=2), {}),
    "bias of keys": (_biased("add", (2, 1, 1, 37), "float32"), {}),
    "bias and causal": (_biased("add", (1, 1, 21, 37), "float16", causal=16), {}),
    "few queries, bias": (_biased("add", (2, 4, 2, 37), "bfloat16", queries=2), {}),
    "few queries, mask": (_biased("drop", (1, 1, 1, 37), "bool", -INFINITY, queries=2, group=2), {}),
    "mask of every query": (_biased("keep", (1, 1, 21, 37), "bool", -INFINITY), {}),
    "mask of keys": (_biased("keep", (2, 1, 1, 37), "bool", -INFINITY), {}),
    "long mask of every query": (_cached("bfloat16", 70, 1601, group=2), {}),
    "long mask, few queries": (_cached("bfloat16", 1, "k", group=2), {"k": 1601}),
    "long mask, sizes at run time": (_cached("float32", "q", "k"), {"q": 40, "k": 1601}),
    "mask that drops": (_biased("drop", (2, 1, 21, 37), "bool", -3.0), {}),
}


here = next(cpu for cpu in CPUS if runs_here(cpu))

#: What tests below name.
NAMED = {"bfloat16", "float32", "bias of every head", "mask of every query"} | {n for n in SPECS if "long mask" in n}

#: All for the best processor that this machine can be; for others those that are named, and every second one.
COMPILED = {
    cpu: [n for i, n in enumerate(SPECS) if cpu == here or n in NAMED or i % 2 == at % 2] for at, cpu in enumerate(CPUS)
}

Kernels = tuple[dict[str, Any], bool, tvm.target.Target]


def _on(cpu: str, *values: str) -> Any:
    reason = f"this machine cannot run {cpu} code"
    return pytest.param(cpu, *values, marks=[] if runs_here(cpu) else [pytest.mark.skip(reason=reason)])


@cache
def _compiled(cpu: str) -> Kernels:
    target, names = target_of(cpu), COMPILED[cpu]
    module = compile_kernels({f"f{i}": attention(SPECS[n][0], target, f"f{i}") for i, n in enumerate(names)}, target)
    return {name: module[f"f{i}"] for i, name in enumerate(names)}, instruction_set(target).bf16_dot, target


@pytest.fixture(params=[_on(cpu) for cpu in CPUS])
def kernels(request: pytest.FixtureRequest) -> Kernels:
    """The kernels for one CPU by name, of one module, and whether that multiplies pairs of bfloat16."""
    return _compiled(request.param)


def _run(kernel: Any, case: Case) -> np.ndarray:
    out = Guarded(case.poisoned())
    kernel(*map(tvm.runtime.tensor, case.arguments), out.tensor)
    return out.numpy()


@pytest.mark.parametrize(
    ("kernels", "name"), [_on(cpu, name) for cpu, names in COMPILED.items() for name in names], indirect=["kernels"]
)
def test_any_attention_equals_float64(kernels: Kernels, name: str) -> None:
    compiled, pairs, _ = kernels
    spec, sizes = SPECS[name]
    case = Case(spec, **sizes)
    case.check(_run(compiled[name], case), pairs and set(spec.storages) == {"bfloat16"})


def test_queries_that_see_nothing_give_nan_and_zero_where_asked(kernels: Kernels) -> None:
    compiled, _, target = kernels
    for name in ("mask of every query", "bias of every head"):
        case = Case(SPECS[name][0])
        tensor = case.arguments[3]
        tensor[..., 2:5, :] = False if tensor.dtype == bool else -INFINITY
        out = _run(compiled[name], case)
        assert np.isnan(out[:, 2:5]).all() and not np.isnan(out[:, 5:]).any() and not np.isnan(out[:, :2]).any()
        case.check(out, False)
    zeroed = _biased("keep", (1, 1, 21, 37), "bool", -INFINITY, zero_empty=True)
    case = Case(zeroed)
    case.arguments[3][..., 2:5, :] = False
    out = _run(compile_kernels({"main": attention(zeroed, target, "main")}, target)["main"], case)
    assert (out[:, 2:5] == 0).all()
    case.check(out, False)


@pytest.mark.parametrize("seen", [0, 1, 201, 1600])
@pytest.mark.parametrize("name", [name for name in SPECS if name.startswith("long mask")])
def test_keys_after_the_last_that_is_seen_are_not_read(kernels: Kernels, name: str, seen: int) -> None:
    compiled, pairs, _ = kernels
    spec, sizes = SPECS[name]
    case = Case(spec, **sizes)
    case.arguments[3][0, ..., seen:] = False
    case.arguments[3][0, ..., max(seen - 1, 0) : seen] = True
    used = Case(spec, **sizes)
    used.arguments = [array.copy() for array in case.arguments]
    for array in used.arguments[1:3]:
        array[0, seen:] = np.nan
    out = _run(compiled[name], used)
    case.check(out, pairs and set(spec.storages) == {"bfloat16"})


def test_the_lowest_number_as_a_mask_leaves_rows_without_keys_uniform(kernels: Kernels) -> None:
    compiled, _, _ = kernels
    case = Case(SPECS["bias of every head"][0])
    case.arguments[3][..., 2, :] = np.finfo(np.float32).min
    out = _run(compiled["bias of every head"], case)
    values = case.matrices(case.spec.value, case.arguments[2], 37, 16)
    got = case.matrices(case.spec.result, out, 21, 16)[..., 2, :]
    np.testing.assert_allclose(got, values.mean(-2), atol=1e-6)


def test_nan_and_infinite_operands_spoil_their_own_rows_only(kernels: Kernels) -> None:
    compiled, _, _ = kernels
    case = Case(SPECS["float32"][0])
    case.arguments[0][0, 3, 0, 5] = np.nan
    case.arguments[0][0, 4, 1, 5] = np.inf
    out = _run(compiled["float32"], case)
    spoiled = np.isnan(out).all(-1)
    assert spoiled[0, 3, 0] and spoiled[0, 4, 1] and spoiled.sum() == 2


def test_large_scores_do_not_overflow(kernels: Kernels) -> None:
    compiled, _, _ = kernels
    case = Case(SPECS["bfloat16"][0])
    case.arguments[0] = (case.arguments[0].astype("float32") * 1000).astype(case.arguments[0].dtype)
    out = _run(compiled["bfloat16"], case)
    assert np.isfinite(out.astype("float32")).all()


@pytest.mark.parametrize("cores", [1, 2, 3])
def test_tasks_for_any_number_of_threads_give_the_same(cores: int) -> None:
    target = target_of(here, cores)
    case = Case(heads(1, 700, 90, 1, 16, "float32", causal=10))
    kernel = compile_kernels({"main": attention(case.spec, target, "main")}, target)["main"]
    case.check(_run(kernel, case), False)
