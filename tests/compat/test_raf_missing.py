"""RAF's interface: what it has, and what is missing here."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import autocast.compat.raf as raf
from autocast import vm
from autocast.compat.raf._op import sym
from autocast.compat.raf.frontend import from_pytorch
from autocast.compat.raf.model.model import get_peak_memory
from autocast.compat.raf.testing import (
    one_hot_torch,
    profile_vm_model,
    randn,
    randn_torch,
)
from autocast.errors import UnsupportedError
from tests.compat.test_raf import SHAPES

pytestmark = pytest.mark.filterwarnings("ignore::autocast.errors.SlowDtypeWarning")


@pytest.mark.parametrize(
    "call",
    [
        lambda: raf.Device("cuda"),
        lambda: raf.cuda(1),
        lambda: randn((2,), device="cuda"),
        lambda: randn_torch((2,), device="cuda(0)"),
        lambda: one_hot_torch(2, 3, device="cuda"),
        lambda: from_pytorch(nn.ReLU(), SHAPES).to(device="cuda"),
    ],
)
def test_a_gpu_is_an_error_that_says_what_there_is(call):
    with pytest.raises(UnsupportedError, match=r"got 'cuda.*expected the CPU.*try device='cpu'"):
        call()


@pytest.mark.parametrize("measure", [profile_vm_model, get_peak_memory])
def test_models_are_measured_on_devices_of_torch_that_there_are(measure, monkeypatch):
    seen = []
    monkeypatch.setattr(vm, measure.__name__, lambda model, device, *args, **options: seen.append(device))
    model, images = from_pytorch(nn.ReLU(), SHAPES), [torch.ones(4, 3, 8, 8)]
    for device in ("torch:cpu", "cpu(0)"):
        measure(model, device, images)
    assert seen == ["torch:cpu", "cpu"]
    with pytest.raises(UnsupportedError, match=r"device 'xla' is not supported, expected one of cpu, torch:cpu"):
        measure(model, "xla", images)


@pytest.mark.parametrize(
    ("owner", "name", "message"),
    [
        (raf, "Model", "raf has no 'Model'; a model is a torch module"),
        (raf.testing, "profile_vm_mode", "nearest: profile_vm_model"),
        (raf.testing, "randn_mxnet", "arrays are torch tensors: randn_torch"),
        (raf.amp, "autocst", "nearest: autocast"),
        (sym, "nll_los", "nearest: nll_loss"),
        (raf.optim, "sdg", "nearest: sgd"),
        (raf.ir, "AsText", r"model.script\(\) is the module's text"),
    ],
)
def test_a_name_that_is_missing_is_an_error_that_says_the_nearest(owner, name, message):
    with pytest.raises(AttributeError, match=message):
        getattr(owner, name)


def test_a_model_without_an_attribute_says_the_nearest():
    model = from_pytorch(nn.ReLU(), SHAPES)
    with pytest.raises(AttributeError, match="FrameworkModel has no 'trian_mode'; nearest: train_mode"):
        _ = model.trian_mode
