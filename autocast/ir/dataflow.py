"""Dataflow blocks where there were none."""

from __future__ import annotations

import tvm
from tvm import relax

from autocast.ir.places import canonicalize_bindings


def to_dataflow(mod: tvm.IRModule) -> tvm.IRModule:
    """Make dataflow blocks of all pure bindings.

    Fields of tuples are followed first: TVM's pass follows them after it has chosen what a block shows to those after
    it, and to branches, which then read what is not shown.
    """
    return relax.transform.ConvertToDataflow(1)(canonicalize_bindings(mod))
