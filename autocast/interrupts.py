"""What handlers of signals raise: KeyboardInterrupt, or the error of whoever set an alarm."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

#: What handlers have raised since the main thread entered `passing_interrupts`; None where it is not in there.
_raised: list[BaseException] | None = None


@contextmanager
def passing_interrupts() -> Iterator[None]:
    """What a handler of a signal raises inside leaves this as it was raised, whatever was made of it on the way.

    TVM's C++ knows no KeyboardInterrupt that is raised in a function that it calls, and torch and TVM refuse models by
    errors of any class: both would be taken for a fault of the model. Python runs handlers in the main thread alone.
    """
    global _raised
    if _raised is not None or threading.current_thread() is not threading.main_thread():
        yield
        return
    raised: list[BaseException] = []
    _raised = raised
    handlers = {number: signal.getsignal(number) for number in signal.valid_signals()}
    noting = {number: partial(_note, handler, raised) for number, handler in handlers.items() if callable(handler)}
    try:
        for number, handler in noting.items():
            signal.signal(number, handler)
        yield
    except BaseException as error:
        if raised and error is not raised[0]:
            raise raised[0] from None
        raise
    else:
        if raised:
            raise raised[0]
    finally:
        for number, handler in noting.items():
            if signal.getsignal(number) is handler:  # else somebody has set another one meanwhile
                signal.signal(number, handlers[number])
        _raised = None


def is_interrupted() -> bool:
    """Whether a handler has raised something, which `passing_interrupts` is going to raise."""
    return bool(_raised)


def _note(handler: Callable[..., Any], raised: list[BaseException], *signal_and_frame: Any) -> None:
    """Call a handler, and note what it raises."""
    try:
        handler(*signal_and_frame)
    except BaseException as error:
        raised.append(error)
        raise
