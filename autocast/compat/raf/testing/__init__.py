"""RAF's `raf.testing`: data, models, and functions that run and measure these."""

from __future__ import annotations

from autocast.compat.names import named
from autocast.compat.raf.testing.common import (
    check,
    get_testable_devices,
    numpy,
    one_hot_torch,
    randint,
    randn,
    randn_torch,
    with_seed,
)
from autocast.compat.raf.testing.models import (
    append_loss_n_optimizer,
    get_transformer_model,
    get_transformer_model_by_config,
)
from autocast.compat.raf.testing.run import (
    get_param,
    get_vm_executor,
    get_vm_profiler,
    profile_vm_model,
    run_model,
    run_vm_executor,
    run_vm_model,
)

__all__ = [
    "append_loss_n_optimizer",
    "check",
    "get_param",
    "get_testable_devices",
    "get_transformer_model",
    "get_transformer_model_by_config",
    "get_vm_executor",
    "get_vm_profiler",
    "numpy",
    "one_hot_torch",
    "profile_vm_model",
    "randint",
    "randn",
    "randn_torch",
    "run_model",
    "run_vm_executor",
    "run_vm_model",
    "with_seed",
]

_INSTEAD = {
    "get_torchvision_model": "raf.frontend.from_pytorch(module, shapes) imports any torch module",
    "randn_mxnet": "arrays are torch tensors: randn_torch",
    "one_hot_mxnet": "arrays are torch tensors: one_hot_torch",
    "with_dialect": "there is one set of kernels",
    "DialectChecker": "there is one set of kernels",
    "run_infer_type": "modules are typed: model.mod",
    "compile_vm_model": "get_vm_executor compiles; its as_text shows no bytecode",
    "set_param": "get_vm_executor(model, device).load_state({name: value})",
}


__getattr__ = named(__name__, __all__, instead=_INSTEAD)
