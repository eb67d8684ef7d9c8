"""RAF's `raf.amp`: `autocast` in float16, unless a `PassContext` says otherwise, and `CustomTypeHint`."""

from __future__ import annotations

from typing import Any

from autocast import amp
from autocast.compat.names import named
from autocast.compat.raf.amp import type_hints
from autocast.compat.raf.handle import FrameworkModel, model_of
from autocast.compat.raf.ir import amp_options
from autocast.model import Model
from type_hints import CustomTypeHint

__all__ = ["CustomTypeHint", "autocast", "type_hints"]


__getattr__ = named(__name__, __all__)


def autocast(model: FrameworkModel | Model, args: Any = None, **fields: Any) -> FrameworkModel:
    """A model in mixed precision.

    Parameters
    ----------
    model : FrameworkModel or Model
        It is not changed.
    args : sequence of tensors, or dict of str to tensor, optional
        Example inputs, which are checked against the model's.
    **fields
        What `autocast.amp.autocast` takes: a policy, or fields of one.

    Returns
    -------
    FrameworkModel
        With a `CastReport` in its attribute `report`.

    The errors are those of `autocast.amp.autocast`.
    """
    options = {} if "policy" in fields else amp_options()
    return FrameworkModel(amp.autocast(model_of(model), args, **{**options, **fields}))
