"""`samba.session`: the regions of a model that GraphAMP leaves alone."""

from __future__ import annotations

from autocast.compat.names import named
from autocast.policy.regions import Region, disable_autocast

__all__ = ["disable_graphamp"]


def disable_graphamp() -> Region:
    """A region whose operators run in the dtypes that its code says; what `amp.disable_autocast()` is."""
    return disable_autocast()


__getattr__ = named(__name__, __all__, "a torch module is compiled by samba.utils.argparser.main(module, inputs)")
