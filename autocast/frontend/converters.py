"""Which torch operators can be imported: our converters, and TVM's that the tests hold to torch's results."""

from __future__ import annotations

from autocast.frontend.arithmetic import ARITHMETIC
from autocast.frontend.attention import attention
from autocast.frontend.deviations import DEVIATIONS
from autocast.frontend.distances import DISTANCES
from autocast.frontend.embedding_bags import EMBEDDING_BAGS
from autocast.frontend.experts import EXPERTS
from autocast.frontend.fractional_pooling import FRACTIONAL_POOLING
from autocast.frontend.functions import FUNCTIONS
from autocast.frontend.helpers import Converter
from autocast.frontend.indexing import INDEXING
from autocast.frontend.layers import LAYERS
from autocast.frontend.masks import MASKS
from autocast.frontend.matrix_functions import MATRIX_FUNCTIONS
from autocast.frontend.movement import MOVEMENT
from autocast.frontend.noise import NOISE
from autocast.frontend.pooling import POOLING
from autocast.frontend.quantized import QUANTIZED
from autocast.frontend.recurrent import RECURRENT
from autocast.frontend.reductions import REDUCTIONS
from autocast.frontend.resampling import RESAMPLING
from autocast.frontend.scans import SCANS
from autocast.frontend.special import SPECIAL
from autocast.frontend.strides import STRIDES
from autocast.frontend.writing import WRITING

#: Our converters, by the name of the overload.
CONVERTERS: dict[str, Converter] = {
    **ARITHMETIC,
    **DEVIATIONS,
    **DISTANCES,
    **EMBEDDING_BAGS,
    **EXPERTS,
    **FRACTIONAL_POOLING,
    **FUNCTIONS,
    **INDEXING,
    **LAYERS,
    **MASKS,
    **MATRIX_FUNCTIONS,
    **MOVEMENT,
    **NOISE,
    **POOLING,
    **QUANTIZED,
    **RECURRENT,
    **REDUCTIONS,
    **RESAMPLING,
    **SCANS,
    **SPECIAL,
    **STRIDES,
    **WRITING,
    "scaled_dot_product_attention.default": attention,
}

#: TVM's converters whose results tests/frontend/test_operators.py compares with torch's.
TRUSTED = frozenset(
    f"{name}.default"
    for names in (
        "abs acos acosh asin asinh atan atanh ceil cos cosh",
        "erf exp flip floor gelu isinf isnan leaky_relu log max mean",
        "min neg permute prod reciprocal relu round rsqrt sigmoid sign silu",
        "sin sinh sqrt square stack tan tanh trunc",
    )
    for name in names.split()
)
