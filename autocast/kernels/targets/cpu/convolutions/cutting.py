"""Bands and tasks of an image whose size only running tells: the best of some, by the cost that they have there."""

from __future__ import annotations

from collections.abc import Sequence

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from autocast.kernels.extents import Extent, i64
from autocast.kernels.targets.cpu.convolutions.cost import Cost

#: How often the rows of an image are halved.
_HALVINGS = 10


def cut_when_run(
    cost: Cost, shape: tuple[Extent, Extent, Extent], feature_tasks: Sequence[int]
) -> tuple[tirx.Expr, tirx.Expr]:
    """Emit the choice for (batch, height, columns) outputs: the rows of a band, and the tasks that share one.

    `feature_tasks` are those that come into question. To choose takes the time of some 80 divisions: a third of a
    microsecond.
    """
    height, (cycles, rows, tasks) = shape[1], range(3)
    best = T.alloc_buffer((3,), "int64")
    T.buffer_store(best, i64(1 << 62), [cycles])
    halvings = min(_HALVINGS, height.bit_length()) if isinstance(height, int) else _HALVINGS
    with T.serial(0, i64(halvings)) as halved:
        part = tirx.const(1, "int64") << halved
        band = T.bind(tirx.max(tirx.truncdiv(i64(height) + part - 1, part), i64(1)))
        for shared_by in feature_tasks:
            found = T.bind(i64(cost.cycles(*shape, 1, band, shared_by)))
            with T.If(found < best[cycles]), T.Then():
                for place, value in ((cycles, found), (rows, band), (tasks, i64(shared_by))):
                    T.buffer_store(best, value, [place])
    return T.bind(best[rows]), T.bind(best[tasks])
