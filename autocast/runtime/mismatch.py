"""What the virtual machine finds wrong with sizes while it runs, as an error that says where and what to do."""

from __future__ import annotations

import re

from autocast.errors import InputError
from autocast.messages import reason
from autocast.runtime.program import Mismatches

#: What TVM says where a `match_cast`, or a call of a function of the module, gets other sizes than are written there.
_CONTEXT = re.compile(
    r"(?:\((?P<got>\S+) vs\. (?P<expected>\S+)\) : |: )ErrorContext\("
    r"(?:match_cast, ty=(?P<type>.*)"
    r"|fn=(?P<function>[^,]*), loc=[^,]*, param=(?P<param>[^,]*), annotation=(?P<taken>.*))"
    r"\)\s+(?P<reason>.*?)\.?$",
    re.MULTILINE,
)
#: What is said where memory cannot be had, or a size below 0 is taken for a large one.
_NO_MEMORY = ("std::bad_alloc", "storage allocation failure")

#: What TVM says where a kernel gets another tensor than it declares.
_KERNEL = re.compile(
    r"(?P<what>\S[^\n]*) on argument #\d+ when calling:\s+`(?P<kernel>.*)`,\s+(?P<expected>.*)", re.MULTILINE
)

_AXIS = re.compile(r"shape\[(\d+)\]")


def mismatch(error: Exception, names: Mismatches) -> InputError | None:
    """What to raise in place of an error of the virtual machine; None where it is about no type.

    Parameters
    ----------
    names
        TVM says the type that a `match_cast` asserts, but not its name.
    """
    if any(text in str(error) for text in _NO_MEMORY):
        return InputError(
            f"main: there is no memory for a tensor of this call ({reason(error)}), expected sizes for which there is. "
            "Where one is computed of numbers among the inputs, it may be below 0; else call it with less at a time"
        )
    if kernel := _KERNEL.search(str(error)):
        return InputError(
            f"main: the module calls its kernel {kernel['kernel']} with another tensor than that declares "
            f"({kernel['what']}, {kernel['expected']}). Call the model with inputs of which it is true, or declare the "
            "sizes of main's arguments as the kernel does: then inputs are checked before anything runs"
        )
    found = _CONTEXT.search(str(error))
    if found is None:
        return None
    if compared := " or ".join(names.compared.get(found["type"], ())):
        return InputError(
            f"main: {compared}; it is {_more(int(found['got']))}. Call the model with inputs whose sizes fit, and give "
            "sizes that are always the same one name: then inputs are checked before anything runs"
        )
    axis = _AXIS.search(found["reason"])
    what = f": {found['reason']}"
    if axis is not None:
        what = f", has size {found['got']} along axis {axis[1]}, expected {found['expected']}"
    if found["type"] is None:
        where = f"{found['function']}: the argument {found['param']}, declared as {found['taken']}"
    else:
        value = " or ".join(names.declared.get(found["type"], ())) or "a value"
        where = f"main: {value}, which the module declares to be {found['type']}"
    return InputError(
        f"{where}{what}. Call the model with inputs of which that is true, or declare less: a size under a name of its "
        "own may be any"
    )


def _more(difference: int) -> str:
    return f"{abs(difference)} {'more' if difference > 0 else 'less'}"
