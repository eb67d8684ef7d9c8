"""Run random networks, and print those of which something else comes than of torch."""

from __future__ import annotations

import os
import sys


def main() -> int:
    """1 if a network fails."""
    os.environ["AUTOCAST_DEBUG"] = "poison"
    from tests.networks.check import SEARCH

    return SEARCH.main("python -m tests.networks", __doc__, length=8)


if __name__ == "__main__":
    sys.exit(main())
