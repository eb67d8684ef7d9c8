"""Converters of what is random: dropout, and numbers of torch's distributions.

Each call has a stream of random numbers of its own: of `relax.nn.seeded_dropout`, or of uniform and normal numbers, of
which the other distributions are made. They are those of torch's distributions, and not torch's numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from torch import fx
from tvm import relax

from autocast.errors import ImportModelError
from autocast.frontend.converters.functions import wide
from autocast.frontend.converters.helpers import Converter, cast, dims
from autocast.frontend.importing.importer import Importer
from autocast.ir import dtype_of
from autocast.operators.own import seeded_dropout, seeded_normal, seeded_uniform
from autocast.operators.own.dropout import UNIFORM_SCALE

op = relax.op

#: How far apart the numbers below 1 are that uniform numbers of a dtype may be.
_STEPS = {"float32": UNIFORM_SCALE, "float64": UNIFORM_SCALE**2, "bfloat16": 2.0**-8, "float16": 2.0**-11}

#: Numbers of a distribution, of a shape and a dtype, for a node that draws them.
_Distribution = Callable[[Importer, fx.Node, Sequence[Any], str], relax.Expr]


def dropout(importer: Importer, x: relax.Expr, rate: float) -> relax.Expr:
    """`x` with each element zeroed with probability `rate`, and the others divided by `1 - rate`."""
    return importer.emit(seeded_dropout(x, importer.random_state, rate=rate, stream=importer.next_stream()))


def _native_dropout(importer: Importer, node: fx.Node) -> list[relax.Expr]:
    """The values; the mask is never stored, and nobody may read it."""
    x, rate = importer.arg(node, 0, "input"), float(node.args[1])
    train = importer.arg(node, 2, "train")
    if rate == 0.0 or train is False:
        return [x]
    if rate == 1.0:
        zeros = op.zeros(x.ty.shape, dtype_of(x))
        return [importer.emit(op.where(_in_training(importer), zeros, x))]
    return [dropout(importer, x, rate)]


def _in_training(importer: Importer) -> relax.Expr:
    """Whether the model has not been made one that is evaluated: a dropout of one is 0 or 2 then, and 1 else."""
    one = relax.const(1.0, "float32")
    return importer.emit(op.not_equal(dropout(importer, importer.emit(op.ones([], "float32")), 0.5), one))


def _rrelu(importer: Importer, node: fx.Node) -> list[relax.Expr]:
    """`x`, times a slope where it is not positive: a random one in training, else the mean."""
    x, lower, upper = (importer.arg(node, *of) for of in ((0, "self"), (2, "lower", 1 / 8), (3, "upper", 1 / 3)))
    mean = importer.emit(op.nn.leakyrelu(x, (lower + upper) / 2))
    if not importer.arg(node, 4, "training", False):
        return [mean]
    dtype = str(dtype_of(x))
    slopes = _affine(importer, uniform(importer, dims(x), dtype), upper - lower, lower)
    random = op.where(op.greater(x, relax.const(0.0, dtype)), x, op.multiply(x, slopes))
    return [importer.emit(op.where(_in_training(importer), random, mean))]


def _bernoulli(importer: Importer, node: fx.Node) -> relax.Expr:
    """1 with probability p, else 0: p times the dropout of ones, whose form without dropout is p, the mean."""
    p, dtype, shape = float(node.args[1]), importer.dtype(node), relax.ShapeExpr(importer.shape(node))
    if p in (0.0, 1.0):
        return importer.emit(op.broadcast_to(relax.const(p, dtype), shape))
    kept = dropout(importer, importer.emit(op.ones(shape, dtype)), 1.0 - p)
    return importer.emit(op.multiply(kept, relax.const(p, dtype)))


def _drawn(importer: Importer, operator: Callable[..., relax.Expr], shape: Sequence[Any], dtype: str) -> relax.Expr:
    like = importer.emit(op.zeros(relax.ShapeExpr(list(shape)), dtype))
    return importer.emit(operator(like, importer.random_state, stream=importer.next_stream()))


def uniform(importer: Importer, shape: Sequence[Any], dtype: str) -> relax.Expr:
    """Random numbers from 0 to below 1, as many of them as the dtype tells apart."""
    drawn = _drawn(importer, seeded_uniform, shape, wide(dtype))
    if dtype == "float64":
        finer = op.multiply(_drawn(importer, seeded_uniform, shape, dtype), relax.const(UNIFORM_SCALE, dtype))
        return importer.emit(op.add(drawn, importer.emit(finer)))
    if dtype != "float32":
        whole = op.floor(op.multiply(drawn, relax.const(1 / _STEPS[dtype], "float32")))
        drawn = cast(importer, importer.emit(op.multiply(whole, relax.const(_STEPS[dtype], "float32"))), dtype)
    return drawn


def _positive(importer: Importer, shape: Sequence[Any], dtype: str) -> relax.Expr:
    """Random numbers from above 0 to 1, computed in `dtype`."""
    return importer.emit(op.subtract(relax.const(1.0, dtype), uniform(importer, shape, dtype)))


def _normal(importer: Importer, shape: Sequence[Any], dtype: str) -> relax.Expr:
    return _drawn(importer, seeded_normal, shape, dtype)


def _affine(importer: Importer, x: relax.Expr, scale: float, offset: float) -> relax.Expr:
    dtype = str(dtype_of(x))
    return importer.emit(op.add(op.multiply(x, relax.const(scale, dtype)), relax.const(offset, dtype)))


def _exponential(importer: Importer, shape: Sequence[Any], dtype: str, rate: float) -> relax.Expr:
    """-log(u) / rate; none is 0, as its logarithm may be taken: what would be is half of the least step."""
    logarithm = importer.emit(op.negative(op.log(_positive(importer, shape, dtype))))
    least = relax.const(_STEPS[dtype] / 2, dtype)
    return importer.emit(op.multiply(op.maximum(logarithm, least), relax.const(1 / rate, dtype)))


def _distributed(distribution: _Distribution) -> Converter:
    """A converter that draws numbers in the dtype that torch computes in, and rounds them once."""

    def convert(importer: Importer, node: fx.Node) -> relax.Expr:
        dtype = importer.dtype(node)
        if dtype not in _STEPS:
            raise ImportModelError(f"random numbers in {dtype}")
        return cast(importer, distribution(importer, node, importer.shape(node), wide(dtype)), dtype)

    return convert


def _parameters(node: fx.Node, *names_and_defaults: Any) -> list[float]:
    """The numbers of a distribution, which are a node's arguments after a tensor."""
    names, defaults = names_and_defaults[::2], names_and_defaults[1::2]
    given = zip(names, defaults, range(1, len(names) + 1), strict=True)
    return [float(node.args[i] if len(node.args) > i else node.kwargs.get(name, value)) for name, value, i in given]


