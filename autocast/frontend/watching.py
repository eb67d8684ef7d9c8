"""Whether torch follows what is called operator by operator: it sees none of our kernels, so its own are to compute."""

from __future__ import annotations

import torch
from torch.autograd import forward_ad

_FAKE = torch._C._TorchDispatchModeKey.FAKE


def is_watched() -> bool:
    """Whether this is within `vmap` and others of `torch.func`, derivatives forwards, `torch.jit.trace`, or a mode that
    is told of operators: FakeTensorMode, `make_fx`, FlopCounterMode. Those of other threads, which import, say nothing
    about this one: torch's own `is_in_torch_dispatch_mode` counts them."""
    return (
        torch._C._len_torch_dispatch_stack() > 0
        or forward_ad._current_level >= 0
        or torch._C._functorch.peek_interpreter_stack() is not None
        or torch._C._get_tracing_state() is not None
    )


def is_watched_when_compiled() -> bool:
    """As `is_watched`, of what torch's compiler calls: of the others it calls what it has not compiled."""
    return forward_ad._current_level >= 0 or torch._C._get_dispatch_mode(_FAKE) is not None
