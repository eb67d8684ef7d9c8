"""Which poolings become kernels, with what of their surroundings, and that the results are right."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.nn import functional as F
from tvm import relax

from autocast.kernels import detect_target
from autocast.kernels.matching.convolutions.pooling_rule import lower_pooling, move_channels_of_pooling
from autocast.kernels.phases.widen import compute_in_float32
from autocast.kernels.targets import backend_of
from tests.kernels.modules import EPSILON, error, module, operators, random, run

op = relax.op

LAST = {"layout": "NHWC", "out_layout": "NHWC"}


def _lowered(body: Callable[..., relax.Expr], *arguments: tuple) -> list[str]:
    mod = move_channels_of_pooling(compute_in_float32(module(body, *arguments)))
    return operators(lower_pooling(mod, backend_of(detect_target())))


def test_casts_around_pooling_are_the_kernels() -> None:
    def body(x: relax.Expr) -> relax.Expr:
        return op.nn.avg_pool2d(x, 2, **LAST)

    assert _lowered(body, ((2, 6, 5, 3), "bfloat16")) == ["average_pooling0"]


def test_a_maximum_is_narrowed_before_it_is_taken() -> None:
    def body(x: relax.Expr) -> relax.Expr:
        return op.astype(op.nn.max_pool2d(op.exp(x), 3, 2, 1, **LAST), "bfloat16")

    assert _lowered(body, ((2, 6, 5, 3), "float32")) == ["relax.exp", "relax.astype", "max_pooling0"]


@pytest.mark.parametrize(
    ("reason", "dtype", "layout"),
    [("it pools int32", "int32", LAST), ("its data is NCHW and its output NCHW", "float32", {})],
)
def test_what_is_declined_says_why(
    reason: str, dtype: str, layout: dict, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("AUTOCAST_DEBUG", "4")
    assert _lowered(lambda x: op.nn.avg_pool2d(x, 2, **layout), ((2, 6, 5, 3), dtype)) == ["relax.nn.avg_pool2d"]
    assert f"pooling declines gv: {reason}" in capsys.readouterr().err


def test_a_maximum_of_channels_that_come_first_is_one_of_channels_that_come_last() -> None:
    names = _lowered(lambda x: op.nn.max_pool2d(x, 2), ((2, 3, 6, 5), "float32"))
    assert names == ["relax.permute_dims", "max_pooling0", "relax.permute_dims"]
    volumes = _lowered(lambda x: op.nn.max_pool3d(x, (2, 3, 1)), ((2, 3, 6, 5, 4), "float32"))
    assert [name for name in volumes if "pool" in name] == ["max_pooling0", "max_pooling1"]


def test_a_maximum_of_blocks_of_channels_is_left_to_tvm() -> None:
    names = _lowered(lambda x: op.nn.max_pool2d(x, 2, layout="NCHW16c"), ((2, 3, 6, 5, 16), "float32"))
    assert names == ["relax.nn.max_pool2d"]


def test_the_mean_of_whole_images_is_a_mean() -> None:
    assert _lowered(lambda x: op.nn.adaptive_avg_pool2d(x, (1, 1)), ((2, 3, 6, 5), "float32")) == ["relax.mean"]
    assert _lowered(lambda x: op.nn.avg_pool2d(x, (6, 5)), ((2, 3, 6, 5), "float32")) == ["relax.mean"]
    padded = _lowered(lambda x: op.nn.avg_pool2d(x, (6, 5), padding=(1, 0)), ((2, 3, 6, 5), "float32"))
    assert padded == ["relax.nn.avg_pool2d"]


#: Ours and torch's, both of (batch, channels, height, width) or (batch, channels, width).
KINDS: dict[str, tuple[Callable, Callable]] = {
    "maxima": (lambda x: op.nn.max_pool2d(x, 3, 2, 1), lambda x: F.max_pool2d(x, 3, 2, 1)),
    "means": (lambda x: op.nn.avg_pool2d(x, 2, 1), lambda x: F.avg_pool2d(x, 2, 1)),
    "means with padding": (
        lambda x: op.nn.avg_pool2d(x, 3, 2, 1, count_include_pad=True),
        lambda x: F.avg_pool2d(x, 3, 2, 1),
    ),
    "all": (lambda x: op.nn.adaptive_avg_pool2d(x, 1), lambda x: F.adaptive_avg_pool2d(x, 1)),
    "uneven parts": (lambda x: op.nn.adaptive_avg_pool2d(x, (4, 2)), lambda x: F.adaptive_avg_pool2d(x, (4, 2))),
}


@pytest.mark.parametrize(("dtype", "dynamic"), [("float32", True), ("bfloat16", False)])
@pytest.mark.parametrize("name", KINDS)
def test_pooling_of_every_kind_matches_torch(name: str, dtype: str, dynamic: bool) -> None:
    pooled, expected = KINDS[name]

    def body(x: relax.Expr, w: relax.Expr) -> relax.Expr:
        return pooled(op.nn.conv2d(x, w))  # without a convolution, channels stay first

    x, w = random((2, 3, 9, 7), dtype), random((5, 3, 1, 1), dtype, 1)
    mod = module(body, (("batch" if dynamic else 2, 3, 9, 7), dtype), (w.shape, dtype))
    exact = expected(F.conv2d(*(torch.from_numpy(array.astype("float64")) for array in (x, w)))).numpy()
    assert error(run(mod, x, w)[0], exact) < 4 * EPSILON[dtype]
