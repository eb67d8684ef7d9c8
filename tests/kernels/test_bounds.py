"""Kernels write what they are given and nothing beyond, however many threads share them."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from tvm.script import tirx as T

import autocast
from autocast import amp
from autocast.training import SGD, CrossEntropy, training_step
from tests.architectures import trainable
from tests.kernels.bounds import Beyond, beyond, kernels_of
from tests.kernels.targets.cpu.emulation import running_code_for
from tests.kernels.targets.cpu.products.cases import target_of


def _beyond(model: autocast.Model, cpu: str, cores: int) -> list[Beyond]:
    target = target_of(cpu, cores)
    with running_code_for(target):
        return list(beyond(kernels_of(model.mod, target), target))


@pytest.mark.parametrize(
    ("name", "dtype", "cpu"),
    [("resnet", None, "znver4"), ("bert", "bfloat16", "sapphirerapids"), ("llama", "float16", "x86-64-v3")],
)
def test_training_steps_that_many_threads_share_stay_within_their_buffers(
    name: str, dtype: str | None, cpu: str
) -> None:
    step = training_step(trainable(name), CrossEntropy(), SGD(momentum=0.9))
    assert not _beyond(step if dtype is None else amp.autocast(step, dtype=dtype), cpu, 16)


class _Transposed(nn.Module):
    """Transposed convolutions whose rows differ in number."""

    def __init__(self) -> None:
        super().__init__()
        sizes = [(1, 3, 0, 0), (3, 2, 1, 0), (2, 3, 0, 1), (5, 2, 2, 1)]
        self.layers = nn.ModuleList(
            [nn.ConvTranspose2d(3, 24, kernel, stride, padding, extra) for kernel, stride, padding, extra in sizes]
        )

    def forward(self, *images: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(layer(image) for layer, image in zip(self.layers, images, strict=True))


@pytest.fixture(scope="module")
def transposed() -> autocast.Model:
    return autocast.from_torch(_Transposed().eval(), tuple(torch.randn(2, 3, height, 20) for height in (4, 5, 6, 9)))


@pytest.mark.parametrize("cores", [1, 3, 16])
def test_transposed_convolutions_whose_rows_differ_in_number_do(transposed: autocast.Model, cores: int) -> None:
    assert not _beyond(transposed, "x86-64-v3", cores)


@T.prim_func(s_tir=True)
def _writes(x: T.Buffer((16,), "float32"), y: T.Buffer((16,), "float32")):  # type: ignore[valid-type]
    for i in range(17):
        y[i] = T.float32(2)


@T.prim_func(s_tir=True)
def _reads(x: T.Buffer((16,), "float32"), y: T.Buffer((16,), "float32")):  # type: ignore[valid-type]
    for i in range(16):
        y[i] = x[i + 1]


def test_what_lies_beyond_is_written_or_read_and_that_is_found() -> None:
    target = target_of("x86-64-v3")
    assert list(beyond({"writes": _writes, "reads": _reads}, target)) == [
        Beyond("writes", 1, 64, 64, 67),
        Beyond("reads", 1, 64, 60, 63),
    ]
