"""ONNX in: TVM's importer, the operators that it lacks or has wrong, and checks of every result's type.

In the order of an import: `functions` are written out, `folding` computes constants, `loops` are unrolled, and
`graph_importer` converts what is left, by `converters`, `recurrent` and `control`; `operators` says what is refused.
What nodes compute of sizes that vary is known by `sizes`, in the arithmetic of `expressions`; `agreement` has operands
of other such sizes compared when the model runs.
"""

from autocast.frontend.onnx.importing import from_onnx

__all__ = ["from_onnx"]
