"""Replace pooling of NHWC data by generated kernels."""

from __future__ import annotations

import tvm
from tvm import relax
from tvm.relax.expr_functor import mutator

from autocast.ir import FLOATS, dims, is_op, op_name, same_shape, shape_of, storage
from autocast.ir.rewriting import BindingRewriter, rewrite_functions, users_of
from autocast.kernels.backend import Backend
from autocast.kernels.explain import explain
from autocast.kernels.matching.convolutions.shapes import as_image, image, known, pair, sides, viewed
from autocast.kernels.matching.kernel_rewriter import KernelRewriter
from autocast.kernels.specs.convolutions import Pooling, PoolingGradient
from autocast.kernels.storage import LOW

POOLINGS = {
    "relax.nn.max_pool1d": "max",
    "relax.nn.max_pool2d": "max",
    "relax.nn.avg_pool1d": "average",
    "relax.nn.avg_pool2d": "average",
    "relax.nn.adaptive_avg_pool1d": "average",
    "relax.nn.adaptive_avg_pool2d": "average",
}
#: What no kernel of pooling computes, unless it is a mean.
_VOLUMES = ("relax.nn.avg_pool3d", "relax.nn.adaptive_avg_pool3d")
#: Gradients (of the result, the data), which are computed in float32.
GRADIENTS = {"relax.grad.max_pool2d_backward": "max", "relax.grad.avg_pool2d_backward": "average"}
#: What is computed with channels last wherever they are.
_FROM_FIRST = (
    *("relax.nn.max_pool1d", "relax.nn.max_pool2d", "relax.nn.max_pool3d", "relax.nn.avg_pool3d"),
    "relax.grad.max_pool2d_backward",
)


@mutator
class _Pooling(KernelRewriter):
    def enter(self, function: relax.Function) -> None:
        self.bound, self.users = users_of(function)
        #: What a kernel defines -> the pooling that it computes: the pooling itself, or its result narrowed.
        self.ends: dict[relax.Var, relax.Call] = {}
        self.gradients: set[relax.Var] = set()
        #: Means of whole images, of which no kernel of pooling computes: the axes.
        self.means: dict[relax.Var, list[int]] = {}
        for var, value in self.bound.items():
            if op_name(value) in POOLINGS:
                reason = _declined(value, value.args[0], shape_of(value))
                if reason is not None and (axes := _whole_image(value)):
                    self.means[var], reason = axes, "it is the mean of the whole image"
                end = var if reason is not None else self.narrowing(var)
                if reason is None:
                    self.ends[end] = value
                explain("pooling", var, reason or f"up to {end.name}", taken=reason is None)
            elif op_name(value) in GRADIENTS:
                reason = _declined(value, value.args[1], dims(value.args[0]))
                explain("pooling", var, reason or "", taken=reason is None)
                if reason is None:
                    self.gradients.add(var)
            elif op_name(value) in _VOLUMES and (axes := _whole_image(value)):
                self.means[var] = axes

    def narrowing(self, var: relax.Var) -> relax.Var:
        """What narrows `var` and is all that reads it; `var` itself where there is no such thing."""
        reader = self.only_user(var)
        narrows = reader is not None and is_op(self.bound[reader], "relax.astype") and storage(reader) in LOW
        return reader if narrows and storage(var) == "float32" else var

    def rewrite(self, binding: relax.VarBinding) -> relax.Expr | None:
        if binding.var in self.gradients:
            return self.gradient(binding.value)
        if binding.var in self.means:
            return relax.op.mean(self.new(binding.value.args[0]), self.means[binding.var], keepdims=True)
        call = self.ends.get(binding.var)
        if call is None:
            return None
        out_dtype = storage(binding.var)
        data = self.data(call, out_dtype)
        spec = _spec(call, call.args[0], storage(data), out_dtype)
        kernel = self.kernel(spec, lambda number: f"{spec.kind}_pooling{number}")
        out_type = relax.TensorType(image(dims(call)), out_dtype)
        result = relax.call_tir(kernel, [as_image(self, data)], out_type)
        return viewed(self, result, dims(call))

    def gradient(self, call: relax.Call) -> relax.Expr:
        """A call of the kernel that spreads adjoints over windows."""
        adjoint, data = (self.before_widening(operand) for operand in call.args)
        spec = _spec(call, data, storage(data), storage(adjoint))
        kernel = self.kernel(PoolingGradient(spec), lambda number: f"{spec.kind}_pooling_gradient{number}")
        out_type = relax.TensorType(dims(call), "float32")
        return relax.call_tir(kernel, [self.new(adjoint), self.new(data)], out_type)

    def before_widening(self, operand: relax.Expr) -> relax.Expr:
        """What the kernel widens by itself."""
        value = self.value_of(operand)
        return value.args[0] if is_op(value, "relax.astype") and storage(value.args[0]) in LOW else operand

    def data(self, call: relax.Call, out_dtype: str) -> relax.Expr:
        """What the kernel reads: not widened first; narrowed first where the largest element is narrowed after.

        That is the same element, and whatever computes the data can store it narrowed.
        """
        data = call.args[0]
        value = self.value_of(data)
        if is_op(value, "relax.astype") and storage(value.args[0]) in LOW:
            return self.new(value.args[0])
        if POOLINGS[call.op.name] == "max" and out_dtype in LOW and self.uses[data] == 1:
            return self.emit(relax.op.astype(self.new(data), out_dtype))
        return self.new(data)


