"""Losses and their gradients, beside torch's."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import autocast
from autocast import vm
from autocast.errors import InputError, TrainingError
from autocast.training.append_loss import append_loss, check_labels
from autocast.training.differentiate import differentiate
from autocast.training.losses import MSE, NLL, BCEWithLogits, CrossEntropy, SmoothL1
from tests.training.modules import imported_network, network

SHAPE = (4, 3, 7)
WEIGHTS = (0.5, 1.0, 2.0, 0.25, 3.0, 0.0, 1.5)


def identity(shape=SHAPE):
    """A model that gives back its input, the prediction."""

    class Identity(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + 0.0

    return autocast.from_torch(Identity(), (torch.zeros(shape),))


def loss_and_gradient(loss, prediction, labels):
    model = append_loss(identity(tuple(prediction.shape)), loss)
    main = model.main
    differentiated = differentiate(main, [main.params[0]])
    both = autocast.from_relax(differentiated.without_attr("num_input"))
    return vm.compile(both)(prediction, labels)


def indices(ignored=False):
    labels = torch.randint(0, SHAPE[-1], SHAPE[:-1])
    if ignored:
        labels[0, 1] = labels[3, 2] = -100
    return labels


def one_hot():
    return functional.one_hot(indices(), SHAPE[-1]).float()


def flat(function):
    """torch wants classes second."""
    return lambda x, y: function(x.flatten(0, 1), y.flatten(0, 1))


CASES = [
    (CrossEntropy(), lambda: indices(ignored=True), flat(functional.cross_entropy)),
    (
        CrossEntropy(reduction="sum"),
        lambda: indices(ignored=True),
        flat(lambda x, y: functional.cross_entropy(x, y, reduction="sum")),
    ),
    (
        CrossEntropy(label_smoothing=0.1),
        lambda: indices(ignored=True),
        flat(lambda x, y: functional.cross_entropy(x, y, label_smoothing=0.1)),
    ),
    (
        CrossEntropy(ignore_index=3),
        indices,
        flat(lambda x, y: functional.cross_entropy(x, y, ignore_index=3)),
    ),
    (CrossEntropy(kind="probabilities"), one_hot, flat(functional.cross_entropy)),
    (
        CrossEntropy(kind="probabilities", label_smoothing=0.2, reduction="sum"),
        lambda: torch.softmax(torch.randn(SHAPE), -1),
        flat(lambda x, y: functional.cross_entropy(x, y, label_smoothing=0.2, reduction="sum")),
    ),
    (NLL(), lambda: indices(ignored=True), flat(functional.nll_loss)),
    (
        CrossEntropy(weight=WEIGHTS),
        lambda: indices(ignored=True),
        flat(lambda x, y: functional.cross_entropy(x, y, torch.tensor(WEIGHTS))),
    ),
    (
        CrossEntropy(weight=WEIGHTS, label_smoothing=0.1),
        lambda: indices(ignored=True),
        flat(lambda x, y: functional.cross_entropy(x, y, torch.tensor(WEIGHTS), label_smoothing=0.1)),
    ),
    (
        CrossEntropy(weight=np.float32(WEIGHTS), reduction="sum"),
        indices,
        flat(lambda x, y: functional.cross_entropy(x, y, torch.tensor(WEIGHTS), reduction="sum")),
    ),
    (
        CrossEntropy(weight=WEIGHTS, kind="probabilities", label_smoothing=0.2),
        lambda: torch.softmax(torch.randn(SHAPE), -1),
        flat(lambda x, y: functional.cross_entropy(x, y, torch.tensor(WEIGHTS), label_smoothing=0.2)),
    ),
    (
        NLL(weight=torch.tensor(WEIGHTS)),
        lambda: indices(ignored=True),
        flat(lambda x, y: functional.nll_loss(x, y, torch.tensor(WEIGHTS))),
    ),
    (
        BCEWithLogits(pos_weight=WEIGHTS),
        lambda: torch.rand(SHAPE),
        lambda x, y: functional.binary_cross_entropy_with_logits(x, y, pos_weight=torch.tensor(WEIGHTS)),
    ),
    (
        CrossEntropy(axis=1, label_smoothing=0.1, weight=range(1, SHAPE[1] + 1)),
        lambda: torch.randint(0, SHAPE[1], (SHAPE[0], *SHAPE[2:])),
        lambda x, y: functional.cross_entropy(x, y, torch.arange(1.0, SHAPE[1] + 1), label_smoothing=0.1),
    ),
    (
        CrossEntropy(axis=-2, kind="probabilities"),
        lambda: torch.softmax(torch.randn(SHAPE), 1),
        functional.cross_entropy,
    ),
    (SmoothL1(beta=0), lambda: torch.randn(SHAPE), functional.l1_loss),
    (MSE(), lambda: torch.randn(SHAPE), functional.mse_loss),
    (MSE(reduction="sum"), lambda: torch.randn(SHAPE), lambda x, y: functional.mse_loss(x, y, reduction="sum")),
    (SmoothL1(), lambda: torch.randn(SHAPE), functional.smooth_l1_loss),
    (SmoothL1(beta=0.3), lambda: torch.randn(SHAPE), lambda x, y: functional.smooth_l1_loss(x, y, beta=0.3)),
    (BCEWithLogits(), lambda: torch.rand(SHAPE), functional.binary_cross_entropy_with_logits),
]


@pytest.mark.parametrize(("loss", "labels", "expected"), CASES, ids=[repr(loss) for loss, *_ in CASES])
def test_values_and_gradients_are_torchs(loss, labels, expected):
    x, y = torch.randn(SHAPE, requires_grad=True), labels()
    want = expected(x, y)
    want.backward()
    value, gradient = loss_and_gradient(loss, x.detach(), y)
    torch.testing.assert_close(value, want.detach(), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(gradient, x.grad, rtol=1e-5, atol=1e-6)


def test_logits_far_from_zero_overflow_nothing():
    x = torch.tensor([[-200.0, 0.0, 200.0, 50.0]])
    for loss, y in ((BCEWithLogits(), torch.tensor([[0.0, 0.5, 1.0, 0.0]])), (CrossEntropy(), torch.tensor([3]))):
        value, gradient = loss_and_gradient(loss, x, y)
        assert torch.isfinite(value)
        assert torch.isfinite(gradient).all()
    value, gradient = loss_and_gradient(CrossEntropy(), x, torch.tensor([3]))
    assert float(value) == 150.0
    assert gradient.tolist() == [[0.0, 0.0, 1.0, -1.0]]


def test_the_gradient_at_a_logit_of_zero_is_that_of_the_sigmoid():
    _, gradient = loss_and_gradient(BCEWithLogits(reduction="sum"), torch.zeros(1, 2), torch.tensor([[0.0, 1.0]]))
    torch.testing.assert_close(gradient, torch.tensor([[0.5, -0.5]]))


def test_a_loss_may_be_of_another_output():
    class Two(nn.Module):
        def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"hidden": x * 2, "logits": x * 3}

    model = autocast.from_torch(Two(), (torch.zeros(2, 5),))
    x, y = torch.randn(2, 5), torch.randn(2, 5)
    for output, factor in ((0, 2), (1, 3), ("logits", 3)):
        value = append_loss(model, MSE(output=output))(x, labels=y)
        torch.testing.assert_close(value, functional.mse_loss(x * factor, y))
    with pytest.raises(TrainingError, match=r"no output 'loss'; expected one of its 2 \(hidden, logits\). Try MSE"):
        append_loss(model, MSE(output="loss"))
    with pytest.raises(TrainingError, match="no output 2; expected one of its 2"):
        append_loss(model, MSE(output=2))


def test_a_batch_may_be_of_any_size():
    module = network()
    model = autocast.from_torch(module, (torch.zeros(4, 5),), dynamic={"batch": ("*", 0, 1, 64)})
    step = append_loss(model, CrossEntropy())
    for rows in (1, 9):
        x, y = torch.randn(rows, 5), torch.randint(0, 7, (rows,))
        torch.testing.assert_close(step(x, y), functional.cross_entropy(module(x), y).detach(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: MSE(reduction="none"), "MSE: reduction is 'none', expected 'mean' or 'sum'"),
        (lambda: CrossEntropy(kind="one-hot"), "kind is 'one-hot', expected 'indices' or 'probabilities'"),
        (
            lambda: CrossEntropy(label_smoothing=1.0),
            "label_smoothing is 1.0, expected a number from 0 to 1",
        ),
        (lambda: SmoothL1(beta=-1.0), "SmoothL1: beta is -1.0, expected a finite number from 0 on"),
        (lambda: SmoothL1(beta="1"), "SmoothL1: beta is '1', expected a finite number from 0 on"),
        (lambda: MSE(weight=torch.ones(3)), "MSE: got the option 'weight'; labels have no weights here, classes do"),
        (lambda: CrossEntropy(weight=(1.0, -1.0)), r"CrossEntropy: weight is \(1.0, -1.0\), expected numbers of 0"),
        (lambda: append_loss(identity(), NLL(weight=(1.0, 2.0))), "NLL: got 2 weights for .*, expected .* classes: 7"),
        (lambda: CrossEntropy(ignored=0), "got the option 'ignored'; nearest: ignore_index"),
        (lambda: MSE("mean"), "MSE: got a str without a name; a loss is given to the trainer"),
        (
            lambda: append_loss(append_loss(imported_network(), MSE()), MSE()),
            r"the model has an input 'labels' already \(input, labels\)",
        ),
    ],
)
def test_what_makes_no_sense_is_refused(build, message):
    with pytest.raises(TrainingError, match=message):
        build()


def test_labels_of_images_say_where_torch_has_the_classes():
    model = append_loss(identity((2, 5, 8, 8)), CrossEntropy(axis=1))
    assert str(model.main.params[1].ty) == 'R.Tensor((2, 8, 8), dtype="int64")'
    with pytest.raises(InputError, match=r"Try CrossEntropy\(axis=1\)"):
        check_labels(identity((2, 5, 8, 8)), CrossEntropy(), torch.zeros(2, 8, 8, dtype=torch.int64))
    with pytest.raises(TrainingError, match=r"axis=4 .* expected one from -4 to 3"):
        append_loss(identity((2, 5, 8, 8)), CrossEntropy(axis=4))
