"""`sambaflow.samba`, as far as mixed precision is about it: `session` and `utils.argparser`."""

from __future__ import annotations

from autocast.compat.names import named
from autocast.compat.sambaflow.samba import session, utils

__all__ = ["session", "utils"]

__getattr__ = named(__name__, __all__, "a torch module is compiled by samba.utils.argparser.main(module, inputs)")
