"""Before and after: several functions, calls that are opaque, symbolic shapes."""

from __future__ import annotations

from tvm import relax
from tvm.script import ir as I
from tvm.script import relax as R
from tvm.script import tirx as T

from autocast import amp
from tests.passes.golden import check, check_unchanged


def test_functions_that_call_each_other_keep_their_signatures():
    @I.ir_module
    class Before:
        @R.function
        def layer(x: R.Tensor((4, 4), "float32")) -> R.Tensor((4, 4), "float32"):
            y = R.matmul(x, x)
            return y

        @R.function
        def main(x: R.Tensor((4, 4), "float32")) -> R.Tensor((4, 4), "float32"):
            cls = Before
            a = R.matmul(x, x)
            b = cls.layer(a)
            return b

    @I.ir_module
    class Expected:
        @R.function
        def layer(x: R.Tensor((4, 4), "float32")) -> R.Tensor((4, 4), "float32"):
            low = R.astype(x, "bfloat16")
            y = R.matmul(low, low, out_dtype="float32")
            return y

        @R.function
        def main(x: R.Tensor((4, 4), "float32")) -> R.Tensor((4, 4), "float32"):
            cls = Expected
            low = R.astype(x, "bfloat16")
            a = R.matmul(low, low, out_dtype="float32")
            b = cls.layer(a)
            return b

    check(Before, Expected)


def test_calls_of_kernels_and_packed_functions_are_not_touched():
    @I.ir_module
    class Before:
        @T.prim_func(s_tir=True)
        def kernel(a: T.Buffer((4, 4), "float32"), b: T.Buffer((4, 4), "float32")):
            for i, j in T.grid(4, 4):
                b[i, j] = a[i, j] + T.float32(1)

        @R.function
        def main(x: R.Tensor((4, 4), "bfloat16")):
            cls = Before
            with R.dataflow():
                y = R.matmul(x, x, out_dtype="float32")
                z = R.call_tir(cls.kernel, (y,), out_ty=R.Tensor((4, 4), "float32"))
                u = R.call_dps_packed("some.function", (z, x), out_ty=R.Tensor((4, 4), "float32"))
                R.output(u)
            return u

    check_unchanged(Before)


def test_symbolic_dimensions_weigh_as_their_upper_bound():
    @I.ir_module
    class Before:
        @R.function
        def main(x: R.Tensor(("n", 4), "float32"), w: R.Tensor((4, 4), "float32")):
            R.func_attr({"tir_var_upper_bound": {"n": 10}})
            y = R.matmul(x, w)
            return y

    report = amp.autocast(Before).report
    assert report.cast_bytes == 6 * (10 * 4 + 4 * 4)


def test_symbolic_dimensions_without_a_bound_weigh_as_64():
    @I.ir_module
    class Before:
        @R.function
        def main(x: R.Tensor(("n", 4), "float32"), w: R.Tensor((4, 4), "float32")):
            y = R.matmul(x, w)
            return y

    assert amp.autocast(Before).report.cast_bytes == 6 * (64 * 4 + 4 * 4)


def test_what_match_cast_learns_about_a_shape_is_kept():
    @I.ir_module
    class Before:
        @R.function
        def main(x: R.Tensor("float32", ndim=2), w: R.Tensor((4, 4), "float32")):
            n = T.int64()
            with R.dataflow():
                a = R.matmul(x, w)
                y = R.match_cast(x, R.Tensor((n, 4), "float32"))
                b = R.matmul(y, w)
                R.output(a, b)
            return (a, b)

    after = amp.autocast(Before, objective="casts")
    relax.analysis.well_formed(after)
    assert after.report.casts == 2
    products = [b.value for b in after["main"].body.blocks[0].bindings if "matmul" in str(b.value)]
    assert [len(product.ty.shape.values) if product.ty.shape is not None else None for product in products] == [None, 2]


def test_a_result_whose_type_leaves_out_the_dtype_keeps_it():
    @I.ir_module
    class Before:
        @R.function
        def main(x: R.Tensor((4, 4), "float32"), w: R.Tensor((4, 4), "float32")) -> R.Tuple(R.Tensor, R.Tensor):
            y: R.Tensor = R.matmul(x, w)
            t = (y, x)
            u: R.Tuple(R.Tensor, R.Tensor) = t
            return u

    check_unchanged(Before)


