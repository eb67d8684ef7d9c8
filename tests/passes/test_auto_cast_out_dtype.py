"""The dtype of a function's results is what the policy asks for, where nobody calls it."""

from __future__ import annotations

from tvm import relax
from tvm.script import ir as I
from tvm.script import relax as R

from autocast import amp
from autocast.ir import all_bindings, op_name
from tests.passes.test_auto_cast_rules import Softmax

LOW, FULL = "bfloat16", "float32"


def test_the_results_have_the_dtype_that_out_dtype_asks_for():
    after = amp.autocast(Softmax, out_dtype="bfloat16")
    relax.analysis.well_formed(after)
    assert str(after["main"].ret_ty.dtype) == LOW
    assert str(after.get_global_var("main").ty.ret.dtype) == LOW


def test_out_dtype_leaves_functions_that_others_call_alone():
    @I.ir_module
    class Calls:
        @R.function
        def layer(x: R.Tensor((4, 4), "float32")) -> R.Tensor((4, 4), "float32"):
            y = R.matmul(x, x)
            return y

        @R.function
        def main(x: R.Tensor((4, 4), "float32")) -> R.Tensor((4, 4), "float32"):
            cls = Calls
            y = cls.layer(x)
            return y

    after = amp.autocast(Calls, out_dtype="bfloat16")
    relax.analysis.well_formed(after)
    assert (str(after["layer"].ret_ty.dtype), str(after["main"].ret_ty.dtype)) == (FULL, LOW)


def test_out_dtype_leaves_a_function_that_calls_itself_alone():
    @I.ir_module
    class Recursive:
        @R.function
        def main(c: R.Tensor((), "bool"), x: R.Tensor((4, 4), "float32")) -> R.Tensor((4, 4), "float32"):
            cls = Recursive
            if c:
                y = R.matmul(x, x)
                r = cls.main(c, y)
            else:
                r = R.exp(x)
            return r

    after = amp.autocast(Recursive, out_dtype="bfloat16")
    relax.analysis.well_formed(after)
    assert str(after["main"].ret_ty.dtype) == FULL


def test_out_dtype_changes_floating_point_results_only():
    @I.ir_module
    class Mixed:
        @R.function
        def main(x: R.Tensor((4, 4), "float32"), i: R.Tensor((4,), "int64"), d: R.Tensor((4,), "float64")):
            y = R.exp(x)
            j = R.add(i, i)
            return (y, j, d)

    after = amp.autocast(Mixed, dtype="float16", out_dtype="float16")
    assert [str(field.dtype) for field in after["main"].ret_ty.fields] == ["float16", "int64", "float64"]


def test_a_gradient_of_a_convolutions_weights_is_widened_after_it():
    @I.ir_module
    class Gradient:
        @R.function
        def main(
            x: R.Tensor((2, 2, 3, 3, 3), LOW), g: R.Tensor((2, 2, 2, 2, 2), LOW), w: R.Tensor((2, 2, 2, 2, 2), LOW)
        ):
            d = R.grad.conv3d_weight_backward(
                x,
                w,
                g,
                strides=[1, 1, 1],
                padding=[0] * 6,
                dilation=[1, 1, 1],
                groups=1,
                data_layout="NCDHW",
                kernel_layout="OIDHW",
                out_layout="NCDHW",
                out_dtype="void",
            )
            r = R.multiply(d, w)
            return r

    after = amp.autocast(Gradient, preset="mp1")
    relax.analysis.well_formed(after)
    assert str(after["main"].ret_ty.dtype) == LOW
    multiplied = next(b.value for b in all_bindings(after["main"].body) if op_name(b.value) == "relax.multiply")
    assert [str(arg.ty.dtype) for arg in multiplied.args] == [FULL, FULL]
