"""How products are cut up."""

from __future__ import annotations

import pytest

from autocast.kernels.specs.products import Product
from autocast.kernels.targets.cpu.instruction_sets import instruction_set
from autocast.kernels.targets.cpu.products.blocking import choose_blocking
from tests.kernels.targets.cpu.products.cases import target_of


@pytest.mark.parametrize(("rows", "most"), [(128, 128), (256, 128), (512, 256)])
def test_few_rows_fetch_small_parts_of_weights(rows: int, most: int) -> None:
    """As many panels as fit into `most` KiB."""
    spec = Product(rows, 3072, 768, "bfloat16", "bfloat16", "bfloat16", b_packed=True)
    blocking = choose_blocking(spec, instruction_set(target_of("sapphirerapids")), 2, pairs=True, a_in_place=True)
    panel = blocking.k_words * blocking.panel * 4
    assert blocking.fetched
    assert blocking.panels == (most << 10) // panel
