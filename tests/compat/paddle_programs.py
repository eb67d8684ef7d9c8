"""Programs of Paddle's kind, for the tests of its interface."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from autocast.compat import paddle
from autocast.compat.paddle.nn import functional as F
from autocast.compat.paddle.static import Executor, Program, amp
from autocast.model import Model


class Net(nn.Module):
    """A layer outside of the guard, and a pool and a layer in it."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.drop = nn.Conv2d(1, 2, 3), nn.Dropout(0.5)
        self.fc = nn.Linear(8, 5)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        """Logits."""
        data = self.conv(image)
        with amp.fp16_guard():
            return self.fc(self.drop(nn.functional.max_pool2d(data, 2).flatten(1)))


FEED = {"pixels": np.random.default_rng(0).random((3, 1, 6, 6), "float32"), "label": np.array([[0], [1], [4]])}


class Built:
    """A program that computes a loss, one that computes logits in evaluation mode, and their startup program."""

    def __init__(self, dropout: float = 0.0, label_shape: tuple = (None, 1)) -> None:
        torch.manual_seed(0)
        self.net = Net()
        self.net.drop.p = dropout
        self.train, self.test, self.startup = Program(), Program(), Program()
        with paddle.static.program_guard(self.train, self.startup):
            image = paddle.static.data("pixels", [None, 1, 6, 6])
            label = paddle.static.data("label", label_shape, "int64")
            self.trained = paddle.static.nn.torch_module(self.net.train(), image)
            self.loss = F.cross_entropy(self.trained, label)
        with paddle.static.program_guard(self.test, self.startup):
            image = paddle.static.data("pixels", [None, 1, 6, 6])
            self.logits = paddle.static.nn.torch_module(self.net.eval(), image)
        self.exe = Executor(paddle.CPUPlace())

    def step(self) -> float:
        """The loss of one step."""
        return float(self.exe.run(self.train, feed=FEED, fetch_list=[self.loss])[0])

    def predict(self, program: Program | None = None) -> np.ndarray:
        """The testing program's logits."""
        return self.exe.run(program or self.test, feed={"pixels": FEED["pixels"]}, fetch_list=[self.logits.name])[0]


def decorated(
    optimizer: paddle.optimizer.Optimizer | None = None, **options: object
) -> amp.OptimizerWithMixedPrecision:
    return amp.decorate(optimizer or paddle.optimizer.SGD(0.1, multi_precision=True), **options)


def minimized(built: Built, **options: object) -> amp.OptimizerWithMixedPrecision:
    """The decorated optimizer, ready to step."""
    optimizer = decorated(**options)
    optimizer.minimize(built.loss, built.startup)
    built.exe.run(built.startup)
    return optimizer


def modes(model: Model | None) -> dict[str, str]:
    assert model is not None
    return {decision.operator.removeprefix("relax."): decision.mode for decision in model.report.decisions}


def step_modes(built: Built) -> dict[str, str]:
    """The precisions of the forward calls of the training step, by operator."""
    assert built.train.trainer is not None
    decisions = built.train.trainer.step_model.report.decisions
    return {d.operator.removeprefix("relax."): d.mode for d in decisions if not d.forward}
