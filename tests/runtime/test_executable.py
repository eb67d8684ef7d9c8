"""Calls of a compiled model: conversions of inputs and outputs, and what is refused."""

from __future__ import annotations

import threading

import ml_dtypes
import numpy as np
import pytest
import torch
import tvm

from autocast import amp, from_torch, vm
from autocast.errors import InputError
from tests.kernels.modules import module
from tests.vm.modules import dense, square


@pytest.fixture(scope="module")
def model():
    return dense()


def expected(model, x, n):
    y = torch.as_tensor(x) @ torch.from_dlpack(model.params["w"])
    return y.relu(), y + float(n)


def test_torch_in_is_torch_out(model):
    x, n = torch.randn(7, 16), torch.tensor(2.0)
    outputs = vm.compile(model)(x, n)
    for got, want in zip(outputs, expected(model, x, n), strict=True):
        torch.testing.assert_close(got, want)


def test_inputs_are_taken_by_their_names_too(model):
    x, n = torch.randn(7, 16), torch.tensor(2.0)
    for outputs in (vm.compile(model)(x, n=n), vm.compile(model)(n=n, x=x)):
        torch.testing.assert_close(outputs[1], expected(model, x, n)[1])


@pytest.mark.parametrize(
    ("args", "named", "message"),
    [
        ((1,), {"x": 2, "n": 3}, "got x by its place and by its name"),
        ((1,), {"m": 3}, "n is missing; m is none of them"),
        ((), {"x": 3}, "n is missing"),
    ],
)
def test_names_that_do_not_fit_are_an_error(model, args, named, message):
    with pytest.raises(InputError, match=message):
        vm.compile(model)(*args, **named)


def test_numpy_in_is_numpy_out(model):
    x = np.random.default_rng(1).standard_normal((7, 16)).astype("float32")
    outputs = vm.compile(model)(x, np.array(2.0, "float32"))
    for got, want in zip(outputs, expected(model, x, 2.0), strict=True):
        np.testing.assert_allclose(got, want.numpy(), rtol=1e-5, atol=1e-5)


def test_tvm_in_is_tvm_out(model):
    x = tvm.runtime.tensor(np.ones((7, 16), "float32"))
    outputs = vm.compile(model)(x, tvm.runtime.tensor(np.array(2.0, "float32")))
    assert [type(output) for output in outputs] == [tvm.runtime.Tensor] * 2
    assert [tuple(output.shape) for output in outputs] == [(7, 32), (7, 32)]


def test_one_output_is_no_tuple():
    assert vm.compile(square("float32"))(torch.full((3, 5), 3.0)).tolist() == [[9.0] * 5] * 3


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_every_storage_dtype_goes_in_and_out(dtype):
    executable = vm.compile(square(dtype))
    x = torch.arange(15.0).reshape(3, 5).to(getattr(torch, dtype))
    assert torch.equal(executable(x), x * x)
    array = np.arange(15.0).reshape(3, 5).astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    result = executable(array)
    assert result.dtype == array.dtype
    np.testing.assert_array_equal(result.astype("float32"), (array * array).astype("float32"))


@pytest.mark.parametrize(
    "view",
    [
        pytest.param(lambda x: torch.cat([x.new_zeros(1), x.flatten()])[1:].reshape(x.shape), id="not aligned"),
        pytest.param(lambda x: x.t().contiguous().t(), id="not dense"),
        pytest.param(lambda x: x.repeat_interleave(2, dim=0)[::2], id="strided"),
        pytest.param(lambda x: x.requires_grad_(), id="requires a gradient"),
    ],
)
def test_views_are_read_as_torch_reads_them(model, view):
    x, n = view(torch.randn(7, 16)), torch.tensor(0.0)
    torch.testing.assert_close(vm.compile(model)(x, n)[0], expected(model, x.detach(), n)[0])


def test_dense_torch_tensors_are_not_copied():
    x = torch.randn(3, 5)
    executable = vm.compile(square("float32"))
    assert torch.from_dlpack(executable.arguments((x,))[0]).data_ptr() == x.data_ptr()


