"""Attention of sequences that lie one after another, of lengths that a call says: with a bias that parts them."""

from __future__ import annotations

from tvm import relax

from autocast.errors import UnsupportedError
from autocast.ir import dims, dtype_of
from autocast.kernels.phases.searching import Emit

op = relax.op


def part_sequences(emit: Emit, call: relax.Call, *operands: relax.Expr) -> relax.Expr:
    """A query sees the keys of its own sequence.

    Before::                                              After::

        y = R.nn.attention_var_len(q, k, v, starts, ...)      i = ...  # of each row of q and k the sequence
                                                              b = R.where(R.equal(i, j), 0, -inf)
                                                              y = R.nn.attention_bias(q, k, v, b)

    Raises
    ------
    UnsupportedError
        A window: TVM does not say which keys of a sequence it has.
    """
    query, key, value, query_starts, key_starts = operands[:5]
    attributes = call.attrs
    if attributes.window_size is not None:
        raise UnsupportedError(
            f"compile: relax.nn.attention_var_len has window_size={attributes.window_size}, expected None; call "
            "relax.nn.attention_bias, with a bias of 0 and -inf"
        )
    wide, one = dtype_of(query), relax.const(1, "int64")

    def places(packed: relax.Expr, starts: relax.Expr) -> tuple[relax.Expr, relax.Expr, relax.Expr]:
        """Starts as int64; of each row the number of its sequence, and its place in it."""
        starts, rows = emit(op.astype(starts, "int64")), emit(op.arange(0, dims(packed)[1], 1, "int64"))
        begun = emit(op.astype(op.less_equal(op.expand_dims(starts, 1), rows), "int64"))
        sequence = emit(op.subtract(op.sum(begun, 0), one))
        return starts, sequence, emit(op.subtract(rows, op.take(starts, sequence, 0, "clip")))

    def lengths(starts: relax.Expr, sequence: relax.Expr) -> relax.Expr:
        end = op.take(starts, emit(op.add(sequence, one)), 0, "clip")
        return emit(op.subtract(end, op.take(starts, sequence, 0, "clip")))

    (q_starts, q_sequence, q_place), (k_starts, k_sequence, k_place) = (
        places(query, query_starts),
        places(key, key_starts),
    )
    seen = op.equal(op.expand_dims(q_sequence, 1), k_sequence)
    if attributes.causal_mask is not None:
        last = q_place
        if str(attributes.causal_mask) == "BottomRight":
            last = op.add(last, op.abs(op.subtract(lengths(k_starts, q_sequence), lengths(q_starts, q_sequence))))
        seen = op.logical_and(seen, op.less_equal(k_place, op.expand_dims(emit(last), 1)))
    bias = emit(op.where(emit(seen), relax.const(0.0, wide), relax.const(float("-inf"), wide)))
    bias = emit(op.reshape(bias, [1, 1, dims(query)[1], dims(key)[1]]))
    return op.nn.attention_bias(query, key, value, bias, attributes.scale)