def _normal_of_numbers(importer: Importer, node: fx.Node, shape: Sequence[Any], dtype: str) -> relax.Expr:
    mean, deviation = _parameters(node, "mean", 0.0, "std", 1.0)
    return _affine(importer, _normal(importer, shape, dtype), deviation, mean)


def _log_normal(importer: Importer, node: fx.Node, shape: Sequence[Any], dtype: str) -> relax.Expr:
    mean, deviation = _parameters(node, "mean", 1.0, "std", 2.0)
    return op.exp(_affine(importer, _normal(importer, shape, dtype), deviation, mean))


def _cauchy(importer: Importer, node: fx.Node, shape: Sequence[Any], dtype: str) -> relax.Expr:
    median, width = _parameters(node, "median", 0.0, "sigma", 1.0)
    angle = _affine(importer, uniform(importer, shape, dtype), math.pi, -math.pi / 2)
    return _affine(importer, importer.emit(op.tan(angle)), width, median)


def _geometric(importer: Importer, node: fx.Node, shape: Sequence[Any], dtype: str) -> relax.Expr:
    """How many trials of probability p the first success takes."""
    (p,) = _parameters(node, "p", None)
    trials = _exponential(importer, shape, dtype, -math.log1p(-p)) if p < 1 else op.ones(list(shape), dtype)
    return importer.emit(op.ceil(importer.emit(trials)))


def _uniform_between(importer: Importer, node: fx.Node, shape: Sequence[Any], dtype: str) -> relax.Expr:
    low, high = _parameters(node, "from", 0.0, "to", 1.0)
    return _affine(importer, uniform(importer, shape, dtype), high - low, low)


def _normal_of_tensors(importer: Importer, node: fx.Node) -> relax.Expr:
    """`normal` of a mean and a deviation, numbers or tensors; torch differentiates it by neither."""
    dtype = wide(importer.dtype(node))
    mean, deviation = (
        cast(importer, value, dtype) if isinstance(value, relax.Expr) else relax.const(float(value), dtype)
        for value in (importer.arg(node, 0, "mean"), importer.arg(node, 1, "std", 1.0))
    )
    drawn = _normal(importer, importer.shape(node), dtype)
    value = importer.emit(op.add(importer.emit(op.multiply(drawn, deviation)), mean))
    return cast(importer, importer.emit(op.grad.no_grad(value)), importer.dtype(node))


