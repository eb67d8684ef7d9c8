"""`python -m type_hints` prints every operator's casting rule; `--markdown` prints the page docs/operators.md."""

from __future__ import annotations

import argparse
import signal
from itertools import groupby

from type_hints import RuleTable, list_rules

_TITLE = """# Every operator's casting rule

Written by `python -m type_hints --markdown`; [casting rules](casting_rules.md) says what the classes mean.
"""


def main() -> None:
    """Print the rules."""
    parser = argparse.ArgumentParser(prog="python -m type_hints", description="Print every operator's casting rule.")
    parser.add_argument("--markdown", action="store_true", help="print the page docs/operators.md")
    if not parser.parse_args().markdown:
        print(list_rules())
        return
    print(_TITLE)
    sections = [
        f"## {family.replace('_', ' ').capitalize()}\n\n{RuleTable(rows).to_markdown()}"
        for family, rows in groupby(list_rules(), key=lambda row: row.family)
    ]
    print("\n\n".join(sections))


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `| head` ends it without a word
    main()
