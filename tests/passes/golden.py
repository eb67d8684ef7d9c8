"""What the golden tests share: AutoCast gives exactly the expected module, and says so of itself."""

from __future__ import annotations

import tvm
from tvm import relax

from autocast import amp


def check(before: tvm.IRModule, expected: tvm.IRModule, **options: object) -> None:
    """AutoCast of `before` is `expected`, variable names aside; doing it again changes nothing."""
    after = amp.autocast(before, **options)
    relax.analysis.well_formed(after)
    tvm.ir.assert_structural_equal(after, expected)
    if options.get("solver") != "greedy":
        tvm.ir.assert_structural_equal(amp.autocast(after, **options), expected)


def check_unchanged(before: tvm.IRModule, **options: object) -> None:
    """AutoCast has nothing to do."""
    check(before, before, **options)
