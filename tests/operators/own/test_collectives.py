"""The mean over ranks: types, what does not fit, and in one process the tensors themselves."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.script import ir as I
from tvm.script import relax as R

from autocast import vm
from autocast.errors import IllFormedModuleError
from autocast.operators.own import all_reduce_done, all_reduce_start
from tests.type_hints.samples import tensor


@I.ir_module
class Means:
    @R.function
    def main(x: R.Tensor((2, 3), "float32"), y: R.Tensor((), "float32")):
        with R.dataflow():
            double = R.multiply(x, R.const(2.0, "float32"))
            sums = R.collective.all_reduce_start((double, y))
            other = R.exp(y)
            means = R.collective.all_reduce_done(sums, shapes=[[2, 3], []], dtype="float32")
            first = means[0]
            second = means[1]
            R.output(first, second, other)
        return (first, second, other)


def test_a_buffer_has_all_elements_and_the_means_have_the_shapes() -> None:
    types = {binding.var.name: binding.var.ty for binding in Means["main"].body.blocks[0].bindings}
    assert types["sums"] == relax.TensorType([2 * 32 * 4], "uint8"), "each tensor begins at a multiple of 32 elements"
    assert list(types["means"].fields) == [relax.TensorType([2, 3], "float32"), relax.TensorType([], "float32")]


def test_a_module_prints_as_a_script_that_parses_to_the_same() -> None:
    tvm.ir.assert_structural_equal(tvm.script.from_source(Means.script()), Means)


def test_the_mean_over_one_process_is_the_tensor_itself() -> None:
    x, y = np.arange(6, dtype="float32").reshape(2, 3), np.array(0.5, "float32")
    first, second, other = vm.compile(Means)(x, y)
    np.testing.assert_array_equal(first, 2 * x)
    np.testing.assert_array_equal(second, y)
    np.testing.assert_allclose(other, np.exp(y), rtol=1e-6)


@pytest.mark.parametrize(
    "parts", [(tensor(2), tensor(2, dtype="bfloat16")), (relax.Var("x", relax.TensorType(ndim=1, dtype="float32")),)]
)
def test_tensors_of_two_dtypes_or_of_sizes_that_nobody_knows_are_refused(parts: tuple[relax.Var, ...]) -> None:
    with pytest.raises(IllFormedModuleError, match="expected tensors of one dtype whose sizes are known"):
        relax.BlockBuilder().normalize(all_reduce_start(relax.Tuple(parts)))


def test_what_is_no_tuple_of_tensors_is_refused() -> None:
    for argument in (tensor(2), relax.Tuple([]), relax.Tuple([relax.ShapeExpr([2])])):
        with pytest.raises(IllFormedModuleError, match=r"all_reduce_start: got \(.*\), expected tensors: tensors\*"):
            relax.BlockBuilder().normalize(all_reduce_start(argument))


def test_shapes_that_are_not_those_of_the_buffer_are_refused() -> None:
    with pytest.raises(IllFormedModuleError, match=r"shapes=\[\[2, 2\]\], expected the bytes of their elements"):
        relax.BlockBuilder().normalize(all_reduce_done(tensor(5, dtype="uint8"), shapes=[[2, 2]], dtype="float32"))
