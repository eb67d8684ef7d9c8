"""Reshapes of run-time sizes copy nothing, whatever those sizes are made of."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm.script import ir as I
from tvm.script import relax as R
from tvm.script import tirx as T

from autocast import from_relax
from autocast.kernels import detect_target, lower, plan
from tests.kernels.modules import random, scheduled


@I.ir_module
class Split:
    @R.function
    def main(x: R.Tensor(("n", "4 * c", "h", "w"), "float32"), like: R.Tensor(("c",), "float32")):
        n = T.int64()
        c = T.int64()
        h = T.int64()
        w = T.int64()
        y = R.exp(x)
        parts = R.reshape(y, R.shape([n, 4, c, h, w]))
        total = R.sum(parts, axis=[2, 3, 4])
        return total, R.reshape(parts, R.shape([n, 4 * c * h, w]))


@I.ir_module
class Argument:
    @R.function
    def main(x: R.Tensor(("n", "4 * c", "h", "w"), "float32"), like: R.Tensor(("c",), "float32")):
        n = T.int64()
        c = T.int64()
        h = T.int64()
        w = T.int64()
        return R.reshape(x, R.shape([n, 4, c, h, w]))


@I.ir_module
class Rows:
    """Slices that TVM's analysis takes for reshapes, or asserts of."""

    @R.function
    def main(x: R.Tensor((2, 13, 13), "float32"), like: R.Tensor(("n",), "float32")):
        n = T.int64()
        with R.dataflow():
            first = R.strided_slice(x, axes=[0, 1], begin=[0, 0], end=[1, 1], assume_inbound=True)
            rest = R.strided_slice(x, axes=[2], begin=[n], end=[13], assume_inbound=True)
            transposed = R.permute_dims(x, [0, 2, 1])
            y = R.matmul(R.squeeze(first, axis=[1]), transposed)
            z = R.matmul(transposed, rest)
            R.output(y, z)
        return y, z


_X, _LIKE = random((2, 12, 5, 6), "float32"), np.zeros(3, "float32")


def _kernels(mod: tvm.IRModule) -> list[str]:
    return [str(name) for name in scheduled(plan(mod, detect_target()).planned)]


def test_what_is_split_and_joined_again_is_not_copied() -> None:
    assert not [name for name in _kernels(Split) if "reshape" in name]
    total, joined = from_relax(Split)(_X, _LIKE)
    expected = np.exp(_X.astype("float64"))
    np.testing.assert_allclose(total, expected.reshape(2, 4, -1).sum(-1), rtol=1e-6)
    np.testing.assert_allclose(joined, expected.reshape(2, -1, 6), rtol=1e-6)


def test_an_argument_that_is_returned_is_copied() -> None:
    assert any("reshape" in name for name in _kernels(Argument))
    np.testing.assert_array_equal(from_relax(Argument)(_X, _LIKE), _X.reshape(2, 4, 3, 5, 6))


def test_a_kernel_divides_by_sizes_that_tvm_knows_to_be_positive() -> None:
    (kernel,) = (f.script() for name, f in scheduled(lower(Argument, detect_target())).items() if "reshape" in name)
    assert "if c > T.int64(0) and h > T.int64(0) and n > T.int64(0) and w > T.int64(0)" in kernel


def test_a_tensor_of_no_elements_keeps_its_other_sizes() -> None:
    assert from_relax(Argument)(_X[:, :, :0], _LIKE).shape == (2, 4, 3, 0, 6)


@pytest.mark.parametrize("size", [0, 1, 5])
def test_slices_are_no_reshapes(size: int) -> None:
    x = random((2, 13, 13), "float32")
    y, z = from_relax(Rows)(x, np.zeros(size, "float32"))
    np.testing.assert_allclose(y, x[:1, :1] @ x.mT, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(z, x.mT @ x[:, :, size:], rtol=1e-5, atol=1e-5)