def _bernoulli_of_tensor(importer: Importer, node: fx.Node) -> relax.Expr:
    """1 where a uniform number is below the probability there."""
    chances = importer.arg(node, 0 if node.target.__name__ == "bernoulli.default" else 1, "p")
    dtype = "float64" if dtype_of(chances) == "float64" else "float32"
    drawn = uniform(importer, importer.shape(node), dtype)
    return cast(importer, importer.emit(op.less(drawn, cast(importer, chances, dtype))), importer.dtype(node))


def _integers(importer: Importer, node: fx.Node) -> relax.Expr:
    """Whole numbers from `low` to below `high`, all as probable as the digits of a uniform number allow."""
    names = [argument.name for argument in node.target._schema.arguments]
    bounds = [importer.arg(node, names.index(n), n) if n in names else 0 for n in ("low", "high")]
    if not all(isinstance(value, int) for value in bounds):
        raise ImportModelError("random numbers below one that is known only at run time")
    low, high = bounds
    dtype = "float32" if high - low <= 1 / UNIFORM_SCALE else "float64"
    if high - low > 2**48:
        raise ImportModelError(f"random numbers from {low} to {high}: there are more than 2^48")
    drawn = uniform(importer, importer.shape(node), dtype)
    whole = importer.emit(op.floor(op.multiply(drawn, relax.const(float(high - low), dtype))))
    whole = cast(importer, whole, "int64")
    return cast(importer, importer.emit(op.add(whole, relax.const(low, "int64"))), importer.dtype(node))


def _permutation(importer: Importer, node: fx.Node) -> relax.Expr:
    """The order of uniform numbers."""
    drawn = uniform(importer, importer.shape(node), "float64")
    return cast(importer, importer.emit(op.argsort(drawn, 0, dtype="int64")), importer.dtype(node))


def _multinomial(importer: Importer, node: fx.Node) -> relax.Expr:
    """The places of the largest quotients of weights and exponential numbers, each as often as its weight says.

    With replacement, each sample has exponential numbers of its own.
    """
    weights, count = importer.arg(node, 0, "self"), importer.arg(node, 1, "num_samples")
    if not isinstance(count, int):
        raise ImportModelError("a number of samples that is known only at run time")
    dtype = wide(str(dtype_of(weights)))
    weights, shape = cast(importer, weights, dtype), dims(weights)
    if importer.arg(node, 2, "replacement", False) and count > 1:
        shape = (*shape[:-1], count, shape[-1])
        weights = importer.emit(op.expand_dims(weights, -2))
        quotients = importer.emit(op.divide(weights, _exponential(importer, shape, dtype, 1.0)))
        return importer.emit(op.argmax(quotients, -1))
    quotients = importer.emit(op.divide(weights, _exponential(importer, shape, dtype, 1.0)))
    return importer.emit(op.topk(quotients, count, -1, "indices", True, "int64"))


#: Converters by the name of the overload.
NOISE: dict[str, Converter] = {
    "rrelu_with_noise_functional.default": _rrelu,
    "bernoulli.Tensor": _bernoulli_of_tensor,
    "bernoulli.default": _bernoulli_of_tensor,
    "bernoulli.p": _bernoulli,
    "cauchy.default": _distributed(_cauchy),
    "exponential.default": _distributed(
        lambda importer, node, shape, dtype: _exponential(importer, shape, dtype, *_parameters(node, "lambd", 1.0))
    ),
    "geometric.default": _distributed(_geometric),
    "log_normal.default": _distributed(_log_normal),
    "multinomial.default": _multinomial,
    "native_dropout.default": _native_dropout,
    **{f"normal.{overload}": _normal_of_tensors for overload in ("Tensor_Tensor", "Tensor_float", "float_Tensor")},
    "normal.float_float": _normal_of_tensors,
    "normal_functional.default": _distributed(_normal_of_numbers),
    "rand.default": lambda importer, node: uniform(importer, importer.shape(node), importer.dtype(node)),
    "rand_like.default": lambda importer, node: uniform(importer, importer.shape(node), importer.dtype(node)),
    **dict.fromkeys(("randint.default", "randint.low", "randint_like.default", "randint_like.low_dtype"), _integers),
    "randn.default": _distributed(lambda importer, node, shape, dtype: _normal(importer, shape, dtype)),
    "randn_like.default": _distributed(lambda importer, node, shape, dtype: _normal(importer, shape, dtype)),
    "randperm.default": _permutation,
    "uniform.default": _distributed(_uniform_between),
}
