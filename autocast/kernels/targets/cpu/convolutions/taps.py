"""Which elements of a kernel meet which of the data, along one axis: for convolutions, and for transposed ones."""

from __future__ import annotations

import math
from dataclasses import dataclass

from tvm import tirx

from autocast.kernels.extents import Extent
from autocast.kernels.specs.convolutions import Convolution, Pooling


@dataclass(frozen=True)
class Taps:
    """The taps of outputs `out_first + q * out_step`, q = 0, 1, ... along one axis.

    Such an output is the sum over t < `count` of `kernel[kernel_first + t * kernel_step]` times
    `data[first + q * step + t * reach]`, data being zero outside.
    """

    count: int
    first: int
    step: int
    reach: int
    kernel_first: int = 0
    kernel_step: int = 1
    out_first: int = 0
    out_step: int = 1

    def outputs(self, extent: Extent) -> Extent:
        """How many of the `extent` outputs of the axis are of this kind."""
        return (extent - self.out_first + self.out_step - 1) // self.out_step

    @property
    def last(self) -> int:
        """What `first` is for the last tap."""
        return self.first + max(self.count - 1, 0) * self.reach


def taps_of(spec: Convolution, axis: int) -> tuple[Taps, ...]:
    """The kinds of outputs along height (axis 0) or width (axis 1).

    A convolution has one. The outputs of a transposed convolution of stride s fall in s kinds, each a convolution of
    stride 1 with every s-th element of the kernel: nothing is multiplied by the zeros between the data.
    """
    count, stride, dilation = spec.kernel[axis], spec.strides[axis], spec.dilation[axis]
    padding = spec.padding[axis]
    if not spec.transposed:
        return (Taps(count, -padding, stride, dilation),)
    kinds = []
    for out_first in range(stride):
        place = out_first + padding  # output o takes data[(o + padding - element * dilation) / stride]
        elements = [element for element in range(count) if (place - element * dilation) % stride == 0]
        if not elements:
            kinds.append(Taps(0, 0, 1, 1, out_first=out_first, out_step=stride))
            continue
        shared = math.gcd(stride, dilation)
        kinds.append(
            Taps(
                count=len(elements),
                first=(place - elements[-1] * dilation) // stride,
                step=1,
                reach=dilation // shared,
                kernel_first=elements[-1],
                kernel_step=-(stride // shared),
                out_first=out_first,
                out_step=stride,
            )
        )
    return tuple(kinds)


@dataclass(frozen=True)
class Window:
    """The data along one axis that all outputs together see: from `first` (negative: zeros) to `beyond` past its end.

    `step` is the distance between the windows of neighbouring q, `span` the data that the outputs of one q see.
    """

    first: int
    beyond: int
    step: int
    span: int


def window_of(spec: Convolution, axis: int, kinds: tuple[Taps, ...]) -> Window:
    """The window of all kinds of outputs along an axis."""
    used = [kind for kind in kinds if kind.count] or list(kinds)
    first, last = min(kind.first for kind in used), max(kind.last for kind in used)
    known = (spec.height, spec.width)[axis]
    if known is None and not spec.transposed:
        beyond = spec.padding[axis + 2]
    else:  # of a transposed convolution it does not depend on the extent
        extent = known or 1 << 20
        outputs = spec.output_extent(axis, extent)
        beyond = max((kind.outputs(outputs) - 1) * kind.step + kind.last + 1 - extent for kind in used)
    return Window(first, max(0, beyond), used[0].step, last - first + 1)


def image_shapes(spec: Convolution | Pooling) -> tuple[list[Extent], list[Extent]]:
    """Batch, height and width of the data and of the result; variables where only running tells."""
    extents = (("batch", spec.batch), ("height", spec.height), ("width", spec.width))
    shape = [tirx.Var(name, "int64") if extent is None else extent for name, extent in extents]
    return shape, [shape[0], *(spec.output_extent(axis, shape[axis + 1]) for axis in (0, 1))]
