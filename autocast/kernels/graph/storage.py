"""What the phases know of Relax operators, as tables."""

from __future__ import annotations

from tvm import relax

from autocast.ir import dtype_of, op_name

#: Storage dtypes that are never computed in.
LOW = ("bfloat16", "float16")


def _names(text: str) -> frozenset[str]:
    return frozenset(f"relax.{name}" for name in text.split())


#: Operators that only move, create or reinterpret data: right in any storage dtype.
MOVES = _names("""
    argsort astype broadcast_to concat dynamic_strided_slice expand_dims eye eye_like flatten flip full full_like
    gather_elements gather_nd hint_on_device index_put index_tensor layout_transform meshgrid nn.batch_flatten
    nn.dropout nn.pad nn.pixel_shuffle nonzero null_value one_hot ones ones_like permute_dims repeat reshape
    reverse_sequence scatter_elements shape_of size slice_scatter sort split squeeze stack strided_slice take
    tensor_to_shape tile to_vdevice topk tril triu unique where wrap_param zeros zeros_like
""")

#: Operators that look at the same elements as an array of another shape.
RESHAPES = ("relax.reshape", "relax.expand_dims", "relax.squeeze", "relax.flatten")

#: Operators that call code of the user's or of the runtime's: not ours to change.
OPAQUE_PREFIXES = tuple(
    _names("""
    assert_op builtin. call_ ccl. dist. grad.end grad.no_grad grad.start inspect. invoke_ make_closure memory. print vm.
""")
)

#: Convolutions along one axis and two, that there are kernels for.
CONVOLUTIONS = _names("nn.conv1d nn.conv1d_transpose nn.conv2d nn.conv2d_transpose")

#: Gradients of their weights, which have kernels too.
CONVOLUTION_GRADIENTS = _names("grad.conv1d_weight_backward grad.conv2d_weight_backward")

#: Products multiply low operands as they are, and accumulate and answer in float32.
PRODUCTS = CONVOLUTIONS | CONVOLUTION_GRADIENTS | _names("matmul nn.conv3d nn.conv3d_transpose")

#: Attention has kernels of its own, which keep scores and softmax in float32.
ATTENTION = _names("nn.attention nn.attention_bias nn.attention_var_len")

#: Operators that work element by element, so that fusion keeps a float32 value between them in registers.
ELEMENTWISE = _names("""
    abs acos acosh add asin asinh atan atan2 atanh ceil clip cos cosh divide erf ewise_fma exp floor floor_divide
    floor_mod log log_add_exp maximum minimum mod multiply negative nn.expm1 nn.gelu nn.gelu_tanh nn.leakyrelu
    nn.log1p nn.prelu nn.relu nn.seeded_dropout nn.selu nn.silu nn.softplus nn.stochastic_round power round
    rsqrt sigmoid sign sin sinh sqrt square subtract tan tanh trunc
""")

#: Reductions, whose results are small: keeping them in float32 costs little, wherever they go.
REDUCTIONS = _names("max mean median min prod std sum variance")


#: What TVM's sorting functions do not take, and what they compare instead. Given bfloat16, they read something else.
SORTED_AS = {"bfloat16": "float32", "uint32": "int64"} | dict.fromkeys(
    ("bool", "int8", "uint8", "int16", "uint16"), "int32"
)
SORTS = _names("argsort median sort topk")

#: Operators that look for extremes, of which TVM knows none for booleans.
EXTREMES = _names("argmax argmin max min")


def compared_as(call: relax.Expr) -> str | None:
    """The dtype that the operand of an operator which compares elements has to be widened to, if it has to."""
    name = op_name(call)
    if name in SORTS:
        return SORTED_AS.get(dtype_of(call.args[0]) or "")
    return "int32" if name in EXTREMES and dtype_of(call.args[0]) == "bool" else None


def computes(call: relax.Expr) -> bool:
    """Whether `call` does arithmetic (rather than moving data, or calling code that is not ours)."""
    name = op_name(call)
    if name == "relax.scatter_elements" and call.attrs.reduction != "update":
        return True
    if name == "relax.index_put" and call.attrs.accumulate:
        return True
    return name is not None and name not in MOVES and not name.startswith(OPAQUE_PREFIXES)
