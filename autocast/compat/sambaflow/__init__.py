"""SambaFlow's GraphAMP: `import autocast.compat.sambaflow.samba as samba`, and the arguments of its compiler."""

from __future__ import annotations

from autocast.compat.names import named
from autocast.compat.sambaflow import samba
from autocast.compat.sambaflow.presets import graphamp_policy, graphamp_preset

__all__ = ["graphamp_policy", "graphamp_preset", "samba"]

__getattr__ = named(__name__, __all__)
