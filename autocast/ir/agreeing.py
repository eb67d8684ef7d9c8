"""Whether a value can have the type that is declared of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import cycle
from typing import Any, TypeAlias

import tvm
import tvm_ffi
from tvm import relax, tirx

from autocast.ir.views import shape_in

#: Whether two sizes, each a number or an expression of names, differ.
Differ: TypeAlias = Callable[[Any, Any], bool]

#: What names of sizes stand for where two formulas cannot be proved equal.
_SAMPLES = ((4096,), (97, 101, 89, 83), (4099, 5003, 6007, 7001), (5120, 4608, 7168, 6144))


def disagree(declared: tvm.ir.Type, found: tvm.ir.Type, differ: Differ) -> bool:
    """Whether a value of type `found` is none of type `declared`; what one of them leaves out may be anything."""
    if isinstance(declared, relax.AnyType) or isinstance(found, relax.AnyType):
        return False
    if type(declared) is not type(found):
        return True
    if isinstance(declared, tvm.ir.TupleType):
        pairs = zip(declared.fields, found.fields, strict=False)
        return len(declared.fields) != len(found.fields) or any(disagree(*pair, differ) for pair in pairs)
    if isinstance(declared, tvm.ir.PrimType):
        return str(declared) != str(found)
    if not isinstance(declared, relax.TensorType | relax.ShapeType):
        return False
    dtypes = {str(dtype) for dtype in (getattr(declared, "dtype", None), getattr(found, "dtype", None)) if dtype}
    if len(dtypes) > 1:
        return True
    if -1 not in (declared.ndim, found.ndim) and declared.ndim != found.ndim:
        return True
    return any(differ(*pair) for pair in zip(sizes_in(declared), sizes_in(found), strict=False))


def sizes_in(type: tvm.ir.Type) -> tuple[Any, ...]:
    """The sizes of a tensor or shape, or of all those in a tuple; none where they are not known."""
    if isinstance(type, tvm.ir.TupleType):
        return tuple(size for field in type.fields for size in sizes_in(field))
    if isinstance(type, relax.ShapeType):
        return tuple(type.values or ())
    return shape_in(type) or ()


def never_equal(one: Any, other: Any) -> bool:
    """Whether two sizes differ whatever their names stand for."""
    return _differs(one, other, all, lambda name, value: value)


def not_always_equal(names: Mapping[tirx.Var, Any], bounds: Mapping[str, tuple[int, int]]) -> Differ:
    """Whether two sizes differ for some values of their names, within these bounds.

    Parameters
    ----------
    names
        What each name of the second is called in the first; a name that is not there may stand for anything.
    bounds
        The smallest and the largest value, by the name in the first.
    """

    def differ(one: Any, other: Any) -> bool:
        other = _substituted(other, names)
        known = {name for size in names.values() for name in _names_in(size)}
        return {*_names_in(one), *_names_in(other)} <= known and _differs(one, other, any, within)

    def within(name: tirx.Var, value: int) -> int:
        lower, upper = bounds.get(name.name, (0, value))
        return min(max(value, lower), upper)

    return differ


def _substituted(size: Any, values: Mapping[tirx.Var, Any]) -> Any:
    return (
        size if isinstance(size, int) else tvm_ffi.structural_map(size, (tirx.Var, lambda name: values.get(name, name)))
    )


def _names_in(size: Any) -> list[tirx.Var]:
    return [] if isinstance(size, int) else list(tirx.analysis.undefined_vars(size))


def _differs(
    one: Any, other: Any, which: Callable[[list[bool]], bool], value_of: Callable[[tirx.Var, int], int]
) -> bool:
    one, other = (tvm.tirx.convert(size).astype("int64") for size in (one, other))
    analyzer = tvm.sym.Analyzer()
    if analyzer.can_prove_equal(one, other):
        return False
    names = list(dict.fromkeys([*_names_in(one), *_names_in(other)]))
    found = []
    for sample in _SAMPLES:
        values = {name: tirx.IntImm(name.ty.dtype, value_of(name, n)) for name, n in zip(names, cycle(sample))}
        pair = [analyzer.simplify(_substituted(size, values)) for size in (one, other)]
        if not all(isinstance(size, tirx.IntImm) for size in pair):
            return False
        left, right = map(int, pair)
        if min(left, right) >= 0:  # of a slice that ends before it begins, TVM says less than nothing
            found.append(left != right)
    return bool(found) and which(found)
