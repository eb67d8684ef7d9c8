"""Recomputed regions: the same step, with fewer activations kept."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from torch import nn

from autocast import training, vm
from autocast.errors import TrainingError
from autocast.frontend import from_torch
from autocast.ir import op_name
from autocast.model.value import Model

SIZE = 32


class Block(nn.Module):
    """A residual block with dropout, which is random and must be the same twice."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.drop = nn.LayerNorm(SIZE), nn.Dropout(0.2)
        self.up, self.down = nn.Linear(SIZE, 4 * SIZE), nn.Linear(4 * SIZE, SIZE)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, SIZE) to the same."""
        return x + self.down(self.drop(nn.functional.gelu(self.up(self.norm(x)))))


@cache
def _model() -> Model:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        module = nn.ModuleDict({"blocks": nn.Sequential(*[Block() for _ in range(3)]), "head": nn.Linear(SIZE, 5)})
        net = nn.Sequential(module["blocks"], module["head"]).train()
        return from_torch(net, (torch.randn(64, SIZE),), seed=2)


@cache
def _step(*patterns: str) -> Model:
    return training.training_step(_model(), training.CrossEntropy(), training.SGD(), recompute=patterns)


def _batch() -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(1)
    x, labels = torch.randn(64, SIZE, generator=generator), torch.randint(0, 5, (64,), generator=generator)
    return x, labels, torch.tensor(0.5)


def _calls(model: Model, name: str) -> int:
    bindings = [binding for block in model.main.body.blocks for binding in block.bindings]
    return sum(op_name(binding.value) == name for binding in bindings)


def test_losses_and_masks_are_the_same_to_the_last_bit() -> None:
    kept, recomputed = (vm.compile(_step(*patterns), "cpu") for patterns in ((), ("0.*",)))
    for _ in range(3):
        assert float(kept(*_batch())) == float(recomputed(*_batch()))
    for name, value in kept.state.items():
        assert (value.numpy() == recomputed.state[name].numpy()).all(), name


def test_memory_is_lower() -> None:
    kept, recomputed = (vm.get_peak_memory(_step(*patterns), "cpu", _batch()) for patterns in ((), ("0.*",)))
    assert recomputed < 0.9 * kept


def test_each_region_is_computed_twice_and_the_rest_once() -> None:
    assert _calls(_step(), "relax.nn.gelu") == 3
    assert _calls(_step("0.1"), "relax.nn.gelu") == 4
    assert _calls(_step("0.*"), "relax.nn.gelu") == 6


def test_only_what_enters_a_region_is_kept_for_it() -> None:
    # The block's input, and the random state of its dropout.
    assert _calls(_step("0.1"), "relax.grad.start_checkpoint") <= 2


def test_an_unknown_region_is_an_error_that_names_near_ones() -> None:
    with pytest.raises(TrainingError, match=r"'blocks\.\*' matches no submodule; expected a glob .*0\.0"):
        _step("blocks.*")


def test_without_patterns_nothing_changes() -> None:
    assert _calls(_step(), "relax.grad.start_checkpoint") == 0
