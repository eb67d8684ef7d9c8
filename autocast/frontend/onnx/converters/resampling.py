"""Resizing of axes whose sizes vary: where each result comes from is computed when the model runs."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from tvm import relax, tirx

from autocast.frontend.onnx.converters.node import Node, dtype, shape
from autocast.frontend.onnx.expressions import FINEST

op = relax.op


def scaled(node: Node, extent: Any, scale: float) -> Any:
    """How many elements `extent` times `scale` are: the product in float32, without what is behind its point."""
    exact = Fraction(scale)
    if exact.denominator <= FINEST:
        return tirx.floordiv(extent * exact.numerator, exact.denominator)
    product = op.floor(op.multiply(node.cast(node.size(extent), "float32"), relax.const(scale, "float32")))
    return node.named(node.emit(op.reshape(node.cast(product, "int64"), [1])), "size")[0]


def resampled(
    node: Node, x: relax.Expr, axis: int, size: Any, scale: float | None, attributes: Mapping[str, Any]
) -> relax.Expr:
    """A tensor resized along an axis, as ONNX's `Resize` says it, without antialias.

    Parameters
    ----------
    node, x, axis
    size
        How many elements there are then: a number, or an expression.
    scale
        What coordinates are divided by; None for the size over the one before.
    attributes
        The mode, and how coordinates, neighbours and weights are computed.
    """
    places = _coordinates(node, shape(x)[axis], size, scale, attributes)
    mode = attributes.get("mode", "nearest")
    if mode == "nearest":
        return _taken(node, x, axis, _nearest(places, attributes.get("nearest_mode", "round_prefer_floor")))
    first = node.emit(op.floor(places))
    rest = node.emit(op.subtract(places, first))
    weights = _linear(rest) if mode == "linear" else _cubic(rest, float(attributes.get("cubic_coeff_a", -0.75)))
    neighbours = {at: node.emit(op.add(first, _number(at))) for at in weights}
    if attributes.get("exclude_outside") and mode == "cubic":
        weights = _inside(node, weights, neighbours, shape(x)[axis])
    wide = "float64" if dtype(x) == "float64" else "float32"
    total: relax.Expr | None = None
    for at, weight in weights.items():
        part = node.cast(_taken(node, x, axis, neighbours[at]), wide)
        part = op.multiply(part, node.along(node.cast(weight, wide), axis, len(shape(x))))
        total = node.emit(part if total is None else op.add(total, part))
    return node.cast(total, dtype(x))


def _number(value: float) -> relax.Expr:
    return relax.const(value, "float64")


def _coordinates(node: Node, extent: Any, size: Any, scale: float | None, attributes: Mapping[str, Any]) -> relax.Expr:
    """Where each result lies among the elements before, float64."""
    mode = str(attributes.get("coordinate_transformation_mode", "half_pixel"))
    places = node.cast(op.arange(0, size, 1, "int64"), "float64")
    before, after = (node.cast(node.size(one), "float64") for one in (extent, size))
    half, one = _number(0.5), _number(1)

    def divided(place: relax.Expr) -> relax.Expr:
        """By the scale, as float32; by sizes exactly, so that halves, which neighbours are chosen by, are halves."""
        if scale is not None:
            return node.cast(op.divide(node.cast(place, "float32"), relax.const(scale, "float32")), "float64")
        return op.divide(op.multiply(place, before), after)

    if mode == "asymmetric":
        return node.emit(divided(places))
    centred = op.subtract(divided(op.add(places, half)), half)
    exact = after if scale is None else op.multiply(before, _number(scale))  # of which `after` are the whole ones
    if mode == "align_corners":
        between = op.maximum(op.subtract(exact, one), _number(1e-9))  # a single result lies at 0
        return node.emit(op.divide(op.multiply(places, op.subtract(before, one)), between))
    if mode == "pytorch_half_pixel":
        return node.emit(op.where(op.not_equal(exact, one), centred, op.multiply(places, _number(0))))
    if mode == "half_pixel_symmetric":
        offset = op.multiply(op.divide(before, _number(2)), op.subtract(one, op.divide(after, exact)))
        return node.emit(op.add(offset, centred))
    node.refuse(
        f"coordinate_transformation_mode={mode!r} of sizes that vary", mode != "half_pixel", "expected half_pixel"
    )
    return node.emit(centred)


def _nearest(places: relax.Expr, rounding: str) -> relax.Expr:
    half = _number(0.5)
    return {
        "ceil": lambda: op.ceil(places),
        "floor": lambda: op.floor(places),
        "round_prefer_ceil": lambda: op.floor(op.add(places, half)),
        "round_prefer_floor": lambda: op.ceil(op.subtract(places, half)),
    }[rounding]()


def _taken(node: Node, x: relax.Expr, axis: int, places: relax.Expr) -> relax.Expr:
    """The elements at places along an axis, the first or the last one for those beyond."""
    return node.emit(op.take(x, node.cast(places, "int64"), axis=axis, mode="clip"))


def _linear(rest: relax.Expr) -> dict[int, relax.Expr]:
    return {0: op.subtract(_number(1), rest), 1: rest}


def _cubic(rest: relax.Expr, a: float) -> dict[int, relax.Expr]:
    """Weights of the four neighbours: of those at a distance of d up to 1, and of the others up to 2."""

    def polynomial(d: relax.Expr, *factors: float) -> relax.Expr:
        result: relax.Expr = _number(factors[0])
        for factor in factors[1:]:
            result = op.add(op.multiply(result, d), _number(factor))
        return result

    near, far = (a + 2, -(a + 3), 0.0, 1.0), (a, -5 * a, 8 * a, -4 * a)
    one, two = _number(1), _number(2)
    return {
        -1: polynomial(op.add(rest, one), *far),
        0: polynomial(rest, *near),
        1: polynomial(op.subtract(one, rest), *near),
        2: polynomial(op.subtract(two, rest), *far),
    }


def _inside(
    node: Node, weights: Mapping[int, relax.Expr], neighbours: Mapping[int, relax.Expr], extent: Any
) -> dict[int, relax.Expr]:
    """Weights of 0 for what lies beyond, the others in proportion."""
    last = op.subtract(node.cast(node.size(extent), "float64"), _number(1))
    kept = {}
    for at, weight in weights.items():
        within = op.logical_and(op.greater_equal(neighbours[at], _number(0)), op.less_equal(neighbours[at], last))
        kept[at] = node.emit(op.where(within, weight, _number(0)))
    total = kept[-1]
    for at in (0, 1, 2):
        total = op.add(total, kept[at])
    total = node.emit(total)
    return {at: node.emit(op.divide(weight, total)) for at, weight in kept.items()}
