"""exp, erf, tanh, sigmoid and the activations made of them, branch-free for float32 scalars and vectors of any width.

LLVM leaves `llvm.exp` and its like on vectors to one scalar libm call a lane; these polynomials stay in vector
registers. Each is an `alwaysinline` LLVM function: a kernel imports `math_ir(lanes)` by `pragma_import_llvm` and calls
`call(name, x)`, which is opaque to TIR's passes (TIR's own `Let` does not survive them) and nothing but instructions
after LLVM's inliner. Constants come from a table whose address is hidden from LLVM, which would otherwise keep them in
registers across the whole kernel, at the expense of what is summed there.

Largest errors over all float32, in units of the last place (the tests measure them against float64): exp 1.1, erf 1.2,
tanh 2.0, sigmoid 2.5. NaN gives NaN, infinities give the limits, exp and sigmoid give subnormal results, signed zeros
are kept.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import cache

from tvm import tirx

_LOG2_E = 1.44269504088896341
_LN2_HIGH, _LN2_LOW = 0.693359375, -2.12194440e-4  # the first has 9 bits: n * high is exact for every n that occurs
_ROUND_MAGIC = 12582912.0  # 1.5 * 2^23: adding it rounds to an integer, kept in the low bits of the sum
_SQRT_2_OVER_PI = 0.7978845608028654
_SQRT_HALF = 0.7071067811865476


class _Value:
    """A float32 value of a function under construction; arithmetic on it appends instructions."""

    def __init__(self, body: _Body, name: str) -> None:
        self.body, self.name = body, name

    def __add__(self, other: _Value | float) -> _Value:
        return self.body.float_op("fadd", self, other)

    def __sub__(self, other: _Value | float) -> _Value:
        return self.body.float_op("fsub", self, other)

    def __mul__(self, other: _Value | float) -> _Value:
        return self.body.float_op("fmul", self, other)

    def __truediv__(self, other: _Value) -> _Value:
        return self.body.float_op("fdiv", self, other)

    def __neg__(self) -> _Value:
        return self.body.emit(f"fneg {self.body.float} {self.name}")


class _Body:
    """The instructions of one LLVM function of one float32 argument, as vectors of `lanes` numbers (scalars for 1)."""

    def __init__(self, lanes: int) -> None:
        self.lines: list[str] = []
        self.float, self.int, self.bool = (f"<{lanes} x {t}>" if lanes > 1 else t for t in ("float", "i32", "i1"))
        self.loaded: dict[str, str] = {}
        self.suffix = f"v{lanes}f32" if lanes > 1 else "f32"
        self.scalar = lanes == 1

    def emit(self, instruction: str) -> _Value:
        name = f"%v{len(self.lines)}"
        self.lines.append(f"  {name} = {instruction}")
        return _Value(self, name)

    def constant(self, value: float) -> str:
        """The name of a float32 constant, loaded from the function's table."""
        rounded = struct.unpack("f", struct.pack("f", value))[0]
        bits = struct.unpack(">Q", struct.pack(">d", rounded))[0]
        return self._from_table(f"float 0x{bits:016X}", self.float)

    def integer(self, value: int) -> str:
        """The name of an int32 constant, loaded from the function's table."""
        return self._from_table(f"i32 {value}", self.int)

    def _from_table(self, entry: str, dtype: str) -> str:
        if entry not in self.loaded:
            scalar = entry.split()[0]
            place = f"getelementptr i8, ptr %table, i64 {4 * len(self.loaded)}"
            value = self.emit(f"load {scalar}, ptr {self.emit(place).name}, align 4")
            if not self.scalar:
                one = self.emit(f"insertelement {dtype} poison, {scalar} {value.name}, i64 0")
                value = self.emit(f"shufflevector {dtype} {one.name}, {dtype} poison, {self.int} zeroinitializer")
            self.loaded[entry] = value.name
        return self.loaded[entry]

    def operand(self, value: _Value | float) -> str:
        return value.name if isinstance(value, _Value) else self.constant(value)

    def float_op(self, op: str, a: _Value | float, b: _Value | float) -> _Value:
        return self.emit(f"{op} {self.float} {self.operand(a)}, {self.operand(b)}")

    def int_op(self, op: str, a: _Value, b: _Value | int) -> _Value:
        other = b.name if isinstance(b, _Value) else self.integer(b)
        return self.emit(f"{op} {self.int} {a.name}, {other}")

    def bits(self, value: _Value) -> _Value:
        return self.emit(f"bitcast {self.float} {value.name} to {self.int}")

    def from_bits(self, value: _Value) -> _Value:
        return self.emit(f"bitcast {self.int} {value.name} to {self.float}")

    def multiply_add(self, a: _Value | float, b: _Value | float, c: _Value | float) -> _Value:
        arguments = ", ".join(f"{self.float} {self.operand(value)}" for value in (a, b, c))
        return self.emit(f"call {self.float} @llvm.fmuladd.{self.suffix}({arguments})")

    def polynomial(self, x: _Value, *coefficients: float) -> _Value:
        """Horner's rule, the coefficient of the highest power first."""
        total: _Value | float = coefficients[0]
        for coefficient in coefficients[1:]:
            total = self.multiply_add(total, x, coefficient)
        assert isinstance(total, _Value)
        return total

    def where(self, comparison: str, a: _Value, b: float, yes: _Value | float, no: _Value | float) -> _Value:
        """`yes` where `a comparison b` holds, else `no`; ordered comparisons are false for NaN."""
        condition = self.emit(f"fcmp {comparison} {self.float} {a.name}, {self.operand(b)}")
        choices = ", ".join(f"{self.float} {self.operand(value)}" for value in (yes, no))
        return self.emit(f"select {self.bool} {condition.name}, {choices}")

    def absolute(self, x: _Value) -> _Value:
        return self.from_bits(self.int_op("and", self.bits(x), 0x7FFFFFFF))

    def with_sign_of(self, magnitude: _Value, x: _Value) -> _Value:
        sign = self.int_op("and", self.bits(x), -0x80000000)
        return self.from_bits(self.int_op("or", self.bits(magnitude), sign))

    def power_of_two(self, n: _Value) -> _Value:
        """2^n for integers -127 < n < 128."""
        return self.from_bits(self.int_op("shl", self.int_op("add", n, 127), 23))


