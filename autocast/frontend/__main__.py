"""`python -m autocast.frontend` prints the page docs/torch_operators.md: which torch operators can be imported."""

from __future__ import annotations

import signal
from collections import defaultdict
from collections.abc import Iterable

from autocast.frontend.converters.table import CONVERTERS, TRUSTED

_TITLE = """# Which torch operators can be imported

Written by `python -m autocast.frontend`.

`torch.export` splits what a module calls into core operators first, and what these tables hold stays whole: `nn.LSTM`,
`nn.BatchNorm2d`, `torch.einsum` or `F.conv2d` arrive as several of them, or under another name (`convolution`). So a
module can be imported where all that it is split into stands here; if not, `from_torch` lists what does not, and where
it is called. What depends on no input is computed at import, by any operator. See [models in](models_in.md).
"""


def page() -> str:
    """The page docs/torch_operators.md."""
    tables = (
        ("Translated by converters of ours", CONVERTERS),
        ("Translated by TVM's converters, compared with torch in our tests", TRUSTED),
    )
    return "\n".join([_TITLE, *(f"## {title}\n\n{_table(names)}\n" for title, names in tables)])


def _table(names: Iterable[str]) -> str:
    """Rows of an operator and its overloads, from names such as `add.Tensor`; `getitem` is Python's."""
    overloads = defaultdict(list)
    for name in sorted(names):
        operator, _, overload = name.partition(".")
        overloads[operator].append(overload or "Python's own")
    lines = [f"| `{operator}` | {', '.join(listed)} |" for operator, listed in overloads.items()]
    return "\n".join(["| operator | overloads |", "|---|---|", *lines])


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `| head` ends it without a word
    print(page(), end="")
