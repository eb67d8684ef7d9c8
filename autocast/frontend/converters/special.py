"""Converters of special functions, and of what the bits of a number say."""

from __future__ import annotations

from torch import fx
from tvm import relax

from autocast.errors import ImportModelError
from autocast.frontend.converters.arithmetic import operands
from autocast.frontend.converters.helpers import Converter, cast
from autocast.frontend.importing.importer import Importer
from autocast.ir import dtype_of
from autocast.operators import Operator
from autocast.operators.own import special

op = relax.op

#: Beyond, the factorial of the order is no number of float64.
_HIGHEST_ORDER = 170

_BESSEL = ("bessel_j0", "bessel_j1", "bessel_y0", "bessel_y1")


def _of(operator: Operator) -> Converter:
    """A function of one tensor, in the dtype of its result."""
    return lambda importer, node: importer.emit(
        operator(cast(importer, importer.arg(node, 0, "self"), importer.dtype(node)))
    )


def _bessel(operator: Operator) -> Converter:
    """A Bessel function, of which the polynomials have the digits of float32."""
    convert = _of(operator)

    def single(importer: Importer, node: fx.Node) -> relax.Expr:
        if importer.dtype(node) == "float64":
            raise ImportModelError("a Bessel function of float64; expected one of float32")
        return convert(importer, node)

    return single


def _of_two(operator: Operator) -> Converter:
    """A function of two tensors, or numbers, of the shape and dtype of its result."""

    def convert(importer: Importer, node: fx.Node) -> relax.Expr:
        shape = importer.shape(node)
        return importer.emit(operator(*(importer.emit(op.broadcast_to(x, shape)) for x in operands(importer, node))))

    return convert


def _polygamma(importer: Importer, node: fx.Node) -> relax.Expr:
    """`polygamma(n, x)`."""
    n, x = int(node.args[0]), cast(importer, importer.arg(node, 1, "self"), importer.dtype(node))
    if n > _HIGHEST_ORDER:
        raise ImportModelError(f"the derivative of order {n}; expected one up to {_HIGHEST_ORDER}")
    return importer.emit(special.polygamma(x, n=n) if n else special.digamma(x))


def _spherical_bessel(importer: Importer, node: fx.Node) -> relax.Expr:
    """sin(x) / x, 1 at 0 and 0 at infinity."""
    x = cast(importer, importer.arg(node, 0, "self"), importer.dtype(node))
    zero, one = (relax.const(value, dtype_of(x)) for value in (0, 1))
    at_zero, infinite = importer.emit(op.equal(x, zero)), importer.emit(op.isinf(x))
    quotient = importer.emit(op.divide(op.sin(x), op.where(at_zero, one, x)))
    return importer.emit(op.where(at_zero, one, op.where(infinite, zero, quotient)))


def _is_minus(importer: Importer, x: relax.Expr) -> relax.Expr:
    """Whether the sign of a number is minus; integers and truth values have no 0 with one."""
    if "float" in str(dtype_of(x)):
        return importer.emit(special.signbit(x))
    x = cast(importer, x, "int8") if dtype_of(x) == "bool" else x
    return importer.emit(op.less(x, relax.const(0, dtype_of(x))))


def _signbit(importer: Importer, node: fx.Node) -> relax.Expr:
    return _is_minus(importer, importer.arg(node, 0, "self"))


def _copysign(importer: Importer, node: fx.Node) -> relax.Expr:
    """The size of one number with the sign of another."""
    x, y = operands(importer, node)
    size = importer.emit(op.abs(x))
    return importer.emit(op.where(_is_minus(importer, y), importer.emit(op.negative(size)), size))


def _nextafter(importer: Importer, node: fx.Node) -> relax.Expr:
    if importer.dtype(node) not in ("float32", "float64"):
        raise ImportModelError(f"the next number of {importer.dtype(node)}; expected float32 or float64")
    return _of_two(special.nextafter)(importer, node)


def _frexp(importer: Importer, node: fx.Node) -> list[relax.Expr]:
    both = importer.emit(special.frexp(importer.arg(node, 0, "self")))
    return [importer.emit(relax.TupleGetItem(both, i)) for i in range(2)]


#: Converters by the name of the overload.
SPECIAL: dict[str, Converter] = {
    "copysign.Scalar": _copysign,
    "copysign.Tensor": _copysign,
    "digamma.default": _of(special.digamma),
    "erfc.default": _of(special.erfc),
    "erfinv.default": _of(special.erfinv),
    "frexp.Tensor": _frexp,
    "i0.default": _of(special.i0),
    "lgamma.default": _of(special.lgamma),
    "nextafter.default": _nextafter,
    "polygamma.default": _polygamma,
    "signbit.default": _signbit,
    **{
        f"special_{name}.default": _of(getattr(special, name))
        for name in (
            "erfcx",
            "i0e",
            "i1",
            "i1e",
            "log_ndtr",
            "ndtri",
        )
    },
    **{f"special_{name}.default": _bessel(getattr(special, name)) for name in _BESSEL},
    "special_modified_bessel_i0.default": _of(special.i0),
    "special_modified_bessel_i1.default": _of(special.i1),
    "special_spherical_bessel_j0.default": _spherical_bessel,
    **{f"special_zeta.{overload}": _of_two(special.zeta) for overload in ("default", "other_scalar", "self_scalar")},
}
