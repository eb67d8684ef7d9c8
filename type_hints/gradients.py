"""Operators that only automatic differentiation makes."""

from __future__ import annotations

from type_hints.helpers import follow, full, low
from type_hints.registry import rule

#: Backward operators of our own (`autocast.operators.own`); their kernels compute in float32 whatever they load.
_SLOPE = "the adjoint times a slope"
_STATISTICS = "statistics of rows, and differences from them that cancel"

_IDENTITY = "gives back its argument; marks it for automatic differentiation"
_WEIGHTS = "products over pixels, accumulated in float32; the result has the dtype of the weights, which are not read"

RULES = (
    rule("relax.grad.no_grad", follow(1), why=_IDENTITY),
    rule("relax.grad.start_checkpoint", follow(1), why=_IDENTITY),
    rule("relax.grad.end_checkpoint", follow(1), why=_IDENTITY),
    rule("relax.grad.relu_backward", follow(2), why="keeps or drops each element; rounding keeps the sign of y"),
    rule("relax.grad.gelu_backward", follow(2), why=f"{_SLOPE} that changes by at most 0.80 times x's rounding"),
    rule("relax.grad.gelu_tanh_backward", follow(2), why=f"{_SLOPE}, as gelu_backward"),
    rule("relax.grad.silu_backward", follow(2), why=f"{_SLOPE} that changes by at most 0.50 times x's rounding"),
    rule("relax.grad.selu_backward", follow(2), why=f"{_SLOPE} of one sign, at most 1.76"),
    rule("relax.grad.leakyrelu_backward", follow(2), why="one of two factors; rounding keeps the sign of x"),
    rule("relax.grad.softplus_backward", follow(2), why=f"{_SLOPE} between 0 and 1, a sigmoid"),
    rule("relax.grad.sigmoid_backward", follow(2), why=f"{_SLOPE}, at most 1/4, of a result that was stored rounded"),
    rule("relax.grad.tanh_backward", follow(2), why=f"{_SLOPE}, at most 1, of a result that was stored rounded"),
    rule("relax.grad.gated_add_backward", full(3), why="the adjoint of a recurrent cell's state, as gated_add"),
    rule("relax.grad.layer_norm_backward", full(3), why=f"{_STATISTICS}; sums over the batch for scale and offset"),
    rule("relax.grad.group_norm_backward", full(3), why=f"{_STATISTICS}; sums over the batch for scale and offset"),
    rule("relax.grad.instance_norm_backward", full(3), why=f"{_STATISTICS}; sums over the batch for scale and offset"),
    rule("relax.grad.softmax_backward", full(2), why="the difference from a mean of the row, which cancels"),
    rule("relax.grad.log_softmax_backward", full(2), why="exponentials of logarithms, and a sum of the row"),
    rule(
        "relax.grad.cross_entropy_backward",
        follow((0,)),
        why="follows the logits, rounded once; kernels load, exponentiate and add in float32; the loss's adjoint stays",
    ),
    rule("relax.grad.broadcast_backward", follow(1), why="a long sum, in float32 whatever is loaded; so is its result"),
    rule(
        "relax.grad.attention_backward",
        low(4, keep=4),
        why="five matrix products on low precision; scores and softmax stay in float32, and so does the mask",
    ),
    rule("relax.grad.rms_norm_backward", full(3), why=f"{_STATISTICS}; a sum over the batch for the scale"),
    rule("relax.grad.max_pool2d_backward", follow(2), why="moves each gradient to the element that won its window"),
    rule("relax.grad.conv1d_weight_backward", low((0, 2)), why=_WEIGHTS),
    rule("relax.grad.conv2d_weight_backward", low((0, 2)), why=_WEIGHTS),
    rule("relax.grad.conv3d_weight_backward", low((0, 2)), why=_WEIGHTS),
    rule(
        "relax.collective.batch_norm_backward", full(5), why="as batch_norm_backward, of several processes' statistics"
    ),
    rule("relax.grad.batch_norm_backward", full(3), why="mean and variance of a batch, and sums over it that cancel"),
    rule("relax.grad.avg_pool2d_backward", follow(2), why="spreads each gradient over a window, added up in float32"),
    rule("relax.grad.nll_loss_backward", full((0, 1, 3)), why="divides by the sum of the batch's weights"),
    rule("relax.grad.take_backward", full(2), why="adds up the gradients of every use of a row: a long sum"),
)
