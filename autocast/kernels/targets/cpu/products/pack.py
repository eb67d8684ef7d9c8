"""Packing: strips of an operand, as rows of 32-bit words along k, converted and padded with zeros on the way."""

from __future__ import annotations

from dataclasses import dataclass

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from autocast.kernels.extents import Extent, ceil_div, i32, i64
from autocast.kernels.targets.cpu.vector.unit import VectorUnit


@dataclass(frozen=True)
class Source:
    """One stored matrix of an operand, seen as columns (rows of A, or columns of B) by k.

    Attributes
    ----------
    view
        The operand's memory as a flat buffer of its storage dtype.
    base
        Where the matrix begins in it.
    columns, k
        Its extents; `stride` is the distance between its stored rows.
    along_k
        Whether stored rows run along k (A as (m, k), B as (n, k)) or along the columns.
    pairs
        Whether a word is a pair of bfloat16 along k, or a float32 number.
    """

    view: tirx.Buffer
    base: tirx.Expr
    columns: Extent
    k: Extent
    stride: Extent
    along_k: bool
    pairs: bool

    @property
    def per_word(self) -> int:
        """Elements along k in a word."""
        return 2 if self.pairs else 1

    def snippet(self, verb: str, part: bool) -> str:
        """The name of the LLVM function that packs from this storage dtype to this kind of word."""
        compute = "bfloat16" if self.pairs else "float32"
        return f"autocast_{verb}_{self.view.dtype}_{compute}" + ("_part" if part else "")


@dataclass(frozen=True)
class Strip:
    """A place for `width` columns of packed words: word (k, column) is at `offset + k * width + column` of `buffer`.

    With `row`, that is the distance between two rows of words, of which the strip is a part.
    With `apart`, each vector of columns is a strip of its own, `apart` words after the one before: then what a narrow
    tile reads lies together, while wide rows of the source are read at once.
    """

    buffer: tirx.Buffer
    offset: Extent
    width: int
    apart: Extent | None = None
    row: int | None = None

    def pitch(self, lanes: int) -> int:
        """The distance between two rows of words."""
        if self.row is not None:
            return self.row
        return self.width if self.apart is None else lanes

    def place(self, k: Extent, vector: Extent, lanes: int) -> tirx.Expr:
        """Where words k of a vector of columns are."""
        skip = lanes if self.apart is None else self.apart
        return i64(self.offset) + k * self.pitch(lanes) + vector * skip


def pack_strip(
    unit: VectorUnit,
    source: Source,
    column: Extent,
    strip: Strip,
    k_first: Extent,
    k_words: Extent,
    *,
    exact: bool,
    padded: bool = False,
) -> None:
    """Emit code that packs `strip.width` columns from `column` on, and `k_words` words from element `k_first` of k on.

    What lies beyond the end of k is packed as zeros, what lies beyond the last column as anything. A strip must have
    room for `k_words` rounded up to whole vectors.

    Parameters
    ----------
    exact
        Whether the columns are known to lie inside the matrix.
    padded
        Whether there may be more words than k has: whole vectors of them.
    """
    if source.along_k:
        _pack_across(unit, source, column, strip, k_first, k_words, exact)
    else:
        _pack_along(unit, source, column, strip, k_first, k_words, exact, padded)


def _pack_across(
    unit: VectorUnit, source: Source, column: Extent, strip: Strip, k_first: Extent, k_words: Extent, exact: bool
) -> None:
    lanes = unit.lanes
    k_step = lanes * source.per_word
    k_exact = isinstance(source.k, int) and source.k % k_step == 0

    def square(block: tirx.Expr, vector: tirx.Expr, part: bool) -> None:
        first = T.bind(i64(column) + vector * lanes)
        k_at = T.bind(i64(k_first) + block * k_step)
        edge = [i32(source.columns - first), i32(source.k - k_at)] if part else []
        T.evaluate(
            tirx.call_extern(
                "void",
                source.snippet("across", part),
                T.address_of(source.view[source.base + first * source.stride + k_at]),
                i64(source.stride),
                T.address_of(strip.buffer[strip.place(block * lanes, vector, lanes)]),
                i64(strip.pitch(lanes)),
                *edge,
            )
        )

    # Loops in the generated code, not here: a square is hundreds of instructions, and LLVM's time adds up.
    with T.serial(0, i64(ceil_div(k_words, lanes))) as block, T.serial(0, i64(strip.width // lanes)) as vector:
        if exact and k_exact:
            square(block, vector, part=False)
            return
        inside = i64(column) + (vector + 1) * lanes <= i64(source.columns)
        k_inside = i64(k_first) + (block + 1) * k_step <= i64(source.k)
        with T.If(k_inside if exact else inside if k_exact else tirx.all(inside, k_inside)):
            with T.Then():
                square(block, vector, part=False)
            with T.Else():
                square(block, vector, part=True)


def _pack_along(
    unit: VectorUnit,
    source: Source,
    column: Extent,
    strip: Strip,
    k_first: Extent,
    k_words: Extent,
    exact: bool,
    padded: bool,
) -> None:
    lanes = unit.lanes
    k_exact = isinstance(source.k, int) and source.k % (source.per_word * (lanes if padded else 1)) == 0

    def row(word: tirx.Expr, part: bool) -> None:
        k_at = T.bind(i64(k_first) + word * source.per_word)
        for vector in range(strip.width // lanes):
            first = T.bind(i64(column) + vector * lanes)
            edge = [i32(source.columns - first), i32(source.k - k_at)] if part else []
            T.evaluate(
                tirx.call_extern(
                    "void",
                    source.snippet("along", part),
                    T.address_of(source.view[source.base + k_at * source.stride + first]),
                    i64(source.stride),
                    T.address_of(strip.buffer[strip.place(word, vector, lanes)]),
                    *edge,
                )
            )

    def whole() -> None:
        words = (
            i64(k_words) if k_exact else T.bind(tirx.min(i64(k_words), (i64(source.k) - k_first) // source.per_word))
        )
        with T.serial(0, words) as word:
            row(word, part=False)
        if not k_exact:
            with T.serial(words, i64(k_words)) as word:
                row(word, part=True)

    if exact:
        whole()
        return
    with T.If(i64(column) + strip.width <= i64(source.columns)):
        with T.Then():
            whole()
        with T.Else(), T.serial(0, i64(k_words)) as word:
            row(word, part=True)
