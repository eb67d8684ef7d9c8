"""`python -m autocast`: see `autocast.cli`."""

import sys

from autocast.cli import main

if __name__ == "__main__":
    sys.exit(main())
