"""A target without kernels of its own: TVM computes everything, in the types and the order that the phases decide.

`tvm.target.Target({"kind": "llvm", "mcpu": "...", "keys": ["generic", "cpu"]})` asks for it. It is what a new target
begins with, and a second opinion on the kernels of the others.
"""

from __future__ import annotations

from autocast.kernels.backend import Backend


class Generic(Backend):
    """No generators."""
