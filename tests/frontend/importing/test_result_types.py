"""What a converter makes is refused where its type is not that of torch, for sizes that vary, too."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
import torch
from tvm import relax

from autocast.errors import ImportModelError
from autocast.frontend import from_torch
from autocast.frontend.converters.table import CONVERTERS
from tests.frontend.helpers import Calls


@pytest.mark.parametrize("end", [5, 100])
def test_a_result_with_other_sizes_than_torchs_is_refused(end: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """TVM says of a slice from 2 to 100 that it has 98 rows, however many there are."""

    def slices(importer: Any, node: Any) -> relax.Expr:
        return importer.emit(
            relax.op.strided_slice(importer.arg(node, 0, "self"), [0], [2], [end], assume_inbound=True)
        )

    monkeypatch.setitem(CONVERTERS, "slice.Tensor", slices)
    monkeypatch.delitem(CONVERTERS, "as_strided.default")  # into which torch splits a slice that is refused
    arguments = Calls(lambda x: x[2:end]), (torch.randn(6, 3),)
    with nullcontext() if end == 5 else pytest.raises(ImportModelError, match="cannot be imported"):
        from_torch(*arguments, dynamic={"n": (0, 0)}, fallback="error")
