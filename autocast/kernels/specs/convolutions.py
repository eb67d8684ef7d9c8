"""What convolution and pooling kernels compute: frozen descriptions that equal ones share. Tensors are NHWC."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from autocast.errors import UnsupportedError
from autocast.kernels.extents import Extent
from autocast.kernels.specs.checks import STORAGE_DTYPES, check_one_of
from autocast.kernels.specs.epilogue import Epilogue

Pair = tuple[int, int]


@dataclass(frozen=True)
class Convolution:
    """`out = epilogue(data * weights)`: data (batch, height, width, channels), out (..., ..., ..., features).

    A convolution along one axis has height 1. The columns of the epilogue are the features.

    Attributes
    ----------
    batch, height, width
        Extents of the data; None: known at run time.
    channels, features
        Of the data and of the output, over all groups.
    kernel, strides, dilation
        Along height and width.
    padding
        Rows and columns of zeros at the top, left, bottom and right; of a transposed convolution, what is cut off.
    groups
        Features of a group see its `channels // groups` channels only.
    data_dtype, weight_dtype, out_dtype
        Storage dtypes: float32, bfloat16 or float16. Sums are float32.
    transposed
        The adjoint: each element of the data adds a multiple of the kernel to the output. Its weights are IOHW, of
        shape (channels, features // groups, *kernel); all others are OIHW: (features, channels // groups, *kernel).
    output_padding
        Of a transposed convolution: further rows and columns of the output, at the bottom and right.
    compute
        `bfloat16`: data and weights may be rounded to bfloat16 where the target multiplies that; `float32`: both are
        widened. None: bfloat16 if both are stored so, else float32.
    epilogue
        What is done to the sums before they are stored.
    """

    batch: int | None
    height: int | None
    width: int | None
    channels: int
    features: int
    kernel: Pair
    strides: Pair = (1, 1)
    padding: tuple[int, int, int, int] = (0, 0, 0, 0)
    dilation: Pair = (1, 1)
    groups: int = 1
    data_dtype: str = "float32"
    weight_dtype: str = "float32"
    out_dtype: str = "float32"
    transposed: bool = False
    output_padding: Pair = (0, 0)
    compute: str | None = None
    epilogue: Epilogue = field(default_factory=Epilogue)

    def __post_init__(self) -> None:
        for name in ("data_dtype", "weight_dtype", "out_dtype"):
            check_one_of(f"Convolution.{name}", getattr(self, name), STORAGE_DTYPES)
        check_one_of("Convolution.compute", self.compute, (None, "float32", "bfloat16"))
        if self.compute == "bfloat16" and "float16" in (self.data_dtype, self.weight_dtype):
            raise UnsupportedError(
                "Convolution: compute='bfloat16' with a float16 operand would lose three bits; use compute='float32'"
            )
        _at_least("Convolution", 1, self, ("batch", "height", "width", "channels", "features", "groups"))
        _at_least("Convolution", 1, self, ("kernel", "strides", "dilation"))
        _at_least("Convolution", 0, self, ("padding", "output_padding"))
        if self.channels % self.groups or self.features % self.groups:
            raise UnsupportedError(
                f"Convolution.groups: got {self.groups}, expected a divisor of {self.channels} channels and "
                f"{self.features} features"
            )
        if not self.transposed and self.output_padding != (0, 0):
            raise UnsupportedError("Convolution.output_padding: got one, but only a transposed convolution has it")

    @property
    def compute_dtype(self) -> str:
        """The dtype that data and weights have when they are multiplied."""
        if self.compute:
            return self.compute
        return "bfloat16" if self.data_dtype == self.weight_dtype == "bfloat16" else "float32"

    @property
    def weight_shape(self) -> tuple[int, int, int, int]:
        """The shape of the weights before they are packed."""
        if self.transposed:
            return (self.channels, self.features // self.groups, *self.kernel)
        return (self.features, self.channels // self.groups, *self.kernel)

    def output_extent(self, axis: int, extent: Extent) -> Extent:
        """The output's height (axis 0) or width (axis 1), of data with `extent` (a number or an expression) there."""
        padding = self.padding[axis] + self.padding[axis + 2]
        reach = self.dilation[axis] * (self.kernel[axis] - 1) + 1
        if self.transposed:
            return (extent - 1) * self.strides[axis] + reach - padding + self.output_padding[axis]
        return (extent + padding - reach) // self.strides[axis] + 1


@dataclass(frozen=True)
class Pooling:
    """The largest element, or the mean, of each window of (batch, height, width, channels) data.

    Attributes
    ----------
    kind
        `max` or `average`; means are taken in float32.
    batch, height, width, channels
        Extents of the data; None (not for channels): known at run time.
    window, strides, dilation, padding
        As those of a convolution. Padding is never the largest.
    ceil_mode
        Round the number of windows up: the last one may reach beyond the padding.
    count_include_pad
        Divide by the window's size even where it covers padding, though not by what of it is beyond the padding.
    adaptive
        The output's height and width: windows divide the data as evenly as they can, and the five above are unused;
        None: they are used. (1, 1) pools everything.
    data_dtype, out_dtype
        Storage dtypes: float32, bfloat16 or float16.
    """

    kind: str
    batch: int | None
    height: int | None
    width: int | None
    channels: int
    window: Pair = (1, 1)
    strides: Pair = (1, 1)
    dilation: Pair = (1, 1)
    padding: tuple[int, int, int, int] = (0, 0, 0, 0)
    ceil_mode: bool = False
    count_include_pad: bool = False
    adaptive: Pair | None = None
    data_dtype: str = "float32"
    out_dtype: str = "float32"

    def __post_init__(self) -> None:
        check_one_of("Pooling.kind", self.kind, ("max", "average"))
        for name in ("data_dtype", "out_dtype"):
            check_one_of(f"Pooling.{name}", getattr(self, name), STORAGE_DTYPES)
        _at_least("Pooling", 1, self, ("batch", "height", "width", "channels", "window", "strides", "dilation"))
        _at_least("Pooling", 0, self, ("padding",))

    def output_extent(self, axis: int, extent: Extent) -> Extent:
        """The output's height (axis 0) or width (axis 1), of data with `extent` (a number or an expression) there."""
        if self.adaptive is not None:
            return self.adaptive[axis]
        room = extent + self.padding[axis] + self.padding[axis + 2] - self.dilation[axis] * (self.window[axis] - 1) - 1
        return (room + (self.strides[axis] - 1 if self.ceil_mode else 0)) // self.strides[axis] + 1


def _at_least(where: str, least: int, spec: object, names: tuple[str, ...]) -> None:
    for name in names:
        value = getattr(spec, name)
        for number in value if isinstance(value, tuple) else (value,):
            if number is not None and number < least:
                raise UnsupportedError(f"{where}.{name}: got {value}, expected at least {least}")


@dataclass(frozen=True)
class ConvolutionWeights:
    """The weights of a convolution, packed once as its kernel reads them."""

    convolution: Convolution


@dataclass(frozen=True)
class WeightGradient:
    """The gradient of the weights of a convolution, of its data and the adjoint of its result (`out_dtype`)."""

    convolution: Convolution

    @property
    def shape(self) -> tuple[int, int, int]:
        """Groups, channels of a group x taps, features of a group."""
        spec = self.convolution
        return spec.groups, spec.channels // spec.groups * math.prod(spec.kernel), spec.features // spec.groups


@dataclass(frozen=True)
class PoolingGradient:
    """What spreads the adjoint of a pooling (`out_dtype`) over the windows of its data."""

    pooling: Pooling
