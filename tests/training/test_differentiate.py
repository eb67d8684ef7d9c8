"""Differentiation: paths, sums of adjoints, tuples, symbolic shapes, seeds, and what it refuses."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.relax import op
from tvm.script import ir as I
from tvm.script import relax as R
from tvm.script import tirx as T

from autocast import from_relax, vm
from autocast.errors import GradientError
from autocast.training import differentiate
from tests.training.gradients.checking import compiled


def tensor(name: str, *shape: object, dtype: str = "float32") -> relax.Var:
    """A parameter."""
    return relax.Var(name, relax.TensorType(shape, dtype))


def function_of(
    params: Sequence[relax.Var], build: Callable[[relax.BlockBuilder], relax.Expr | list[relax.Expr]]
) -> relax.Function:
    """A function in one dataflow block."""
    builder = relax.BlockBuilder()
    with builder.function("main", list(params), attrs={"num_input": 1}):
        with builder.dataflow():
            results = build(builder)
            outputs = [builder.emit_output(r) for r in results] if isinstance(results, list) else results
            outputs = outputs if isinstance(results, list) else builder.emit_output(outputs)
        builder.emit_func_output(outputs)
    return builder.get()["main"]


def test_forward_and_backward_are_one_block_with_adjoints_named_after_their_tensors() -> None:
    @I.ir_module
    class Before:
        @R.function
        def main(x: R.Tensor((2, 3), "float32"), w: R.Tensor((3, 4), "float32")) -> R.Tensor((), "float32"):
            with R.dataflow():
                y = R.matmul(x, w)
                z = R.exp(y)
                loss = R.sum(z)
                R.output(loss)
            return loss

    @I.ir_module
    class Expected:
        @R.function
        def main(x: R.Tensor((2, 3), "float32"), w: R.Tensor((3, 4), "float32")):
            with R.dataflow():
                y = R.matmul(x, w)
                z = R.exp(y)
                loss = R.sum(z)
                ones = R.expand_dims(R.const(1.0, "float32"), axis=[0, 1])
                z_grad = R.broadcast_to(ones, R.shape([2, 4]))
                y_grad = R.multiply(z_grad, z)
                columns = R.permute_dims(x, axes=[1, 0])
                w_grad = R.matmul(columns, y_grad)
                R.output(loss, w_grad)
            return (loss, w_grad)

    main = Before["main"]
    result = differentiate(main, [main.params[1]])
    tvm.ir.assert_structural_equal(result.without_attr("global_symbol"), Expected["main"].without_attr("global_symbol"))
    names = [binding.var.name for binding in result.body.blocks[0].bindings]
    assert [name for name in names if name.endswith("_grad")] == ["z_grad", "y_grad", "w_grad"]


def test_adjoints_of_several_uses_are_added_the_last_use_first() -> None:
    x = tensor("x", 3)

    def build(builder: relax.BlockBuilder) -> relax.Expr:
        first = builder.emit(op.exp(x), "first")
        second = builder.emit(op.sin(x), "second")
        return op.sum(builder.emit(op.multiply(first, second)))

    function = differentiate(function_of([x], build), [x])
    values = {binding.var: binding.value for binding in function.body.blocks[0].bindings}
    total = next(value for value in values.values() if value.op.name == "relax.add")
    late, early = (values[argument] for argument in total.args)
    assert values[late.args[1]].op.name == "relax.cos", "the adjoint of the later use, sin, comes first"
    assert early.args[1].name == "first"


def test_only_what_lies_between_the_variables_and_the_target_is_differentiated() -> None:
    x, y = tensor("x", 3), tensor("y", 3)

    def build(builder: relax.BlockBuilder) -> list[relax.Expr]:
        unrelated = builder.emit(op.cumprod(builder.emit(op.exp(y)), 0))  # has no gradient, and needs none
        loss = builder.emit(op.sum(builder.emit(op.multiply(builder.emit(op.exp(x)), unrelated))))
        return [loss, builder.emit(op.cumprod(x, 0))]

    function = function_of([x, y], build)
    assert len(differentiate(function, [x]).ret_ty.fields) == 3
    with pytest.raises(GradientError, match=r"relax\.cumprod"):
        differentiate(function, [x, y])


def test_tuples_and_their_fields_pass_adjoints_on() -> None:
    x = tensor("x", 4, dtype="float64")

    def build(builder: relax.BlockBuilder) -> relax.Expr:
        parts = builder.emit(op.split(x, 4))
        pair = builder.emit(relax.Tuple([parts[0], relax.Tuple([parts[2], x])]))
        inner = builder.emit(relax.TupleGetItem(pair, 1))
        again = builder.emit(inner)
        product = builder.emit(op.multiply(relax.TupleGetItem(pair, 0), relax.TupleGetItem(again, 0)))
        return builder.emit(op.sum(builder.emit(op.multiply(product, relax.TupleGetItem(inner, 1)))))

    run = compiled(differentiate(function_of([x], build), [x]))
    value = np.array([2.0, 3.0, 5.0, 7.0])
    loss, gradient = run(value)
    product, total = 2.0 * 5.0, value.sum()
    assert loss == product * total
    np.testing.assert_allclose(gradient, product + np.array([5.0, 0, 2.0, 0]) * total)


def test_a_function_that_returns_a_bound_tuple_keeps_its_results() -> None:
    x = tensor("x", 3, dtype="float64")

    def build(builder: relax.BlockBuilder) -> relax.Expr:
        square = builder.emit(op.square(x))
        return builder.emit(relax.Tuple([square, builder.emit(op.sum(square))]))

    run = compiled(differentiate(function_of([x], build), [x], target=1))
    square, loss, gradient = run(np.array([1.0, 2.0, 3.0]))
    np.testing.assert_array_equal(square, [1, 4, 9])
    assert loss == 14
    np.testing.assert_array_equal(gradient, [2, 4, 6])


def test_shapes_may_be_symbolic() -> None:
    n = tvm.tirx.Var("n", "int64")
    x, w, bias = (
        tensor("x", n, 5, 3, dtype="float64"),
        tensor("w", 3, 4, dtype="float64"),
        tensor("bias", 4, dtype="float64"),
    )

    def build(builder: relax.BlockBuilder) -> relax.Expr:
        y = builder.emit(op.add(builder.emit(op.matmul(x, w)), bias))
        y = builder.emit(op.reshape(builder.emit(op.exp(y)), (n * 5, 4)))
        centered = builder.emit(op.subtract(y, builder.emit(op.mean(y, 0, keepdims=True))))
        return builder.emit(op.mean(builder.emit(op.square(centered))))

    run = compiled(differentiate(function_of([x, w, bias], build), [w, bias]))
    generator = np.random.default_rng(0)
    weights = generator.normal(size=(3, 4)), generator.normal(size=4)
    for batch in (1, 3):
        data = generator.normal(size=(batch, 5, 3))

        def loss_of(w: np.ndarray, bias: np.ndarray, data: np.ndarray = data) -> float:
            return float(np.exp(data @ w + bias).reshape(-1, 4).var(0).mean())

        loss, of_w, of_bias = run(data, *weights)
        np.testing.assert_allclose(loss, loss_of(*weights))
        for gradient, place in ((of_w, 0), (of_bias, 1)):
            for index in np.ndindex(gradient.shape):
                moved = [[w.copy() for w in weights] for _ in range(2)]
                moved[0][place][index] += 1e-6
                moved[1][place][index] -= 1e-6
                slope = (loss_of(*moved[0]) - loss_of(*moved[1])) / 2e-6
                np.testing.assert_allclose(gradient[index], slope, rtol=1e-5, atol=1e-7)


def test_a_seed_multiplies_the_gradients_and_not_the_loss() -> None:
    x, scale = tensor("x", 3, dtype="float64"), tensor("scale", dtype="float64")
    function = function_of([x, scale], lambda builder: builder.emit(op.sum(builder.emit(op.square(x)))))
    run = compiled(differentiate(function, [x], seed=scale))
    loss, gradient = run(np.array([1.0, 2.0, 3.0]), np.array(1024.0))
    assert loss == 14
    np.testing.assert_array_equal(gradient, [2048, 4096, 6144])


def test_a_variable_that_the_target_does_not_depend_on_has_a_gradient_of_zeros() -> None:
    x, y = tensor("x", 3, dtype="float64"), tensor("y", 2, dtype="float64")
    function = function_of([x, y], lambda builder: builder.emit(op.sum(x)))
    _, gradient = compiled(differentiate(function, [y, x]))(np.ones(3), np.ones(2))[:2]
    np.testing.assert_array_equal(gradient, [0, 0])


def test_parameters_and_attributes_stay_as_they_are() -> None:
    x = tensor("x", 3)
    function = function_of([x], lambda builder: builder.emit(op.sum(builder.emit(op.exp(x)))))
    result = differentiate(function, [x])
    assert result.params[0].same_as(x)
    assert int(result.attrs["num_input"]) == 1


def test_gradients_of_variables_inside_the_function_can_be_asked_for() -> None:
    x = tensor("x", 3, dtype="float64")
    inner: list[relax.Var] = []

    def build(builder: relax.BlockBuilder) -> relax.Expr:
        inner.append(builder.emit(op.square(x)))
        return builder.emit(op.sum(builder.emit(op.exp(inner[0]))))

    _, gradient = compiled(differentiate(function_of([x], build), inner))(np.array([0.0, 1.0, 2.0]))
    np.testing.assert_allclose(gradient, np.exp([0.0, 1.0, 4.0]))


def test_functions_that_the_module_calls_are_inlined() -> None:
    @I.ir_module
    class Module:
        @R.function(private=True)
        def square(a: R.Tensor((3,), "float64")) -> R.Tensor((3,), "float64"):
            with R.dataflow():
                b = R.multiply(a, a)
                R.output(b)
            return b

        @R.function
        def main(x: R.Tensor((3,), "float64")) -> R.Tensor((), "float64"):
            cls = Module
            with R.dataflow():
                y = cls.square(x)
                z = cls.square(y)
                loss = R.sum(z)
                R.output(loss)
            return loss

    main = Module["main"]
    _, gradient = compiled(differentiate(main, main.params, mod=Module))(np.array([1.0, 2.0, 3.0]))
    np.testing.assert_array_equal(gradient, [4.0, 32.0, 108.0])
    with pytest.raises(GradientError, match=r"a call of .*square.*pass differentiate\(\.\.\., mod=\.\.\.\)"):
        differentiate(main, main.params)


def test_a_check_of_a_type_passes_its_adjoint_on() -> None:
    @I.ir_module
    class Module:
        @R.function
        def main(x: R.Tensor(("n",), "float64")) -> R.Tensor((), "float64"):
            m = T.int64()
            with R.dataflow():
                y = R.match_cast(x, R.Tensor((m,), "float64"))
                z = R.exp(y)
                loss = R.sum(z)
                R.output(loss)
            return loss

    main = Module["main"]
    _, gradient = compiled(differentiate(main, main.params))(np.array([0.0, 1.0, 2.0]))
    np.testing.assert_allclose(gradient, np.exp([0.0, 1.0, 2.0]))


def test_integers_have_no_gradient() -> None:
    x, i = tensor("x", 3), tensor("i", 3, dtype="int64")
    function = function_of([x, i], lambda builder: builder.emit(op.sum(builder.emit(op.take(x, i, 0)))))
    with pytest.raises(GradientError, match=r"got wrt=.*'i'.*int64"):
        differentiate(function, [i])


def test_gradients_cast_nothing_to_the_dtype_that_it_has():
    @I.ir_module
    class Written:
        @R.function
        def main(x: R.Tensor((4, 4), "float32"), w: R.Tensor((4, 4), "float32"), fill: R.Tensor((), "float32")):
            with R.dataflow():
                same = R.astype(R.matmul(x, w), "float32")
                loss = R.sum(R.add(same, R.full((4, 4), fill, "float32")))
                R.output(loss)
            return loss

    main = Written["main"]
    assert differentiate(main, list(main.params[1:])).script().count("R.astype") == 1  # the author's own


def test_shapes_whose_sizes_have_no_names_get_some() -> None:
    @I.ir_module
    class Module:
        @R.function
        def main(x: R.Tensor(("n",), "float32"), s: R.Shape(ndim=2), sizes: R.Tensor((2,), "int64")) -> R.Tensor(
            (), "float32"
        ):
            y = R.reshape(x, s)
            z = R.reshape(R.multiply(y, y), R.tensor_to_shape(sizes))
            w = R.multiply(z, z)
            loss = R.sum(w)
            return loss

    main = Module["main"]
    mod = tvm.IRModule({"main": differentiate(main, [main.params[0]])})
    relax.analysis.well_formed(mod)
    x = np.arange(6, dtype="float32")
    loss, gradient = vm.compile(from_relax(mod))(x, np.array([2, 3]), np.array([3, 2]))
    np.testing.assert_allclose(loss, np.sum(x**4))
    np.testing.assert_allclose(gradient, 4 * x**3)
