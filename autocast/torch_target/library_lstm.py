"""LSTMs whose product with the input torch's library for CPUs computes along with the steps."""

from __future__ import annotations

import operator

import torch
import torch.nn.functional as F
from torch import fx

from autocast.frontend.converters.recurrent import LSTM, RUNS, Recurrence
from autocast.torch_target.linear import is_method


class PackedLSTM:
    """A layer of an LSTM with weights that stay, packed in the first call; sums and cells are of float32."""

    def __init__(self) -> None:
        self._weights: list[torch.Tensor] = []

    def __call__(
        self,
        x: torch.Tensor,
        of_input: torch.Tensor,
        of_hidden: torch.Tensor,
        bias: torch.Tensor | None,
        hidden: torch.Tensor,
        cell: torch.Tensor,
        reverse: bool,
    ) -> tuple[torch.Tensor, ...]:
        """The hidden states of all steps, in the weights' dtype, and the last states."""
        if not x.numel() or not of_hidden.numel():
            gates = F.linear(x, of_input).to(cell.dtype)
            return Recurrence(RUNS[LSTM])(gates if bias is None else gates + bias, of_hidden, hidden, cell, reverse)
        units = of_hidden.shape[1]
        if not self._weights:
            pack = torch.ops.mkldnn._reorder_mkldnn_rnn_layer_weight.default
            self._weights = [*pack(of_input, of_hidden, units, reverse, True, False)]
            self._weights += [cell.new_zeros(4 * units) if bias is None else bias, cell.new_zeros(4 * units)]
        lstm, has_biases, is_bidirectional, batch_first, train = 2, True, False, False, False
        layer = torch.ops.aten.mkldnn_rnn_layer.default
        states = hidden.to(of_hidden.dtype).contiguous(), cell.contiguous()  # it reads them as dense ones
        options = lstm, units, 1, has_biases, is_bidirectional, batch_first, train
        hiddens, last, cells, _ = layer(x.contiguous(), *self._weights, *states, reverse, [], *options)
        return hiddens, last.to(hidden.dtype), cells


def use_library_lstm(root: torch.nn.Module, node: fx.Node) -> bool:
    """Have the library compute an LSTM's gates, too, if they are its alone; returns whether it does.

    Before::                                  After::

        y = linear(x, of_input)               s = PackedLSTM()(x, of_input, of_hidden, bias, hidden, cell)
        gates = y.to(torch.float32) + bias
        s = lstm(gates, of_hidden, hidden, cell)

    The last hidden state is rounded there as those of all steps are: not where it is read in float32.
    """
    gates, of_hidden, hidden, cell, reverse = node.args
    product, bias = gates.args if gates.target is operator.add else (gates, None)
    widened = product
    if is_method(product, "to"):
        product = product.args[0]
    if product.target is not F.linear or any(len(one.users) != 1 for one in (gates, widened, product)):
        return False
    x, of_input, own_bias = product.args
    read = [of_input, of_hidden, *(one for one in (bias, own_bias) if one is not None)]
    if not all(isinstance(one, fx.Node) and one.op == "get_attr" for one in read) or len(read) > 3:
        return False
    matrix, other, *biases = (operator.attrgetter(one.target)(root) for one in read)
    is_read_wide = matrix.dtype != torch.float32 and any(user.args[1] == 1 for user in node.users)
    has_wide_bias = all(one.dtype == torch.float32 and one.shape == matrix.shape[:1] for one in biases)
    if matrix.dtype != other.dtype or not has_wide_bias or is_read_wide:
        return False
    node.target = PackedLSTM()
    node.args = (x, of_input, of_hidden, *(read[2:] or [None]), hidden, cell, reverse)
    return True
