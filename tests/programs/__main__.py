"""Run random programs, and print those of which something else comes than of torch."""

from __future__ import annotations

import os
import sys


def main() -> int:
    """1 if a program fails."""
    os.environ["AUTOCAST_DEBUG"] = "poison"
    from tests.programs.check import SEARCH

    return SEARCH.main("python -m tests.programs", __doc__, length=7)


if __name__ == "__main__":
    sys.exit(main())
