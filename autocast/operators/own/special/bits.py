"""What the bits of floating-point numbers say: signs, exponents, neighbours."""

from __future__ import annotations

from tvm import te, tirx

from autocast.operators.own.special.scalars import Scalar, let, number

#: The exponent's place among the bits of a float64, all of its bits there, and the one that says 1/2.
_PLACE, _ALL, _HALF = 52, 0x7FF, 1022

_NEXT = {"float32": "nextafterf", "float64": "nextafter"}


def _word(value: int) -> Scalar:
    return tirx.const(value, "int64")


def _name(x: te.Tensor) -> str:
    return str(x.dtype.dtype)


def signbit(x: te.Tensor) -> te.Tensor:
    """Whether the sign is minus, of 0 and NaN too."""
    integers = f"int{_name(x).removeprefix('float')}"
    return te.compute(x.shape, lambda *at: tirx.reinterpret(integers, x(*at)) < tirx.const(0, integers), name="signbit")


def nextafter(x: te.Tensor, y: te.Tensor) -> te.Tensor:
    """The next number of the dtype, by the C library."""
    name = _NEXT[_name(x)]
    return te.compute(x.shape, lambda *at: tirx.call_pure_extern(x.dtype, name, x(*at), y(*at)), name="nextafter")


def frexp(x: te.Tensor) -> list[te.Tensor]:
    """Mantissas and exponents; those of 0, infinities and NaN are themselves, and 0."""

    def parts(value: Scalar, mantissa: bool) -> Scalar:
        subnormal = tirx.abs(value) < number(2.0**-1000)  # or near that
        scaled = value * tirx.Select(subnormal, number(2.0**54), number(1))

        def of(word: Scalar) -> Scalar:
            exponent = (word >> _word(_PLACE)) & _word(_ALL)
            plain = tirx.And(exponent != _word(_ALL), value != number(0))
            if mantissa:
                rest = (word & _word(~(_ALL << _PLACE))) | _word(_HALF << _PLACE)
                return tirx.Select(plain, tirx.reinterpret("float64", rest), value).astype(x.dtype)
            less = tirx.Select(subnormal, _word(_HALF + 54), _word(_HALF))
            return tirx.Select(plain, exponent - less, _word(0)).astype("int32")

        return let(tirx.reinterpret("int64", scaled), of)

    def element(mantissa: bool) -> te.Tensor:
        return te.compute(
            x.shape, lambda *at: let(x(*at).astype("float64"), lambda value: parts(value, mantissa)), name="frexp"
        )

    return [element(True), element(False)]
