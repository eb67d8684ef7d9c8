"""What a model does in training only, and whether somebody trains it."""

from __future__ import annotations

from collections import Counter

import tvm
from tvm import relax

from autocast.ir import all_bindings, op_name, relax_functions
from autocast.model.step import updated_by

_DROPOUT, _STATISTICS = "dropout", "batch statistics"


def in_training_only(value: relax.Expr) -> str:
    """What a call does in training only, "dropout" or "batch statistics"; nothing for all else."""
    name = op_name(value)
    if name in ("relax.nn.seeded_dropout", "relax.nn.dropout"):
        return _DROPOUT
    return _STATISTICS if name == "relax.nn.batch_norm" and value.attrs.training else ""


def training_mode(mod: tvm.IRModule) -> str:
    """What a module does in training only: "2 x dropout, 1 x batch statistics"; nothing where it would infer."""
    values = (binding.value for _, function in relax_functions(mod) for binding in all_bindings(function.body))
    counts = Counter(what for what in map(in_training_only, values) if what)
    return ", ".join(f"{count} x {what}" for what, count in sorted(counts.items()))


def is_trained(mod: tvm.IRModule) -> bool:
    """Whether a module computes gradients, or updates by an optimizer."""
    values = (binding.value for _, function in relax_functions(mod) for binding in all_bindings(function.body))
    return any((op_name(value) or "").startswith("relax.grad.") or updated_by(value, mod) for value in values)