def test_outputs_stay_as_they_were_when_the_model_runs_again():
    executable = vm.compile(square("float32"))
    first = executable(torch.full((3, 5), 2.0))
    executable(torch.full((3, 5), 3.0))
    assert first.tolist() == [[4.0] * 5] * 3


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        pytest.param(
            (torch.zeros(7, 16),), r"got 1 inputs, expected 2 \(x: float32\[rows, 16\], n: float32\[\]\)", id="number"
        ),
        pytest.param(
            (torch.zeros(7, 16, dtype=torch.float64), torch.tensor(0.0)),
            r"input x is float64\[7, 16\], expected float32\[rows, 16\]. Convert it: x.to\(torch.float32\)",
            id="dtype",
        ),
        pytest.param(
            (np.zeros((7, 16)), np.float32(0.0)),
            r"input x is float64\[7, 16\], .* Convert it: x.astype\('float32'\)",
            id="dtype in numpy",
        ),
        pytest.param(
            (torch.zeros(7, 15), torch.tensor(0.0)),
            r"input x is float32\[7, 15\], expected float32\[rows, 16\] with rows = 7. Where sizes vary along axis 1, "
            r"give that size a name in main's signature: x: R.Tensor\(\(\"rows\", \"x_1\"\), \"float32\"\)",
            id="size",
        ),
        pytest.param(
            (torch.zeros(7), torch.tensor(0.0)),
            r"input x is float32\[7\], expected float32\[rows, 16\]. Give it 2 axes, or change its type in main",
            id="rank",
        ),
        pytest.param(
            (torch.zeros(7, 16), torch.zeros(1)), r"input n is float32\[1\], expected float32\[\]", id="second input"
        ),
        pytest.param(([[0.0] * 16], torch.tensor(0.0)), "input x is a list, expected a torch tensor", id="no tensor"),
        pytest.param(
            (torch.zeros(65, 16), torch.tensor(0.0)),
            r"input x has size 65 along axis 0, expected rows in 0 to 64. Change .* tir_var_upper_bound",
            id="bound",
        ),
        pytest.param(
            (torch.zeros(7, 16, device="meta"), torch.tensor(0.0)), "an input is on meta, expected the cpu", id="device"
        ),
    ],
)
def test_inputs_that_do_not_fit_are_named(model, inputs, message):
    with pytest.raises(InputError, match=message):
        vm.compile(model)(*inputs)


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ((torch.zeros(7, 15),), r"expected float32\[rows, 16\] .* import .*: dynamic={\"n\": \(\"input\", 1\)}"),
        ((torch.zeros(7),), "Give it 2 axes, or import the model with examples like this"),
        ((torch.zeros(65, 16),), r"expected rows in 1 to 64. Import .*dynamic={\"rows\": \(\"input\", 0, 1, 65\)}"),
        ((), "Pass these alone, in this order; other values were fixed when the model was imported"),
    ],
)
def test_inputs_that_do_not_fit_a_model_from_torch_lead_back_to_its_import(inputs, message):
    model = from_torch(torch.nn.ReLU(), (torch.zeros(7, 16),), dynamic={"rows": ("input", 0, 1, 64)})
    for casted in (model, amp.autocast(model)):
        with pytest.raises(InputError, match=message):
            vm.compile(casted)(*inputs)


def test_inputs_that_disagree_are_refused_after_calls_whose_inputs_agreed():
    executable = vm.compile(module(tvm.relax.op.add, *[(("n", 3), "float32")] * 2))
    for rows in (2, 2, 5):
        assert executable(torch.ones(rows, 3), torch.ones(rows, 3)).tolist() == [[2.0] * 3] * rows
        with pytest.raises(InputError, match="expected"):
            executable(torch.ones(rows, 3), torch.ones(rows + 1, 3))
        with pytest.raises(InputError, match="expected"):
            executable(torch.ones(rows, 3), torch.ones(rows, 3, dtype=torch.float64))
        with pytest.raises(InputError, match="got 1 inputs"):
            executable(torch.ones(rows, 3))


def test_threads_may_call_one_executable(model):
    executable = vm.compile(model)
    n = torch.tensor(1.0)
    xs = [torch.randn(size, 16) for size in (3, 17, 40, 64)]
    results = [None] * len(xs)

    def call(index):
        for _ in range(20):
            results[index] = executable(xs[index], n)

    workers = [threading.Thread(target=call, args=(index,)) for index in range(len(xs))]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    for x, outputs in zip(xs, results, strict=True):
        torch.testing.assert_close(outputs[1], expected(model, x, n)[1])


def test_the_instrument_is_gone_after_its_block():
    executable = vm.compile(square("float32"))
    names = []
    x = torch.ones(3, 5)

    def note(function, name, before, result, *args):
        names.append(name)
        return 0

    with executable.instrumented(note):
        executable(x)
    assert any("multiply" in name for name in names)
    names.clear()
    executable(x)
    assert names == []


def test_repr_shows_the_inputs(model):
    assert repr(vm.compile(model)) == "Executable(x: float32[rows, 16], n: float32[]; 1 parameters; cpu)"


def test_one_tensor_in_place_of_the_inputs_is_an_error(model):
    with pytest.raises(InputError, match=r"try \[tensor\]"):
        vm.profile_vm_model(model, "cpu", torch.randn(7, 16))


def test_a_torch_device_names_a_device(model):
    assert vm.compile(model, torch.device("cpu")) is vm.compile(model)
