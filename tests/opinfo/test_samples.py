"""A few of torch's operators and modules, of every family, on some of torch's samples and on empty ones.

`python -m tests.opinfo` runs all.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.opinfo.check import Status
from tests.opinfo.workers import Task, Worker


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    """One process for all tests: torch's table changes settings of the process that imports it."""
    worker = Worker()
    yield worker
    worker.close()


OPERATORS = """
arange argmax block_diag cumsum flip linspace log_softmax masked.sum matmul mean nn.functional.conv2d
nn.functional.conv_transpose1d nn.functional.dropout nn.functional.group_norm nn.functional.upsample_nearest
nn.functional.scaled_dot_product_attention new_full prod sort split take tile unbind var
"""


@pytest.mark.parametrize("name", ["matmul", "var"])
def test_gradients_of_samples_are_those_of_torch(name: str, worker: Worker) -> None:
    verdicts = worker.run(Task(name, 1, check="gradients"))
    assert [verdict for verdict in verdicts if verdict.status in (Status.WRONG, Status.CRASHED)] == []
    assert any(verdict.status is Status.RIGHT for verdict in verdicts), verdicts


@pytest.mark.parametrize("name", OPERATORS.split())
def test_samples_of_torch_are_right_or_refused(name: str, worker: Worker) -> None:
    verdicts = worker.run(Task(name, 2))
    assert [verdict for verdict in verdicts if verdict.status in (Status.WRONG, Status.CRASHED)] == []
    assert any(verdict.status is Status.RIGHT for verdict in verdicts), verdicts


@pytest.mark.parametrize(
    ("name", "check"),
    [
        ("nn.GRUCell", "results"),
        ("nn.GRUCell", "mixed"),
        ("nn.HuberLoss", "gradients"),
        ("nn.BatchNorm1d.training", "training"),
        ("nn.Conv2d", "training"),
        ("nn.Conv2d", "mixed"),
        ("nn.Conv2d", "onnx"),
    ],
)
def test_modules_of_torch_are_right(name: str, check: str, worker: Worker) -> None:
    verdicts = worker.run(Task(name, 2, check=check))
    assert [verdict for verdict in verdicts if verdict.status in (Status.WRONG, Status.CRASHED)] == []
    assert any(verdict.status is Status.RIGHT for verdict in verdicts), verdicts
