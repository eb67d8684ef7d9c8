"""Random inputs as RAF's helpers give them."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
import torch

from autocast.errors import InputError
from autocast.testing import one_hot_torch, randint, randn_torch


def test_randint_draws_within_its_bounds():
    tensor, array = randint((8, 128), low=3, high=7, dtype="int64")
    assert (tensor.shape, tensor.dtype) == ((8, 128), torch.int64)
    assert set(tensor.unique().tolist()) == {3, 4, 5, 6}
    np.testing.assert_array_equal(tensor.numpy(), array)


def test_randn_torch_has_the_mean_and_deviation_asked_for():
    tensor, _ = randn_torch((200, 200), mean=2.0, std=3.0)
    assert float(tensor.mean()) == pytest.approx(2.0, abs=0.1)
    assert float(tensor.std()) == pytest.approx(3.0, abs=0.1)


def test_randn_torch_makes_scalars_and_tensors_that_require_gradients():
    tensor, array = randn_torch((), dtype="float32", requires_grad=True)
    assert tensor.shape == ()
    assert tensor.requires_grad
    assert float(array) == float(tensor.detach())


def test_bfloat16_is_shared_with_numpy():
    tensor, array = randn_torch((4, 4), dtype="bfloat16")
    assert array.dtype == ml_dtypes.bfloat16
    tensor[0, 0] = 5.0
    assert float(array[0, 0]) == 5.0


def test_one_hot_torch_gives_class_indices():
    tensor, array = one_hot_torch(1024, 30)
    assert (tensor.shape, tensor.dtype) == ((1024,), torch.int64)
    assert 0 <= int(tensor.min()) <= int(tensor.max()) < 30
    np.testing.assert_array_equal(tensor.numpy(), array)


def test_torchs_seed_repeats_the_values():
    torch.manual_seed(7)
    first = randint((100,))[0]
    torch.manual_seed(7)
    assert torch.equal(first, randint((100,))[0])


def test_an_empty_range_and_an_unknown_dtype_are_refused():
    with pytest.raises(InputError, match="low is 4 and high is 4"):
        randint((1,), low=4, high=4)
    with pytest.raises(InputError, match="'nothing' is no dtype of torch"):
        randn_torch((1,), dtype="nothing")
