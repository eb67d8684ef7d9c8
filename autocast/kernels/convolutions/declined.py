"""Which convolutions no kernel computes, whatever the layout of their data."""

from __future__ import annotations

from tvm import relax

from autocast.ir import FLOATS, dtype_of, op_name, shape_of, static_shape
from autocast.kernels.graph.operators import CONVOLUTIONS
from autocast.kernels.graph.rewriting import dims


def declined(call: relax.Call) -> str | None:
    """Why no kernel computes the convolution `call` once its channels are last; None where one does."""
    if op_name(call) not in CONVOLUTIONS:
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
