"""The seam between matching and targets: whoever has a generator for a spec gets it, and two backends agree."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import tvm
from tvm import relax

from autocast import amp, vm
from autocast.kernels import detect_target, lower
from autocast.kernels.backend import Backend
from autocast.kernels.cast_costs import KernelCosts
from autocast.kernels.matching.rules import RULES
from autocast.kernels.specs.program import Program
from autocast.kernels.targets import BACKENDS, backend_of
from autocast.kernels.targets.cpu.backend import Cpu
from autocast.kernels.targets.generic import Generic
from autocast.passes.casting.costs import CastCost
from autocast.training import MSE, AdamW, training_step
from tests import architectures
from tests.kernels.modules import module, operators
from tests.training.modules import batches, imported_network, rate

op = relax.op


def generic(keys: tuple[str, ...] = ("generic", "cpu")) -> tvm.target.Target:
    """This machine without kernels of ours."""
    here = detect_target()
    options = {name: here.attrs[name] for name in ("mcpu", "mattr", "num-cores") if name in here.attrs}
    return tvm.target.Target({"kind": "llvm", "keys": list(keys), **options})


def test_the_first_key_of_a_target_that_has_a_backend_decides() -> None:
    assert isinstance(backend_of(detect_target()), Cpu)
    assert isinstance(backend_of(generic()), Generic)
    assert isinstance(backend_of(generic(("mine", "cpu"))), Cpu)


def test_the_cpu_has_a_generator_for_every_spec_that_rules_make() -> None:
    assert Cpu(detect_target()).has(*(spec for rule in RULES for spec in rule.specs))


def test_rules_apply_to_targets_that_have_their_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    class Fewer(Backend):
        generators = {Program: Cpu.generators[Program]}  # noqa: RUF012

    monkeypatch.setitem(BACKENDS, "fewer", Fewer)
    mod = module(lambda x, w: op.exp(op.matmul(x, w)), ((8, 16), "float32"), ((16, 24), "float32"))
    names = operators(lower(mod, generic(("fewer", "cpu"))))
    assert not any(name.startswith("product") for name in names)
    assert any(name.startswith("elementwise") for name in names)


def test_casts_are_priced_by_the_kernels_that_the_target_has() -> None:
    x = relax.Var("x", relax.TensorType((64, 48), "bfloat16"))
    call = relax.BlockBuilder().normalize(op.exp(x))
    assert KernelCosts(detect_target()).cast(None, call, 0, x.ty, "float32") is CastCost.LOAD
    assert KernelCosts(generic()).cast(None, call, 0, x.ty, "float32") is CastCost.KERNEL


def _arrays(result: Any) -> list[np.ndarray]:
    return [
        np.asarray(torch.from_dlpack(x)).astype("float64") for x in (result if isinstance(result, tuple) else (result,))
    ]


@pytest.mark.parametrize(("name", "dtype"), [("gpt2", "bfloat16"), ("resnet", None), ("lstm", "bfloat16")])
def test_two_backends_of_one_module_agree(name: str, dtype: str | None) -> None:
    architecture = architectures.ARCHITECTURES[name]()
    model = architectures.imported(name) if dtype is None else amp.autocast(architectures.imported(name), dtype=dtype)
    inputs = (*architecture.args, *architecture.kwargs.values())
    ours, others = (_arrays(vm.compile(model, target=target)(*inputs)) for target in (None, generic()))
    for a, b in zip(ours, others, strict=True):
        assert np.abs(a - b).max() <= (1e-5 if dtype is None else 2e-2) * max(1.0, np.abs(b).max())


def test_two_backends_train_alike() -> None:
    step = training_step(imported_network(), MSE(), AdamW())
    ours, others = (vm.compile(step, target=target) for target in (None, generic()))
    for x, y in batches(3):
        assert abs(float(ours(x, y, rate(0.1))) - float(others(x, y, rate(0.1)))) < 1e-5
