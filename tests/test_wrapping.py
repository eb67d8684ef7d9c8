"""`autocast.wrap`: modules that their programs call as before, computed by our kernels."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

import autocast
from autocast.errors import FallbackWarning, InputError, PolicyError, ReimportWarning
from autocast.wrapping import programs
from tests.architectures import ARCHITECTURES

#: Of bfloat16 products of a hundred terms of order 1.
_LOW = {"rtol": 2e-2, "atol": 2e-2}


@pytest.fixture(autouse=True)
def _inference() -> Iterator[None]:
    torch.manual_seed(0)
    with torch.no_grad():
        yield


@pytest.fixture
def imports(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The models that are imported."""
    made: list[Any] = []
    import_ = programs.from_torch
    monkeypatch.setattr(programs, "from_torch", lambda *args, **kw: made.append(import_(*args, **kw)) or made[-1])
    return made


class Gated(nn.Module):
    """Has options, and returns nested outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(16, 32), nn.Linear(32, 8)

    def forward(self, x: torch.Tensor, gate: torch.Tensor | None = None, *, scale: float = 1.0) -> dict[str, Any]:
        hidden = torch.relu(self.first(x))
        if gate is not None:
            hidden = hidden * gate
        return {"logits": self.second(hidden) * scale, "kept": (hidden, None)}


def _network() -> nn.Module:
    return nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 8)).eval()


def test_outputs_are_nested_as_the_module_nests_them() -> None:
    module, x = Gated().eval(), torch.randn(4, 16)
    got, expected = autocast.wrap(module)(x), module(x)
    torch.testing.assert_close(got["logits"], expected["logits"], **_LOW)
    torch.testing.assert_close(got["kept"][0], expected["kept"][0], **_LOW)
    assert got.keys() == expected.keys() and got["kept"][1] is None


def test_each_kind_of_inputs_has_a_program(imports: list[Any]) -> None:
    module, x, gate = Gated().eval(), torch.randn(4, 16), torch.rand(32)
    wrapped = autocast.wrap(module)
    for _ in range(2):
        torch.testing.assert_close(wrapped(x)["logits"], module(x)["logits"], **_LOW)
        torch.testing.assert_close(wrapped(x, gate)["logits"], module(x, gate)["logits"], **_LOW)
        torch.testing.assert_close(wrapped(x, scale=3.0)["logits"], module(x, scale=3.0)["logits"], **_LOW)
    assert len(imports) == 3


def test_a_model_of_transformers_returns_its_own_kind_of_output() -> None:
    architecture = ARCHITECTURES["bert"]()
    got, expected = autocast.wrap(architecture.module)(*architecture.args), architecture.module(*architecture.args)
    assert type(got) is type(expected)
    torch.testing.assert_close(got.logits, expected.logits, **_LOW)


@pytest.mark.parametrize("layer", [nn.GRU, nn.LSTM, nn.RNN])
def test_a_recurrent_layer_is_a_program_and_reads_weights_again(layer: type[nn.RNNBase], imports: list[Any]) -> None:
    module, x = nn.Sequential(nn.Linear(4, 6), layer(6, 5)), torch.randn(3, 2, 4)
    wrapped = autocast.wrap(module)
    with torch.no_grad():
        for _ in range(2):
            torch.testing.assert_close(wrapped(x)[0], module(x)[0], **_LOW)
            module[1].weight_hh_l0.mul_(-2)
    assert len(imports) == 1


@torch.enable_grad()
def test_a_recurrent_layer_is_trained_by_torch_and_that_is_said() -> None:
    module, x = nn.GRU(6, 5), torch.randn(3, 2, 6)
    wrapped = autocast.wrap(module)
    with pytest.warns(FallbackWarning, match="wrap: the module: .* takes no recurrent layers") as caught:
        outputs = [wrapped(x)[0] for _ in range(2)]
    assert len(caught) == 1
    assert torch.equal(outputs[1], module(x)[0])
    outputs[1].sum().backward()
    assert module.weight_hh_l0.grad is not None


def test_signature_class_attributes_and_state_dict_are_those_of_the_module() -> None:
    module = Gated()
    wrapped = autocast.wrap(module)
    assert inspect.signature(wrapped.forward) == inspect.signature(module.forward)
    assert isinstance(wrapped, Gated) and type(wrapped).__name__ == "Gated"
    assert wrapped.state_dict().keys() == module.state_dict().keys()
    assert wrapped.first.weight is module.first.weight


def test_sizes_that_vary_are_imported_once(imports: list[Any]) -> None:
    module = _network()
    wrapped = autocast.wrap(module, dynamic={"rows": ("input", 0)})
    for rows in (4, 1, 9):
        x = torch.randn(rows, 16)
        torch.testing.assert_close(wrapped(x), module(x), **_LOW)
    assert len(imports) == 1


def test_a_size_that_differs_is_dynamic_from_then_on() -> None:
    module = _network()
    wrapped = autocast.wrap(module)
    wrapped(torch.randn(4, 16))
    with pytest.warns(ReimportWarning):
        wrapped(torch.randn(3, 16))
    x = torch.randn(7, 16)
    torch.testing.assert_close(wrapped(x), module(x), **_LOW)
    module[0].weight.mul_(2)  # an epoch later, say
    torch.testing.assert_close(wrapped(x), module(x), **_LOW)


def test_what_was_exported_is_compared_with_the_module_and_not_with_its_programs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Decides(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return 3 * super().forward(x) if x.shape[0] == 1 else super().forward(x)

    exports, export = [], torch.export.export
    monkeypatch.setattr(torch.export, "export", lambda *args, **kw: exports.append(args) or export(*args, **kw))
    module = Decides(4, 4).eval()
    wrapped = autocast.wrap(copy.deepcopy(module), policy="mp0")
    x = torch.randn(4, 4)
    torch.testing.assert_close(wrapped(x), module(x))
    with pytest.warns(ReimportWarning):
        torch.testing.assert_close(wrapped(x[:3]), module(x[:3]))
    torch.testing.assert_close(wrapped(x[:1]), module(x[:1]))
    assert len(exports) == 3, "static, of two rows or more, of one"


def test_options_beside_the_parameters_of_forward_are_taken_with_any_sizes() -> None:
    class Scaled(nn.Module):
        def forward(self, x: torch.Tensor, **options: Any) -> torch.Tensor:
            return torch.relu(x) * options["factor"]

    wrapped = autocast.wrap(Scaled(), dynamic={"rows": ("x", 0)})
    for rows, factor in ((4, 2.0), (3, 2.0), (3, 5.0)):
        x = torch.randn(rows, 16)
        torch.testing.assert_close(wrapped(x, factor=factor), torch.relu(x) * factor)


def _load(module: Any) -> None:
    module.load_state_dict({name: 2 * value for name, value in module.state_dict().items()})


def _assign(module: Any) -> None:
    module[0].weight = nn.Parameter(2 * module[0].weight)


def _exchange(module: Any) -> None:
    module[0].weight.data = 2 * module[0].weight.data


def _replace(module: Any) -> None:
    module[0] = nn.Linear(16, 32)


@pytest.mark.parametrize("change", [_load, _assign, _exchange, _replace])
def test_weights_that_change_are_read_again(change: Any) -> None:
    module, x = _network(), torch.randn(4, 16)
    wrapped = autocast.wrap(module)
    before = wrapped(x)
    change(module)
    torch.testing.assert_close(wrapped(x), module(x), rtol=2e-2, atol=8e-2)
    assert not torch.equal(wrapped(x), before)


def test_a_parameter_of_one_number_that_takes_the_place_of_an_equal_one_is_read_when_it_changes() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.factor = nn.Parameter(torch.ones(1))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.factor

    module, x = Scaled(), torch.randn(4)
    wrapped = autocast.wrap(module)
    wrapped(x)
    wrapped.factor = nn.Parameter(torch.ones(1))
    torch.testing.assert_close(wrapped(x), x)
    with torch.no_grad():
        wrapped.factor.mul_(3)
    torch.testing.assert_close(wrapped(x), 3 * x)


def test_hooks_of_the_module_are_called_once() -> None:
    module, x = _network(), torch.randn(4, 16)
    module.register_forward_hook(lambda module, args, output: output * 2)
    module.register_forward_pre_hook(lambda module, args: (args[0] + 1,))
    torch.testing.assert_close(autocast.wrap(module)(x), module(x), **_LOW)


def test_a_wrapped_module_is_copied_and_pickled_with_weights_of_its_own() -> None:
    module, x = _network(), torch.randn(4, 16)
    wrapped = autocast.wrap(module, dtype="bfloat16")
    expected = wrapped(x)
    for made in (copy.deepcopy(wrapped), pickle.loads(pickle.dumps(wrapped))):
        module[0].weight.zero_()
        torch.testing.assert_close(made(x), expected, rtol=0, atol=0)


def test_options_are_those_of_autocast(imports: list[Any]) -> None:
    module, x = _network(), torch.randn(4, 16)
    exact = autocast.wrap(module, policy="float32_ops=(matmul,)")(x)
    torch.testing.assert_close(exact, module(x))
    with pytest.raises(PolicyError, match="'fp32' is neither a preset nor a dtype"):
        autocast.wrap(module, policy="fp32")


def test_a_module_in_training_mode_changes_its_buffers_where_no_gradients_are_wanted(imports: list[Any]) -> None:
    module = nn.Sequential(nn.Linear(16, 8), nn.BatchNorm1d(8)).train()
    wrapped, expected = autocast.wrap(copy.deepcopy(module), policy="mp0"), module
    for rows in (4, 4, 5):
        x = torch.randn(rows, 16)
        torch.testing.assert_close(wrapped(x), expected(x))
    torch.testing.assert_close(wrapped.state_dict(), expected.state_dict())
    assert len(imports) == 1  # the others are torch's compiler's
    torch.testing.assert_close(wrapped.eval()(x), expected.eval()(x))


def test_a_module_that_draws_numbers_draws_others_in_each_call() -> None:
    class Noisy(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + torch.randn_like(x)

    wrapped, x = autocast.wrap(Noisy().eval()), torch.zeros(10_000)
    first, second = wrapped(x), wrapped(x)
    assert not torch.equal(first, second)
    assert abs(float(first.std()) - 1) < 0.05


def test_inputs_that_are_no_values_are_an_error() -> None:
    with pytest.raises(InputError, match="an input is a object, expected tensors"):
        autocast.wrap(_network())(object())


def test_a_wrapped_module_is_not_wrapped_again() -> None:
    with pytest.raises(InputError, match="wrapped already"):
        autocast.wrap(autocast.wrap(_network()))
    with pytest.raises(InputError, match=r"what torch\.compile returned, expected one whose code is Python"):
        autocast.wrap(torch.compile(_network(), backend="eager"))  # type: ignore[type-var]
    with pytest.raises(InputError, match=r"wrap: got a function, expected a torch\.nn\.Module"):
        autocast.wrap(lambda x: x)  # type: ignore[type-var]


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")  # torch's own
@pytest.mark.parametrize("wants_gradients", [False, True])
def test_torchs_compiler_sees_what_is_around_a_wrapped_module(wants_gradients: bool) -> None:
    class Around(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = autocast.wrap(_network())

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.tanh(self.inner(torch.relu(x)))

    graphs: list[torch.fx.GraphModule] = []

    def compiler(graph: torch.fx.GraphModule, inputs: Any) -> Any:
        graphs.append(graph)
        return graph

    network, x = Around(), torch.randn(4, 16)
    compiled = torch.compile(network, backend=compiler)
    with torch.set_grad_enabled(wants_gradients):
        torch.testing.assert_close(compiled(x), network(x), **_LOW)
        torch.testing.assert_close(compiled(-x), network(-x), **_LOW)
    called = [[node.op for node in graph.graph.nodes if node.op.startswith("call")] for graph in graphs]
    assert called == [["call_function"], ["call_function"]]


def _with_another_forward(module: nn.Module) -> None:
    before = module.forward
    module.forward = lambda numbers: 2 * before(numbers)  # type: ignore[method-assign]


def _with_torchs_compiler(module: nn.Module) -> None:
    module.compile(backend="eager")


@pytest.mark.parametrize("change", [_with_another_forward, _with_torchs_compiler])
def test_what_a_module_has_of_its_own_for_its_calls_is_imported(change: Any, imports: list[Any]) -> None:
    module, x = _network(), torch.randn(4, 16)
    change(module)
    wrapped = autocast.wrap(module)
    for made in (wrapped, copy.deepcopy(wrapped)):
        torch.testing.assert_close(made(x), module(x), **_LOW)
    assert len(imports) == 2
    assert inspect.signature(wrapped.forward) == inspect.signature(module.forward)


def test_a_module_without_inputs_returns_a_torch_tensor() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3))

        def forward(self) -> torch.Tensor:
            return self.weight * 2

    torch.testing.assert_close(autocast.wrap(Twice())(), torch.full((3,), 2.0))


def test_what_a_call_leaves_in_attributes_is_there_in_the_next() -> None:
    class Sums(nn.Module):
        before = None

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.before = x if self.before is None else self.before + x
            return self.before * 2

    wrapped, x = autocast.wrap(Sums()), torch.ones(3)
    for count in (1, 2, 3):
        torch.testing.assert_close(wrapped(x), 2 * count * x)


def test_what_cannot_be_imported_is_compiled_by_torch() -> None:
    @dataclasses.dataclass
    class Answer:
        value: torch.Tensor
        note: str

    class Decides(nn.Module):
        def forward(self, x: torch.Tensor, dtype: torch.dtype = torch.float32) -> Answer:
            return Answer(x.to(dtype) * 2, "positive") if x.sum() > 0 else Answer(-x.to(dtype), "negative")

    wrapped, x = autocast.wrap(Decides()), torch.ones(3)
    assert wrapped(x).note == "positive" and wrapped(-x).note == "negative"
    assert wrapped(x, torch.float64).value.tolist() == [2.0] * 3


def test_a_size_for_which_it_cannot_be_imported_is_one_for_torch() -> None:
    class Drops(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.squeeze() * 2

    wrapped = autocast.wrap(Drops())
    with pytest.warns(ReimportWarning):
        assert [wrapped(torch.ones(n, 4)).shape for n in (3, 5)] == [(3, 4), (5, 4)]
    assert wrapped(torch.ones(1, 4)).shape == (4,)
    assert wrapped(torch.ones(0, 4)).shape == (0, 4)


def test_numbers_that_a_module_returns_stay_numbers_and_follow_sizes(imports: list[Any]) -> None:
    class Counted(nn.Module):
        def forward(self, x: torch.Tensor) -> dict[str, Any]:
            return {"sum": x.sum(0), "rows": x.shape[0], "share": x.shape[0] / 8, "aux": 0.1, "word": "x"}

    wrapped = autocast.wrap(Counted())
    wrapped(torch.randn(4, 3))
    with pytest.warns(ReimportWarning):
        got = wrapped(torch.randn(5, 3))
    del got["sum"]
    assert got == {"rows": 5, "share": 0.625, "aux": 0.1, "word": "x"}
    assert len(imports) == 1


@torch.enable_grad()
def test_gradients_of_inputs_within_containers_are_wanted() -> None:
    class Product(nn.Module):
        def forward(self, pair: Any) -> torch.Tensor:
            first, second = pair.values() if isinstance(pair, dict) else pair
            return first * second

    for make in (tuple, list, lambda pair: dict(enumerate(pair))):
        x, y = torch.randn(3, requires_grad=True), torch.randn(3)
        autocast.wrap(Product(), policy="mp0")(make([x, y])).sum().backward()
        torch.testing.assert_close(x.grad, y)
