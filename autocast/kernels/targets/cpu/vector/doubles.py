"""Instructions on as many float64 numbers as a function under construction has float32 lanes."""

from __future__ import annotations

import struct

from autocast.kernels.targets.cpu.vector.function_body import Body, Value


class Doubles:
    """What a body does in float64; operands are values that this class made, and numbers."""

    def __init__(self, body: Body) -> None:
        self.body, lanes = body, body.lanes
        self.type = f"<{lanes} x double>" if lanes > 1 else "double"
        self.int = f"<{lanes} x i64>" if lanes > 1 else "i64"
        self.suffix = f"v{lanes}f64" if lanes > 1 else "f64"

    def operand(self, value: Value | float) -> str:
        if isinstance(value, Value):
            return value.name
        constant = f"0x{struct.unpack('>Q', struct.pack('>d', value))[0]:016X}"
        return f"splat (double {constant})" if self.body.lanes > 1 else constant

    def op(self, op: str, a: Value | float, b: Value | float) -> Value:
        return self.body.emit(f"{op} {self.type} {self.operand(a)}, {self.operand(b)}")

    def intrinsic(self, name: str, *operands: Value | float) -> Value:
        symbol = f"@llvm.{name}.{self.suffix}"
        self.body.declarations.add(f"declare {self.type} {symbol}({', '.join([self.type] * len(operands))})\n")
        arguments = ", ".join(f"{self.type} {self.operand(operand)}" for operand in operands)
        return self.body.emit(f"call {self.type} {symbol}({arguments})")

    def widened(self, x: Value) -> Value:
        return self.body.emit(f"fpext {self.body.float} {x.name} to {self.type}")

    def narrowed(self, x: Value) -> Value:
        return self.body.emit(f"fptrunc {self.type} {x.name} to {self.body.float}")

    def low_bits(self, x: Value) -> Value:
        bits = self.body.emit(f"bitcast {self.type} {x.name} to {self.int}")
        return self.body.emit(f"trunc {self.int} {bits.name} to {self.body.int}")
