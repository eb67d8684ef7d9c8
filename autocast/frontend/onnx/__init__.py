"""ONNX in: TVM's importer, the operators that it lacks or has wrong, and checks of every result's type.

In the order of an import: `functions` are written out, `folding` computes constants, `loops` are unrolled, and
`graph_importer` converts what is left, by `converters`, `recurrent` and `control`; `operators` says what is refused.
"""

from autocast.frontend.onnx.importing import from_onnx

__all__ = ["from_onnx"]
