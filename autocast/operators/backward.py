"""Operators of gradients; those of the weights of convolutions are products."""

from __future__ import annotations

from autocast.operators.row import Kind, rows

ROWS = (
    *rows(
        Kind.GRADIENT,
        """
        collective.batch_norm_backward grad.attention_backward grad.batch_norm_backward grad.broadcast_backward
        grad.cross_entropy_backward
        grad.gated_add_backward grad.gelu_backward grad.gelu_tanh_backward grad.group_norm_backward
        grad.instance_norm_backward grad.layer_norm_backward grad.leakyrelu_backward grad.log_softmax_backward
        grad.nll_loss_backward grad.relu_backward grad.rms_norm_backward grad.selu_backward grad.sigmoid_backward
        grad.silu_backward grad.softmax_backward grad.softplus_backward grad.take_backward grad.tanh_backward
        """,
    ),
    *rows(Kind.GRADIENT, "grad.avg_pool2d_backward grad.max_pool2d_backward", channels_last="together"),
    *rows(Kind.SHORTHAND, "nn.gated_add"),
)
