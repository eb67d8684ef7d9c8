"""Models as torch modules: the eight architectures, in both precisions, to infer and to train."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
import torch

import autocast
from autocast import amp
from autocast.training import MSE, AdamW, CrossEntropy, training_step
from tests.architectures import ARCHITECTURES, flatten, imported, trainable


def _error(got: Any, expected: Any) -> float:
    """The largest relative error of the outputs, by their norms."""
    pairs = zip(flatten(got), flatten(expected), strict=True)
    return max(float((a.double() - b.double()).norm() / b.double().norm()) for a, b in pairs)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_models_compute_what_they_were_imported_from(name: str) -> None:
    architecture, model = ARCHITECTURES[name](), imported(name, True)
    exact, low = autocast.to_torch(model), autocast.to_torch(amp.autocast(model))
    for batch in (1, 2, 3):
        args, kwargs = architecture.inputs(batch)
        expected = architecture.reference(*args, **kwargs)
        with torch.no_grad():
            assert _error(exact(*args, *kwargs.values()), expected) < 1e-5
            assert _error(low(*args, *kwargs.values()), expected) < 2e-2


@pytest.mark.parametrize("name", ["bert", "llama", "resnet", "lstm"])
def test_training_steps_have_the_losses_of_torch(name: str) -> None:
    architecture = ARCHITECTURES[name]()
    module = architecture.module.requires_grad_(True)
    classes = name not in ("lstm", "unet")
    step = training_step(trainable(name), CrossEntropy() if classes else MSE(), AdamW())
    (logits, *_) = architecture.reference(*architecture.args, **architecture.kwargs)
    torch.manual_seed(0)
    labels = torch.randint(0, logits.shape[-1], logits.shape[:-1]) if classes else torch.randn(logits.shape)
    inputs = (*architecture.args, *architecture.kwargs.values(), labels, torch.tensor(1e-3))
    losses = {}
    for kind, model in (("exact", step), ("low", amp.autocast(step))):
        ours = autocast.to_torch(model)
        with torch.no_grad():
            losses[kind] = [float(ours(*inputs)) for _ in range(3)]
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-3, weight_decay=AdamW().weight_decay)
    expected = []
    for _ in range(3):
        optimizer.zero_grad()
        (logits, *_) = flatten(module(*architecture.args, **architecture.kwargs))
        flat = (logits.flatten(0, -2), labels.flatten()) if classes else (logits, labels)
        loss = (torch.nn.functional.cross_entropy if classes else torch.nn.functional.mse_loss)(*flat)
        loss.backward()
        optimizer.step()
        expected.append(loss.item())
    assert losses["exact"] == pytest.approx(expected, rel=1e-3)  # Adam follows the signs of gradients that are nearly 0
    assert losses["low"] == pytest.approx(expected, rel=2e-2)


def test_parameters_have_their_names_in_torch() -> None:
    architecture = ARCHITECTURES["bert"]()
    module = autocast.to_torch(deepcopy(imported("bert")))  # the other tests read the parameters that are written here
    expected = dict(architecture.module.named_parameters())
    assert set(dict(module.named_parameters())) == set(expected)
    module.load_state_dict({name: torch.zeros_like(value) for name, value in architecture.module.state_dict().items()})
    with torch.no_grad():
        assert not module(*architecture.args, *architecture.kwargs.values()).any()


def test_nodes_say_where_they_come_from() -> None:
    module = autocast.to_torch(imported("bert"))
    places = {node.meta["autocast"].module for node in module.graph.nodes if "autocast" in node.meta}
    assert any(place.endswith("attention.self.query") for place in places)
