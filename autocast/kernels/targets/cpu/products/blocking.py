"""How a matrix product is cut up: register tiles, panels that fit the caches, and one task for each thread."""

from __future__ import annotations

import math
from dataclasses import dataclass

from autocast.kernels.specs.products import Product
from autocast.kernels.targets.cpu.instruction_sets import InstructionSet
from autocast.kernels.targets.cpu.vector.llvm_tiles import BLOCK, TILE

#: Rows of a register tile by instruction set and by vectors across: as many accumulators as leave room for operands.
_TILE_ROWS = {
    "amx": {2: 12, 1: 24},
    "avx512bf16": {3: 8, 4: 6, 2: 12, 1: 24},
    "avx512": {3: 8, 4: 6, 2: 12, 1: 24},
    "avx2": {2: 6, 1: 12},
    "generic": {2: 4, 1: 8},
}
#: Relative time of a tile by vectors across; narrow tiles load more of A for each product.
_TILE_COST = {3: 1.0, 4: 1.02, 2: 1.05, 1: 1.5}

#: The part of B that is packed at once stays in the level-2 cache; where it is more than a third of that, pages that
#: happen to share places evict each other. Where A is packed too, that is done once for all these panels, so there are
#: to be many: they come from the last cache one by one.
_PACKED_B_BYTES = {"in place": 300 << 10, "packed": 3 << 20}
#: The same for the matrix unit, next to which packing takes longer: processors that have one have 2 MiB at that level.
_TILES_B_BYTES = 1 << 20
#: Words along k that are summed in registers before partial sums are stored, for A read in place and for A packed.
_K_WORDS = {"in place": 1536, "packed": 1024}
_K_BLOCK = 512
#: Rows of A that are packed together, where A is packed.
_PACKED_ROWS = 128
#: Up to so many rows of A, B is read as it lies instead of being packed: many where its rows run along k, or where its
#: words are what is multiplied; few where they are pairs, which lie in two of its rows.
_FEW_ROWS, _FEW_ROWS_OF_PAIRS = 16, 4
#: The matrix unit multiplies parts of packed B that were fetched into the level-2 cache while it multiplied the ones
#: before. Where the rows of A take more than half of that cache, a part is a block of k of more panels; few tiles of
#: rows are multiplied with small parts.
_FETCHED_B_BYTES = {"few tiles": 128 << 10, "few rows": 256 << 10, "many rows": 512 << 10}
_FEW_TILES, _MANY_ROWS_BYTES = 8, 1 << 20
#: With more tiles of rows, multiplying takes so much longer than reading that larger parts are better, not fetched;
#: and how many share the fetching where their number is known at run time only.
_FETCHING_TILES = {"most": 16, "unknown": 8}
#: Words in a cache line, and bytes of a word.
LINE, _WORD_BYTES = 16, 4
#: Up to so many tiles of rows, packed B comes from memory as fast as it is multiplied. It is then read in the order in
#: which it lies there, one panel at a time.
_STREAMED_TILES = 4
#: From so many rows on, multiplying takes longer than reading, which happens behind it. With fewer there is nothing
#: to do but read, and the processor's own fetching does that best.
_FETCHED_ROWS = 6
#: Up to so many rows, vectors multiply a packed B as fast as the matrix unit, which computes 16 at a time.
_ROWS_OF_VECTORS = 4
#: Products smaller than this many multiplications are not worth waking another thread.
_SMALL = 1 << 17


@dataclass(frozen=True)
class Blocking:
    """The sizes of everything, known when code is generated.

    Attributes
    ----------
    tile_rows, tile_vectors
        The register tile: rows of A by vectors of B.
    panel
        Columns of a packed panel of B: `tile_vectors * lanes`.
    k_words
        Words along k of one block; more than one block means partial sums in memory.
    panels
        Panels of B that are packed and used together.
    group
        Tiles of rows that are packed together where A is packed.
    row_tasks, column_tasks
        How many tasks share one matrix product, by rows and by columns.
    fetched
        How many cache lines of the next block of packed B each tile of rows fetches while it is multiplied: with each
        word along k, or with each tile of words of the matrix unit. 0: nothing is fetched.
    tiles
        Whether the matrix unit multiplies, whose tiles are whole: `tile_rows` is 16 or 32 then.
    """

    tile_rows: int
    tile_vectors: int
    panel: int
    k_words: int
    panels: int
    group: int
    row_tasks: int
    column_tasks: int
    fetched: int
    tiles: bool = False


