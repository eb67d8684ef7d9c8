"""Regions in the author's code: where they can be written, that no export loses them, what AutoCast makes of them."""

from __future__ import annotations

import copy
import io
import pickle
import threading
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import tvm_ffi
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from autocast import amp
from autocast.errors import ImportModelError, PolicyError
from autocast.frontend import from_torch
from autocast.ir import op_name, place_of
from autocast.model.value import Model
from tests.frontend.helpers import Calls

X = torch.randn(4, 8, generator=torch.Generator().manual_seed(0))


def regions(model: Model) -> dict[str, str]:
    """The region of each operator of main, by its short name."""
    bindings = [binding for block in model.main.body.blocks for binding in block.bindings]
    names = {op_name(binding.value): place_of(binding.var).region for binding in bindings}
    return {name.rpartition(".")[2]: region for name, region in names.items() if name is not None}


def decisions(model: Model, policy: amp.Policy) -> dict[str, tuple[str, str, str]]:
    """(arguments, result, who decided) of each operator, by its short name."""
    report = amp.autocast(model, policy=policy).report
    return {d.operator.rpartition(".")[2]: (d.mode, d.result, d.level) for d in report.decisions}


class Nested(nn.Module):
    """relu outside, exp in float32, tanh in bfloat16 inside that, sin after it, cos in the author's dtypes."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Any shape to the same."""
        x = torch.relu(x)
        with amp.disable_autocast(dtype="float32"):
            x = torch.exp(x)
            with amp.disable_autocast(dtype=torch.bfloat16):
                x = torch.tanh(x)
            x = torch.sin(x)
        with amp.disable_autocast():
            x = torch.cos(x)
        with amp.fp16_guard():
            return torch.sigmoid(x)


NESTED = {"relu": "", "exp": "float32", "tanh": "bfloat16", "sin": "float32", "cos": "leave", "sigmoid": "guard"}


# -- where they can be written ---------------------------------------------------------------------


@amp.disable_autocast(dtype="float32")
def _exp(x: torch.Tensor) -> torch.Tensor:
    return torch.exp(x)


class Method(nn.Module):
    """A method in a region."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Any shape to the same."""
        return torch.sin(self.inside(x))

    @amp.disable_autocast(dtype="float32")
    def inside(self, x: torch.Tensor) -> torch.Tensor:
        """Any shape to the same."""
        return torch.exp(x)


@amp.disable_autocast(dtype="float32")
class Exp(nn.Module):
    """A class in a region."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Any shape to the same."""
        return torch.exp(x)


class PlainExp(nn.Module):
    """A class in none."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Any shape to the same."""
        return torch.exp(x)


def _decorated_instance() -> nn.Module:
    return amp.disable_autocast(dtype="float32")(PlainExp())


def _pickled(module: nn.Module) -> nn.Module:
    return pickle.loads(pickle.dumps(module))


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize(
    "make",
    [
        lambda: Calls(lambda x: torch.sin(_exp(x))),
        Method,
        lambda: nn.Sequential(Exp(), Calls(torch.sin)),
        lambda: nn.Sequential(_decorated_instance(), Calls(torch.sin)),
        lambda: nn.Sequential(copy.deepcopy(_decorated_instance()), Calls(torch.sin)),
        lambda: nn.Sequential(_pickled(_decorated_instance()), Calls(torch.sin)),
    ],
    ids=["function", "method", "class", "instance", "copied instance", "pickled instance"],
)
def test_a_region_decorates(make: Callable[[], nn.Module], strict: bool) -> None:
    program = torch.export.export(make(), (X,), strict=strict)
    assert regions(from_torch(program.module(), (X,))) == {"exp": "float32", "sin": ""}


def test_other_instances_of_a_decorated_instances_class_are_in_no_region() -> None:
    _decorated_instance()
    assert regions(from_torch(PlainExp(), (X,))) == {"exp": ""}


def test_a_copy_of_a_decorated_instance_computes_with_its_own_parameters() -> None:
    layer = amp.disable_autocast()(nn.Linear(8, 8))
    other = copy.deepcopy(layer)
    nn.init.zeros_(other.weight)
    assert torch.equal(other(X), layer.bias.expand(4, 8))


