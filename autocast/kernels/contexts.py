"""TVM's pass context, with changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import tvm


def changed_context(
    *,
    opt_level: int | None = None,
    disabled: Sequence[str] = (),
    instruments: Sequence[Any] = (),
    config: Mapping[str, Any] | None = None,
) -> tvm.transform.PassContext:
    """The caller's `PassContext` with another level, and with more disabled passes, instruments and settings."""
    current = tvm.transform.PassContext.current()
    return tvm.transform.PassContext(
        opt_level=current.opt_level if opt_level is None else opt_level,
        required_pass=list(current.required_pass),
        disabled_pass=[*current.disabled_pass, *disabled],
        instruments=[*current.instruments, *instruments],
        config={**dict(current.config), **(config or {})},
    )
