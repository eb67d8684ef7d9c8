"""Helpers for examples and tests, with the names and results of RAF's `raf.testing`."""

from autocast.testing.data import one_hot_torch, randint, randn_torch
from autocast.testing.models import get_transformer_model_by_config
from autocast.testing.training import append_loss_n_optimizer
from autocast.vm import profile_vm_model, run_vm_model

__all__ = [
    "append_loss_n_optimizer",
    "get_transformer_model_by_config",
    "one_hot_torch",
    "profile_vm_model",
    "randint",
    "randn_torch",
    "run_vm_model",
]
