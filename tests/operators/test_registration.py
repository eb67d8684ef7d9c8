"""An operator of a user's: one call, and types, casts, kernels, gradients, costs, counts and the importer know it."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
import pytest
import torch
import tvm
from torch import nn
from tvm import relax, te

import autocast
from autocast import amp, operators, vm
from autocast.errors import ImportModelError, OperatorError
from autocast.kernels import detect_target, lower
from autocast.kernels.cast_costs import KernelCosts
from autocast.operators import Expansion, like
from autocast.passes.casting.costs import CastCost
from autocast.training import MSE, SGD, training_step
from tests.kernels.modules import module
from tests.kernels.modules import operators as called
from type_hints import CastingRuleError, follow, low

op = relax.op


def _expand(e: Expansion) -> relax.Expr:
    (x,) = e.operands
    return x * op.sigmoid(e.number(float(e.call.attrs["beta"])) * x)


def _gradient(b: Any) -> list[relax.Expr]:
    x, beta = b.call.args[0], relax.const(float(b.call.attrs["beta"]), "float32")
    s = b.emit(op.sigmoid(beta * x))
    return [b.adjoint * (s + beta * x * s * (relax.const(1.0, "float32") - s))]


swish = operators.register(
    "tests.swish",
    "x",
    infer_type=like(0),
    rule=follow(1),
    why="bounded slope",
    expand=_expand,
    gradient=_gradient,
    torch="autocast_tests::swish",
)


def _halves_type(call: relax.Call) -> tvm.ir.Type:
    *rest, last = call.args[0].ty.shape.values
    half = relax.TensorType([*rest, last // 2], call.args[0].ty.dtype)
    return tvm.ir.TupleType([half, half])


def _halves(x: te.Tensor, factor: float) -> list[te.Tensor]:
    *rest, last = x.shape
    one = te.compute((*rest, last // 2), lambda *i: x[i] * factor)
    return [one, te.compute((*rest, last // 2), lambda *i: x[(*i[:-1], i[-1] + last // 2)])]


halves = operators.register(
    "tests.halves", "x", infer_type=_halves_type, rule=follow(1), why="moves data", compute=_halves
)


def _product_type(call: relax.Call) -> relax.TensorType:
    (rows, _), (_, columns) = (operand.ty.shape.values for operand in call.args[:2])
    return relax.TensorType([rows, columns], "float32")


#: A product of a user's, counted as the user says.
project = operators.register(
    "tests.project",
    "x w bias?",
    infer_type=_product_type,
    rule=low(2),
    why="a product",
    expand=lambda e: op.matmul(*e.operands[:2]) if len(e.operands) == 2 else op.matmul(*e.operands[:2]) + e.operands[2],
    flops=lambda call, shapes, result: 2 * prod(result) * shapes[0][1],
)


@torch.library.custom_op("autocast_tests::swish", mutates_args=())
def torch_swish(x: torch.Tensor, beta: float = 1.5) -> torch.Tensor:
    return x * torch.sigmoid(beta * x)


@torch_swish.register_fake
def _(x: torch.Tensor, beta: float = 1.5) -> torch.Tensor:
    return torch.empty_like(x)


class Network(nn.Module):
    """Two layers around the operator, as torch's custom one or written out."""

    def __init__(self, custom: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second, self.custom = nn.Linear(32, 64), nn.Linear(64, 8), custom

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        return self.second(torch_swish(x, 0.75) if self.custom else x * torch.sigmoid(0.75 * x))


def _batch() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(16, 32, generator=generator), torch.randn(16, 8, generator=generator)


def test_it_is_imported_cast_and_computed() -> None:
    x, _ = _batch()
    network = Network(True).eval()
    model = autocast.from_torch(network, (x,))
    assert "R.tests.swish(" in model.mod.script() and "beta=0.75" in model.mod.script()
    mixed = amp.autocast(model, dtype="bfloat16")
    assert [d.why for d in mixed.report.decisions if d.operator == "relax.tests.swish"] == ["bounded slope"]
    with torch.no_grad():
        expected = network(x)
    torch.testing.assert_close(torch.as_tensor(vm.compile(model)(x).numpy()), expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(torch.as_tensor(vm.compile(mixed)(x).numpy()), expected, rtol=2e-2, atol=2e-2)


def test_of_elementwise_operators_it_is_one_vector_kernel_with_its_neighbours() -> None:
    mod = module(lambda x: op.exp(swish(op.astype(x, "float32"), beta=1.5)), ((64, 48), "bfloat16"))
    assert [name for name in called(lower(mod, detect_target())) if not name.startswith("relax.")] == [
        "elementwise_multiply_sigmoid_multiply_exp_64x48_float32"
    ]


def test_a_cast_before_it_is_free_in_its_load() -> None:
    x = relax.Var("x", relax.TensorType((64, 48), "bfloat16"))
    call = relax.BlockBuilder().normalize(swish(x, beta=1.5))
    assert KernelCosts(detect_target()).cast(None, call, 0, x.ty, "float32") is CastCost.LOAD


def test_it_is_differentiated_as_it_says() -> None:
    (x, y), network = _batch(), Network(False)
    step = vm.compile(training_step(autocast.from_torch(Network(True), (x,)), MSE(), SGD()))
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    for _ in range(3):
        loss = nn.functional.mse_loss(network(x), y)
        assert abs(float(step(x, y, np.array(0.1, np.float32))) - float(loss.detach())) < 1e-5
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def test_a_tensor_expression_has_attributes_several_results_and_any_storage() -> None:
    def body(x: relax.Expr) -> relax.Expr:
        return halves(x, factor=3.0)

    for dtype in ("float32", "bfloat16"):
        executable = vm.compile(autocast.from_relax(module(body, (("n", 10), dtype))))
        x = np.arange(30).reshape(3, 10).astype(dtype)
        left, right = executable(tvm.runtime.tensor(x))
        np.testing.assert_array_equal(left.numpy().astype("float32"), x[:, :5].astype("float32") * 3)
        np.testing.assert_array_equal(right.numpy(), x[:, 5:])


def test_its_operations_are_counted_as_it_says_and_arguments_may_be_missing() -> None:
    shapes = (((4, 32), "float32"), ((32, 8), "float32"), ((8,), "float32"))
    for count in (2, 3):
        mod = module(lambda *args: project(*args), *shapes[:count])
        arrays = [np.ones(shape, dtype) for shape, dtype in shapes[:count]]
        assert vm.calc_model_gflops(mod, args=arrays) == pytest.approx(2 * 4 * 8 * 32 / 1e9)
        result = vm.compile(autocast.from_relax(mod))(*map(tvm.runtime.tensor, arrays))
        np.testing.assert_allclose(result.numpy(), 32 + (count == 3))


def test_a_module_with_it_prints_and_parses() -> None:
    mod = module(lambda x: swish(x, beta=1.5), ((4, 8), "float32"))
    assert tvm.script.from_source(mod.script()).script() == mod.script()


VALID: dict[str, Any] = {
    "name": "tests.other",
    "arguments": "x",
    "infer_type": like(0),
    "rule": follow(1),
    "why": "moves data",
    "expand": lambda e: e.operands[0],
}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": "other"}, "expected a namespace and a name"),
        ({"name": 3}, "expected a namespace and a name"),
        ({"name": "nn.relu"}, "exists already; choose a namespace of your own"),
        ({"name": "nn.relu", "override": True}, "exists already; choose a namespace of your own"),
        ({"name": "tests.swish"}, "exists already; pass override=True"),
        ({"arguments": "x, y"}, "optional ones last"),
        ({"arguments": "x? y"}, "optional ones last"),
        ({"expand": None}, "got none of compute= and expand="),
        ({"compute": _halves}, "got both of compute= and expand="),
        ({"infer_type": None}, "got infer_type=None, expected a function"),
        ({"gradient": "x"}, "got gradient='x', expected a function"),
        ({"torch": "swish"}, "expected 'namespace::name'"),
    ],
)
def test_what_describes_no_operator_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(OperatorError, match=message):
        operators.register(**{**VALID, **changes})


def test_after_a_rule_that_is_none_the_operator_can_be_registered_still() -> None:
    with pytest.raises(CastingRuleError, match="why="):
        operators.register(**{**VALID, "name": "tests.again", "why": ""})
    operators.register(**{**VALID, "name": "tests.again"})
    assert operators.TABLE["relax.tests.again"].kind is operators.Kind.SHORTHAND


def test_an_operator_of_other_arguments_than_torchs_is_an_error_where_torch_may_not_compute_it() -> None:
    @torch.library.custom_op("autocast_tests::pair", mutates_args=())
    def pair(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x + y

    pair.register_fake(lambda x, y: torch.empty_like(x))
    operators.register(**{**VALID, "name": "tests.pair", "torch": "autocast_tests::pair"})

    class Pair(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return pair(x, x * 2)

    with pytest.raises(ImportModelError, match=r"relax.tests.pair was registered with x"):
        autocast.from_torch(Pair(), (torch.ones(2, 3),), fallback="error")