def test_a_decorated_instance_is_called_with_the_names_of_its_arguments() -> None:
    model = from_torch(_decorated_instance(), (), example_kwargs={"x": X}, dynamic={"batch": ("x", 0)})
    assert model.input_names == ("x",)


def test_the_innermost_of_two_decorations_decides() -> None:
    module = amp.disable_autocast(dtype="float32")(amp.fp16_guard()(PlainExp()))
    assert regions(from_torch(module, (X,))) == {"exp": "guard"}


def test_one_region_can_be_entered_again_inside_itself() -> None:
    region = amp.disable_autocast(dtype="float32")

    def twice(x: torch.Tensor) -> torch.Tensor:
        with region:
            with region:
                x = torch.exp(x)
            x = torch.tanh(x)
        return torch.sin(x)

    assert regions(from_torch(Calls(twice), (X,))) == {"exp": "float32", "tanh": "float32", "sin": ""}


def test_an_exception_leaves_the_region() -> None:
    def fails(x: torch.Tensor) -> torch.Tensor:
        try:
            with amp.disable_autocast():
                raise ValueError
        except ValueError:
            return torch.sin(x)

    assert regions(from_torch(Calls(fails), (X,))) == {"sin": ""}


def test_a_dtype_that_is_none_is_refused() -> None:
    with pytest.raises(PolicyError, match=r"got dtype='int8', expected 'float32', 'bfloat16', 'float16', or None"):
        amp.disable_autocast(dtype="int8")


def _generator() -> Any:
    yield X


@pytest.mark.parametrize(
    "subject", [int, 3, _generator], ids=["a class that is no module", "what cannot be called", "a generator"]
)
def test_what_does_not_compute_is_not_decorated(subject: Any) -> None:
    with pytest.raises(PolicyError, match=r"disable_autocast\(dtype='float32'\) decorates functions"):
        amp.disable_autocast(dtype="float32")(subject)


# -- in torch --------------------------------------------------------------------------------------


def test_eager_code_does_what_it_did() -> None:
    x = torch.relu(X).exp().tanh().sin().cos().sigmoid()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.equal(Nested()(X), x)


def test_torch_autocast_is_off_in_a_disabled_region_only() -> None:
    layer, dtypes = nn.Linear(8, 8), []
    with torch.autocast("cpu", dtype=torch.bfloat16):
        dtypes.append(layer(X).dtype)
        with amp.disable_autocast():
            dtypes.append(layer(X).dtype)
        with amp.fp16_guard():
            dtypes.append(layer(X).dtype)
    assert dtypes == [torch.bfloat16, torch.float32, torch.bfloat16]


@pytest.mark.parametrize("strict", [False, True])
def test_regions_survive_the_users_own_export(strict: bool) -> None:
    program = torch.export.export(Nested(), (X,), strict=strict)
    assert regions(from_torch(program.module(), (X,))) == NESTED


def test_regions_survive_decompositions_files_and_another_export() -> None:
    program = torch.export.export(Nested(), (X,)).run_decompositions()
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    program = torch.export.export(torch.export.load(file).module(), (X,))
    assert regions(from_torch(program.module(), (X,))) == NESTED


def test_regions_survive_symbolic_tracing() -> None:
    assert regions(from_torch(torch.fx.symbolic_trace(Nested()), (X,))) == NESTED


def test_an_exported_program_itself_is_refused() -> None:
    with pytest.raises(
        ImportModelError, match=r"got a ExportedProgram; expected a torch.nn.Module. Pass its module\(\)"
    ):
        from_torch(torch.export.export(Nested(), (X,)), (X,))


@pytest.mark.parametrize(
    "module",
    [nn.LSTM(8, 8, 2), nn.TransformerEncoderLayer(8, 2, 16).eval(), nn.BatchNorm1d(8).train()],
    ids=lambda module: type(module).__name__,
)
def test_decompositions_stay_in_the_region(module: nn.Module) -> None:
    model = from_torch(amp.disable_autocast(dtype="float32")(module), (X,))
    assert set(regions(model).values()) == {"float32"}