def _exp_parts(b: _Body, x: _Value) -> tuple[_Value, _Value]:
    """(p, n) with exp(x) = p * 2^n and p between 0.7 and 1.42, for |x| below 2^21."""
    shifted = b.multiply_add(x, _LOG2_E, _ROUND_MAGIC)
    n = b.int_op("sub", b.bits(shifted), 0x4B400000)
    whole = shifted - _ROUND_MAGIC
    rest = b.multiply_add(whole, -_LN2_LOW, b.multiply_add(whole, -_LN2_HIGH, x))
    tail = b.polynomial(
        rest, 1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1
    )
    return b.multiply_add(tail, rest * rest, rest) + 1.0, n


def _exp(b: _Body, x: _Value) -> _Value:
    # Comparisons are written so that a NaN passes through.
    x = b.where("ogt", x, 89.0, 89.0, x)
    x = b.where("olt", x, -104.0, -104.0, x)
    p, n = _exp_parts(b, x)
    half = b.int_op("ashr", n, 1)
    return p * b.power_of_two(half) * b.power_of_two(b.int_op("sub", n, half))


def _exp_of_negative(b: _Body, x: _Value) -> _Value:
    """exp(x) for x <= 0 or NaN, e^-87 below -87: cheaper than `_exp`, for what is then added to 1."""
    p, n = _exp_parts(b, b.where("olt", x, -87.0, -87.0, x))
    return p * b.power_of_two(n)


def _sigmoid(b: _Body, x: _Value) -> _Value:
    small = _exp(b, -b.absolute(x))
    return b.where("olt", x, 0.0, small, 1.0) / (small + 1.0)


def _silu(b: _Body, x: _Value) -> _Value:
    return x * _sigmoid(b, x)


def _tanh(b: _Body, x: _Value) -> _Value:
    """A polynomial near zero, (1 - e) / (1 + e) with e = exp(-2 |x|) elsewhere."""
    size, square = b.absolute(x), x * x
    near = b.polynomial(
        square, -5.70498872745e-3, 2.06390887954e-2, -5.37397155531e-2, 1.33314422036e-1, -3.33332819422e-1
    )
    near = b.multiply_add(near * square, x, x)
    decay = _exp_of_negative(b, size * -2.0)
    far = (-decay + 1.0) / (decay + 1.0)
    return b.with_sign_of(b.where("olt", size, 0.625, near, far), x)  # near gives +0 for -0


