"""Operators of our own: what differentiation needs, losses, recurrent states, and functions that keep small numbers.

A gradient of more than two primitive operators is one operator here, so that programs stay readable, AutoCast decides
one precision for it, and kernels see one pattern. `OPERATORS` has them all; `autocast.kernels.phases.expand` replaces
what no kernel takes whole by operators of TVM. Importing this package registers them.
"""

from autocast.operators.operator import OPERATORS, Expanded, Expansion, Operator, define, like
from autocast.operators.own import special
from autocast.operators.own.activations import (
    gelu_backward,
    gelu_tanh_backward,
    hardtanh,
    leakyrelu_backward,
    relu_backward,
    selu_backward,
    sigmoid_backward,
    silu_backward,
    softplus_backward,
    tanh_backward,
)
from autocast.operators.own.attention import attention_backward
from autocast.operators.own.batch_norm import batch_norm_backward, normalize_batch
from autocast.operators.own.boxes import suppress
from autocast.operators.own.broadcast import broadcast_backward
from autocast.operators.own.collectives import all_reduce_done, all_reduce_start
from autocast.operators.own.convolutions import conv1d_weight_backward, conv2d_weight_backward, conv3d_weight_backward
from autocast.operators.own.dropout import seeded_dropout
from autocast.operators.own.gated_add import gated_add, gated_add_backward
from autocast.operators.own.grouped import grouped_matmul
from autocast.operators.own.index_copy import index_copy
from autocast.operators.own.losses import cross_entropy, cross_entropy_backward
from autocast.operators.own.near_zero import expm1, log1p
from autocast.operators.own.noise import seeded_normal, seeded_uniform
from autocast.operators.own.normalization import (
    group_norm_backward,
    instance_norm_backward,
    layer_norm_backward,
    rms_norm_backward,
)
from autocast.operators.own.recurrent import gru, gru_backward, lstm, lstm_backward, rnn, rnn_backward
from autocast.operators.own.sharding import (
    all_gather_done,
    all_gather_start,
    reduce_scatter_done,
    reduce_scatter_start,
    share,
)
from autocast.operators.own.softmax import log_softmax_backward, softmax_backward
from autocast.operators.own.stochastic_round import stochastic_round
from autocast.operators.own.sync_batch_norm import sync_batch_norm, sync_batch_norm_backward

__all__ = [
    "OPERATORS",
    "Expanded",
    "Expansion",
    "Operator",
    "all_gather_done",
    "all_gather_start",
    "all_reduce_done",
    "all_reduce_start",
    "attention_backward",
    "batch_norm_backward",
    "broadcast_backward",
    "conv1d_weight_backward",
    "conv2d_weight_backward",
    "conv3d_weight_backward",
    "cross_entropy",
    "cross_entropy_backward",
    "define",
    "expm1",
    "gated_add",
    "gated_add_backward",
    "gelu_backward",
    "gelu_tanh_backward",
    "group_norm_backward",
    "grouped_matmul",
    "gru",
    "gru_backward",
    "hardtanh",
    "index_copy",
    "instance_norm_backward",
    "layer_norm_backward",
    "leakyrelu_backward",
    "like",
    "log1p",
    "log_softmax_backward",
    "lstm",
    "lstm_backward",
    "normalize_batch",
    "reduce_scatter_done",
    "reduce_scatter_start",
    "relu_backward",
    "rms_norm_backward",
    "rnn",
    "rnn_backward",
    "seeded_dropout",
    "seeded_normal",
    "seeded_uniform",
    "selu_backward",
    "share",
    "sigmoid_backward",
    "silu_backward",
    "softmax_backward",
    "softplus_backward",
    "special",
    "stochastic_round",
    "suppress",
    "sync_batch_norm",
    "sync_batch_norm_backward",
    "tanh_backward",
]
