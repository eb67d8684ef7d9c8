"""Operators of our own: TVM infers, prints, parses and compares them as it does its own."""

from __future__ import annotations

import re

import pytest
import tvm
import tvm_ffi
from tvm import relax
from tvm.script import ir as I
from tvm.script import relax as R
from tvm.script import tirx as T

from autocast.errors import IllFormedModuleError
from autocast.operators import own
from autocast.operators.own import OPERATORS
from tests.kernels.modules import module
from tests.type_hints.samples import SAMPLES, index, tensor

OWN = sorted(name for name in set(SAMPLES) & set(OPERATORS) if name.startswith(("relax.nn.", "relax.grad.")))


def test_every_operator_has_a_sample():
    assert sorted(name for name in OPERATORS if name.startswith(("relax.nn.", "relax.grad."))) == OWN


@I.ir_module
class Slopes:
    @R.function
    def main(
        x: R.Tensor(("n", 4), "bfloat16"), gamma: R.Tensor((4,), "float32"), g: R.Tensor(("n", 4), "bfloat16")
    ) -> R.Tensor(("n", 4), "bfloat16"):
        n = T.int64()  # noqa: F841
        with R.dataflow():
            slope = R.grad.gelu_backward(x, g)
            norm = R.grad.layer_norm_backward(slope, gamma, g, axes=[-1], epsilon=1e-5, center=True, scale=True)
            dx = norm[0]
            R.output(dx)
        return dx


def test_types_are_inferred_from_the_arguments():
    bindings = {binding.var.name: binding.var.ty for binding in Slopes["main"].body.blocks[0].bindings}
    assert str(bindings["slope"].dtype) == "bfloat16"
    assert [str(field.dtype) for field in bindings["norm"].fields] == ["bfloat16", "float32", "float32"]
    relax.analysis.well_formed(Slopes)


@pytest.mark.parametrize("name", OWN)
def test_a_call_prints_as_a_script_that_parses_to_the_same_call(name):
    call = SAMPLES[name]()
    mod = module(
        lambda *args: relax.Call(call.op, list(args), call.attrs),
        *[([int(size) for size in arg.ty.shape.values], str(arg.ty.dtype)) for arg in call.args],
    )
    script = mod.script()
    assert name.replace("relax", "R", 1) in script
    parsed = tvm.script.from_source(script)
    assert tvm_ffi.structural_equal(parsed, mod) or parsed.script() == script


def test_an_argument_that_is_no_tensor_is_refused():
    shape = relax.ShapeExpr([4, 6])
    with pytest.raises(IllFormedModuleError, match=r"tanh_backward: got \(.*R.Shape.*expected tensors: y, g"):
        OPERATORS["relax.grad.tanh_backward"].infer(own.tanh_backward(tensor(4, 6), shape))


@pytest.mark.parametrize("name", OWN)
def test_a_call_without_arguments_says_what_it_expects(name):
    call = SAMPLES[name]()
    with pytest.raises(IllFormedModuleError, match=rf"{re.escape(name)}.*expected tensors: "):
        OPERATORS[name].infer(relax.Call(call.op, [], call.attrs))


def test_cross_entropy_of_labels_that_do_not_fit_says_so():
    for labels in (index(3), tensor(4)):
        call = own.cross_entropy(tensor(4, 5), labels, ignore_index=-100, label_smoothing=0.0, reduction="mean")
        with pytest.raises(IllFormedModuleError, match=r"expected logits of the shape \(\.\.\., classes\) and integer"):
            OPERATORS["relax.nn.cross_entropy"].infer(call)


def test_cross_entropy_names_the_reductions_it_knows():
    call = own.cross_entropy(tensor(4, 5), index(4), ignore_index=-100, label_smoothing=0.0, reduction="average")
    with pytest.raises(IllFormedModuleError, match="got reduction='average', expected one of mean, sum, none"):
        OPERATORS["relax.nn.cross_entropy"].infer(call)