def _erf(b: _Body, x: _Value) -> _Value:
    """One polynomial near zero, 1 - exp of another elsewhere (Norbert Juffa's)."""
    # From 4 on the result is 1 in float32; the bound keeps the polynomial in its range.
    size, square = b.absolute(x), x * x
    size = b.where("ogt", size, 4.0, 4.0, size)
    bounded = b.where("ogt", square, 16.0, 16.0, square)
    high = b.multiply_add(-1.72853470e-5, size, 3.83197126e-4)
    low = b.multiply_add(-3.88396438e-3, size, 2.42546219e-2)
    far = b.multiply_add(high, bounded, low)
    for coefficient in (-1.06777877e-1, -6.34846687e-1, -1.28717512e-1):
        far = b.multiply_add(far, size, coefficient)
    far = -_exp_of_negative(b, b.multiply_add(far, size, -size)) + 1.0
    near = b.polynomial(
        square, -5.96761703e-4, 4.99119423e-3, -2.67681349e-2, 1.12819925e-1, -3.76125336e-1, 1.28379166e-1
    )
    near = b.multiply_add(near, x, x)
    return b.where("ogt", size, 0.927734375, b.with_sign_of(far, x), near)


def _gelu(b: _Body, x: _Value) -> _Value:
    half = x * 0.5
    return b.multiply_add(half, _erf(b, x * _SQRT_HALF), half)


def _gelu_tanh(b: _Body, x: _Value) -> _Value:
    """x * sigmoid(2 sqrt(2 / pi) (x + 0.044715 x^3)), the same as the form with tanh."""
    inner = b.multiply_add(x * x, 2 * _SQRT_2_OVER_PI * 0.044715, 2 * _SQRT_2_OVER_PI)
    return x * _sigmoid(b, x * inner)


def _relu(b: _Body, x: _Value) -> _Value:
    return b.where("olt", x, 0.0, 0.0, x)


#: Every function that `math_ir` defines and `call` calls.
FUNCTIONS: dict[str, Callable[[_Body, _Value], _Value]] = {
    "exp": _exp,
    "erf": _erf,
    "tanh": _tanh,
    "sigmoid": _sigmoid,
    "relu": _relu,
    "gelu": _gelu,
    "gelu_tanh": _gelu_tanh,
    "silu": _silu,
}


@cache
def math_ir(lanes: int, names: tuple[str, ...] = tuple(FUNCTIONS)) -> str:
    """LLVM IR that defines `names` for vectors of `lanes` float32 numbers (scalars for 1), for a kernel to import."""
    parts = []
    for name in names:
        body = _Body(lanes)
        result = FUNCTIONS[name](body, _Value(body, "%x"))
        symbol, entries = _symbol(name, lanes), [*body.loaded]
        fields = ", ".join(entry.split()[0] for entry in entries)
        parts.append(
            f"@{symbol}_table = private unnamed_addr constant {{ {fields} }} {{ {', '.join(entries)} }}\n"
            f"define linkonce_odr {body.float} @{symbol}({body.float} %x) alwaysinline {{\n"
            f'  %table = call ptr asm sideeffect "", "=r,0"(ptr @{symbol}_table)\n'
            + "\n".join(body.lines)
            + f"\n  ret {body.float} {result.name}\n}}\n"
        )
    value = _Body(lanes)
    declaration = f"declare {value.float} @llvm.fmuladd.{value.suffix}({', '.join([value.float] * 3)})\n"
    return declaration + "".join(parts)


def call(name: str, x: tirx.Expr) -> tirx.Expr:
    """`name` of a float32 scalar or vector; the kernel must import `math_ir` for as many lanes as `x` has."""
    dtype = str(x.ty)
    lanes = int(dtype.partition("x")[2] or 1)
    return tirx.call_pure_extern(dtype, _symbol(name, lanes), x)


def _symbol(name: str, lanes: int) -> str:
    return f"autocast_{name}_{lanes}"
