"""Replace gradients of convolutions' weights over NHWC data by generated kernels."""

from __future__ import annotations

import tvm
from tvm import relax
from tvm.relax.expr_functor import mutator

from autocast.ir import dims, storage
from autocast.ir.rewriting import rewrite_functions
from autocast.kernels.backend import Backend
from autocast.kernels.explain import explain
from autocast.kernels.matching.convolutions.declined import declined_gradient
from autocast.kernels.matching.convolutions.shapes import as_image, image, known, pair, sides
from autocast.kernels.matching.kernel_rewriter import KernelRewriter
from autocast.kernels.specs.convolutions import Convolution, WeightGradient
from autocast.operators import Kind, is_kind

_SHORT = {"float32": "f32", "bfloat16": "bf16", "float16": "f16"}


@mutator
class _WeightGradients(KernelRewriter):
    def rewrite(self, binding: relax.VarBinding) -> relax.Expr | None:
        call = binding.value
        if not is_kind(call, Kind.CONVOLUTION_GRADIENT):
            return None
        reason = declined_gradient(call)
        if reason is None and str(call.attrs.data_layout) not in ("NWC", "NHWC"):
            reason = f"its data are {call.attrs.data_layout}"
        explain("weight_gradients", binding.var, reason or "", taken=reason is None)
        if reason is not None:
            return None
        spec = WeightGradient(_spec(call))
        kernel = self.kernel(spec, lambda number: f"weight_gradient{number}_{_describe(spec.convolution)}")
        operands = [as_image(self, self.new(operand)) for operand in (call.args[0], call.args[2])]
        out_type = relax.TensorType(spec.shape, "float32")
        result = self.emit(relax.call_tir(kernel, operands, out_type))
        features_first = self.emit(relax.op.permute_dims(result, [0, 2, 1]))
        return relax.op.reshape(features_first, relax.ShapeExpr(dims(binding.var)))


def _spec(call: relax.Call) -> Convolution:
    attributes, (data, weights, adjoint) = call.attrs, call.args
    batch, height, width = map(known, image(dims(data))[:3])
    return Convolution(
        batch=batch,
        height=height,
        width=width,
        channels=dims(data)[-1],
        features=dims(adjoint)[-1],
        kernel=pair(dims(weights)[2:], 1),
        strides=pair(attributes.strides, 1),
        padding=sides(attributes.padding),
        dilation=pair(attributes.dilation, 1),
        groups=int(attributes.groups),
        data_dtype=storage(data),
        out_dtype=storage(adjoint),
        compute="bfloat16" if storage(data) == storage(adjoint) == "bfloat16" else "float32",
    )


def _describe(spec: Convolution) -> str:
    sizes = (spec.batch, spec.height, spec.width, spec.channels, spec.features)
    kernel, strides = ("x".join(map(str, pair)) for pair in (spec.kernel, spec.strides))
    extents = "x".join("any" if size is None else str(size) for size in sizes)
    return f"{extents}_k{kernel}_s{strides}_{_SHORT[spec.data_dtype]}_{_SHORT[spec.out_dtype]}"


def lower_weight_gradients(mod: tvm.IRModule, backend: Backend) -> tvm.IRModule:
    """Rewrite gradients of convolutions' weights to calls of generated kernels.

    Before::                                                  After::

        d = R.grad.conv2d_weight_backward(                       t = R.call_tir(weight_gradient0_..., (x, g))
            x, w, g, data_layout="NHWC")                         d = R.reshape(R.permute_dims(t, [0, 2, 1]), w's shape)

    The kernel writes features last, as it computes them.
    """
    return rewrite_functions(mod, _WeightGradients, backend)
