"""What is written for GPUs computes the same: attention with its adjoints, padded products, turned gradients."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import fx, nn

import autocast
from autocast import amp
from autocast.torch_target.attention import adjoints, attended
from autocast.torch_target.padding import pad_products
from autocast.training import MSE, SGD, CrossEntropy, training_step
from autocast.vm.cuda_graphs import can_be_captured
from autocast.vm.signatures import signature_of
from tests.architectures import ARCHITECTURES, trainable
from tests.torch_target.modules import Chosen, Found, OfTorch


def _step(name: str, dtype: str | None) -> tuple[autocast.Model, tuple[torch.Tensor, ...]]:
    """A training step of an architecture, and its inputs."""
    architecture = ARCHITECTURES[name]()
    step = training_step(trainable(name), CrossEntropy(), SGD(momentum=0.9))
    (logits, *_) = architecture.reference(*architecture.args, **architecture.kwargs)
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(0, logits.shape[-1], logits.shape[:-1], generator=generator)
    inputs = (*architecture.args, *architecture.kwargs.values(), labels, torch.tensor(1e-2))
    return step if dtype is None else amp.autocast(step, dtype=dtype), inputs


def _state_after(module: fx.GraphModule, inputs: tuple[torch.Tensor, ...]) -> dict[str, torch.Tensor]:
    with torch.no_grad():
        loss = module(*inputs)
    return {"loss": loss, **{name: value.clone() for name, value in module.named_buffers()}}


def _count(module: fx.GraphModule, target: Any) -> int:
    return len(module.graph.find_nodes(op="call_function", target=target))


@pytest.mark.parametrize(("name", "dtype", "tolerance"), [("gpt2", None, 1e-5), ("bert", "bfloat16", 2e-2)])
def test_attention_is_computed_once_with_its_adjoints(name: str, dtype: str | None, tolerance: float) -> None:
    step, inputs = _step(name, dtype)
    written_out, fused = (autocast.to_torch(step, exact=False, fused=fused) for fused in (False, True))
    forward = _count(written_out, torch.nn.functional.scaled_dot_product_attention)
    expected = {torch.nn.functional.scaled_dot_product_attention: 0, attended: forward, adjoints: forward}
    assert forward > 0 and {target: _count(fused, target) for target in expected} == expected
    before, after = (_state_after(module, inputs) for module in (written_out, fused))
    for key in set(before) & set(step.updated) | {"loss"}:
        if not key.endswith("key.bias"):  # the gradient is 0 but for rounding
            torch.testing.assert_close(after[key], before[key], rtol=tolerance, atol=tolerance * 1e-1)


def test_gradients_of_weights_are_answered_as_weights_lie() -> None:
    step, _ = _step("bert", "bfloat16")
    for node in autocast.to_torch(step).graph.find_nodes(op="call_method", target="permute"):
        assert node.args[0].target is not torch.matmul


def test_the_adjoints_of_convolutions_have_operands_of_one_dtype() -> None:
    class Watched(fx.Interpreter):
        dtypes: set[frozenset[torch.dtype]] = set()  # noqa: RUF012

        def run_node(self, n: fx.Node) -> Any:
            if n.target is torch.ops.aten.convolution_backward:
                values, _ = self.fetch_args_kwargs_from_env(n)
                self.dtypes.add(frozenset(value.dtype for value in values[:3]))
            return super().run_node(n)

    step, inputs = _step("resnet", "bfloat16")
    with torch.no_grad():
        Watched(autocast.to_torch(step, exact=False)).run(*inputs)
    assert Watched.dtypes == {frozenset({torch.bfloat16})}


@pytest.mark.parametrize(
    ("rows", "sizes"), [((300,), (264, 1003, 517)), ((3, 101), (257, 512, 300)), ((3, 101), (256, 263, 999))]
)
def test_products_of_odd_sizes_are_the_same_with_zeros(rows: tuple[int, ...], sizes: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(*sizes[:2]), nn.Tanh(), nn.Linear(*sizes[1:], bias=False))
    x, target = torch.randn(*rows, sizes[0]), torch.randn(*rows, sizes[2])
    step = amp.autocast(training_step(autocast.from_torch(module, (x,)), MSE(), SGD(momentum=0.9)), dtype="bfloat16")
    plain, padded = (autocast.to_torch(step, exact=False, fused=True) for _ in range(2))
    pad_products(padded, signature_of(step.main, step.num_input).inputs)
    assert _count(padded, torch.nn.functional.pad) > 0
    inputs = (x, target, torch.tensor(0.1))
    before, after = _state_after(plain, inputs), _state_after(padded, inputs)
    for key in before.keys() & after.keys():
        torch.testing.assert_close(after[key], before[key], rtol=1e-2, atol=1e-4)


@pytest.mark.filterwarnings("ignore::autocast.errors.FallbackWarning")
@pytest.mark.parametrize(
    ("module", "dynamic", "expected"),
    [
        (nn.Linear(4, 2), {}, True),
        (nn.Linear(4, 2), {"rows": ("input", 0, 1, 8)}, False),
        (Chosen(), {}, False),
        (Found(), {}, False),
        (OfTorch(), {}, False),
    ],
)
def test_what_waits_for_values_or_has_sizes_that_vary_is_no_graph(
    module: nn.Module, dynamic: dict[str, Any], expected: bool
) -> None:
    example = torch.randn(3, 4) if isinstance(module, nn.Linear) else torch.randn(4, 4)
    model = autocast.from_torch(module, (example,), dynamic=dynamic or None)
    signature = signature_of(model.main, model.num_input)
    assert can_be_captured(autocast.to_torch(model), signature) is expected
