"""Mixtures of experts: products of sorted rows with the matrix of each one's group."""

from collections.abc import Callable

import pytest
import torch
import transformers
import transformers.integrations.moe  # registers grouped_mm_fallback

from autocast import amp, vm
from autocast.frontend import from_torch
from tests.frontend.helpers import Calls, relative_error

#: What of 9 rows four experts take: one none, none all.
ENDS = {"all rows": (3, 3, 5, 9), "rows are left": (0, 2, 2, 6), "one has all": (0, 9, 9, 9)}


def _fallback(x: torch.Tensor, weight: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    return torch.ops.transformers.grouped_mm_fallback(x, weight.transpose(1, 2), ends)


def _grouped(x: torch.Tensor, weight: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    """Rows behind the last end are anything to torch."""
    product = torch._grouped_mm(x, weight.transpose(1, 2), offs=ends)
    return torch.where((torch.arange(9) < ends[-1])[:, None], product, 0)


@pytest.mark.parametrize(
    ("function", "dtype"),
    [(_fallback, torch.float32), (_fallback, torch.bfloat16), (_grouped, torch.bfloat16)],  # all that torch exports
)
def test_each_row_is_multiplied_by_the_matrix_of_its_group(function: object, dtype: torch.dtype) -> None:
    x, weight = torch.randn(9, 16).to(dtype), torch.randn(4, 24, 16).to(dtype)
    module = Calls(function).eval()
    model = from_torch(module, (x, weight, torch.tensor(ENDS["all rows"], dtype=torch.int32)), fallback="error")
    executable = vm.compile(model)
    for ends in ENDS.values():
        ends = torch.tensor(ends, dtype=torch.int32)
        exact = _fallback(x.double(), weight.double(), ends)
        error = relative_error(executable(x, weight, ends).double(), exact)
        assert error <= max(1e-6, 1.01 * relative_error(module(x, weight, ends).double(), exact))


@pytest.mark.parametrize(("function", "dtype"), [(_fallback, torch.float32), (_grouped, torch.bfloat16)])
def test_gradients_of_groups_are_those_of_torch(function: Callable[..., torch.Tensor], dtype: torch.dtype) -> None:
    compiled = torch.compile(function, backend="autocast", options={"policy": "mp0"})
    for ends in ENDS.values():
        x, weight = torch.randn(9, 16).to(dtype), torch.randn(4, 24, 16).to(dtype)
        found = []
        for called in (compiled, function):
            leaves = [one.clone().requires_grad_() for one in (x, weight)]
            called(*leaves, torch.tensor(ends, dtype=torch.int32)).square().sum().backward()
            found.append([leaves[0].grad[: ends[-1]], leaves[1].grad])  # rows behind are anything to torch
        for ours, theirs in zip(*found, strict=True):
            assert relative_error(ours.double(), theirs.double()) <= (1e-5 if dtype is torch.float32 else 2e-2)


def test_groups_of_any_number_of_rows_are_multiplied() -> None:
    x, weight = torch.randn(9, 16), torch.randn(4, 24, 16)
    ends = torch.tensor(ENDS["all rows"], dtype=torch.int32)
    model = from_torch(Calls(_fallback), (x, weight, ends), dynamic={"rows": ("args.0", 0, 1, 64)}, fallback="error")
    x, ends = torch.randn(40, 16), torch.tensor((1, 20, 20, 40), dtype=torch.int32)
    assert relative_error(vm.compile(model)(x, weight, ends), _fallback(x, weight, ends)) <= 1e-6


def test_a_mixture_of_experts_needs_nothing_of_torch_and_is_as_exact_in_mixed_precision() -> None:
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "vocab_size": 99, "head_dim": 8}
    config = transformers.MixtralConfig(**sizes, num_attention_heads=4, num_key_value_heads=2, num_local_experts=4)
    torch.manual_seed(0)
    module = transformers.MixtralModel(config).eval()
    ids = torch.randint(3, 99, (2, 8))
    with torch.no_grad():
        module.set_experts_implementation("eager")  # the others know no float64
        exact = module.double()(ids).last_hidden_state
        module.set_experts_implementation("grouped_mm")
        with torch.autocast("cpu", torch.bfloat16):
            theirs = module.float()(ids).last_hidden_state
    model = amp.autocast(from_torch(module, (ids,), fallback="error"))
    assert relative_error(vm.compile(model)(ids).double(), exact) <= relative_error(theirs.double(), exact)
