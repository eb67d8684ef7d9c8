"""Names of run-time dimensions: what is equal has one name, and what is written alike is not proved to be equal."""

from __future__ import annotations

import pytest
from tvm import tirx

from autocast.kernels.specs import sizes
from autocast.kernels.specs.sizes import DimensionNames


def test_equal_dimensions_have_one_name() -> None:
    n, m = (tirx.Var(name, "int64") for name in "nm")
    names = DimensionNames()
    assert [names.dim(one) for one in (n, n + m, m + n, 2 * n - n, m, 3)] == ["d0", "d1", "d1", "d0", "d2", 3]


def test_dimensions_that_are_written_alike_need_no_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    n, m = (tirx.Var(name, "int64") for name in "nm")
    names = DimensionNames()
    wanted = [names.dim(one) for one in (n, tirx.floordiv(n - 1, 2) + 1, tirx.max(m - 3, 0))]
    monkeypatch.setattr(sizes, "same_shape", lambda *_: pytest.fail("a proof"))
    assert [names.dim(one) for one in (n, tirx.floordiv(n - 1, 2) + 1, tirx.max(m - 3, 0))] == wanted
