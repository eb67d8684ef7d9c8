"""The rules of `normalize`: each looks at one call and answers with an equal, simpler expression, or None."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from tvm import relax

from autocast.frontend.simplifying.simplifier import Simplification, Simplifier
from autocast.ir import dtype_of, is_constant, permutation, same_shape, shape_of
from autocast.operators import Kind, named
from autocast.operators.own import gated_add


def _same_type(_: Simplifier, call: relax.Call) -> relax.Expr | None:
    """broadcast_to, reshape, astype to what the argument is already."""
    x = call.args[0]
    return x if dtype_of(x) == dtype_of(call) and same_shape(shape_of(x), shape_of(call)) else None


def _permute(simplifier: Simplifier, call: relax.Call) -> relax.Expr | None:
    """Two permutations are one, and none if it leaves every axis in place."""
    x, axes = call.args[0], permutation(call)
    inner = simplifier.bound(x, "permute_dims")
    if inner is not None:
        x, axes = inner.args[0], [permutation(inner)[axis] for axis in axes]
    if axes == list(range(len(axes))):
        return x
    return relax.op.permute_dims(x, axes) if inner is not None else None


def _reshape_twice(simplifier: Simplifier, call: relax.Call) -> relax.Expr | None:
    inner = simplifier.bound(call.args[0], "reshape", "expand_dims", "squeeze")
    return None if inner is None else relax.op.reshape(inner.args[0], call.args[1])


def _squeeze(simplifier: Simplifier, call: relax.Call) -> relax.Expr | None:
    """A squeeze of the very axes that expand_dims added."""
    inner = simplifier.bound(call.args[0], "expand_dims")
    return inner.args[0] if inner is not None and same_shape(shape_of(inner.args[0]), shape_of(call)) else None


def _implicit_broadcast(simplifier: Simplifier, call: relax.Call) -> relax.Expr | None:
    """An elementwise operator broadcasts by itself, if another argument brings the full shape."""
    args = list(call.args)
    for i, arg in enumerate(args):
        inner = simplifier.bound(arg, "broadcast_to")
        if inner is None:
            continue
        shapes = [shape_of(inner.args[0] if i == j else other) for j, other in enumerate(args)]
        if same_shape(_broadcast(shapes), shape_of(call)):
            args[i] = inner.args[0]
    if all(a is b for a, b in zip(args, call.args, strict=True)):
        return None
    return simplifier.builder_.normalize(relax.Call(call.op, args, call.attrs))


def _broadcast(shapes: Iterable[Any]) -> list[Any] | None:
    """The common shape, as long as every dimension is 1 or provably the same."""
    result: list[Any] = []
    for shape in shapes:
        if shape is None:
            return None
        result = [1] * (len(shape) - len(result)) + result
        padded = [1] * (len(result) - len(shape)) + list(shape)
        for i, (have, new) in enumerate(zip(result, padded, strict=True)):
            if isinstance(have, int) and have == 1:
                result[i] = new
            elif not (isinstance(new, int) and new == 1) and not same_shape([have], [new]):
                return None
    return result


def _where(simplifier: Simplifier, call: relax.Call) -> relax.Expr | None:
    """A condition that is the same everywhere."""
    value = _uniform(simplifier, call.args[0])
    if value is None:
        return None
    chosen = call.args[1] if value else call.args[2]
    if same_shape(shape_of(chosen), shape_of(call)):
        return chosen
    return relax.op.broadcast_to(chosen, list(shape_of(call) or ()))


def _broadcast_bias(simplifier: Simplifier, call: relax.Call) -> relax.Expr | None:
    """The bias of an attention broadcasts by itself, except along the keys."""
    bias = call.args[3]
    masked = simplifier.bound(bias, "where")
    if masked is not None and simplifier.only_use(bias):
        condition = simplifier.bound(masked.args[0], "broadcast_to")
        smaller = None if condition is None else relax.op.where(condition.args[0], *masked.args[1:])
    else:
        inner = simplifier.bound(bias, "broadcast_to")
        smaller = None if inner is None else inner.args[0]
    if smaller is None:
        return None
    smaller = simplifier.builder_.normalize(smaller)
    shape, full = list(shape_of(smaller) or ()), list(shape_of(bias) or ())
    if len(shape) != 4 or not same_shape(shape[-1:], full[-1:]):
        return None
    return relax.Call(call.op, [*call.args[:3], smaller], call.attrs)


def _repeat(simplifier: Simplifier, call: relax.Call) -> relax.Expr | None:
    """`x[:, :, None].expand(...).reshape(...)`, which repeats each head for its group."""
    wide = simplifier.bound(call.args[0], "broadcast_to")
    thin = simplifier.bound(wide.args[0], "expand_dims") if wide is not None else None
    if wide is None or thin is None or len(thin.attrs.axis) != 1:
        return None
    shape, full = list(shape_of(thin) or ()), list(shape_of(wide) or ())
    axis = int(thin.attrs.axis[0]) % len(shape)
    kept = [i for i in range(len(shape)) if i != axis]
    times, before = full[axis], full[axis - 1]
    if axis == 0 or not isinstance(times, int) or not isinstance(before, int):
        return None
    if not same_shape([shape[i] for i in kept], [full[i] for i in kept]):
        return None
    if not same_shape([*full[: axis - 1], before * times, *full[axis + 1 :]], shape_of(call)):
        return None
    return relax.op.repeat(thin.args[0], times, axis - 1)


def _true_and(simplifier: Simplifier, call: relax.Call) -> relax.Expr | None:
    for value, other in (call.args, reversed(call.args)):
        if _uniform(simplifier, value) is True and same_shape(shape_of(other), shape_of(call)):
            return other
    return None


def _uniform(simplifier: Simplifier, expr: relax.Expr) -> bool | None:
    broadcast = simplifier.bound(expr, "broadcast_to")
    expr = expr if broadcast is None else broadcast.args[0]
    if not is_constant(expr) or dtype_of(expr) != "bool":
        return None
    value = expr.value.numpy()
    return bool(value.flat[0]) if value.size and (value == value.flat[0]).all() else None


def _unflatten_product(simplifier: Simplifier, call: relax.Call) -> relax.Expr | None:
    """A product of a flattened matrix, shaped back: the product works on the unflattened tensor as well."""
    value, bias = call.args[0], None
    chain = [value]
    added = simplifier.bound(value, "add")
    if added is not None:
        ranks = [len(shape_of(arg) or ()) for arg in added.args]
        if sorted(ranks) != [1, 2]:
            return None
        bias, value = added.args if ranks[0] == 1 else reversed(added.args)
        chain.append(value)
    product = simplifier.bound(value, "matmul")
    if product is None or len(shape_of(product.args[1]) or ()) != 2 or not all(map(simplifier.only_use, chain)):
        return None
    flat = simplifier.bound(product.args[0], "reshape")
    if flat is None:
        return None
    x, columns = flat.args[0], list(shape_of(product) or ())[-1]
    shape = list(shape_of(x) or ())
    if len(shape) < 3 or len(shape_of(product.args[0]) or ()) != 2:
        return None
    inner = list(shape_of(product.args[0]) or ())[-1]
    if not same_shape([shape[-1]], [inner]) or not same_shape([*shape[:-1], columns], shape_of(call)):
        return None
    result = relax.op.matmul(x, product.args[1])
    return result if bias is None else relax.op.add(simplifier.emit(result), bias)


def _gelu_tanh(simplifier: Simplifier, call: relax.Call) -> relax.Expr | None:
    """`0.5 x (1 + tanh(0.79788 (x + 0.044715 x**3)))`, as GPT-2 spells it (Hendrycks and Gimpel, 2016)."""
    for half, rest in (call.args, reversed(call.args)):
        x = _scaled(simplifier, half, "multiply", 0.5)
        tanh = simplifier.bound(_scaled(simplifier, rest, "add", 1.0), "tanh") if x is not None else None
        if tanh is None:
            continue
        inside = _scaled(simplifier, tanh.args[0], "multiply", (2 / np.pi) ** 0.5)
        total = simplifier.bound(inside, "add") if inside is not None else None
        if total is None or not total.args[0].same_as(x):
            continue
        cube = simplifier.bound(_scaled(simplifier, total.args[1], "multiply", 0.044715), "power")
        if cube is not None and cube.args[0].same_as(x) and _number(cube.args[1]) == 3.0:
            return relax.op.nn.gelu_tanh(x)
    return None


def _rms_norm(simplifier: Simplifier, call: relax.Call) -> relax.Expr | None:
    """`weight * (x * rsqrt(mean(x**2) + epsilon))` over the last axis, as Llama and T5 spell it."""
    for weight, rest in (call.args, reversed(call.args)):
        normed = simplifier.bound(rest, "multiply")
        for x, factor in (normed.args, reversed(normed.args)) if normed is not None else ():
            rsqrt = simplifier.bound(factor, "rsqrt")
            added = simplifier.bound(rsqrt.args[0], "add") if rsqrt is not None else None
            mean = simplifier.bound(added.args[0], "mean") if added is not None else None
            square = simplifier.bound(mean.args[0], "square") if mean is not None else None
            if added is None or mean is None or square is None or not square.args[0].same_as(x):
                continue
            shape, epsilon = list(shape_of(x) or ()), _number(added.args[1])
            last = [int(axis) % len(shape) for axis in mean.attrs.axis or ()] == [len(shape) - 1]
            if last and mean.attrs.keepdims and epsilon is not None and same_shape(shape_of(weight), shape[-1:]):
                return relax.op.nn.rms_norm(x, weight, axes=[-1], epsilon=epsilon)
    return None


def _gated_add(simplifier: Simplifier, call: relax.Call) -> relax.Expr | None:
    """`gate * x + y`, where `gate` is a sigmoid: the next state of LSTM, GRU, and cells like them."""
    for gated, y in (call.args, reversed(call.args)):
        product = simplifier.bound(gated, "multiply") if simplifier.only_use(gated) else None
        for gate, x in (product.args, reversed(product.args)) if product is not None else ():
            same = all(same_shape(shape_of(arg), shape_of(call)) for arg in (gate, x, y))
            if same and simplifier.bound(gate, "sigmoid") is not None:
                return gated_add(gate, x, y)
    return None


def _scaled(simplifier: Simplifier, expr: relax.Expr, name: str, number: float) -> relax.Expr | None:
    """x, if `expr` is `x * number` (or `x + number`)."""
    call = simplifier.bound(expr, name)
    for value, other in (call.args, reversed(call.args)) if call is not None else ():
        constant = _number(value)
        if constant is not None and abs(constant - number) <= 1e-6:
            return other
    return None


def _number(expr: relax.Expr) -> float | None:
    if not is_constant(expr) or shape_of(expr) != () or dtype_of(expr) != "float32":
        return None
    return float(expr.value.numpy())


#: Operators that broadcast their operands, so that they need not be given broadcast.
_BROADCASTING = (
    *(f"relax.{name}" for name in ("add", "subtract", "multiply", "divide", "power", "maximum", "minimum", "where")),
    *(f"relax.{name}" for name in ("logical_and", "logical_or", "logical_xor")),
    *named(Kind.COMPARISON),
)

_MOVES: dict[str, tuple[Simplification, ...]] = {
    "relax.permute_dims": (_permute,),
    "relax.broadcast_to": (_same_type,),
    "relax.astype": (_same_type,),
    "relax.squeeze": (_squeeze,),
    **dict.fromkeys(_BROADCASTING, (_implicit_broadcast,)),
    "relax.nn.attention_bias": (_broadcast_bias,),
    "relax.where": (_where, _implicit_broadcast),
    "relax.logical_and": (_true_and, _implicit_broadcast),
    "relax.add": (_gated_add, _implicit_broadcast),
    "relax.multiply": (_gelu_tanh, _rms_norm, _implicit_broadcast),
}

#: Merging reshapes would hide flattened products, so it comes second.
FIRST = {**_MOVES, "relax.reshape": (_same_type, _repeat, _unflatten_product)}
THEN = {**_MOVES, "relax.reshape": (_same_type, _reshape_twice)}
