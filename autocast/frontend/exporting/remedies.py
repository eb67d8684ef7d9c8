"""Where torch.export refuses a module, and what to try."""

from __future__ import annotations

import re
import traceback
from collections.abc import Sequence

from autocast.frontend.exporting.decisions import INSIDE
from autocast.frontend.exporting.dynamic import DynamicAxis
from autocast.frontend.exporting.numbers_of_sizes import Conversion

#: What torch's message has in it where a size that may vary does not.
_OF_A_NUMBER = "specialized it to be a constant|inferred a static shape"

#: (what torch's message has in it, what to try).
_REMEDIES = (
    (
        r"data-dependent",
        "The module decides by the values of a tensor (if, while, bool(), int(), item()), and an imported model does "
        "the same for all values: compute both ways and choose with torch.where, or decide outside of the module.",
    ),
    (
        _OF_A_NUMBER,
        "The module makes a Python number of a size, as a loop over rows does (for row in x, x.unbind(), range(n)): "
        "it has as many steps and results as for the example. Compute all rows at a time, keep the number a size "
        "(x.shape[0], n // 2, math.sqrt(n)), or leave the dimension out of dynamic=.",
    ),
    (
        r"Must provide a tree_name",
        "torch takes no sizes that vary of inputs that `forward` takes by **kwargs alone: name them in its signature, "
        "or import a module with a `forward` that names them and calls this one.",
    ),
    (r"\.numpy\(\) is not supported", "Use torch's own operations inside of the module."),
    (
        r"Unsupported input type",
        "Example inputs are tensors, plain Python values, and tuples and dictionaries of them.",
    ),
)


def place(error: Exception, conversions: Sequence[Conversion]) -> str:
    """The innermost line of the model that led to an error, where it is not torch's own, or made a size a number."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith(INSIDE)]
    if frames:
        return f" ({frames[-1].filename}:{frames[-1].lineno}: {frames[-1].line})"
    return f" ({conversions[0].place})" if conversions and re.search(_OF_A_NUMBER, str(error)) else ""


def remedy(text: str, axes: Sequence[DynamicAxis], conversions: Sequence[Conversion]) -> str:
    """What to try where torch refuses a module with this text."""
    for pattern, words in _REMEDIES:
        if re.search(pattern, text) and (conversions or pattern != _OF_A_NUMBER):
            return words
    if axes:
        names = ", ".join(sorted({axis.name for axis in axes}))
        return (
            f"Either it does not run with the example inputs, or it does not allow {names} to vary freely: name "
            "every input that has the dimension, or narrow its bounds."
        )
    return (
        "Make sure that the module runs with the example inputs; if it does, write this part of it with other "
        "operations, or leave it out of the module that you import."
    )
