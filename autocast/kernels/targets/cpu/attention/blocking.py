"""How attention is cut up: register tiles, blocks of keys that fit the first cache, tasks for threads."""

from __future__ import annotations

import math
from dataclasses import dataclass

from autocast.kernels.specs.attention import Attention
from autocast.kernels.specs.sizes import known
from autocast.kernels.targets.cpu.instruction_sets import InstructionSet
from autocast.kernels.targets.cpu.vector.llvm_tiles import BLOCK, TILE

#: Rows of a register tile by instruction set and by vectors of queries across.
_TILE_ROWS = {
    "amx": {4: 6, 3: 8, 2: 12, 1: 16},
    "avx512bf16": {4: 6, 3: 8, 2: 12, 1: 16},
    "avx512": {4: 6, 3: 8, 2: 12, 1: 16},
    "avx2": {2: 6, 1: 12},
    "generic": {2: 4, 1: 8},
}
#: Relative time of a tile by vectors across.
_TILE_COST = {4: 1.0, 3: 1.0, 2: 1.05, 1: 1.5}

#: The scores of a block of keys take about so many bytes.
_SCORE_BYTES = 48 << 10
#: Fewer tasks than this for each core share the work unevenly, if they are not a multiple of the cores.
_TASKS_PER_CORE = 4
#: A task that owns fewer queries packs keys and values for too little work.
_QUERIES_PER_TASK = 256


@dataclass(frozen=True)
class Blocking:
    """The sizes of everything, known when code is generated.

    Attributes
    ----------
    vectors, panel
        Queries that are worked on together: vectors of them, and their number.
    score_rows, value_rows
        Rows of the register tiles: keys of the first product, columns of V of the second.
    keys
        Keys of one block: a multiple of `score_rows`, and even.
    one_block
        Whether all keys are one block.
    query_tasks
        Tasks that share the queries of one set of keys and values.
    tiles
        Whether the matrix unit multiplies: then rows are 16 or 32, and keys of a block a multiple of 32.
    """

    vectors: int
    panel: int
    score_rows: int
    value_rows: int
    keys: int
    one_block: bool
    query_tasks: int
    tiles: bool


@dataclass(frozen=True)
class Way:
    """What a measurement decides about a blocking, in place of the rules below: fields of a Blocking."""

    vectors: int | None = None
    query_tasks: int | None = None


#: The way of the rules below.
RULES = Way()


def ways_of(spec: Attention, isa: InstructionSet, cores: int) -> dict[str, Way]:
    """Ways to compute attention whose sizes are known, by names; none for few queries, which have one."""
    shapes = [extent for shape, _ in spec.arguments for extent in shape]
    members = math.prod(spec.leading[len(spec.leading) - spec.shared :], start=1)
    if not all(isinstance(extent, int) for extent in shapes) or is_few(known(spec.queries), known(members)):
        return {}
    return {
        **{f"{vectors} vectors": Way(vectors=vectors) for vectors in sorted(_tile_rows(isa, has_tiles(spec, isa)))},
        **{f"{tasks} query tasks": Way(query_tasks=tasks) for tasks in sorted({1, cores})},
    }


def choose_blocking(spec: Attention, isa: InstructionSet, cores: int, way: Way) -> Blocking:
    """The blocking of `spec`: panels that waste the fewest lanes on its queries, blocks of keys of equal size."""
    in_tiles = has_tiles(spec, isa)
    tiles = _tile_rows(isa, in_tiles)
    queries = known(spec.queries) or 2 * isa.lanes
    vectors = way.vectors or min(tiles, key=lambda v: (_padded(queries, v * isa.lanes) * _TILE_COST[v], v))
    panel = vectors * isa.lanes
    all_keys = known(spec.keys)
    even_rows = _whole_tiles if in_tiles else _even_rows
    rows = even_rows(all_keys, tiles[vectors])
    keys = max(2 * rows, _SCORE_BYTES // (4 * panel))
    if all_keys is not None:
        keys = math.ceil(all_keys / math.ceil(all_keys / keys))
    keys = _padded(keys, math.lcm(rows, 2 * TILE if in_tiles else 2))
    one_block = all_keys is not None and all_keys <= keys
    value_rows = even_rows(spec.value_depth, tiles[vectors])
    query_tasks = way.query_tasks or _query_tasks(spec, cores)
    return Blocking(vectors, panel, rows, value_rows, keys, one_block, query_tasks, in_tiles)


def multiplies_pairs(spec: Attention, isa: InstructionSet) -> bool:
    """Whether pairs of bfloat16 are multiplied, rather than float32 numbers."""
    return isa.bf16_dot and set(spec.storages) == {"bfloat16"}


def has_tiles(spec: Attention, isa: InstructionSet) -> bool:
    """Whether the matrix unit multiplies."""
    return isa.tiles and multiplies_pairs(spec, isa)


def _tile_rows(isa: InstructionSet, tiles: bool) -> dict[int, int]:
    return dict.fromkeys(range(1, BLOCK + 1), BLOCK * TILE) if tiles else _TILE_ROWS[isa.name]


def _whole_tiles(extent: int | None, most: int) -> int:
    """Rows of tile registers for `extent` rows: at most `most`."""
    return most if extent is None else min(_padded(extent, TILE), most)


def _even_rows(extent: int | None, most: int) -> int:
    """Rows of equal tiles of at most `most` rows that cover `extent`."""
    return most if extent is None else math.ceil(extent / math.ceil(extent / most))


def _padded(extent: int, multiple: int) -> int:
    return math.ceil(extent / multiple) * multiple


def _query_tasks(spec: Attention, cores: int) -> int:
    extents = [known(extent) for extent in spec.leading[: len(spec.leading) - spec.shared]]
    tasks = math.prod(extent or 1 for extent in extents)
    queries = known(spec.queries) or 0
    if tasks % cores == 0 or tasks >= _TASKS_PER_CORE * cores:
        return 1
    return max(1, min(cores, queries // _QUERIES_PER_TASK))


def is_few(queries: int | None, group: int | None) -> bool:
    """Whether so many queries, of so many heads that share keys, are too few for packing."""
    return queries is not None and group is not None and math.prod((queries, group)) <= 8