def test_a_result_whose_type_says_nothing_stays_as_it_is():
    @I.ir_module
    class Before:
        @R.function
        def main(x: R.Tensor((4, 4), "float32"), w: R.Tensor((4, 4), "float32")) -> R.Tuple(R.Any, R.Any):
            y: R.Any = R.matmul(x, w)
            z: R.Any = R.add(x, x)
            return (y, z)

    check_unchanged(Before)


def test_what_reads_a_tensor_whose_type_leaves_out_the_dtype_stays_as_it_is():
    @I.ir_module
    class Before:
        @R.function
        def main(x: R.Tensor((4, 4), "float32"), bias: R.Tensor((4,), "float32")) -> R.Tensor((4, 4), "float32"):
            row: R.Tensor((1, 4)) = R.reshape(bias, R.shape([1, 4]))
            y: R.Tensor((4, 4), "float32") = R.add(x, row)
            return y

    check_unchanged(Before)


def test_branches_that_know_more_than_their_conditional_keep_their_dtypes():
    @I.ir_module
    class Before:
        @R.function
        def main(x: R.Tensor((4, 4), "float32"), unknown: R.Tensor((4, 4)), flag: R.Tensor((), "bool")) -> R.Tensor(
            (4, 4)
        ):
            if flag:
                y = R.matmul(x, x)
                g = y
            else:
                g = unknown
            return g

    @I.ir_module
    class Expected:
        @R.function
        def main(x: R.Tensor((4, 4), "float32"), unknown: R.Tensor((4, 4)), flag: R.Tensor((), "bool")) -> R.Tensor(
            (4, 4)
        ):
            low = R.astype(x, "bfloat16")
            if flag:
                y = R.matmul(low, low, out_dtype="float32")
                g = y
            else:
                g = unknown
            return g

    check(Before, Expected)


def test_closures_capture_what_they_did_and_variables_that_hold_functions_are_called():
    @I.ir_module
    class Before:
        @R.function
        def main(x: R.Tensor((4, 4), "float32"), flag: R.Tensor((), "bool")) -> R.Tensor((4, 4), "float32"):
            if flag:
                g = R.matmul(x, x)
            else:
                g = R.add(x, x)

            @R.function
            def add_g(y: R.Tensor((4, 4), "float32")) -> R.Tensor((4, 4), "float32"):
                z = R.add(y, g)
                return z

            @R.function
            def add_x(y: R.Tensor((4, 4), "float32")) -> R.Tensor((4, 4), "float32"):
                z = R.add(y, x)
                return z

            if flag:
                f = add_g
            else:
                f = add_x
            y = f(g)
            return y

    @I.ir_module
    class Expected:
        @R.function
        def main(x: R.Tensor((4, 4), "float32"), flag: R.Tensor((), "bool")) -> R.Tensor((4, 4), "float32"):
            low = R.astype(x, "bfloat16")
            if flag:
                g = R.matmul(low, low, out_dtype="float32")
            else:
                g = R.add(x, x)

            @R.function
            def add_g(y: R.Tensor((4, 4), "float32")) -> R.Tensor((4, 4), "float32"):
                z = R.add(y, g)
                return z

            @R.function
            def add_x(y: R.Tensor((4, 4), "float32")) -> R.Tensor((4, 4), "float32"):
                z = R.add(y, x)
                return z

            if flag:
                f = add_g
            else:
                f = add_x
            y = f(g)
            return y

    check(Before, Expected)


def test_what_takes_a_number_of_float32_stays_float32():
    @I.ir_module
    class Before:
        @R.function
        def main(x: R.Tensor((4, 6), "bfloat16")):
            with R.dataflow():
                y = R.astype(x, "float32")
                z = R.layout_transform(y, index_map=lambda a, b: (a, b // 4, b % 4), pad_value=T.float32(2))
                u = R.add(z, T.float32(1))
                R.output(u)
            return u

    check_unchanged(Before)
