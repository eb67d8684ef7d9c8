"""Which torch operators stay whole on import, and which are split into simpler ones."""

from __future__ import annotations

import warnings

import torch
from torch.export import ExportedProgram

from autocast.errors import ImportModelError

aten = torch.ops.aten

#: Operators that torch would split, and that Relax has as one operator (see the converters of the same names).
KEEP_WHOLE = (
    aten.linear.default,
    aten.matmul.default,
    aten.scaled_dot_product_attention.default,
    aten.layer_norm.default,
    aten.group_norm.default,
    aten.softmax.int,
    aten.log_softmax.int,
    aten.silu.default,
    aten.celu.default,
    aten.softplus.default,
    aten.mish.default,
    aten.logaddexp.default,
    aten.baddbmm.default,
    aten.relu6.default,
    aten.stack.default,
    aten.tril.default,
    aten.triu.default,
    aten.square.default,
    aten.adaptive_avg_pool1d.default,
    aten.adaptive_avg_pool2d.default,
    aten.adaptive_avg_pool3d.default,
    aten.upsample_nearest2d.vec,
    aten.upsample_bicubic2d.vec,
    aten.upsample_bilinear2d.vec,
)


def decompose(program: ExportedProgram) -> ExportedProgram:
    """The program in functional form, every operator outside `KEEP_WHOLE` split as torch's core operator set asks.

    Raises
    ------
    ImportModelError
        torch cannot split it.
    """
    table = torch.export.default_decompositions()
    for operator in KEEP_WHOLE:
        if operator in table:
            del table[operator]
    with warnings.catch_warnings():
        # torch 2.13 copies its own pytrees through a deprecated test.
        warnings.filterwarnings("ignore", message=".*isinstance\\(treespec, LeafSpec\\).*", category=FutureWarning)
        try:
            return program.run_decompositions(table)
        except Exception as error:
            cause = str(error).strip().partition("\n")[0]
            raise ImportModelError(
                f"from_torch: torch cannot split the model into its core operators: {cause}. A size or an index may "
                "depend on the values of a tensor: keep such numbers tensors, or pass them as plain Python numbers."
            ) from error
