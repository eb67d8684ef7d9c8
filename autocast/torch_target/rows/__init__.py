"""What each operator is in torch: a table, by families of operators."""

from autocast.torch_target.asked import Row
from autocast.torch_target.rows import (
    boxes,
    collectives,
    creation,
    elementwise,
    gradients,
    indexing,
    movement,
    normalization,
    pooling,
    products,
    quantization,
    randomness,
    recurrent,
    reductions,
    special,
    torch_calls,
    vision,
)

#: By the name of the operator, without `relax.`.
ROWS: dict[str, Row] = {
    **elementwise.ROWS,
    **special.ROWS,
    **movement.ROWS,
    **creation.ROWS,
    **products.ROWS,
    **recurrent.ROWS,
    **normalization.ROWS,
    **reductions.ROWS,
    **pooling.ROWS,
    **indexing.ROWS,
    **gradients.ROWS,
    **vision.ROWS,
    **boxes.ROWS,
    **randomness.ROWS,
    **quantization.ROWS,
    **collectives.ROWS,
    **torch_calls.ROWS,
}