@dataclass(frozen=True)
class Way:
    """What a measurement decides about a blocking; None: what the rules below say.

    Attributes
    ----------
    tile_vectors, k_words, tasks
        As in a Blocking; `tasks` by rows and by columns.
    """

    tile_vectors: int | None = None
    k_words: int | None = None
    tasks: tuple[int, int] | None = None


#: The way of the rules below.
RULES = Way()


def ways_of(spec: Product, isa: InstructionSet, cores: int) -> dict[str, Way]:
    """Ways to compute a product whose sizes are known, by names; a packed weight's panels are as it was packed."""
    pairs = multiplies_pairs(spec, isa)
    if None in (spec.m, spec.n, spec.k, *spec.batch_dims) or has_few_rows(spec, pairs=pairs):
        return {}
    vectors = () if spec.b_packed else sorted(_TILE_ROWS[isa.name])
    splits = {(1, 1), *((rows, cores // rows) for rows in range(1, cores + 1) if cores % rows == 0)}
    return {
        **{f"{count} vectors": Way(tile_vectors=count) for count in vectors},
        **{f"{rows} x {columns} tasks": Way(tasks=(rows, columns)) for rows, columns in sorted(splits)},
        **{f"{words} words": Way(k_words=words) for words in (256, 512, 1024) if words * (1 + pairs) < (spec.k or 0)},
    }


def panel_vectors(n: int | None, isa: InstructionSet) -> int:
    """Vectors across a panel of B: those that pad n least."""
    if n is None:
        return 2
    return min(_TILE_ROWS[isa.name], key=lambda v: (_padded(n, v * isa.lanes) * _TILE_COST[v], v))


def choose_blocking(
    spec: Product, isa: InstructionSet, cores: int, *, pairs: bool, a_in_place: bool, way: Way = RULES
) -> Blocking:
    """The blocking of `spec`: the least padding for its n, tiles of equal height for its m, tasks that repack least."""
    lanes = isa.lanes
    vectors = way.tile_vectors or panel_vectors(spec.n, isa)
    panel = vectors * lanes
    tiles = pairs and isa.tiles and (spec.m is None or spec.m > _ROWS_OF_VECTORS)
    tile_rows = _TILE_ROWS[isa.name][vectors]
    if tiles:
        tile_rows = TILE if spec.m is not None and spec.m <= TILE else TILE * BLOCK
    elif spec.m is not None:
        tile_rows = math.ceil(spec.m / math.ceil(spec.m / tile_rows))
    row_tasks, column_tasks = way.tasks or _tasks(spec, panel, cores, a_in_place)
    row_tiles = None if spec.m is None else math.ceil(spec.m / tile_rows / row_tasks)
    words = None if spec.k is None else math.ceil(spec.k / (2 if pairs else 1))
    is_ready = spec.b_packed and a_in_place  # nothing is packed
    shares = _FETCHING_TILES["unknown"] if row_tiles is None else row_tiles
    is_fetched = tiles and is_ready and words is not None and 1 < shares <= _FETCHING_TILES["most"]
    mode = "in place" if a_in_place else "packed"
    most, packed_bytes = _K_WORDS[mode], _TILES_B_BYTES if tiles else _PACKED_B_BYTES[mode]
    if words is not None and is_fetched:
        many = row_tiles is None or row_tiles * tile_rows * words * _WORD_BYTES > _MANY_ROWS_BYTES
        few = row_tiles is not None and row_tiles <= _FEW_TILES
        size = "few tiles" if few else "many rows" if many else "few rows"
        most, packed_bytes = _K_BLOCK if many else words, _FETCHED_B_BYTES[size]
    k_words = _K_BLOCK
    if words is not None and words <= (way.k_words or most):
        k_words = words
    else:
        packed_bytes = packed_bytes if tiles else _PACKED_B_BYTES["in place"]
        if words is not None:
            k_words = math.ceil(words / math.ceil(words / (way.k_words or _K_BLOCK)))
    k_words = _padded(k_words, lanes)
    panels = max(1, packed_bytes // (k_words * panel * _WORD_BYTES))
    if spec.n is not None:
        panels = min(panels, math.ceil(math.ceil(spec.n / panel) / column_tasks))
    fetched = math.ceil(panel / shares) if is_fetched else 0
    if is_ready and not is_fetched and row_tasks == 1 and (spec.m or math.inf) <= _STREAMED_TILES * tile_rows:
        panels = 1
        if spec.m is not None and not tiles and spec.m >= _FETCHED_ROWS:
            fetched = math.ceil(panel / (math.ceil(spec.m / tile_rows) * LINE))
    group = max(1, _PACKED_ROWS // tile_rows)
    return Blocking(tile_rows, vectors, panel, k_words, panels, group, row_tasks, column_tasks, fetched, tiles)


def has_few_rows(spec: Product, *, pairs: bool) -> bool:
    """Whether so few rows are multiplied that packing B for them does not pay."""
    if spec.m is None or spec.b_packed or (spec.transpose_a and spec.m > 1):
        return False
    return spec.m <= (_FEW_ROWS_OF_PAIRS if pairs and not spec.transpose_b else _FEW_ROWS)


def packs_rows_again(spec: Product, isa: InstructionSet, cores: int) -> bool:
    """Whether rows of A that could be read in place, were they float32, are packed for several groups of panels.

    Packing widens them, each time: on AVX2 products of bfloat16 took 1.4 of the time of those of float32.
    """
    pairs = multiplies_pairs(spec, isa)
    if pairs or spec.a_dtype == "float32" or spec.transpose_a or has_few_rows(spec, pairs=pairs):
        return False
    blocking = choose_blocking(spec, isa, cores, pairs=pairs, a_in_place=False)
    panels = math.ceil(spec.n / blocking.panel / blocking.column_tasks) if spec.n else math.inf
    return panels > blocking.panels


def few_rows_blocking(spec: Product, isa: InstructionSet, cores: int) -> Blocking:
    """The blocking of a product with few rows: three quarters of the registers hold sums."""
    rows, sums = spec.m or 1, isa.registers * 3 // 4
    tallest = sums // 4 if spec.transpose_b else sums // 3
    height = math.ceil(rows / math.ceil(rows / tallest))
    vectors = (1 if rows == 1 else 4) if spec.transpose_b else min(8, sums // height)
    panel = isa.lanes * (1 if spec.transpose_b else vectors)
    column_tasks = cores if (spec.n or 512) * (spec.k or 512) >= _SMALL // 4 and not spec.batch_dims else 1
    return Blocking(height, vectors, panel, 0, 1, 1, 1, column_tasks, fetched=0)


def _padded(extent: int, multiple: int) -> int:
    return math.ceil(extent / multiple) * multiple


def _tasks(spec: Product, panel: int, cores: int, a_in_place: bool) -> tuple[int, int]:
    """Tasks by rows and by columns: each packs its own part of B (and of A), so the split that repeats least wins."""
    m, n, k = spec.m or 512, spec.n or 512, spec.k or 512
    known = [extent for extent in spec.batch_dims if extent is not None]
    batch = math.prod(known) if len(known) == len(spec.batch_dims) else None
    per_matrix = m * n * k
    if cores == 1 or per_matrix < _SMALL:
        return 1, 1
    if spec.batch_dims and (batch is None or batch % cores == 0 or batch >= 4 * cores) and per_matrix < (1 << 26):
        return 1, 1

    def repacked(split: tuple[int, int]) -> float:
        rows, columns = split
        idle = math.ceil(m / rows) * rows / m + math.ceil(n / panel / columns) * columns * panel / n
        return (
            (0.1 if spec.b_packed else 1.0) * rows * n
            + columns * m * (0.25 if a_in_place else 1.0)
            + (idle - 2) * 64 * (m + n)
        )

    splits = [(r, cores // r) for r in range(1, cores + 1) if cores % r == 0]
    return min(splits, key=repacked)


def multiplies_pairs(spec: Product, isa: InstructionSet) -> bool:
    """Whether the vector unit multiplies pairs of bfloat16, rather than float32 numbers."""
    return spec.compute_dtype == "bfloat16" and isa.bf16_dot