def test_what_is_written_in_place_is_in_its_region() -> None:
    def compute(x: torch.Tensor) -> torch.Tensor:
        y = x * 2.0
        with amp.disable_autocast(dtype="float32"):
            y.exp_()
        return y.tanh_()

    assert regions(from_torch(Calls(compute), (X,))) == {"multiply": "", "exp": "float32", "tanh": ""}


def test_regions_survive_symbolic_shapes() -> None:
    assert regions(from_torch(Nested(), (X,), dynamic={"batch": ("*", 0)})) == NESTED


def test_a_region_of_another_version_is_refused() -> None:
    program = torch.export.export(Nested(), (X,))
    for node in program.graph.nodes:
        if "custom" in node.meta:
            node.meta["custom"] = {"autocast_region": "float8"}
    with pytest.raises(ImportModelError, match="it is in a region 'float8'; expected one of 'guard', 'leave'"):
        from_torch(program.module(), (X,))


def test_a_thread_in_a_region_does_not_put_another_threads_export_in_it() -> None:
    inside, done = threading.Event(), threading.Event()

    def stay() -> None:
        with amp.disable_autocast():
            inside.set()
            done.wait(60)

    class Waits(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            threading.Thread(target=stay).start()  # while this thread exports
            inside.wait(60)
            return torch.exp(x)

    try:
        model = from_torch(Waits(), (X,))
    finally:
        done.set()
    assert regions(model) == {"exp": ""}


def test_what_is_imported_in_a_region_is_in_it() -> None:
    with amp.disable_autocast(dtype="float32"):
        model = from_torch(Method(), (X,))
    assert regions(model) == {"exp": "float32", "sin": "float32"}


# -- edges -----------------------------------------------------------------------------------------


def test_equal_calls_on_both_sides_of_an_edge_stay_two() -> None:
    def compute(x: torch.Tensor) -> torch.Tensor:
        with amp.disable_autocast(dtype="float32"):
            inside = F.softmax(x, -1) * F.softmax(x, -1)
        return inside + F.softmax(x, -1)

    main = from_torch(Calls(compute), (X,)).main
    softmaxes = [
        place_of(binding.var).region
        for block in main.body.blocks
        for binding in block.bindings
        if op_name(binding.value) == "relax.nn.softmax"
    ]
    assert softmaxes == ["float32", ""]


def test_an_activation_in_pieces_on_both_sides_of_an_edge_stays_in_pieces() -> None:
    def gelu(x: torch.Tensor, region: Any) -> torch.Tensor:
        with region:
            inner = torch.tanh(0.7978845608028654 * (x + 0.044715 * x**3.0))
        return 0.5 * x * (1.0 + inner)

    assert "gelu_tanh" in regions(from_torch(Calls(lambda x: gelu(x, warnings.catch_warnings())), (X,)))
    assert "tanh" in regions(from_torch(Calls(lambda x: gelu(x, amp.disable_autocast())), (X,)))


# -- what AutoCast makes of them ---------------------------------------------------------------------


@pytest.mark.parametrize("preset", ["rules", "mp1", "mp4", "pure", "default"])
def test_a_region_decides_before_every_preset(preset: str) -> None:
    decided = decisions(from_torch(Nested(), (X,)), amp.Policy(preset=preset))
    assert decided["exp"] == ("float32", "float32", "region")
    assert decided["tanh"] == ("bfloat16", "bfloat16", "region")
    assert decided["sin"] == ("float32", "float32", "region")
    assert decided["cos"] == ("float32", "float32", "region")
    assert decided["relu"][2] != "region"


def test_only_what_is_guarded_goes_low_under_a_guarded_policy() -> None:
    decided = decisions(from_torch(Nested(), (X,)), amp.Policy(preset="mp4", guarded=True))
    assert {name for name, (mode, _, _) in decided.items() if mode == "bfloat16"} == {"tanh", "sigmoid"}
    assert decided["relu"] == ("float32", "float32", "region")
    assert decided["sigmoid"] == ("bfloat16", "bfloat16", "preset")


def test_a_guard_is_as_if_it_were_not_there_under_other_policies() -> None:
    decided = decisions(from_torch(Nested(), (X,)), amp.Policy(preset="mp4"))
    assert decided["sigmoid"] == ("bfloat16", "bfloat16", "preset") == decided["relu"]


def test_the_authors_dtypes_are_left_alone() -> None:
    """SambaFlow's example: under mp1, matmul_1 has mixed precision and matmul_2 is bfloat16."""

    class Example(nn.Module):
        def forward(self, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
            act_1 = F.relu(torch.matmul(a, b))
            with amp.disable_autocast():
                matmul_2 = torch.matmul(act_1.bfloat16(), c.bfloat16())
                return F.relu(matmul_2)

    model = amp.autocast(from_torch(Example(), (X, X.T, X[:4, :4])), policy=amp.Policy(preset="mp1"))
    rows = [(d.operator, d.mode, d.result, d.level) for d in model.report.decisions if "astype" not in d.operator]
    assert rows == [
        ("relax.matmul", "bfloat16", "float32", "preset"),
        ("relax.nn.relu", "float32", "float32", "preset"),
        ("relax.matmul", "bfloat16", "bfloat16", "region"),
        ("relax.nn.relu", "bfloat16", "bfloat16", "region"),
    ]
    assert model(X, X.T, X[:4, :4]).dtype == torch.bfloat16


def test_autocast_twice_is_autocast_once() -> None:
    policy = amp.Policy(preset="mp4")
    once = amp.autocast(from_torch(Nested(), (X,)), policy=policy)
    twice = amp.autocast(once, policy=policy)
    assert tvm_ffi.structural_equal(twice.mod, once.mod)


def test_a_region_of_another_16_bit_dtype_is_refused() -> None:
    with pytest.raises(PolicyError, match=r"disable_autocast\(dtype='bfloat16'\), and the policy's dtype is 'float16'"):
        amp.autocast(from_torch(Nested(), (X,)), dtype="float16")


def test_float32_keeps_what_bfloat16_loses() -> None:
    """(x + 1000) - 1000 is a part of x in float32, and nothing of it once 1000 + x was stored in bfloat16."""

    def compute(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return (x + 1000.0) @ w - (1000.0 * w.sum(0))

    def in_float32(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        with amp.disable_autocast(dtype="float32"):
            return compute(x, w)

    w, policy = torch.ones(8, 4), amp.Policy(preset="mp4", out_dtype="float32")
    expected = compute(X.double(), w.double()).float()
    errors = [
        float((amp.autocast(from_torch(Calls(function), (X, w)), policy=policy)(X, w) - expected).abs().max())
        for function in (in_float32, compute)
    ]
    assert errors[0] < 5e-3 < 0.5 < errors[1]


_PARTS = {"sin": torch.sin, "exp": torch.exp, "tanh": torch.tanh}
_TREES = st.recursive(
    st.sampled_from(sorted(_PARTS)),
    lambda inner: st.tuples(
        st.sampled_from([None, "float32", "bfloat16", "guard"]), st.lists(inner, min_size=1, max_size=3)
    ),
    max_leaves=6,
)


@settings(max_examples=8, deadline=None)
@given(st.lists(_TREES, min_size=1, max_size=3))
def test_however_regions_nest_each_operator_is_decided_by_the_innermost(trees: list) -> None:
    expected: list[tuple[str, str]] = []

    def walk(x: torch.Tensor, tree: Any, dtype: str) -> torch.Tensor:
        if isinstance(tree, str):
            expected.append((f"relax.{tree}", dtype))
            return _PARTS[tree](x)
        name, parts = tree
        with amp.fp16_guard() if name == "guard" else amp.disable_autocast(dtype=name):
            for part in parts:
                x = walk(x, part, {"guard": "bfloat16", None: "float32"}.get(name, name))
        return x

    def compute(x: torch.Tensor) -> torch.Tensor:
        expected.clear()
        for tree in trees:
            x = walk(x, tree, "bfloat16")
        return x

    model = amp.autocast(from_torch(Calls(compute), (X,)), policy=amp.Policy(preset="mp4"))
    assert [(d.operator, d.mode) for d in model.report.decisions] == expected
