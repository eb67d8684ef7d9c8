"""Define what TVM leaves to chance: integers over 0 and beyond their dtype, bounds, places, images of one pixel."""

from __future__ import annotations

from collections.abc import Callable

import ml_dtypes
import numpy as np
import tvm
from tvm import relax, tirx
from tvm.relax.expr_functor import mutator

from autocast.ir import dims, dtype_of, number_of, op_name
from autocast.ir.rewriting import BindingRewriter, rewrite_functions
from autocast.kernels.fallback import floats
from autocast.kernels.fallback.floats import FLOATS
from autocast.kernels.fallback.wrapping import may_wrap, wrapping
from autocast.kernels.storage import is_narrow

op = relax.op


@mutator
class _Define(BindingRewriter):
    def rewrite(self, binding: relax.VarBinding) -> relax.Expr | None:
        if may_wrap(binding, self.values):
            return wrapping(self.builder_, binding.value, *map(self.new, binding.value.args))
        rule = _RULES.get(op_name(binding.value) or "")
        return None if rule is None else rule(self, binding.value, *map(self.new, binding.value.args))


def _division(rewriter: _Define, call: relax.Call, x: relax.Expr, y: relax.Expr) -> relax.Expr | None:
    """Integers over 0 are 0, and over -1 the negative: the processor ends the program at n / 0 and at -2^31 / -1.

    Those are divided by 1, and the quotient multiplied by 0 or -1. A choice between quotients would not do: where TVM
    knows which one is chosen it leaves the choice of the divisor out, and vectors compute both.
    """
    dtype = dtype_of(x) or ""
    if dtype in FLOATS:
        return floats.arithmetic(rewriter, call, x, y)
    if "int" not in dtype or number_of(y) not in (None, 0.0, -1.0):
        return None
    zero, one = relax.const(0, dtype), relax.const(1, dtype)
    replaced = by_zero = rewriter.emit(op.equal(y, zero))
    factor = rewriter.emit(op.where(by_zero, zero, one))
    if not dtype.startswith("u"):
        minus_one = relax.const(-1, dtype)
        by_minus_one = rewriter.emit(op.equal(y, minus_one))
        replaced = rewriter.emit(op.logical_or(by_zero, by_minus_one))
        factor = rewriter.emit(op.where(by_minus_one, minus_one, factor))
    result = relax.Call(call.op, [x, rewriter.emit(op.where(replaced, one, y))], call.attrs)
    is_remainder = op_name(call) in ("relax.mod", "relax.floor_mod")
    return result if is_remainder else op.multiply(rewriter.emit(result), factor)


def _negative(rewriter: _Define, call: relax.Call, x: relax.Expr) -> relax.Expr | None:
    """Unsigned integers wrap around: TVM multiplies by -1, which is none of them."""
    dtype = dtype_of(x) or ""
    return op.subtract(relax.const(0, dtype), x) if dtype.startswith("uint") else None


def _clip(rewriter: _Define, call: relax.Call, x: relax.Expr, low: relax.Expr, high: relax.Expr) -> relax.Expr | None:
    """What is above the upper bound is that bound, were the lower one above it; and bounds that integers have."""
    dtype, least, most = str(dtype_of(x)), low.value, high.value
    if "int" in dtype:
        known = np.iinfo(dtype)
        least, most = (int(min(max(bound, known.min), known.max)) for bound in (least, most))
    clip = op.clip(x, min(least, most), most)
    passing = floats.passing_nan(rewriter, clip, *clip.args)
    return clip if passing is None else passing


def _sign(rewriter: _Define, call: relax.Call, x: relax.Expr) -> relax.Expr | None:
    """Of unsigned integers, 1 but for 0: TVM compares them with -1."""
    dtype = dtype_of(x) or ""
    return op.astype(rewriter.emit(op.greater(x, relax.const(0, dtype))), dtype) if dtype.startswith("uint") else None


def _bucketize(rewriter: _Define, call: relax.Call, x: relax.Expr, boundaries: relax.Expr) -> relax.Expr | None:
    """NaN is after all boundaries, as it is in a sort; TVM finds it before the first."""
    if dtype_of(x) not in FLOATS:
        return None
    place, count = rewriter.emit(relax.Call(call.op, [x, boundaries], call.attrs)), dims(boundaries)[0]
    dtype = dtype_of(call)
    if isinstance(count, int | tirx.IntImm):
        last = relax.const(int(count), dtype)
    else:
        size = rewriter.emit(op.shape_to_tensor(relax.ShapeExpr([count])))
        last = rewriter.emit(op.astype(rewriter.emit(op.reshape(size, [])), dtype))
    return op.where(rewriter.emit(op.isnan(x)), last, place)


def _mean_of_windows(rewriter: _Define, call: relax.Call, x: relax.Expr) -> relax.Expr | None:
    """Of integers in their dtype: TVM divides by an int64, and returns one."""
    if "int" not in str(dtype_of(x)) or dtype_of(x) == "int64":
        return None
    wide = rewriter.emit(op.astype(x, "int64"))
    return op.astype(rewriter.emit(relax.Call(call.op, [wide], call.attrs)), dtype_of(call))