def _declined(call: relax.Call, data: relax.Expr, pooled: tuple | None) -> str | None:
    """Why no kernel computes `call`, the pooling of `data` to the shape `pooled` or its gradient; None: one does."""
    if shape_of(data) is None or pooled is None or not isinstance(dims(data)[-1], int):
        return "a shape is not known"
    if str(call.attrs.layout) not in ("NWC", "NHWC") or call.attrs.out_layout != call.attrs.layout:
        return f"its data is {call.attrs.layout} and its output {call.attrs.out_layout}"
    if storage(data) not in FLOATS or storage(call) != storage(data):
        return f"it pools {storage(data)}"
    if 0 in (*dims(data), *pooled):
        return "a tensor is empty"
    spec, shape = _spec(call, data, storage(data), storage(data)), image(dims(data))
    extents = tuple(spec.output_extent(axis, shape[axis + 1]) for axis in (0, 1))
    return None if same_shape(image(pooled)[1:3], extents) else "its windows are counted in another way"


@mutator
class _ChannelsLast(BindingRewriter):
    """Pooling whose channels come first, of volumes and of maxima: TVM's overlook NaN, take -inf for the lowest number,
    and have no gradient where windows are dilated."""

    def rewrite(self, binding: relax.VarBinding) -> relax.Expr | None:
        call = binding.value
        if not is_op(call, *_FROM_FIRST) or str(call.attrs.layout) not in ("NCW", "NCHW", "NCDHW"):
            return None
        if _whole_image(call):
            return None
        data, shape = call.args[-1], shape_of(call.args[-1])
        if call.attrs.out_layout != call.attrs.layout or storage(data) not in FLOATS or shape is None:
            return None
        if not isinstance(shape[1], int) or 0 in shape or shape_of(call) is None:
            return None
        space = len(shape) - 2
        last = self.emit(relax.op.permute_dims(self.new(data), [0, *range(2, space + 2), 1]))
        windows = [tuple(map(int, getattr(call.attrs, name))) for name in ("pool_size", "strides", "dilation")]
        padding = [int(cut) for cut in call.attrs.padding]
        sides = list(zip(padding[:space], padding[space:], strict=True))
        if space == 1:
            pooled = self.pooled(call, last, "NWC", windows, sides)
        elif space == 2:
            pooled = self.pooled(call, last, "NHWC", windows, sides)
        else:  # over height and width, then over depth
            batch, _, depth, *_ = shape
            images = self.emit(relax.op.reshape(last, (batch * depth, *shape[3:], shape[1])))
            images = self.pooled(call, images, "NHWC", [w[1:] for w in windows], sides[1:])
            _, height, width, channels = dims(images)
            planes = self.emit(relax.op.reshape(images, (batch, depth, height * width, channels)))
            planes = self.pooled(call, planes, "NHWC", [(w[0], 1) for w in windows], [sides[0], (0, 0)])
            pooled = self.emit(relax.op.reshape(planes, (batch, dims(planes)[1], height, width, channels)))
        return relax.op.permute_dims(pooled, [0, space + 1, *range(1, space + 1)])

    def pooled(
        self,
        call: relax.Call,
        data: relax.Expr,
        layout: str,
        windows: list[tuple[int, ...]],
        sides: list[tuple[int, int]],
    ) -> relax.Expr:
        padding = [side[end] for end in (0, 1) for side in sides]
        size, strides, dilation = windows
        kind = call.op.name.rpartition(".")[2].partition("_")[0]
        options = bool(call.attrs.ceil_mode), bool(call.attrs.count_include_pad), layout
        moved = getattr(relax.op.nn, f"{kind}_pool{len(layout) - 2}d")(data, size, strides, padding, dilation, *options)
        if is_op(call, *GRADIENTS):
            adjoint = self.emit(relax.op.permute_dims(self.new(call.args[0]), [0, 2, 3, 1]))
            moved = relax.Call(call.op, [adjoint, data], moved.attrs)
        return self.emit(moved)


