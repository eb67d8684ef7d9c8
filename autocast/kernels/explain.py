"""Say which kernel rule took what, and why others declined."""

from __future__ import annotations

import sys

from tvm import relax

from autocast import settings


def explain(rule: str, var: relax.Var, reason: str, *, taken: bool) -> None:
    """With AUTOCAST_DEBUG=4, print whether kernel rule `rule` takes the binding of `var`, and the reason."""
    if settings.integer("AUTOCAST_DEBUG") >= 4:
        print(
            f"kernels: {rule} {'takes' if taken else 'declines'} {var.name}{reason and ': '}{reason}", file=sys.stderr
        )
