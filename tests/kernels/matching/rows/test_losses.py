"""Losses of labels with their softmax, forward and backward: one kernel over the rows, the same numbers as torch."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import tvm
from tvm import relax

from autocast.kernels import detect_target
from autocast.kernels.matching.rows.losses import decompose_losses
from autocast.kernels.matching.rows.rule import lower_rows
from autocast.kernels.phases.canonicalize import canonicalize
from autocast.kernels.phases.expand import expand_operators
from autocast.kernels.phases.widen import compute_in_float32
from autocast.kernels.targets import backend_of
from autocast.operators import own
from tests.kernels.modules import EPSILON, error, module, operators, random, run

op = relax.op


def _loss_and_gradient(rows: int | str, columns: int, dtype: str, reduction: str, weighted: bool) -> tvm.IRModule:
    """Cross-entropy of logits, and its gradient as TVM's Gradient pass writes it."""

    def body(logits: relax.Expr, labels: relax.Expr, *weights: relax.Expr) -> relax.Expr:
        predictions = op.nn.log_softmax(op.astype(logits, "float32"))
        loss = op.nn.nll_loss(predictions, labels, *weights, reduction=reduction, ignore_index=-100)
        one = op.ones((), "float32")
        if reduction == "none":
            one = op.ones((rows,), "float32")
        backward = tvm.ir.Op.get("relax.grad.nll_loss_backward")
        adjoint = relax.Call(backward, [one, predictions, labels, *weights], loss.attrs)
        total = op.sum(adjoint, axis=[-1], keepdims=True)
        gradient = op.subtract(adjoint, op.multiply(total, op.exp(predictions)))
        return relax.Tuple([loss, op.astype(gradient, dtype)])

    arguments = [((rows, columns), dtype), ((rows,), "int64"), ((columns,), "float32")]
    return module(body, *arguments[: 3 if weighted else 2])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("reduction", "weighted"), [("mean", False), ("sum", False), ("none", True), ("mean", True)])
def test_cross_entropy_and_its_gradient_match_torch(reduction: str, weighted: bool, dtype: str) -> None:
    x, labels = random((6, 100), dtype, scale=3.0), np.array([3, 99, -100, 0, 5, 50])
    weights = [np.abs(random((100,), "float32", 1))] if weighted else []
    loss, gradient = run(_loss_and_gradient(6, 100, dtype, reduction, weighted), x, labels, *weights)
    logits = torch.tensor(x.astype("float64"), requires_grad=True)
    expected = torch.nn.functional.cross_entropy(
        logits, torch.tensor(labels), *[torch.tensor(w).double() for w in weights], reduction=reduction
    )
    expected.sum().backward()
    assert error(loss, expected.detach().numpy()) < 1e-6
    assert logits.grad is not None and error(gradient, logits.grad.numpy()) < 2 * EPSILON[dtype] + 1e-6


def test_the_softmax_is_swept_once_for_the_loss_and_its_gradient() -> None:
    mod = canonicalize(_loss_and_gradient(6, 100, "bfloat16", "mean", False))
    names = operators(lower_rows(decompose_losses(compute_in_float32(mod)), backend_of(detect_target())))
    assert [name for name in names if "6x100" in name] == ["log_softmax_sum1_6x100_float32_bfloat16"]
    assert not [name for name in names if "nll" in name or "arange" in name]


def test_labels_as_distributions_match_torch() -> None:
    x, y = random((5, 40), "float32"), np.abs(random((5, 40), "float32", 1))

    def body(x: relax.Expr, y: relax.Expr) -> relax.Expr:
        return op.nn.cross_entropy_with_logits(op.nn.log_softmax(x), y)

    (got,) = run(module(body, ((5, 40), "float32"), ((5, 40), "float32")), x, y)
    expected = torch.nn.functional.cross_entropy(torch.tensor(x).double(), torch.tensor(y).double())
    assert abs(float(got) - float(expected)) < 1e-6 * abs(float(expected))


def test_one_hot_labels_are_compared_where_they_are_used() -> None:
    def body(x: relax.Expr, labels: relax.Expr) -> relax.Expr:
        one, zero = (tvm.tirx.FloatImm("float32", value) for value in (1.0, 0.0))
        return op.subtract(op.nn.softmax(x), op.one_hot(labels, one, zero, 40, -1))

    mod = module(body, ((5, 40), "float32"), ((5,), "int64"))
    assert operators(lower_rows(mod, backend_of(detect_target()))) == ["softmax0_5x40_float32"]
    x, labels = random((5, 40), "float32"), np.array([0, 39, 7, 7, 1])
    weights = np.exp(x.astype("float64"))
    assert error(run(mod, x, labels)[0], weights / weights.sum(-1, keepdims=True) - np.eye(40)[labels]) < 1e-6


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_our_cross_entropy_and_its_gradient_are_one_kernel(reduction: str) -> None:
    options = {"ignore_index": -100, "label_smoothing": 0.0, "reduction": reduction}

    def body(logits: relax.Expr, labels: relax.Expr) -> relax.Expr:
        loss = own.cross_entropy(logits, labels, **options)
        gradient = own.cross_entropy_backward(logits, labels, op.full((), relax.const(1.0), "float32"), **options)
        return relax.Tuple([loss, op.astype(gradient, "bfloat16")])

    mod = module(body, ((2, 3, 100), "float32"), ((2, 3), "int64"))
    mod = decompose_losses(compute_in_float32(canonicalize(expand_operators(mod))))
    names = operators(lower_rows(mod, backend_of(detect_target())))
    (name,) = [name for name in names if "2x3x100" in name]
    assert name.endswith("float32_bfloat16") and "relax.where" not in names
    x, labels = random((2, 3, 100), "float32", scale=3.0), np.array([[3, 99, -100], [0, 5, 50]])
    loss, gradient = run(mod, x, labels)
    logits = torch.tensor(x.astype("float64"), requires_grad=True)
    flat, targets = logits.reshape(6, 100), torch.tensor(labels.reshape(6))
    expected = torch.nn.functional.cross_entropy(flat, targets, reduction=reduction)
    expected.backward()
    assert error(loss, expected.detach().numpy()) < 1e-6
    assert logits.grad is not None and error(gradient, logits.grad.numpy()) < EPSILON["bfloat16"]