def _whole_image(call: relax.Call) -> list[int]:
    """The axes of the one window of an average pooling that has no padding; none where there are several windows."""
    data, layout = call.args[0], str(call.attrs.layout)
    axes = [axis for axis, name in enumerate(layout) if name in "DHW"]
    if "avg" not in call.op.name or shape_of(data) is None or shape_of(call) is None or 0 in dims(data):
        return []
    single = call.attrs.out_layout == layout and all(same_shape(dims(call)[axis : axis + 1], (1,)) for axis in axes)
    if "adaptive" not in call.op.name:
        extents = tuple(dims(data)[axis] for axis in axes)
        single = single and same_shape(extents, tuple(call.attrs.pool_size)) and not any(call.attrs.padding)
        single = single and all(int(step) == 1 for step in call.attrs.dilation)
    return axes if single else []


def _spec(call: relax.Call, data: relax.Expr, data_dtype: str, out_dtype: str) -> Pooling:
    attributes, shape = call.attrs, image(dims(data))
    common = {
        "kind": {**POOLINGS, **GRADIENTS}[call.op.name],
        "batch": known(shape[0]),
        "height": known(shape[1]),
        "width": known(shape[2]),
        "channels": shape[3],
        "data_dtype": data_dtype,
        "out_dtype": out_dtype,
    }
    if "adaptive" in call.op.name:
        return Pooling(**common, adaptive=pair(dims(call)[1:-1], 1))
    return Pooling(
        **common,
        window=pair(attributes.pool_size, 1),
        strides=pair(attributes.strides, 1),
        dilation=pair(attributes.dilation, 1),
        padding=sides(attributes.padding),
        ceil_mode=bool(attributes.ceil_mode),
        count_include_pad=bool(attributes.count_include_pad),
    )


def move_channels_of_pooling(mod: tvm.IRModule) -> tvm.IRModule:
    """Rewrite max pooling of data whose channels come first to one of their permutation; pooling of volumes to two.

    Before::                                       After::

        y = R.nn.max_pool2d(x)                         a = R.permute_dims(x, [0, 2, 3, 1])
                                                       b = R.nn.max_pool2d(a, layout="NHWC")
                                                       y = R.permute_dims(b, [0, 3, 1, 2])
    """
    return rewrite_functions(mod, _ChannelsLast)


def lower_pooling(mod: tvm.IRModule, backend: Backend) -> tvm.IRModule:
    """Rewrite every pooling of NHWC data, with casts before and after it, to one call of a generated kernel.

    Before::                                                     After::

        p: f32 = R.nn.max_pool2d(x, layout="NHWC")                   n: bf16 = R.astype(x, "bfloat16")
        y: bf16 = R.astype(p, "bfloat16")                            y: bf16 = R.call_tir(max_pooling0, (n,))

    A maximum is narrowed before it is taken, so that less is stored.
    """
    return rewrite_functions(mod, _Pooling, backend)
