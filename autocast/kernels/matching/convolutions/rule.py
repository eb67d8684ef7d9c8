"""Replace convolutions over NHWC data, with what is done to their results, by generated kernels."""

from __future__ import annotations

import tvm
from tvm import relax
from tvm.relax.expr_functor import mutator

from autocast.ir import dims, is_op, storage
from autocast.ir.rewriting import rewrite_functions
from autocast.kernels.backend import Backend
from autocast.kernels.matching.convolutions.declined import declined
from autocast.kernels.matching.convolutions.shapes import as_image, image, known, pair, sides, viewed
from autocast.kernels.matching.products.epilogue import Chain, EpilogueRewriter
from autocast.kernels.specs.convolutions import Convolution, ConvolutionWeights
from autocast.operators import Kind, named

_SHORT = {"float32": "f32", "bfloat16": "bf16", "float16": "f16"}


@mutator
class _Convolutions(EpilogueRewriter):
    rule, operators = "convolutions", named(Kind.CONVOLUTION)

    def declined(self, call: relax.Call) -> str | None:
        layouts = str(call.attrs.data_layout), str(call.attrs.out_layout)
        if (reason := declined(call)) is None and layouts not in (("NWC", "NWC"), ("NHWC", "NHWC")):
            reason = f"its data is {layouts[0]} and its output {layouts[1]}"
        return reason

    def lowered(self, chain: Chain) -> relax.Expr:
        data, weights = (self.before_narrowing(operand) for operand in chain.call.args)
        spec = _spec(chain, storage(data), storage(weights))
        kernel = self.kernel(spec, lambda number: f"convolution{number}_{_describe(spec)}")
        packing = self.kernel(ConvolutionWeights(spec), lambda number: f"convolution{number}_{_describe(spec)}_pack")
        weights = viewed(self, self.new(weights), spec.weight_shape)
        packed = self.emit(relax.call_tir(packing, [weights], self.results[packing]))
        operands = [
            viewed(self, self.new(x), dims(chain.call)[-1:]) if operand.per_column else as_image(self, self.new(x))
            for x, operand in zip(chain.operands, chain.epilogue.operands, strict=True)
        ]
        arguments = [as_image(self, self.new(data)), packed, *operands]
        out_type = relax.TensorType(image(dims(chain.end)), storage(chain.end))
        return viewed(self, relax.call_tir(kernel, arguments, out_type), dims(chain.end))

    def before_narrowing(self, operand: relax.Expr) -> relax.Expr:
        """`operand` without a cast that the kernel can do while it reads, where the wide tensor has to exist anyway.

        Kernels round what they read to bfloat16 only where that is what they multiply.
        """
        value = self.value_of(operand)
        narrows = storage(operand) == "bfloat16" and "bfloat16" in self.backend.multiplies
        if not narrows or not is_op(value, "relax.astype") or self.uses[operand] > 1:
            return operand
        source = value.args[0]
        exists = source not in self.bound or self.uses[source] > 1
        return source if exists and storage(source) == "float32" else operand


def _spec(chain: Chain, data_dtype: str, weight_dtype: str) -> Convolution:
    call = chain.call
    attributes, (data, weights) = call.attrs, call.args
    batch, height, width = map(known, image(dims(data))[:3])
    transposed = call.op.name.endswith("_transpose")
    narrow = storage(data) == storage(weights) == "bfloat16"
    return Convolution(
        batch=batch,
        height=height,
        width=width,
        channels=dims(data)[-1],
        features=dims(call)[-1],
        kernel=pair(dims(weights)[2:], 1),
        strides=pair(attributes.strides, 1),
        padding=sides(attributes.padding),
        dilation=pair(attributes.dilation, 1),
        groups=int(attributes.groups),
        data_dtype=data_dtype,
        weight_dtype=weight_dtype,
        out_dtype=storage(chain.end),
        transposed=transposed,
        output_padding=pair(attributes.output_padding, 0) if transposed else (0, 0),
        compute="bfloat16" if narrow else "float32",
        epilogue=chain.epilogue,
    )


def _describe(spec: Convolution) -> str:
    def product(*extents: int | None) -> str:
        return "x".join("any" if extent is None else str(extent) for extent in extents)

    return "_".join(
        filter(
            None,
            [
                "transposed" if spec.transposed else "",
                product(spec.batch, spec.height, spec.width, spec.channels, spec.features),
                f"k{product(*spec.kernel)}",
                f"s{product(*spec.strides)}" if spec.strides != (1, 1) else "",
                f"g{spec.groups}" if spec.groups > 1 else "",
                *(_SHORT[dtype] for dtype in (spec.data_dtype, spec.weight_dtype, spec.out_dtype)),
                *spec.epilogue.words(),
            ],
        )
    )


def lower_convolutions(mod: tvm.IRModule, backend: Backend) -> tvm.IRModule:
    """Rewrite every convolution, and what an epilogue can hold of its readers, to one call of a generated kernel.

    Before::                                            After::

        c: f32 = R.nn.conv2d(x, w, data_layout="NHWC")      p = R.call_tir(convolution0_..._pack, (w,))
        r: f32 = R.nn.relu(R.add(c, bias))                  y: bf16 = R.call_tir(convolution0_..., (x, p, bias))
        y: bf16 = R.astype(r, "bfloat16")

    Equal convolutions share a kernel.
    """
    return rewrite_functions(mod, _Convolutions, backend)
