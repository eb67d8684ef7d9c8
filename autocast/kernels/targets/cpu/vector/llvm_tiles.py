"""LLVM IR for the matrix unit of x86 (AMX): products of tiles, which are registers of 16 rows of 16 words of 32 bits.

A word of an operand is a pair of bfloat16 that follow each other along k, one of the sums is a float32 number. A tile
of A has rows of words along k; one of B is 16 rows of words along k, as panels of B are packed. LLVM allocates no tile
registers here: they are named by number, 0 to 3 for sums, 4 and 5 for A, 6 and 7 for B.
"""

from __future__ import annotations

from functools import cache

from autocast.kernels.targets.cpu.vector.llvm_transpose import transposed

#: Rows of a tile, words in one of its rows, and the most tiles of sums along each side of a block.
TILE, BLOCK = 16, 2

_ROW_BYTES = 4 * TILE


def _configuration() -> str:
    """The 64 bytes that say that all eight tiles have 16 rows of 64 bytes (palette 1)."""
    columns = [_ROW_BYTES, 0] * 8 + [0] * 16
    values = [1, 0, *[0] * 14, *columns, *[TILE] * 8, *[0] * 8]
    return ", ".join(f"i8 {value}" for value in values)


# What another library has configured on this thread, oneDNN for torch, is put back: it may remember that it did.
_SETUP = f"""
declare void @llvm.x86.ldtilecfg(ptr)
declare void @llvm.x86.sttilecfg(ptr)
declare void @llvm.x86.tilezero(i8)
declare void @llvm.x86.tileloadd64(i8, ptr, i64)
declare void @llvm.x86.tilestored64(i8, ptr, i64)
declare void @llvm.x86.tdpbf16ps(i8, i8, i8)
declare void @llvm.prefetch.p0(ptr, i32, i32, i32)
@autocast_tiles = linkonce_odr constant [64 x i8] [{_configuration()}]
define linkonce_odr void @autocast_tiles_begin(ptr %before) alwaysinline {{
  call void @llvm.x86.sttilecfg(ptr %before)
  call void @llvm.x86.ldtilecfg(ptr @autocast_tiles)
  ret void
}}
define linkonce_odr void @autocast_put_words(ptr %p, <{TILE} x i32> %x) alwaysinline {{
  store <{TILE} x i32> %x, ptr %p, align 4
  ret void
}}
define linkonce_odr void @autocast_tiles_end(ptr %before) alwaysinline {{
  call void @llvm.x86.ldtilecfg(ptr %before)
  ret void
}}
"""


