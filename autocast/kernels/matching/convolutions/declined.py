"""Which convolutions, and gradients of their weights, no kernel computes, whatever the layout of their data."""

from __future__ import annotations

from tvm import relax

from autocast.ir import FLOATS, dims, dtype_of, is_op, shape_of, static_shape
from autocast.operators import Kind, is_kind

_VOLUMES = ("relax.nn.conv3d", "relax.nn.conv3d_transpose", "relax.grad.conv3d_weight_backward")

#: Features of a group that are worth a product.
_FEATURES = 4


def declined(call: relax.Call) -> str | None:
    """Why no kernel computes the convolution `call` once its channels are last; None where one does."""
    if is_op(call, *_VOLUMES):
        return "no kernel convolves along three axes"
    data, weights = call.args
    shape, kernel = shape_of(data), static_shape(weights)
    if shape is None or shape_of(call) is None or kernel is None:
        return "a shape is not known"
    if str(call.attrs.kernel_layout) not in ("OIW", "OIHW", "IOW", "IOHW"):
        return f"its weights are {call.attrs.kernel_layout}"
    dtypes = [dtype_of(tensor) for tensor in (data, weights, call)]
    if any(dtype not in FLOATS for dtype in dtypes):
        return f"it computes {dtypes[2]} from {dtypes[0]} and {dtypes[1]}"
    if not isinstance(shape[str(call.attrs.data_layout).index("C")], int):
        return "the number of channels is not known"
    if 0 in (*shape, *kernel, *dims(call)):
        return "a tensor is empty"
    if any(int(width) < 0 for width in call.attrs.padding):
        return "its padding is negative"
    return None


def declined_gradient(call: relax.Call) -> str | None:
    """Why no kernel computes the gradient `call` of a convolution's weights; None where one does."""
    if is_op(call, *_VOLUMES):
        return "no kernel convolves along three axes"
    data, weights, adjoint = call.args
    shape, kernel, layout = shape_of(data), static_shape(weights), str(call.attrs.data_layout)
    if shape is None or kernel is None or shape_of(adjoint) is None:
        return "a shape is not known"
    if not all(isinstance(dim, int) for dim, axis in zip(shape, layout, strict=True) if axis != "N"):
        return "the size of its images is not known"
    if str(call.attrs.kernel_layout) not in ("OIW", "OIHW") or layout not in ("NCW", "NCHW", "NWC", "NHWC"):
        return f"its data are {layout} and its weights {call.attrs.kernel_layout}"
    if dtype_of(call) != "float32" or any(dtype_of(tensor) not in FLOATS for tensor in (data, adjoint)):
        return f"it computes {dtype_of(call)} from {dtype_of(data)} and {dtype_of(adjoint)}"
    if 0 in (*shape, *kernel, *dims(adjoint)) or any(int(width) < 0 for width in call.attrs.padding):
        return "a tensor is empty, or its padding is negative"
    if int(call.attrs.groups) > 1 and kernel[0] // int(call.attrs.groups) < _FEATURES:
        return "its groups are narrow"
    return None


def has_kernel(call: relax.Call) -> bool:
    """Whether `call` is the gradient of a convolution's weights that a kernel computes."""
    return is_kind(call, Kind.CONVOLUTION_GRADIENT) and declined_gradient(call) is None
