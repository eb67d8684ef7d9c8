"""Bands and tasks that are chosen when sizes are known only then."""

import numpy as np
import pytest
import tvm
from tvm import tirx
from tvm.script.ir_builder import tirx as T

from autocast.kernels.extents import ceil_div, i64
from autocast.kernels.specs.convolutions import Convolution
from autocast.kernels.targets.cpu.convolutions.blocking import as_rows, choose_blocking, cost_of
from autocast.kernels.targets.cpu.convolutions.cost import Cost
from autocast.kernels.targets.cpu.convolutions.cutting import cut_when_run
from autocast.kernels.targets.cpu.instruction_sets import detect_target, instruction_set
from autocast.kernels.targets.cpu.vector.unit import kernel_function
from tests.kernels.compiling import compile_kernels
from tests.kernels.targets.cpu.convolutions.cases import Case, check
from tests.kernels.targets.cpu.products.cases import CPUS, runs_here, target_of

CORES = 2
here = next(cpu for cpu in CPUS if runs_here(cpu))
#: Last layers of a ResNet, whose weights are read from beyond the second cache for each band; and a first one.
SPECS = {
    "large weights": Convolution(1, None, None, 512, 512, (3, 3), padding=(1, 1, 1, 1)),
    "pixels as rows": Convolution(1, None, None, 256, 1024, (1, 1)),
    "small weights": Convolution(1, None, None, 64, 64, (3, 3), padding=(1, 1, 1, 1)),
}


def cost(kind: str) -> Cost:
    isa, spec = instruction_set(detect_target()), as_rows(SPECS[kind])
    return cost_of(spec, isa, CORES, choose_blocking(spec, isa, CORES))


@pytest.mark.parametrize("kind", SPECS)
def test_what_running_chooses_is_the_least_of_the_model(kind: str) -> None:
    model = cost(kind)
    with kernel_function("choose") as finished:
        height, columns = tirx.Var("height", "int64"), tirx.Var("columns", "int64")
        T.arg("given", T.buffer((height, columns), "int8"))
        chosen = T.arg("chosen", T.buffer((2,), "int64"))
        for place, value in enumerate(cut_when_run(model, (1, height, columns), [1, CORES])):
            T.buffer_store(chosen, value, [i64(place)])
    choose = compile_kernels({"choose": finished()}, detect_target())["choose"]

    for size in (1, 2, 7, 14, 28, 55, 112, 320, 5000):
        columns = 1 if kind == "pixels as rows" else min(size, 320)
        found = tvm.runtime.tensor(np.zeros(2, np.int64))
        choose(tvm.runtime.tensor(np.zeros((size, columns), np.int8)), found)
        rows, tasks = map(int, found.numpy())
        ways = [(max(1, ceil_div(size, 1 << halved)), tasks) for halved in range(10) for tasks in (1, CORES)]
        least = min(model.cycles(1, size, columns, 1, *way) for way in ways)
        # Cycles are whole numbers there.
        assert model.cycles(1, size, columns, 1, rows, tasks) <= 1.001 * least + 1000


def test_small_images_share_large_weights_by_features() -> None:
    model = cost("large weights")
    whole, bands = model.cycles(1, 7, 7, 1, 7, CORES), model.cycles(1, 7, 7, 1, 1, 1)
    assert whole < bands / 2


def test_cores_share_rows_where_results_stay_in_their_caches() -> None:
    """Whole pixels are found in the cache of the core that wrote them: halves of them are not."""
    low = "bfloat16"
    # The second's weights come from beyond these caches.
    specs = (
        Convolution(4, size, size, channels, 4 * channels, (1, 1), data_dtype=low, weight_dtype=low, out_dtype=low)
        for size, channels in ((14, 256), (7, 512))
    )
    tiles = instruction_set(target_of("sapphirerapids"))
    assert [choose_blocking(as_rows(spec), tiles, CORES).feature_tasks for spec in specs] == [1, CORES]


@pytest.mark.parametrize("size", [1, 2, 5, 33])
def test_every_choice_covers_the_whole_output(size: int) -> None:
    kinds = (
        Convolution(1, None, None, 96, 320, (3, 3), (2, 2), padding=(1, 1, 1, 1)),
        Convolution(None, None, None, 64, 80, (1, 1)),
    )
    check([Case(spec, (1 + 2 * (spec.batch is None), size, size + 3)) for spec in kinds], here)
