"""How every operator is differentiated: one row each, by family, with its formula or the reason why there is none.

    row = gradient("relax.tanh", rule, why="1 - y²")

A rule is asked with a `Backward` and answers one adjoint for each argument of the call.
"""

from __future__ import annotations

from autocast.training.gradients import (
    activations,
    attention,
    batch_norm,
    conversion,
    convolutions,
    elementwise,
    indexing,
    layout,
    losses,
    normalization,
    not_differentiable,
    pooling,
    products,
    randomness,
    recurrent,
    reductions,
    softmax,
    special,
    torch_calls,
    vision,
)
from autocast.training.gradients.registry import (
    Adjoint,
    Backward,
    GradientRow,
    GradientRule,
    get_gradient,
    gradient,
    list_gradients,
    register_family,
    register_gradient,
    zero_gradient,
)

__all__ = [
    "Adjoint",
    "Backward",
    "GradientRow",
    "GradientRule",
    "get_gradient",
    "gradient",
    "list_gradients",
    "register_family",
    "register_gradient",
    "zero_gradient",
]

for _family in (
    elementwise,
    special,
    products,
    recurrent,
    reductions,
    randomness,
    layout,
    indexing,
    conversion,
    convolutions,
    pooling,
    batch_norm,
    vision,
    softmax,
    normalization,
    losses,
    attention,
    activations,
    torch_calls,
    not_differentiable,
):
    register_family(_family.__name__.rpartition(".")[2], _family.RULES)
