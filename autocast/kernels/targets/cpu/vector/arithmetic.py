"""Functions of one to four instructions: comparisons and logic, rounding, roots, choices.

A truth value is the number 1.0 or 0.0, so that it lives in the same vectors as all other numbers; LLVM keeps it in a
mask register from the comparison to the choice. Any number but 0 counts as true, NaN too.
"""

from __future__ import annotations

from autocast.kernels.targets.cpu.vector.function_body import Body, Definition, Value

#: Comparisons, and their names in LLVM: false for NaN, but "not equal".
_COMPARISONS = {
    "equal": "oeq",
    "not_equal": "une",
    "less": "olt",
    "less_equal": "ole",
    "greater": "ogt",
    "greater_equal": "oge",
}
_LOGIC = {"logical_and": "and", "logical_or": "or", "logical_xor": "xor"}
_INTRINSICS = {"abs": "fabs", "sqrt": "sqrt", "floor": "floor", "ceil": "ceil", "round": "roundeven", "trunc": "trunc"}


def _intrinsic(name: str) -> Definition:
    return lambda b, x: b.intrinsic(name, x)


def _comparison(comparison: str) -> Definition:
    return lambda b, x, y: b.where(comparison, x, y, 1.0, 0.0)


def _logic(op: str) -> Definition:
    def function(b: Body, x: Value, y: Value) -> Value:
        left, right = b.compare("une", x, 0.0), b.compare("une", y, 0.0)
        return b.select(b.emit(f"{op} {b.bool} {left.name}, {right.name}"), 1.0, 0.0)

    return function


def _logical_not(b: Body, x: Value) -> Value:
    return b.where("oeq", x, 0.0, 1.0, 0.0)


def _where(b: Body, condition: Value, yes: Value, no: Value) -> Value:
    return b.where("une", condition, 0.0, yes, no)


def _isnan(b: Body, x: Value) -> Value:
    return b.where("uno", x, 0.0, 1.0, 0.0)


def _isinf(b: Body, x: Value) -> Value:
    return b.where("oeq", b.absolute(x), float("inf"), 1.0, 0.0)


def _isfinite(b: Body, x: Value) -> Value:
    return b.where("olt", b.absolute(x), float("inf"), 1.0, 0.0)


def _maximum(b: Body, x: Value, y: Value) -> Value:
    """The larger; NaN if either is."""
    return b.where("uno", x, 0.0, x, b.where("ogt", x, y, x, y))


def _minimum(b: Body, x: Value, y: Value) -> Value:
    """The smaller; NaN if either is."""
    return b.where("uno", x, 0.0, x, b.where("olt", x, y, x, y))


def _clip(b: Body, x: Value, low: Value, high: Value) -> Value:
    """`x` within bounds; a NaN passes."""
    x = b.where("olt", x, low, low, x)
    return b.where("ogt", x, high, high, x)


def _relu(b: Body, x: Value) -> Value:
    return b.where("olt", x, 0.0, 0.0, x)


def _leakyrelu(b: Body, x: Value, slope: Value) -> Value:
    return b.where("olt", x, 0.0, x * slope, x)


def _sign(b: Body, x: Value) -> Value:
    """-1, 0 or 1; 0 for NaN and both zeros, as TVM and torch have it."""
    return b.where("one", x, 0.0, b.with_sign_of(1.0, x), 0.0)


def _negative(b: Body, x: Value) -> Value:
    return -x


def _square(b: Body, x: Value) -> Value:
    return x * x


def _cube(b: Body, x: Value) -> Value:
    return x * x * x


def _fourth(b: Body, x: Value) -> Value:
    square = x * x
    return square * square


def _multiply_add(b: Body, x: Value, y: Value, z: Value) -> Value:
    return b.multiply_add(x, y, z)


def _reciprocal(b: Body, x: Value) -> Value:
    return 1.0 / x


def _rsqrt(b: Body, x: Value) -> Value:
    return 1.0 / b.intrinsic("sqrt", x)


FUNCTIONS: dict[str, Definition] = {
    **{name: _intrinsic(intrinsic) for name, intrinsic in _INTRINSICS.items()},
    **{name: _comparison(comparison) for name, comparison in _COMPARISONS.items()},
    **{name: _logic(op) for name, op in _LOGIC.items()},
    "logical_not": _logical_not,
    "where": _where,
    "isnan": _isnan,
    "isinf": _isinf,
    "isfinite": _isfinite,
    "maximum": _maximum,
    "minimum": _minimum,
    "clip": _clip,
    "relu": _relu,
    "leakyrelu": _leakyrelu,
    "sign": _sign,
    "negative": _negative,
    "square": _square,
    "cube": _cube,
    "fourth": _fourth,
    "ewise_fma": _multiply_add,
    "reciprocal": _reciprocal,
    "rsqrt": _rsqrt,
}
