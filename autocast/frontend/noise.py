"""Converters of what is random: dropout, and samples of a Bernoulli distribution.

All of it is `relax.nn.seeded_dropout`, each call with a stream of random numbers of its own.
"""

from __future__ import annotations

from torch import fx
from tvm import relax

from autocast.frontend.helpers import Converter
from autocast.frontend.importer import Importer
from autocast.ir import dtype_of
from autocast.operators.own import seeded_dropout


def dropout(importer: Importer, x: relax.Expr, rate: float) -> relax.Expr:
    """`x` with each element zeroed with probability `rate`, and the others divided by `1 - rate`."""
    return importer.emit(seeded_dropout(x, importer.random_state, rate=rate, stream=importer.next_stream()))


def _native_dropout(importer: Importer, node: fx.Node) -> list[relax.Expr]:
    """The values; reading the mask, which is never stored, fails in getitem."""
    x, rate = importer.arg(node, 0, "input"), float(node.args[1])
    train = importer.arg(node, 2, "train")
    if rate == 0.0 or train is False:
        return [x]
    if rate == 1.0:
        return [importer.emit(relax.op.zeros(x.ty.shape, dtype_of(x)))]
    return [dropout(importer, x, rate)]


def _bernoulli(importer: Importer, node: fx.Node) -> relax.Expr:
    """1 with probability p, else 0: p times the dropout of ones, whose form without dropout is p, the mean."""
    p, dtype, shape = float(node.args[1]), importer.dtype(node), relax.ShapeExpr(importer.shape(node))
    if p in (0.0, 1.0):
        return importer.emit(relax.op.broadcast_to(relax.const(p, dtype), shape))
    kept = dropout(importer, importer.emit(relax.op.ones(shape, dtype)), 1.0 - p)
    return importer.emit(relax.op.multiply(kept, relax.const(p, dtype)))


#: Converters by the name of the overload.
NOISE: dict[str, Converter] = {"bernoulli.p": _bernoulli, "native_dropout.default": _native_dropout}