def _conversion(rewriter: _Define, call: relax.Call, x: relax.Expr) -> relax.Expr | None:
    """Numbers that no small integer is equal to: the low bits of the int32, however many are converted at once.

    Numbers of 8 bits are looked up: TVM takes the smallest, and 0, for others.
    """
    if is_narrow(dtype_of(x)):
        values = np.arange(256, dtype="uint8").view(getattr(ml_dtypes, str(dtype_of(x)))).astype("float32")
        code = rewriter.emit(op.astype(rewriter.emit(op.memory.view(x, dtype="uint8")), "int32"))
        return op.astype(rewriter.emit(op.take(relax.const(values), code, axis=0, mode="fast")), dtype_of(call))
    small = dtype_of(call) in ("int8", "uint8", "int16", "uint16")
    if not small or dtype_of(x) not in (*FLOATS, "bfloat16"):
        return None
    return op.astype(rewriter.emit(op.astype(x, "int32")), dtype_of(call))


#: Modes of coordinates in which TVM divides by a size less one: to how many pixels it is to resize instead of to one,
#: and which of them that one is.
_CORNERS = {"align_corners": (2, 0), "tf_crop_and_resize": (3, 1)}


def _resize(rewriter: _Define, call: relax.Call, x: relax.Expr, size: relax.Expr) -> relax.Expr | None:
    """To one pixel along an axis, or to what may be one at run time: that pixel of several."""
    mode, letters = str(call.attrs.coordinate_transformation_mode), [c for c in str(call.attrs.layout) if c.isalpha()]
    axes = [i for i, letter in enumerate(letters) if letter in "DHW"]
    return _of_several(rewriter, call, x, size, axes, *_CORNERS[mode]) if mode in _CORNERS else None


def _affine_grid(rewriter: _Define, call: relax.Call, x: relax.Expr, size: relax.Expr) -> relax.Expr | None:
    """Of one pixel along an axis, the middle: TVM has no grid with corners that are one."""
    return _of_several(rewriter, call, x, size, [2, 3, 4], 3, 1) if call.attrs.align_corners else None


def _of_several(
    rewriter: _Define, call: relax.Call, x: relax.Expr, size: relax.Expr, axes: list[int], least: int, chosen: int
) -> relax.Expr | None:
    """Where one pixel is asked for along an axis, that of number `chosen` among `least`; None where none can be."""
    if not isinstance(size, relax.ShapeExpr):
        return None
    sizes = dict(zip(axes, size.values, strict=False))
    single = {axis: n for axis, n in sizes.items() if not isinstance(n, tirx.IntImm) or int(n) == 1}
    if not single:
        return None
    enough = [tirx.max(n, tirx.const(least, "int64")) if axis in single else n for axis, n in sizes.items()]
    several = rewriter.emit(relax.Call(call.op, [x, relax.ShapeExpr(enough)], call.attrs))
    begins = [tirx.Select(n == 1, tirx.const(chosen, "int64"), tirx.const(0, "int64")) for n in single.values()]
    ends = [begin + n for begin, n in zip(begins, single.values(), strict=True)]
    return op.strided_slice(several, list(single), begins, ends)


def _layout_transform(rewriter: _Define, call: relax.Call, x: relax.Expr) -> relax.Expr | None:
    """Truth values are moved as bytes: TVM would pad them with the floating-point number 0."""
    if dtype_of(x) != "bool":
        return None
    bytes_ = rewriter.emit(op.astype(x, "int8"))
    pad = None if call.attrs.pad_value is None else int(call.attrs.pad_value)
    return op.astype(rewriter.emit(op.layout_transform(bytes_, call.attrs.index_map, pad)), "bool")


_RULES: dict[str, Callable[..., relax.Expr | None]] = {
    **floats.RULES,
    **{f"relax.{name}": _division for name in ("divide", "floor_divide", "mod", "floor_mod")},
    **{f"relax.nn.{kind}avg_pool{rank}d": _mean_of_windows for kind in ("", "adaptive_") for rank in (1, 2, 3)},
    "relax.bucketize": _bucketize,
    "relax.clip": _clip,
    "relax.sign": _sign,
    "relax.negative": _negative,
    "relax.astype": _conversion,
    "relax.layout_transform": _layout_transform,
    "relax.image.affine_grid": _affine_grid,
    "relax.image.resize2d": _resize,
    "relax.image.resize3d": _resize,
}


def define(mod: tvm.IRModule) -> tvm.IRModule:
    """Rewrite operators that no kernel took, and that TVM computes without regard to zeros and NaN.

    Before::                                     After::

        c: f64 = R.maximum(a, b)                     m: f64 = R.maximum(a, b)
                                                     c: f64 = R.where(R.isnan(a), a, m)
    """
    return rewrite_functions(mod, _Define)
