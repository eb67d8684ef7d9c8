"""A small language for LLVM functions of float32 vectors: values with operators, bit patterns, polynomials and choices.

A function is written once, as Python over `Value`s, and becomes LLVM IR for any number of lanes.
"""

from __future__ import annotations

import inspect
import struct
from collections.abc import Callable, Sequence
from typing import TypeAlias

#: A function of one or more values of a body.
Definition: TypeAlias = Callable[..., "Value"]

#: Functions of more constants than this read them from a table.
_FEW_CONSTANTS = 4

#: What vrangeps is asked for: the operand of the smaller magnitude, with the sign bit set.
_NEGATIVE_SMALLER_SIZE = 0b1110

_ROUND_MAGIC = 12582912.0  # 1.5 * 2^23: the sum with it has no room for a fraction


class Value:
    """A vector of float32 (or of equally many int32 or bits) of a function under construction."""

    def __init__(self, body: Body, name: str) -> None:
        self.body, self.name = body, name

    def __add__(self, other: Value | float) -> Value:
        return self.body.float_op("fadd", self, other)

    def __sub__(self, other: Value | float) -> Value:
        return self.body.float_op("fsub", self, other)

    def __rsub__(self, other: float) -> Value:
        return self.body.float_op("fsub", other, self)

    def __mul__(self, other: Value | float) -> Value:
        return self.body.float_op("fmul", self, other)

    def __truediv__(self, other: Value | float) -> Value:
        return self.body.float_op("fdiv", self, other)

    def __rtruediv__(self, other: float) -> Value:
        return self.body.float_op("fdiv", other, self)

    def __neg__(self) -> Value:
        return self.body.emit(f"fneg {self.body.float} {self.name}")


