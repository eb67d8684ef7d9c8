"""Sizes that a `match_cast` says are the same are: of inputs, and of what is computed from them."""

from __future__ import annotations

import numpy as np
import pytest
from tvm.script import ir as I
from tvm.script import relax as R
from tvm.script import tirx as T

from autocast import amp, from_relax, vm
from autocast.errors import InputError


@I.ir_module
class Equal:
    @R.function
    def main(x: R.Tensor(("n", 4), "float32"), y: R.Tensor(("m", 4), "float32"), w: R.Tensor(("k", 4), "float32")):
        n = T.int64()
        e = R.exp(y)
        z = R.match_cast(e, R.Tensor((n, 4), "float32"))
        v = R.match_cast(w, R.Tensor((2, 4), "float32"))
        return (R.add(x, z), R.add(v, R.const(np.ones((2, 1), "float32"))))


@pytest.mark.parametrize("low", [False, True])
def test_they_are_added(low: bool) -> None:
    model = from_relax(Equal)
    x, y, w = (np.arange(4 * rows, dtype="float32").reshape(rows, 4) / 8 for rows in (3, 3, 2))
    total, more = vm.compile(amp.autocast(model) if low else model)(x, y, w)
    np.testing.assert_allclose(total, x + np.exp(y), rtol=1e-6)
    np.testing.assert_array_equal(more, w + 1)


def test_a_size_that_two_casts_name_is_the_first_of_its_names() -> None:
    @I.ir_module
    class Named:
        @R.function
        def main(x: R.Tensor(("n", "m"), "float32"), s: R.Shape(["n", "k"])):
            n, m, k, p, q = T.int64(), T.int64(), T.int64(), T.int64(), T.int64()
            sizes = R.tensor_to_shape(R.shape_to_tensor(R.shape_of(x)))
            a = R.match_cast(sizes, R.Shape([p, q]))
            b = R.match_cast(a, R.Shape([n, m]))
            grown = R.tensor_to_shape(R.shape_to_tensor(R.shape([n * m, k + 1])))
            y = R.zeros(R.shape([p, q]), "float32")
            return R.add(x, y), b, grown, R.shape([p * q, k])

    x = np.ones((3, 4), "float32")
    total, *shapes = vm.compile(from_relax(Named))(x, np.array([3, 7]))
    np.testing.assert_array_equal(total, x)
    assert [tuple(shape) for shape in shapes] == [(3, 4), (12, 8), (12, 7)]


def test_inputs_of_other_sizes_are_refused() -> None:
    executable = vm.compile(from_relax(Equal))
    x, y = np.ones((3, 4), "float32"), np.ones((2, 4), "float32")
    with pytest.raises(InputError, match=r"y is float32\[2, 4\], expected float32\[n, 4\] with n = 3"):
        executable(x, y, y)
    with pytest.raises(InputError, match=r"w is float32\[3, 4\], expected float32\[2, 4\]"):
        executable(x, x, x)
