"""LLVM IR that transposes a square of elements in registers, in log2(size) rounds of exchanging halves."""

from __future__ import annotations


def transposed(rows: list[str], vector: str) -> tuple[list[str], list[str]]:
    """The columns of the square whose rows are `rows`, values of the type `vector`, and the lines that compute them.

    The number of rows is that of a vector's elements, a power of two. The lines name values `%r<stage>_<row>`.
    """
    lines: list[str] = []
    for stage in range(len(rows).bit_length() - 1):
        rows = _exchanged(lines, rows, stage, vector)
    return rows, lines


def _exchanged(lines: list[str], rows: list[str], stage: int, vector: str) -> list[str]:
    """Exchange halves of blocks of 2 ** (stage + 1) elements between rows that are 2 ** stage apart."""
    size, bit = len(rows), 1 << stage
    exchanged = list(rows)
    for i in (i for i in range(size) if not i & bit):
        upper, lower = rows[i], rows[i | bit]
        masks = (
            (i, [j if not j & bit else size + (j & ~bit) for j in range(size)]),
            (i | bit, [j | bit if not j & bit else size + j for j in range(size)]),
        )
        for row, picks in masks:
            exchanged[row] = f"%r{stage}_{row}"
            mask = ", ".join(f"i32 {pick}" for pick in picks)
            lines.append(
                f"{exchanged[row]} = shufflevector {vector} {upper}, {vector} {lower}, <{size} x i32> <{mask}>"
            )
    return exchanged