class Body:
    """The instructions of one LLVM function, over vectors of `lanes` numbers (scalars for 1).

    Constants are written where they are used, or, in a `hidden` body, loaded from a table whose address LLVM does not
    know: it would otherwise keep them in registers across the whole kernel, at the expense of what is summed there.
    """

    def __init__(self, lanes: int, *, hidden: bool) -> None:
        self.lanes, self.hidden = lanes, hidden
        self.lines: list[str] = []
        self.declarations: set[str] = set()
        self.constants: dict[str, str] = {}
        self.float, self.int, self.bool = (f"<{lanes} x {t}>" if lanes > 1 else t for t in ("float", "i32", "i1"))
        self.truth = "splat (i1 true)" if lanes > 1 else "true"
        #: Vectors of 16 lanes exist in AVX-512 alone.
        self.has_avx512 = lanes == 16
        self.suffix = f"v{lanes}f32" if lanes > 1 else "f32"

    # ---- instructions ----

    def emit(self, instruction: str) -> Value:
        """Append an instruction and name its result."""
        name = f"%v{len(self.lines)}"
        self.lines.append(f"  {name} = {instruction}")
        return Value(self, name)

    def float_op(self, op: str, a: Value | float, b: Value | float) -> Value:
        """An instruction of two float32 operands."""
        return self.emit(f"{op} {self.float} {self.operand(a)}, {self.operand(b)}")

    def int_op(self, op: str, a: Value | int, b: Value | int) -> Value:
        """An instruction of two int32 operands."""
        left, right = (value.name if isinstance(value, Value) else self.integer(value) for value in (a, b))
        return self.emit(f"{op} {self.int} {left}, {right}")

    def intrinsic(self, name: str, *operands: Value | float) -> Value:
        """A call of `llvm.name` on float32 operands, with a float32 result."""
        symbol = f"@llvm.{name}.{self.suffix}"
        self.declarations.add(f"declare {self.float} {symbol}({', '.join([self.float] * len(operands))})\n")
        arguments = ", ".join(f"{self.float} {self.operand(operand)}" for operand in operands)
        return self.emit(f"call {self.float} {symbol}({arguments})")

    def multiply_add(self, a: Value | float, b: Value | float, c: Value | float) -> Value:
        """`a * b + c`, in one rounding where the target fuses."""
        return self.intrinsic("fmuladd", a, b, c)

    # ---- operands ----

    def operand(self, value: Value | float) -> str:
        """The text of a float32 operand."""
        if isinstance(value, Value):
            return value.name
        rounded = struct.unpack("f", struct.pack("f", value))[0]
        bits = struct.unpack(">Q", struct.pack(">d", rounded))[0]
        return self._constant(f"float 0x{bits:016X}", self.float)

    def integer(self, value: int) -> str:
        """The text of an int32 operand."""
        return self._constant(f"i32 {value}", self.int)

    def _constant(self, entry: str, dtype: str) -> str:
        scalar, number = entry.split()
        if entry in ("i32 0", "float 0x0000000000000000"):
            return "zeroinitializer" if self.lanes > 1 else number
        if entry not in self.constants:
            if not self.hidden:
                self.constants[entry] = f"splat ({entry})" if self.lanes > 1 else number
                return self.constants[entry]
            place = self.emit(f"getelementptr i8, ptr %table, i64 {4 * len(self.constants)}")
            value = self.emit(f"load {scalar}, ptr {place.name}, align 4")
            if self.lanes > 1:
                one = self.emit(f"insertelement {dtype} poison, {scalar} {value.name}, i64 0")
                value = self.emit(f"shufflevector {dtype} {one.name}, {dtype} poison, {self.int} zeroinitializer")
            self.constants[entry] = value.name
        return self.constants[entry]

    # ---- what functions are made of ----

    def bits(self, value: Value) -> Value:
        """The int32 with the same bits."""
        return self.emit(f"bitcast {self.float} {value.name} to {self.int}")

    def from_bits(self, value: Value) -> Value:
        """The float32 with the same bits."""
        return self.emit(f"bitcast {self.int} {value.name} to {self.float}")

    def to_float(self, value: Value) -> Value:
        """A signed int32 as float32."""
        return self.emit(f"sitofp {self.int} {value.name} to {self.float}")

    def polynomial(self, x: Value, *coefficients: float) -> Value:
        """Horner's rule, the coefficient of the highest power first."""
        total: Value | float = coefficients[0]
        for coefficient in coefficients[1:]:
            total = self.multiply_add(total, x, coefficient)
        assert isinstance(total, Value)
        return total

    def compare(self, comparison: str, a: Value, b: Value | float) -> Value:
        """Bits that say where `a comparison b` holds; ordered comparisons (olt, ...) are false for NaN."""
        return self.emit(f"fcmp {comparison} {self.float} {a.name}, {self.operand(b)}")

    def select(self, condition: Value, yes: Value | float, no: Value | float) -> Value:
        """`yes` where a bit is set, else `no`."""
        choices = ", ".join(f"{self.float} {self.operand(value)}" for value in (yes, no))
        return self.emit(f"select {self.bool} {condition.name}, {choices}")

    def where(self, comparison: str, a: Value, b: Value | float, yes: Value | float, no: Value | float) -> Value:
        """`yes` where `a comparison b` holds, else `no`."""
        return self.select(self.compare(comparison, a, b), yes, no)

    def unless(
        self, rare: Value, usual: Sequence[tuple[str, Value]], compute: Callable[[], Sequence[Value]]
    ) -> list[Value]:
        """The `usual` values, each after its type; vectors with a `rare` lane branch to what `compute` emits for it."""
        start, end = f"usual{len(self.lines)}", f"either{len(self.lines)}"
        self.lines.append(f"  br label %{start}\n{start}:")
        any_lane = rare
        if self.lanes > 1:
            bits = self.emit(f"bitcast {self.bool} {rare.name} to i{self.lanes}")
            any_lane = self.emit(f"icmp ne i{self.lanes} {bits.name}, 0")
        self.lines.append(f"  br i1 {any_lane.name}, label %rare_{start}, label %{end}\nrare_{start}:")
        chosen = [
            self.emit(f"select {self.bool} {rare.name}, {dtype} {value.name}, {dtype} {other.name}")
            for value, (dtype, other) in zip(compute(), usual, strict=True)
        ]
        self.lines.append(f"  br label %{end}\n{end}:")
        return [
            self.emit(f"phi {dtype} [ {value.name}, %{start} ], [ {other.name}, %rare_{start} ]")
            for other, (dtype, value) in zip(chosen, usual, strict=True)
        ]

    def absolute(self, x: Value) -> Value:
        """The magnitude."""
        return self.intrinsic("fabs", x)

    def with_sign_of(self, magnitude: Value | float, x: Value) -> Value:
        """`magnitude` with the sign of `x`."""
        return self.intrinsic("copysign", magnitude, x)

    def negative_size(self, x: Value, bound: float) -> Value:
        """-min(|x|, bound); minus the bound for NaN on some targets."""
        if not self.has_avx512:
            size = self.absolute(x)
            return -self.where("ogt", size, bound, bound, size)
        name, vector = "@llvm.x86.avx512.mask.range.ps.512", self.float
        self.declarations.add(f"declare {vector} {name}({vector}, {vector}, i32, {vector}, i16, i32)\n")
        smaller = f"{vector} {x.name}, {vector} {self.operand(bound)}, i32 {_NEGATIVE_SMALLER_SIZE}"
        return self.emit(f"call {vector} {name}({smaller}, {vector} zeroinitializer, i16 -1, i32 4)")

    def power_of_two(self, n: Value) -> Value:
        """2^n for int32 -127 < n < 128."""
        return self.from_bits(self.int_op("shl", self.int_op("add", n, 127), 23))

    def nearest(self, x: Value) -> Value:
        """The nearest integer, for |x| below 2^22."""
        if self.has_avx512:
            return self.intrinsic("rint", x)
        return x + _ROUND_MAGIC - _ROUND_MAGIC

    def to_int(self, x: Value) -> Value:
        """Integers, as float32, as int32."""
        return self.emit(f"fptosi {self.float} {x.name} to {self.int}")

    def scale(self, x: Value, n: Value) -> Value:
        """`x` * 2^n for integers -252 <= n <= 254, given as float32, with one rounding."""
        if self.has_avx512:
            return self.scale_normal(x, n)
        whole = self.to_int(n)
        half = self.int_op("ashr", whole, 1)
        return x * self.power_of_two(half) * self.power_of_two(self.int_op("sub", whole, half))

    def scale_normal(self, x: Value | float, n: Value) -> Value:
        """`x` * 2^n for integers -127 < n < 128, given as float32."""
        if self.has_avx512:
            name, vector = "@llvm.x86.avx512.mask.scalef.ps.512", self.float
            self.declarations.add(f"declare {vector} {name}({vector}, {vector}, {vector}, i16, i32)\n")
            arguments = f"{vector} {self.operand(x)}, {vector} {n.name}, {vector} zeroinitializer, i16 -1, i32 4"
            return self.emit(f"call {vector} {name}({arguments})")
        power = self.power_of_two(self.to_int(n))
        return power if x == 1.0 else power * x

    def divide(self, a: Value | float, b: Value) -> Value:
        """`a` / `b` for `b` neither tiny, huge nor infinite, to 1.5 units in the last place."""
        if not self.has_avx512:
            return self.float_op("fdiv", a, b)
        name, vector = "@llvm.x86.avx512.rcp14.ps.512", self.float
        self.declarations.add(f"declare {vector} {name}({vector}, {vector}, i16)\n")
        near = self.emit(f"call {vector} {name}({vector} {b.name}, {vector} zeroinitializer, i16 -1)")
        near = self.multiply_add(near, self.multiply_add(-b, near, 1.0), near)
        return near if a == 1.0 else near * a


def function_ir(symbol: str, definition: Definition, lanes: int) -> tuple[str, set[str]]:
    """The LLVM IR of `definition` as an `alwaysinline` function, and the declarations that it needs."""
    names = [f"%x{i}" for i in range(len(inspect.signature(definition).parameters) - 1)]
    body = Body(lanes, hidden=False)
    result = definition(body, *[Value(body, name) for name in names])
    table = ""
    if len(body.constants) > _FEW_CONSTANTS:
        body = Body(lanes, hidden=True)
        result = definition(body, *[Value(body, name) for name in names])
        fields = ", ".join(entry.split()[0] for entry in body.constants)
        table = f"@{symbol}_table = private unnamed_addr constant {{ {fields} }} {{ {', '.join(body.constants)} }}\n"
        body.lines.insert(0, f'  %table = call ptr asm sideeffect "", "=r,0"(ptr @{symbol}_table)')
    arguments = ", ".join(f"{body.float} {name}" for name in names)
    lines = "\n".join([*body.lines, f"  ret {body.float} {result.name}"])
    text = f"{table}define linkonce_odr {body.float} @{symbol}({arguments}) alwaysinline {{\n{lines}\n}}\n"
    return text, body.declarations
