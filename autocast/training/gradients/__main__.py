"""`python -m autocast.training.gradients` prints the page docs/gradients.md: how every operator is differentiated."""

from __future__ import annotations

import signal
from itertools import groupby

from autocast.training.gradients import list_gradients
from autocast.training.gradients.registry import GradientRow

_TITLE = """# How every operator is differentiated

Written by `python -m autocast.training.gradients`.

`autocast.training.differentiate` reads a function backwards, once. Each call on a way from a parameter to the loss
passes the adjoint of its result on to its arguments by the rule in these tables. Three kinds of rows:

| row | meaning |
|---|---|
| gradient | a rule says how; the last column is its derivative |
| zero | the derivative is zero wherever it exists, or the result is no number: the way ends here |
| none | asking for a gradient is an error that repeats the reason |

A rule gets the call, its result and the result's adjoint, and answers one adjoint for each argument:

```python
from tvm.relax import op

from autocast.training.gradients import get_gradient, gradient

row = gradient("relax.sin", lambda b: [b.adjoint * op.cos(b.call.args[0])], why="cos x")
assert row.why == get_gradient("relax.sin").why
```

`register_gradient(row, override=True)` replaces a row; an operator of your own brings its gradient
([own_operators.md](own_operators.md)). Where a derivative jumps,
the choices are torch's. A tensor that was broadcast gets the sum over what was repeated; a tensor of several uses gets
the sum of their adjoints, the last use first. Gradients of more than two operators are one operator of our own
(`relax.grad.gelu_backward`), so that AutoCast decides one precision for each and kernels see one pattern.
"""


def page() -> str:
    """The page docs/gradients.md."""
    sections = [_TITLE]
    for family, rows in groupby(list_gradients(), key=lambda row: row.family):
        sections.append(f"## {family.replace('_', ' ').capitalize()}\n\n{_table(list(rows))}\n")
    return "\n".join(sections)


def _table(rows: list[GradientRow]) -> str:
    lines = [f"| `{row.name}` | {row.kind} | {row.why} |" for row in rows]
    return "\n".join(["| operator | row | derivative, or reason |", "|---|---|---|", *lines])


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `| head` ends it without a word
    print(page(), end="")
