"""Where values come from: places live on variables, and survive what is done to a module."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
import tvm
from hypothesis import given, settings
from hypothesis import strategies as st
from tvm import relax

import autocast
from autocast import amp
from autocast.errors import CastingRuleError
from autocast.ir import Place, PlacedBuilder, op_name, place_of, whereabouts
from autocast.ir.places import REGIONS, active_region, canonicalize_bindings, current_region
from autocast.terminal import summary_of_places

op = relax.op
X = relax.TensorType((2, 3), "float32")


def _places(function: relax.Function) -> list[tuple[str | None, Place]]:
    return [(op_name(b.value), place_of(b.var)) for block in function.body.blocks for b in block.bindings]


@pytest.mark.parametrize("region", REGIONS)
@pytest.mark.parametrize("module", ["", "encoder.layer.0", "odd|name", "guard"])
@pytest.mark.parametrize("forward", [("", ""), ("relax.nn.conv2d", "lv3")])
def test_a_span_holds_a_place(module: str, region: str, forward: tuple[str, str]) -> None:
    place = Place(module, region, *forward)
    assert place_of(relax.Var("x", X, place.span())) == place


def test_the_span_of_a_source_file_is_no_place() -> None:
    span = tvm.ir.Span(tvm.ir.SourceName("model.py"), 3, 3, 1, 9)
    assert place_of(relax.Var("x", X, span)) == Place()


def test_calls_inside_calls_are_in_the_region_too() -> None:
    x, builder = relax.Var("x", X), PlacedBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            with amp.disable_autocast(dtype="float32"):
                y = builder.emit(op.add(op.exp(x), op.multiply(op.sin(x), x)))
            z = builder.emit_output(op.tanh(op.negative(y)))
        builder.emit_func_output(z)
    inside, outside = Place("", "float32"), Place()
    assert _places(builder.get()["main"]) == [
        ("relax.exp", inside),
        ("relax.sin", inside),
        ("relax.multiply", inside),
        ("relax.add", inside),
        ("relax.negative", outside),
        ("relax.tanh", outside),
    ]


def test_a_call_that_is_used_twice_is_bound_once() -> None:
    x, builder = relax.Var("x", X), PlacedBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            shared = op.exp(x)
            result = builder.emit_output(op.add(shared, op.multiply(shared, x)))
        builder.emit_func_output(result)
    assert [name for name, _ in _places(builder.get()["main"])].count("relax.exp") == 1


def test_a_result_that_becomes_local_keeps_its_place() -> None:
    x, builder = relax.Var("x", X), PlacedBuilder()
    builder.place = Place("layer", "float32")
    with builder.function("main", [x]):
        with builder.dataflow():
            was_result = builder.emit_output(op.exp(x))
            result = builder.emit_output(op.sin(was_result))
        builder.emit_func_output(result)
    main = canonicalize_bindings(builder.get())["main"]
    assert _places(main) == [("relax.exp", builder.place), ("relax.sin", builder.place)]
    assert isinstance(main.body.blocks[0].bindings[0].var, relax.DataflowVar)


def test_operators_outside_dataflow_blocks_are_in_regions() -> None:
    x, builder = relax.Var("x", X), PlacedBuilder()
    with builder.function("main", [x]):
        with active_region("guard"):
            y = builder.emit(op.exp(x))
        builder.emit_func_output(y)
    assert not isinstance(y, relax.DataflowVar)
    assert _places(builder.get()["main"])[0] == ("relax.exp", Place("", "guard"))


def test_threads_have_regions_of_their_own() -> None:
    entered, done = threading.Barrier(2, timeout=10), threading.Barrier(2, timeout=10)
    seen = {}

    def work(name: str) -> None:
        with active_region(name):
            entered.wait()
            seen[name] = current_region()
            done.wait()

    threads = [threading.Thread(target=work, args=(name,)) for name in ("float32", "guard")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == {"float32": "float32", "guard": "guard"}
    assert current_region() == ""


_TREES = st.recursive(
    st.just("call"), lambda inner: st.tuples(st.sampled_from(REGIONS[1:]), st.lists(inner, max_size=3)), max_leaves=12
)


@settings(max_examples=60, deadline=None)
@given(st.lists(_TREES, min_size=1, max_size=4))
def test_the_innermost_region_decides(trees: list) -> None:
    """However regions nest, each call is in the innermost one around it."""
    x, builder = relax.Var("x", X), PlacedBuilder()
    value, expected = x, []

    def emit(tree: Any, region: str) -> None:
        nonlocal value
        if isinstance(tree, str):
            value = builder.emit(op.sin(value))
            expected.append(Place("", region))
            return
        name, parts = tree
        with active_region(name):
            for part in parts:
                emit(part, name)

    with builder.function("main", [x]):
        with builder.dataflow():
            for tree in trees:
                emit(tree, "")
            result = builder.emit_output(value)
        builder.emit_func_output(result)
    calls = [place for name, place in _places(builder.get()["main"]) if name]
    assert calls == expected


def test_submodules_that_differ_in_numbers_are_summed_up_as_one() -> None:
    layers = [f"encoder.layer.{i}.output" for i in range(12)]
    assert summary_of_places([*layers, "pooler", "pooler"]) == "encoder.layer.*.output x12, pooler x2"
    assert summary_of_places(["layer.3.dense2"]) == "layer.3.dense2"
    assert summary_of_places([]) == ""


def test_errors_name_a_variable_its_function_and_the_submodule_if_there_is_one() -> None:
    assert whereabouts(relax.Var("lv", X), "main") == "%lv in @main"
    assert whereabouts(relax.Var("lv", X, Place("encoder.0").span()), "main") == "%lv in @main (encoder.0)"


def test_an_error_about_a_casting_rule_names_the_submodule_of_the_call() -> None:
    class Encoder(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.query = torch.nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.query(x).relu()

    def no_hints(_args: Any, _type: Any, _dtype: str) -> list:
        return []

    model = autocast.from_torch(Encoder(), (torch.ones(2, 4),))
    with amp.CustomTypeHint({"matmul": no_hints}), pytest.raises(CastingRuleError, match=r"in @main \(query\)"):
        amp.autocast(model)
