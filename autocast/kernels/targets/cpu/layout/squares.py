"""LLVM IR that transposes a small block in registers: rows in, columns out, converted on the way.

Elements of 8 and 16 bits are first interleaved in pairs of rows, so that what is exchanged is wider and whole cache
lines are stored.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from autocast.kernels.storage import BITS
from autocast.kernels.targets.cpu.instruction_sets import InstructionSet
from autocast.kernels.targets.cpu.vector.llvm_transpose import transposed


@dataclass(frozen=True)
class Square:
    """A block that is transposed in registers.

    Attributes
    ----------
    size
        Elements of a row that is read.
    pairs
        Whether rows are interleaved in pairs first: 2 `size` rows are read, and 2 `size` elements of a row written.
    storage, result
        The dtypes that are read and written.
    streamed
        Whether stores go past the caches; rows of the result must then be aligned to 64 bytes.
    """

    size: int
    pairs: bool
    storage: str
    result: str
    streamed: bool = False

    @property
    def rows(self) -> int:
        """Rows that are read: elements of a row that is written."""
        return self.size * (2 if self.pairs else 1)

    @property
    def name(self) -> str:
        """The LLVM function `name(source, elements between rows, destination, elements between rows)`."""
        stream = "_streamed" if self.streamed else ""
        return f"autocast_square_{self.rows}x{self.size}_{self.storage}_{self.result}{stream}"


def square_for(isa: InstructionSet, storage: str, result: str, rows: int, columns: int) -> Square | None:
    """The largest square for a matrix that has at least `rows` x `columns` elements; None if no square is worth it."""
    bits = BITS[result]
    largest = {8: 16, 16: isa.lanes, 32: isa.lanes, 64: max(isa.lanes // 2, 2)}[bits]
    size = largest
    while size > min(rows, columns):
        size //= 2
    if size < 2 or (storage != result and size != isa.lanes):
        return None
    return Square(size, bits < 32 and rows >= 2 * size, storage, result)


@cache
def square_ir(square: Square) -> str:
    """The definition of `square.name`; conversions need `llvm_ir.conversions_and_accesses`."""
    size, bits = square.size, BITS[square.result]
    body = _loads(square)
    rows = [f"%in{i}" for i in range(square.rows)]
    if square.pairs:
        body += _interleave(rows, size, bits)
        rows, bits = [f"%pair{i}" for i in range(size)], 2 * bits
    vector = f"<{size} x i{bits}>"
    columns, exchanges = transposed(rows, vector)
    body += exchanges
    element = f"i{BITS[square.result]}"
    suffix = "align 64, !nontemporal !{i32 1}" if square.streamed else f"align {BITS[square.result] // 8}"
    for i in range(size):
        body += [
            f"%skip{i} = mul i64 %write, {i}",
            f"%to{i} = getelementptr {element}, ptr %dst, i64 %skip{i}",
            f"store {vector} {columns[i]}, ptr %to{i}, {suffix}",
        ]
    arguments = "ptr %src, i64 %read, ptr %dst, i64 %write"
    return (
        "\n  ".join([f"define linkonce_odr void @{square.name}({arguments}) alwaysinline {{", *body, "ret void"])
        + "\n}\n"
    )


def _loads(square: Square) -> list[str]:
    """Rows of the source as integers of the result's width."""
    size, result = square.size, f"<{square.size} x i{BITS[square.result]}>"
    stored, floats = f"<{size} x i{BITS[square.storage]}>", f"<{size} x float>"
    lines = []
    for i in range(square.rows):
        lines += [
            f"%from_skip{i} = mul i64 %read, {i}",
            f"%from{i} = getelementptr i{BITS[square.storage]}, ptr %src, i64 %from_skip{i}",
        ]
        if square.storage == square.result:
            lines.append(f"%in{i} = load {stored}, ptr %from{i}, align {BITS[square.storage] // 8}")
            continue
        lines.append(f"%wide{i} = call {floats} @autocast_load_{square.storage}(ptr %from{i})")
        if square.result == "float32":
            lines.append(f"%in{i} = bitcast {floats} %wide{i} to {result}")
        else:
            lines.append(f"%in{i} = call {result} @autocast_narrow_{square.result}({floats} %wide{i})")
    return lines


def _interleave(rows: list[str], size: int, bits: int) -> list[str]:
    """Rows 2 i and 2 i + 1, element by element, as one row of elements twice as wide."""
    mask = ", ".join(f"i32 {j + half * size}" for j in range(size) for half in (0, 1))
    row, pair = f"<{size} x i{bits}>", f"<{2 * size} x i{bits}>"
    lines = []
    for i in range(size):
        low, high = rows[2 * i], rows[2 * i + 1]
        lines += [
            f"%mixed{i} = shufflevector {row} {low}, {row} {high}, <{2 * size} x i32> <{mask}>",
            f"%pair{i} = bitcast {pair} %mixed{i} to <{size} x i{2 * bits}>",
        ]
    return lines
