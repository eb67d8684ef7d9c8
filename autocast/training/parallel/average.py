"""The pass that puts the means over ranks between the backward pass of a training step and its updates."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import tvm
from tvm import relax

from autocast.ir import FLOATS, Place, PlacedBuilder, dtype_of, static_shape
from autocast.ir.places import NOWHERE, canonicalize_bindings
from autocast.operators.own import all_reduce_done, all_reduce_start, reduce_scatter_done, reduce_scatter_start
from autocast.runtime.sharding import share_size
from autocast.training.building import new_block
from autocast.training.parallel.lookups import find_lookups
from autocast.training.paths import straight_line

_MIB = 2**20

#: Of what is float32 whatever a policy says.
_FULL = Place("", "float32")


class _Bucket(NamedTuple):
    """Results that are sent together, by their places among the results, and the binding after which all exist."""

    results: tuple[int, ...]
    after: int
    place: Place
    shares: int = 1


class _Computed(NamedTuple):
    """A result by the name that it has where it is computed: after this binding; -1 where it is an argument."""

    var: relax.Expr
    after: int


def average_over_ranks(
    function: relax.Function, kept: int, bucket_mib: float = 25.0, shares: int = 1, count: int = 1
) -> relax.Function:
    """A function whose floating-point results are the means over all ranks.

    Before::                                       After::

        def main(x, w, b):                             def main(x, w, b):
            ...                                            ...
            b_grad = R.sum(g, axis=0)                      b_grad = R.sum(g, axis=0)
            w_grad = R.matmul(xt, g)                       w_grad = R.matmul(xt, g)
            return b_grad, w_grad                          s = R.collective.all_reduce_start((b_grad, w_grad))
                                                           ...
                                                           m = R.collective.all_reduce_done(s, shapes=[[4], [3, 4]])
                                                           return m[0], m[1]

    Gradients are put into buckets in the order in which they are computed; a bucket is begun when its last one exists,
    and all are waited for at the end: what reads a mean comes after, and where it is computed is the schedule's to say
    (`autocast.kernels.state.order`). In which precision gradients are sent is decided like that of any operator; the
    loss and other results have a bucket of their own, which is float32 whatever a policy says. Of an embedding ranks
    send the rows that they looked up, where these are fewer than those of the table (`lookups`).

    Parameters
    ----------
    function : relax.Function
        Its results are tensors.
    kept : int
        How many of its first results are no gradients: the loss, statistics, and others.
    bucket_mib : float
        A bucket of gradients is full when it has this many MiB.
    shares : int
        If there are more than one, each of as many ranks gets its share of the gradients' means alone.
    count : int
        How many ranks there are: more than one where some gradients may be sent by rows.
    """
    bindings, named = straight_line(function)
    computed = _computed(bindings)
    results = [computed.get(result, _Computed(result, -1)) for result in named]
    floats = [place for place, result in enumerate(named) if dtype_of(result) in (*FLOATS, "float64")]
    gradients = {place: results[place].var for place in floats if place >= kept}
    lookups = find_lookups(bindings, gradients, [result.var for result in results[:kept]], count)
    by_rows = {results[place].after: place for place in lookups}
    left_out = {var for lookup in lookups.values() for var in lookup.bound}
    for place, lookup in lookups.items():
        if lookup.dense is None:
            del gradients[place]
        else:
            results[place] = computed[lookup.dense]
    buckets = _buckets(results, [place for place in floats if place < kept], math.inf, _FULL)
    dense = _buckets(results, gradients, bucket_mib * _MIB, NOWHERE)
    buckets += [bucket._replace(shares=shares) for bucket in dense]
    begun: dict[int, list[_Bucket]] = defaultdict(list)
    for bucket in buckets:
        begun[bucket.after].append(bucket)

    builder = PlacedBuilder()
    with builder.function("main", list(function.params), attrs=dict(function.attrs or {})):
        with new_block(builder, function):
            buffers: dict[_Bucket, relax.Var] = {}
            rows: dict[int, list[relax.Var]] = {}
            for index, binding in enumerate([None, *bindings], start=-1):
                if binding is not None and left_out.isdisjoint((binding.var, computed[binding.var].var)):
                    builder.emit_normalized(binding)
                if index in by_rows:
                    rows[by_rows[index]] = lookups[by_rows[index]].begin(builder, count)
                for bucket in begun[index]:
                    builder.place = bucket.place
                    parts = relax.Tuple([results[place].var for place in bucket.results])
                    buffers[bucket] = builder.emit(_start(parts, bucket), "sums")
            means = list(named)
            for bucket, buffer in buffers.items():
                whole = builder.emit(_done(buffer, [named[place] for place in bucket.results], bucket), "means")
                for index, place in enumerate(bucket.results):
                    means[place] = relax.TupleGetItem(whole, index)
            builder.place = _FULL
            for place, sent in rows.items():
                part = means[place] if place in gradients else None
                means[place] = lookups[place].mean(builder, sent, count, shares, part)
            outputs = [builder.emit_output(m, getattr(n, "name", "result")) for m, n in zip(means, named, strict=True)]
        builder.emit_func_output(outputs)
    return canonicalize_bindings(builder.get())["main"]


def _start(parts: relax.Expr, bucket: _Bucket) -> relax.Call:
    if bucket.shares == 1:
        return all_reduce_start(parts)
    return reduce_scatter_start(parts, count=bucket.shares)


def _done(buffer: relax.Expr, results: Sequence[relax.Expr], bucket: _Bucket) -> relax.Call:
    shapes = [list(static_shape(result) or ()) for result in results]
    if bucket.shares == 1:
        return all_reduce_done(buffer, shapes=shapes, dtype=dtype_of(results[0]))
    return reduce_scatter_done(buffer, sizes=[share_size(math.prod(shape), bucket.shares) for shape in shapes])


def _buckets(results: Sequence[_Computed], places: Iterable[int], capacity: float, place: Place) -> list[_Bucket]:
    """The buckets of some results, in the order in which they are begun."""
    after = {at: results[at].after for at in places}
    open_buckets: defaultdict[str | None, list[int]] = defaultdict(list)
    full: list[_Bucket] = []
    for at in sorted(after, key=lambda at: (after[at], at)):
        dtype = dtype_of(results[at].var)
        bucket = open_buckets[dtype]
        bucket.append(at)
        if sum(_bytes(results[each].var) for each in bucket) >= capacity:
            full.append(_Bucket(tuple(open_buckets.pop(dtype)), after[at], place))
    full += [_Bucket(tuple(bucket), after[bucket[-1]], place) for bucket in open_buckets.values()]
    return sorted(full, key=lambda bucket: bucket.after)


def _computed(bindings: Sequence[relax.Binding]) -> Mapping[relax.Expr, _Computed]:
    """Where what each variable holds is computed, and its name there: others only rename it."""
    found: dict[relax.Expr, _Computed] = {}
    for index, binding in enumerate(bindings):
        value = binding.value
        found[binding.var] = (
            found.get(value, _Computed(value, -1)) if isinstance(value, relax.Var) else _Computed(binding.var, index)
        )
    return found


def _bytes(result: relax.Expr) -> int:
    return math.prod(static_shape(result) or ()) * tvm.DataType(str(dtype_of(result))).itemsize
