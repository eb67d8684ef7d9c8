"""Gradients of pooling against torch's, through the rule that finds them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import tvm
from torch.nn import functional as F
from tvm import relax
from tvm.relax.op import nn

from autocast.kernels.matching.convolutions.pooling_rule import lower_pooling
from autocast.kernels.targets import backend_of
from tests.kernels.targets.cpu.products.cases import target_of
from tests.kernels.targets.cpu.products.test_kernel import every_cpu

#: Shapes (batch, height, width, channels), and options of pooling in torch.
CASES = {
    "overlapping": ((2, 9, 8, 32), {"kernel_size": 3, "stride": 2, "padding": 1}),
    "side by side": ((1, 6, 6, 16), {"kernel_size": 2, "stride": 2, "padding": 0}),
    "channels that fill no vector": ((2, 7, 7, 21), {"kernel_size": 3, "stride": 1, "padding": 1}),
}


def lowered(kind: str, shape: tuple[int, ...], options: dict[str, int], target: tvm.target.Target) -> tvm.IRModule:
    size, stride, padding = options["kernel_size"], options["stride"], options["padding"]
    data = relax.Var("data", relax.TensorType(shape, "float32"))
    extra = {"count_include_pad": True} if kind == "avg" else {}
    pooled = getattr(nn, f"{kind}_pool2d")(data, size, stride, padding, layout="NHWC", **extra)
    pooled = relax.BlockBuilder().normalize(pooled)
    adjoint = relax.Var("adjoint", pooled.ty)
    builder = relax.BlockBuilder()
    with builder.function("main", [adjoint, data]):
        with builder.dataflow():
            backward = tvm.ir.Op.get(f"relax.grad.{kind}_pool2d_backward")
            result = builder.emit_output(relax.Call(backward, [adjoint, data], pooled.attrs))
        builder.emit_func_output(result)
    return lower_pooling(builder.get(), backend_of(target))


@every_cpu
@pytest.mark.parametrize("kind", ["max", "avg"])
def test_gradients_of_pooling_are_those_of_torch(kind: str, cpu: str) -> None:
    target, rng = target_of(cpu), np.random.default_rng(0)
    for shape, options in CASES.values():
        mod = lowered(kind, shape, options, target)
        assert len(mod.get_global_vars()) == 2, "no kernel took the gradient"
        # Few different numbers: many windows have two largest elements.
        data = torch.from_numpy(rng.integers(-3, 3, shape).astype("float32")).requires_grad_()
        pooled = getattr(F, f"{kind}_pool2d")(data.permute(0, 3, 1, 2), **options)
        adjoint = torch.from_numpy(rng.standard_normal(pooled.shape).astype("float32"))
        pooled.backward(adjoint)
        machine = relax.VirtualMachine(tvm.compile(mod, target), tvm.cpu())
        last = np.ascontiguousarray(adjoint.permute(0, 2, 3, 1).numpy())
        got = machine["main"](tvm.runtime.tensor(last), tvm.runtime.tensor(data.detach().numpy()))
        np.testing.assert_allclose(got.numpy(), data.grad.numpy(), rtol=1e-5, atol=1e-5)