def _product(rows: int, columns: int) -> str:
    """The function that stores `rows` x `columns` tiles of sums of products over `count` tiles along k.

    Where it `continues`, sums begin with those that are stored there, else with zeros.

    A's rows are `pitch` bytes apart, its tiles along k `step` bytes, and its second tile of rows `skip` bytes from the
    first; B's rows `width` bytes, as those of the sums. With each tile along k it fetches `lines` lines into the second
    cache: those `ahead` bytes behind B's tile. Their number is a constant where it is called, so LLVM unrolls that.
    Its numbers have 32 bits: TVM narrows those of 64 where it can, and a call of another type is not inlined.
    """
    sums = [(row, column, row * columns + column) for row in range(rows) for column in range(columns)]
    lines = [
        f"define linkonce_odr void @autocast_tiles_{rows}x{columns}"
        "(ptr %a, i32 %pitch32, i32 %step32, i32 %skip32, ptr %b, i32 %width32, i32 %count, "
        "ptr %sums, i32 %continues, i32 %lines, i32 %ahead32) alwaysinline {",
        "entry:",
        *(f"%{name} = sext i32 %{name}32 to i64" for name in ("pitch", "step", "skip", "width", "ahead")),
        f"%b_step = mul i64 %width, {TILE}",
        *(line for row, column, tile in sums for line in _address(tile, row, column)),
        "%loads = icmp ne i32 %continues, 0",
        "br i1 %loads, label %load, label %zero",
        "load:",
        *(f"call void @llvm.x86.tileloadd64(i8 {tile}, ptr %at{tile}, i64 %width)" for _, _, tile in sums),
        "br label %start",
        "zero:",
        *(f"call void @llvm.x86.tilezero(i8 {tile})" for _, _, tile in sums),
        "br label %start",
        "start:",
        "%any = icmp sgt i32 %count, 0",
        "br i1 %any, label %loop, label %end",
        "loop:",
        "%i = phi i32 [0, %start], [%i_next, %next]",
        "%a0 = phi ptr [%a, %start], [%a_next, %next]",
        "%b0 = phi ptr [%b, %start], [%b_next, %next]",
        "%a1 = getelementptr i8, ptr %a0, i64 %skip",
        f"%b1 = getelementptr i8, ptr %b0, i64 {_ROW_BYTES}",
        *(f"call void @llvm.x86.tileloadd64(i8 {6 + i}, ptr %b{i}, i64 %width)" for i in range(columns)),
        *(f"call void @llvm.x86.tileloadd64(i8 {4 + i}, ptr %a{i}, i64 %pitch)" for i in range(rows)),
        *(f"call void @llvm.x86.tdpbf16ps(i8 {tile}, i8 {4 + row}, i8 {6 + column})" for row, column, tile in sums),
        "br label %fetch",
        "fetch:",
        "%line = phi i32 [0, %loop], [%line_next, %fetch_one]",
        "%fetches = icmp slt i32 %line, %lines",
        "br i1 %fetches, label %fetch_one, label %next",
        "fetch_one:",
        "%line64 = sext i32 %line to i64",
        f"%line_start = mul i64 %line64, {_ROW_BYTES}",
        "%distance = add i64 %line_start, %ahead",
        "%fetched = getelementptr i8, ptr %b0, i64 %distance",
        "call void @llvm.prefetch.p0(ptr %fetched, i32 0, i32 2, i32 1)",
        "%line_next = add i32 %line, 1",
        "br label %fetch",
        "next:",
        "%a_next = getelementptr i8, ptr %a0, i64 %step",
        "%b_next = getelementptr i8, ptr %b0, i64 %b_step",
        "%i_next = add i32 %i, 1",
        "%more = icmp slt i32 %i_next, %count",
        "br i1 %more, label %loop, label %end",
        "end:",
        *(f"call void @llvm.x86.tilestored64(i8 {tile}, ptr %at{tile}, i64 %width)" for _, _, tile in sums),
        "ret void",
    ]
    return "\n  ".join(lines) + "\n}\n"


def _address(tile: int, row: int, column: int) -> list[str]:
    """Lines that compute where a tile of sums is stored."""
    return [
        f"%row{tile} = mul i64 %b_step, {row}",
        f"%to{tile} = add i64 %row{tile}, {column * _ROW_BYTES}",
        f"%at{tile} = getelementptr i8, ptr %sums, i64 %to{tile}",
    ]


def _turn() -> str:
    """The function that transposes a square of words: packed columns become rows."""
    vector = f"<{TILE} x i32>"
    lines = [
        "define linkonce_odr void @autocast_turn(ptr %src, i64 %from_pitch, ptr %dst, i64 %to_pitch) alwaysinline {"
    ]
    for i in range(TILE):
        lines += [
            f"%skip{i} = mul i64 %from_pitch, {i}",
            f"%from{i} = getelementptr i32, ptr %src, i64 %skip{i}",
            f"%word{i} = load {vector}, ptr %from{i}, align 4",
        ]
    columns, exchanges = transposed([f"%word{i}" for i in range(TILE)], vector)
    lines += exchanges
    for i, column in enumerate(columns):
        lines += [
            f"%to_skip{i} = mul i64 %to_pitch, {i}",
            f"%to{i} = getelementptr i32, ptr %dst, i64 %to_skip{i}",
            f"store {vector} {column}, ptr %to{i}, align 4",
        ]
    return "\n  ".join([*lines, "ret void"]) + "\n}\n"


@cache
def tiles_ir() -> str:
    """LLVM IR of setting up the tiles, of products of blocks of them, and of the turn of a square of words."""
    shapes = [(rows, columns) for rows in range(1, BLOCK + 1) for columns in range(1, BLOCK + 1)]
    return _SETUP + "".join(_product(*shape) for shape in shapes) + _turn()
