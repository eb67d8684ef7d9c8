"""Convolutions: every shape of ResNet-50, with bias and relu, over NHWC images of a batch of 4; and depthwise ones."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

import torch
from torch.nn import functional

from benchmarks.harness import Case, run
from benchmarks.kernels import reorders
from benchmarks.sides import Call

BATCH = 4


class Shape(NamedTuple):
    """A convolution of square images, padded by half of its kernel."""

    size: int
    channels: int
    features: int
    kernel: int
    stride: int = 1
    groups: int = 1

    @property
    def name(self) -> str:
        """What the table shows."""
        extras = (f"stride {self.stride}" if self.stride > 1 else "", "depthwise" if self.groups > 1 else "")
        kernel = f"{self.kernel} x {self.kernel}"
        return " ".join(filter(None, (f"{self.size}: {self.channels} to {self.features}, {kernel}", *extras)))

    @property
    def padding(self) -> int:
        """Rows and columns of zeros on each side."""
        return self.kernel // 2

    @property
    def out_size(self) -> int:
        """The height and width of the output."""
        return (self.size - 1) // self.stride + 1


#: `True`: measured with `--quick` too. Those of ResNet-50 first.
SHAPES = (
    (Shape(224, 3, 64, 7, 2), True),
    (Shape(56, 64, 64, 1), False),
    (Shape(56, 64, 64, 3), True),
    (Shape(56, 64, 256, 1), False),
    (Shape(56, 256, 64, 1), False),
    (Shape(56, 256, 128, 1), False),
    (Shape(56, 128, 128, 3, 2), False),
    (Shape(28, 128, 512, 1), False),
    (Shape(56, 256, 512, 1, 2), False),
    (Shape(28, 512, 128, 1), False),
    (Shape(28, 128, 128, 3), False),
    (Shape(28, 512, 256, 1), False),
    (Shape(28, 256, 256, 3, 2), False),
    (Shape(14, 256, 1024, 1), False),
    (Shape(28, 512, 1024, 1, 2), False),
    (Shape(14, 1024, 256, 1), False),
    (Shape(14, 256, 256, 3), True),
    (Shape(14, 1024, 512, 1), False),
    (Shape(14, 512, 512, 3, 2), False),
    (Shape(7, 512, 2048, 1), False),
    (Shape(14, 1024, 2048, 1, 2), False),
    (Shape(7, 2048, 512, 1), False),
    (Shape(7, 512, 512, 3), False),
    (Shape(56, 144, 144, 3, 1, 144), False),
    (Shape(28, 192, 192, 3, 2, 192), False),
    (Shape(56, 96, 96, 7, 1, 96), False),
)


def operands(shape: Shape, dtype: str) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Images in NHWC, weights in OIHW, and a bias."""
    torch.manual_seed(0)
    images = torch.randn(BATCH, shape.size, shape.size, shape.channels)
    weights = torch.randn(shape.features, shape.channels // shape.groups, shape.kernel, shape.kernel)
    low = getattr(torch, dtype)
    return images.to(low), weights.to(low), torch.randn(shape.features).to(low)


def ours(shape: Shape, dtype: str) -> Call:
    """Our kernel, its weights packed beforehand."""
    import numpy as np
    import tvm

    from autocast.kernels.specs.convolutions import Convolution
    from autocast.kernels.specs.epilogue import Epilogue, Operand
    from autocast.kernels.targets.cpu.convolutions.kernel import convolution
    from autocast.kernels.targets.cpu.convolutions.weights import pack_weights
    from autocast.kernels.targets.cpu.instruction_sets import detect_target
    from autocast.runtime import threads

    threads.configure()
    target = detect_target()
    spec = Convolution(
        BATCH,
        shape.size,
        shape.size,
        shape.channels,
        shape.features,
        kernel=(shape.kernel, shape.kernel),
        strides=(shape.stride, shape.stride),
        padding=(shape.padding,) * 4,
        groups=shape.groups,
        data_dtype=dtype,
        weight_dtype=dtype,
        out_dtype=dtype,
        epilogue=Epilogue((("sum",), ("load", 0), ("add", 0, 1), ("relu", 2)), (Operand(dtype, per_column=True),)),
    )
    functions = {"pack": pack_weights(spec, target, "pack"), "convolution": convolution(spec, target, "convolution")}
    module = tvm.compile(tvm.IRModule(functions), target=target)
    images, weights, bias = (tvm.runtime.from_dlpack(tensor) for tensor in operands(shape, dtype))
    written = functions["pack"].params[-1].ty
    packed = tvm.runtime.tensor(np.empty([int(size) for size in written.shape], str(written.dtype)))
    module["pack"](weights, packed)
    out = torch.empty(BATCH, shape.out_size, shape.out_size, shape.features, dtype=getattr(torch, dtype))
    return partial(module["convolution"], images, packed, bias, tvm.runtime.from_dlpack(out))


def onednn(shape: Shape, dtype: str) -> Call:
    """oneDNN with reordered weights and a fused relu."""
    images, weights, bias = operands(shape, dtype)
    images = images.permute(0, 3, 1, 2)
    padding, strides, dilation = [shape.padding] * 2, [shape.stride] * 2, [1, 1]
    reordered = torch.ops.mkldnn._reorder_convolution_weight(
        weights.to(memory_format=torch.channels_last), padding, strides, dilation, shape.groups, list(images.shape)
    )
    geometry = padding, strides, dilation, shape.groups
    return partial(torch.ops.mkldnn._convolution_pointwise, images, reordered, bias, *geometry, "relu", [], "")


def eager(shape: Shape, dtype: str) -> Call:
    """torch's own convolution, then relu."""
    images, weights, bias = operands(shape, dtype)
    images = images.permute(0, 3, 1, 2)
    weights = weights.to(memory_format=torch.channels_last)

    def call() -> torch.Tensor:
        convolved = functional.conv2d(
            images, weights, bias, stride=shape.stride, padding=shape.padding, groups=shape.groups
        )
        return convolved.relu_()

    return call


def cases(quick: bool) -> Iterator[Case]:
    """Every shape in both dtypes."""
    for dtype in ("bfloat16", "float32"):
        peers = {"torch: eager": eager} | ({"torch: oneDNN": onednn} if reorders(dtype) else {})
        for shape, always in SHAPES:
            if quick and not always:
                continue
            outputs = BATCH * shape.out_size**2 * shape.features
            elements = BATCH * shape.size**2 * shape.channels + outputs
            yield Case(
                f"{dtype} {shape.name}",
                partial(ours, shape, dtype),
                {name: partial(build, shape, dtype) for name, build in peers.items()},
                target=1.0,
                dtype=dtype,
                flops=2.0 * outputs * shape.channels // shape.groups * shape.kernel**2,
                bytes=float(elements * (2 if dtype == "bfloat16" else 4)) if shape.groups > 1 else 0.0,
            )


if __name__ == "__main__":
    run("convolutions", __doc__, cases)
