"""The optimizer's state divided among ranks: each updates its share of every parameter, and sends it to the others."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import numpy as np
from tvm import relax

from autocast.ir import static_shape
from autocast.operators.own import (
    all_gather_done,
    all_gather_start,
    all_reduce_done,
    all_reduce_start,
)
from autocast.runtime.sharding import share_size
from autocast.training.accumulation import is_accumulator
from autocast.training.parallel.ranks import Ranks

_MIB = 2**20


def share_type(parameter: relax.TensorType, shares: int) -> relax.TensorType:
    """What an update reads of a parameter: all of it where there is one share."""
    if shares == 1:
        return parameter
    elements = math.prod(static_shape(relax.Var("parameter", parameter)) or ())
    return relax.TensorType([share_size(elements, shares)], str(parameter.dtype))


def total_over_ranks(builder: relax.BlockBuilder, part: relax.Expr, shares: int) -> relax.Expr:
    """The sum over ranks of a 0-d float32 tensor, where each has a share of what was added up."""
    if shares == 1:
        return part
    buffer = builder.emit(all_reduce_start(relax.Tuple([builder.emit(part)])), "sums")
    mean = builder.emit(all_reduce_done(buffer, shapes=[[]], dtype="float32"), "mean")
    return builder.emit(builder.emit(relax.TupleGetItem(mean, 0)) * relax.const(float(shares), "float32"), "total")


def gathered(
    builder: relax.BlockBuilder,
    new: Mapping[str, relax.Expr],
    trained: Mapping[str, relax.Var],
    shares: int,
    bucket_mib: float,
) -> dict[str, relax.Expr]:
    """Emit the exchange of the new shares of parameters, in buckets; whole parameters, by name."""
    begun = []
    for names in _buckets(trained, bucket_mib * _MIB):
        rows = all_gather_start(relax.Tuple([builder.emit(new[name]) for name in names]), count=shares)
        begun.append((names, builder.emit(rows, "rows")))
    whole: dict[str, relax.Expr] = {}
    for names, buffer in begun:
        shapes = [list(static_shape(trained[name]) or ()) for name in names]
        fields = builder.emit(all_gather_done(buffer, shapes=shapes, dtype="float32"), "whole")
        whole |= {name: relax.TupleGetItem(fields, index) for index, name in enumerate(names)}
    return whole


def _buckets(trained: Mapping[str, relax.Var], capacity: float) -> Iterator[list[str]]:
    """Names of parameters, from the last to the first, as their gradients are computed."""
    names: list[str] = []
    size = 0
    for name in reversed(list(trained)):
        names.append(name)
        size += 4 * math.prod(static_shape(trained[name]) or ())
        if size >= capacity:
            yield names
            names, size = [], 0
    if names:
        yield names


def slots_of(state: Mapping[str, object], params: Mapping[str, object]) -> dict[str, str]:
    """The parts of a training step's state that belong to one parameter, by their names: that parameter's name."""
    owners = {name: name.partition("/")[2] for name in state if "/" in name and not is_accumulator(name)}
    return {name: owner for name, owner in owners.items() if owner in params and name not in params}


def whole_of(share: np.ndarray, shape: tuple[int, ...], ranks: Ranks) -> np.ndarray:
    """What all ranks have shares of; all of them ask for it together."""
    return ranks.gathered(share).reshape(-1)[: math.prod(shape)].reshape(shape)


def share_of(whole: np.ndarray, ranks: Ranks) -> np.ndarray:
    """The share of this rank."""
    size = share_size(whole.size, ranks.count)
    own = whole.reshape(-1)[ranks.rank * size : (ranks.rank + 1) * size]
    return np.pad(own, (0, size - own.size))
