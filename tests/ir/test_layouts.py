"""Results have the layout that was asked for."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import tvm
from tvm import relax
from tvm.script import ir as I
from tvm.script import relax as R

import autocast
from autocast import amp, vm
from autocast.errors import UnsupportedError
from autocast.ir import with_plain_layouts
from autocast.training import MSE, SGD, Trainer
from tests.kernels.modules import module

nn = relax.op.nn

_IMAGES, _WEIGHTS = torch.arange(168.0).sin().reshape(1, 4, 7, 6), torch.arange(216.0).cos().reshape(6, 4, 3, 3)
_ROWS, _ROW_WEIGHTS = _IMAGES[..., 0], _WEIGHTS[..., 0]
_VOLUMES, _VOLUME_WEIGHTS = _IMAGES[..., None].expand(-1, -1, -1, -1, 3), _WEIGHTS[..., None]


def test_the_result_is_moved_where_it_has_another_layout_than_the_data() -> None:
    @I.ir_module
    class Before:
        @R.function
        def main(x: R.Tensor((1, 4, 7, 6), "float32"), w: R.Tensor((6, 4, 3, 3), "float32")):
            y = R.nn.conv2d(x, w, out_layout="NHWC")
            return y

    @I.ir_module
    class Expected:
        @R.function
        def main(x: R.Tensor((1, 4, 7, 6), "float32"), w: R.Tensor((6, 4, 3, 3), "float32")):
            gv = R.nn.conv2d(x, w)
            gv1 = R.permute_dims(gv, [0, 2, 3, 1])
            y = gv1
            return y

    tvm.ir.assert_structural_equal(with_plain_layouts(Before), Expected)
    assert with_plain_layouts(Expected) is Expected


def _last(x: torch.Tensor) -> torch.Tensor:
    return x.movedim(1, -1).contiguous()


def _first(x: torch.Tensor) -> torch.Tensor:
    return x.movedim(-1, 1)


#: A body, its arguments, and what torch makes of them.
_CASES: dict[str, tuple[Callable[..., relax.Expr], tuple[torch.Tensor, ...], Callable[..., torch.Tensor]]] = {
    "a convolution of images": (
        lambda x, w: nn.conv2d(x, w, out_layout="NHWC"),
        (_IMAGES, _WEIGHTS),
        lambda x, w: _last(F.conv2d(x, w)),
    ),
    "one of rows": (
        lambda x, w: nn.conv1d(x, w, out_layout="NWC"),
        (_ROWS, _ROW_WEIGHTS),
        lambda x, w: _last(F.conv1d(x, w)),
    ),
    "one of volumes": (
        lambda x, w: nn.conv3d(x, w, out_layout="NDHWC"),
        (_VOLUMES, _VOLUME_WEIGHTS),
        lambda x, w: _last(F.conv3d(x, w)),
    ),
    "one of images whose channels are last": (
        lambda x, w: nn.conv2d(x, w, data_layout="NHWC", kernel_layout="OHWI", out_layout="NCHW"),
        (_last(_IMAGES), _last(_WEIGHTS)),
        lambda x, w: F.conv2d(_first(x), _first(w)),
    ),
    "a transposed one": (
        lambda x, w: nn.conv2d_transpose(x, w, out_layout="NHWC"),
        (_IMAGES, _WEIGHTS[:4]),
        lambda x, w: _last(F.conv_transpose2d(x, w)),
    ),
    "a transposed one, whose weights have channels last": (
        lambda x, w: nn.conv2d_transpose(x, w, strides=2, data_layout="NHWC", kernel_layout="IHWO"),
        (_last(_IMAGES), _last(_WEIGHTS[:4])),
        lambda x, w: _last(F.conv_transpose2d(_first(x), _first(w), stride=2)),
    ),
    "a transposed one of volumes, whose channels are last": (
        lambda x, w: nn.conv3d_transpose(x, w, data_layout="NDHWC", kernel_layout="IODHW"),
        (_last(_VOLUMES), _VOLUME_WEIGHTS[:4]),
        lambda x, w: _last(F.conv_transpose3d(_first(x), w)),
    ),
    "the largest of windows": (
        lambda x: nn.max_pool2d(x, (2, 2), out_layout="NHWC"),
        (_IMAGES,),
        lambda x: _last(F.max_pool2d(x, 2, 1)),
    ),
    "means of parts": (
        lambda x: nn.adaptive_avg_pool2d(x, (2, 2), layout="NHWC", out_layout="NCHW"),
        (_last(_IMAGES),),
        lambda x: F.adaptive_avg_pool2d(_first(x), 2),
    ),
}


@pytest.mark.parametrize("by", ["kernels", "torch"])
@pytest.mark.parametrize("case", _CASES)
def test_results_have_the_layout_that_was_asked_for(case: str, by: str) -> None:
    body, arguments, reference = _CASES[case]
    model = autocast.from_relax(module(body, *((x.shape, "float32") for x in arguments)))
    run = vm.compile(model) if by == "kernels" else autocast.to_torch(model)
    torch.testing.assert_close(run(*arguments), reference(*arguments), rtol=1e-4, atol=1e-4)


def test_a_module_that_is_cast_and_compiled_itself_has_the_layout_that_was_asked_for() -> None:
    body, arguments, reference = _CASES["a convolution of images"]
    mod = module(body, *((x.shape, "float32") for x in arguments))
    got = vm.compile(amp.autocast(mod))(*arguments)
    torch.testing.assert_close(got, reference(*arguments), rtol=2e-2, atol=2e-2)


def test_a_convolution_whose_result_has_another_layout_is_trained() -> None:
    mod = module(_CASES["a convolution of images"][0], (_IMAGES.shape, "float32"), (_WEIGHTS.shape, "float32"))
    model = autocast.from_relax(mod, [_WEIGHTS.clone()])
    trainer = Trainer(model, MSE(), SGD(), learning_rate=0.1)
    target = torch.zeros(1, 5, 4, 6)
    trainer.step((_IMAGES, target))
    weights = _WEIGHTS.clone().requires_grad_()
    F.mse_loss(_last(F.conv2d(_IMAGES, weights)), target).backward()
    got = torch.from_numpy(trainer.executable.state["x1"].numpy())
    torch.testing.assert_close(got, (weights - 0.1 * weights.grad).detach(), rtol=1e-4, atol=1e-5)


def test_layouts_in_blocks_are_refused_by_their_names() -> None:
    mod = module(
        lambda x, w: nn.conv2d(x, w, data_layout="NCHW4c", kernel_layout="OIHW4i3o"),
        ((2, 1, 7, 6, 4), "float32"),
        ((2, 1, 3, 3, 4, 3), "float32"),
    )
    model = autocast.from_relax(mod)
    with pytest.raises(UnsupportedError, match="no kernel for relax"):
        vm.compile(model)
    with pytest.raises(UnsupportedError, match="the layout NCHW4c is not one of torch's"):
        autocast.to_torch(model)(*(torch.zeros(2, 1, 7, 6, 4), torch.zeros(2, 1, 3, 3, 4, 3)))


@pytest.mark.parametrize(
    ("data", "weights"), [((1, 0, 5, 5), (6, 0, 3, 3)), ((1, 4, 2, 2), (6, 4, 3, 3)), ((1, 4, 3, 3), (0, 4, 3, 3))]
)
def test_convolutions_of_nothing_are_by_torch_as_by_our_kernels(
    data: tuple[int, ...], weights: tuple[int, ...]
) -> None:
    model = autocast.from_relax(module(nn.conv2d, (data, "float32"), (weights, "float32")))
    arguments = [np.ones(shape, "float32") for shape in (data, weights)]
    ours = vm.compile(model)(*arguments)
    theirs = autocast.to_torch(model)(*map(torch.from_numpy, arguments))
    np.testing.assert_array_equal(theirs.numpy(), ours)
