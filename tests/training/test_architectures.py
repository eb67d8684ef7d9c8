"""The gradients of all parameters of the eight architectures, beside torch's."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import tvm
from tvm import relax

from autocast import vm
from autocast.model import Model
from autocast.training import differentiate
from tests.architectures import ARCHITECTURES, Architecture, flatten, imported

#: In units of the largest gradient of a parameter, or of 1e-3 of the largest gradient of the model.
_TOLERANCE = 2e-4


def scalar_loss(model: Model) -> relax.Function:
    """`main` with one result more, the first: the mean of the squares of its first result."""
    main = model.main
    builder = relax.BlockBuilder()
    with builder.function("main", list(main.params), attrs=dict(main.attrs)):
        with builder.dataflow():
            for block in main.body.blocks:
                for binding in block.bindings:
                    builder.emit_normalized(binding)
            body = main.body.body
            several = isinstance(body.ty, tvm.ir.TupleType)
            first = builder.emit(relax.TupleGetItem(body, 0)) if several else body
            loss = builder.emit_output(relax.op.mean(relax.op.multiply(first, first)), "loss")
        builder.emit_func_output(loss)
    return builder.get()["main"]


def gradients_of(model: Model, *inputs: torch.Tensor) -> dict[str, np.ndarray]:
    """The loss, and the gradient of every floating-point parameter, by its name in torch."""
    function = scalar_loss(model)
    names = dict(zip(model.params, function.params[model.num_input :], strict=True))
    wrt = {name: var for name, var in names.items() if str(var.ty.dtype) == "float32"}
    mod = model.mod.clone()
    mod["main"] = differentiate(function, list(wrt.values()))
    results = vm.compile(model.replace(mod=mod, output_names=()), "cpu")(*inputs)
    return {name: np.asarray(result) for name, result in zip(["loss", *wrt], results, strict=True)}


def torch_gradients_of(
    architecture: Architecture, *args: torch.Tensor, **kwargs: torch.Tensor
) -> dict[str, np.ndarray]:
    """The same by torch's autograd."""
    module = architecture.module.requires_grad_(True)
    loss = flatten(module(*args, **kwargs))[0].square().mean()
    loss.backward()
    gradients = {
        name: p.grad.numpy() for name, p in module.named_parameters(remove_duplicate=False) if p.grad is not None
    }
    return {"loss": loss.detach().numpy(), **gradients}


def assert_gradients_close(actual: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    """Every parameter that torch has a gradient for has the same one here."""
    largest = max(float(np.abs(gradient).max()) for gradient in expected.values())
    buffers = actual.keys() - expected.keys()
    assert all(not actual[name].any() or "running" in name for name in buffers), buffers
    for name in actual.keys() & expected.keys():
        scale = max(float(np.abs(expected[name]).max()), 1e-3 * largest)
        np.testing.assert_allclose(actual[name], expected[name], rtol=0, atol=_TOLERANCE * scale, err_msg=name)


#: Of these the batch is dynamic.
_DYNAMIC = ("llama", "lstm")


@pytest.mark.parametrize("name", [name for name in ARCHITECTURES if name not in _DYNAMIC])
def test_gradients_of_a_model_are_those_of_torch(name: str) -> None:
    architecture = ARCHITECTURES[name]()
    args, kwargs = architecture.inputs(2)
    actual = gradients_of(imported(name), *args, *kwargs.values())
    expected = torch_gradients_of(architecture, *args, **kwargs)
    assert len(actual.keys() & expected.keys()) > 5
    assert_gradients_close(actual, expected)


@pytest.mark.parametrize("name", _DYNAMIC)
def test_gradients_of_a_model_with_a_dynamic_batch_are_those_of_torch(name: str) -> None:
    architecture = ARCHITECTURES[name]()
    args, kwargs = architecture.inputs(3)
    actual = gradients_of(imported(name, True), *args, *kwargs.values())
    expected = torch_gradients_of(architecture, *args, **kwargs)
    assert len(actual.keys() & expected.keys()) > 5
    assert_gradients_close(actual, expected)
