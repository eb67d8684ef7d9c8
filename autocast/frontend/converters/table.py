"""Which torch operators can be imported: our converters, and TVM's that the tests hold to torch's results."""

from __future__ import annotations

from autocast.frontend.converters.arithmetic import ARITHMETIC
from autocast.frontend.converters.attention import attention
from autocast.frontend.converters.deviations import DEVIATIONS
from autocast.frontend.converters.distances import DISTANCES
from autocast.frontend.converters.embedding_bags import EMBEDDING_BAGS
from autocast.frontend.converters.experts import EXPERTS
from autocast.frontend.converters.fractional_pooling import FRACTIONAL_POOLING
from autocast.frontend.converters.functions import FUNCTIONS
from autocast.frontend.converters.helpers import Converter
from autocast.frontend.converters.indexing import INDEXING
from autocast.frontend.converters.layers import LAYERS
from autocast.frontend.converters.masks import MASKS
from autocast.frontend.converters.matrix_functions import MATRIX_FUNCTIONS
from autocast.frontend.converters.movement import MOVEMENT
from autocast.frontend.converters.noise import NOISE
from autocast.frontend.converters.pooling import POOLING
from autocast.frontend.converters.quantized import QUANTIZED
from autocast.frontend.converters.recurrent import RECURRENT
from autocast.frontend.converters.reductions import REDUCTIONS
from autocast.frontend.converters.resampling import RESAMPLING
from autocast.frontend.converters.scans import SCANS
from autocast.frontend.converters.special import SPECIAL
from autocast.frontend.converters.strides import STRIDES
from autocast.frontend.converters.writing import WRITING

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

#: TVM's converters whose results tests/frontend/converters/test_operators.py compares with torch's.
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
