"""What rules emit, where TVM cannot run the operator itself or where the form matters to kernels."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tvm import relax, tirx
from tvm.relax import op

from autocast.errors import GradientError
from autocast.ir import op_name, static_shape
from autocast.training import differentiate


def tensor(*shape: int, dtype: str = "float32", name: str = "x") -> relax.Var:
    """A parameter."""
    return relax.Var(name, relax.TensorType(shape, dtype))


def differentiated(build: Callable[..., relax.Expr], *params: relax.Var) -> relax.Function:
    """The sum of what `build` makes, and its gradients with respect to the floating-point parameters."""
    builder = relax.BlockBuilder()
    with builder.function("main", list(params)):
        with builder.dataflow():
            loss = builder.emit_output(op.sum(builder.emit(build(*params))), "loss")
        builder.emit_func_output(loss)
    return differentiate(builder.get()["main"], [var for var in params if "float" in str(var.ty.dtype)])


def calls(function: relax.Function, name: str) -> list[relax.Call]:
    """The calls of one operator."""
    bindings = [binding for block in function.body.blocks for binding in block.bindings]
    return [binding.value for binding in bindings if op_name(binding.value) == f"relax.{name}"]


def test_the_gradient_of_a_weight_is_one_product_over_the_rows_of_the_whole_batch() -> None:
    function = differentiated(op.matmul, tensor(2, 5, 3), tensor(3, 4, name="w"))
    of_data, of_weight = calls(function, "matmul")[1:]
    assert static_shape(of_data) == (2, 5, 3)
    assert static_shape(of_weight.args[0]) == (3, 10)
    assert static_shape(of_weight) == (3, 4)


def test_the_gradient_of_a_bias_is_one_sum() -> None:
    function = differentiated(op.add, tensor(2, 5, 3), tensor(3, name="bias"))
    (total,) = calls(function, "grad.broadcast_backward")
    assert list(total.attrs.axis) == [0, 1]
    assert not calls(function, "collapse_sum_to")


def test_a_lookup_scatters_all_rows_by_one_operator() -> None:
    function = differentiated(lambda x, i: op.take(x, i, 0, mode="clip"), tensor(9, 4), tensor(2, 3, dtype="int64"))
    (scatter,) = calls(function, "grad.take_backward")
    assert static_shape(scatter) == (9, 4)
    assert static_shape(scatter.args[2]) == (6,)


def test_elements_are_put_back_by_vectors_of_indices_of_which_tvm_prints_no_warnings(
    capfd: pytest.CaptureFixture[str],
) -> None:
    indices = [tensor(2, 1, dtype="int64", name="i"), tensor(2, 3, dtype="int64", name="j")]
    function = differentiated(lambda x, i, j: op.index_tensor(x, [i, j]), tensor(9, 4), *indices)
    (put,) = calls(function, "index_put")
    assert [static_shape(value) for value in (*put.args[1].fields, put.args[2])] == [(6,), (6,), (6,)]
    assert "IndexPut" not in capfd.readouterr().err


def test_tensors_are_joined_along_an_axis_whose_size_is_known_at_run_time() -> None:
    rows = tirx.Var("n", "int64")
    x, y = (relax.Var(name, relax.TensorType((rows, 3), "float32")) for name in "xy")
    function = differentiated(lambda x, y: op.concat([x, y, x], axis=0), x, y)
    for gradient in function.body.body.fields[-2:]:
        assert gradient.ty.shape.values[0].same_as(rows)


def test_an_argument_that_needs_no_gradient_gets_none() -> None:
    function = differentiated(op.matmul, tensor(2, 3), tensor(3, 4, dtype="float32", name="w"))
    both = len(calls(function, "matmul"))
    x, w = tensor(2, 3), tensor(3, 4, name="w")
    builder = relax.BlockBuilder()
    with builder.function("main", [x, w]):
        with builder.dataflow():
            loss = builder.emit_output(op.sum(builder.emit(op.matmul(x, w))))
        builder.emit_func_output(loss)
    assert len(calls(differentiate(builder.get()["main"], [w]), "matmul")) == both - 1


@pytest.mark.parametrize(
    ("build", "expected"),
    [
        (lambda x: op.nn.pixel_shuffle(x, 2), (1, 8, 2, 3)),
        (lambda x: op.hint_on_device(x, relax.tvm.cpu()), (1, 8, 2, 3)),
        (lambda x: op.ewise_fma(x, x, x), (1, 8, 2, 3)),
        (lambda x: op.wrap_param(x, "float16"), (1, 8, 2, 3)),
    ],
)
def test_operators_that_tvm_does_not_run_have_gradients_of_the_right_shape(
    build: Callable[..., relax.Expr], expected: tuple[int, ...]
) -> None:
    function = differentiated(build, tensor(1, 8, 2, 3))
    assert tuple(int(size) for size in function.ret_ty.fields[1].shape.values) == expected


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda x: op.nn.pad(x, [1, 1, 1, 1], pad_mode="reflect"), r"pad_mode='reflect'; expected 'constant'"),
        (lambda x: op.einsum([x], "ij->i"), r"subscripts='ij->i'; expected .* no index of one operand only"),
        (lambda x: op.einsum([x], "ii->i"), r"expected no index twice in one operand"),
        (lambda x: op.gather_nd(x, relax.const([[0], [1]], "int64"), batch_dims=1), r"batch_dims=1; expected 0"),
        (lambda x: op.topk(x, 2, 1, "values"), r"ret_type='values'; expected 'both'"),
        (lambda x: op.cumprod(x, 0), r"relax\.cumprod: it divides by elements"),
        (
            lambda x: op.scatter_elements(x, relax.const([[0, 1], [1, 0]], "int64"), x, 0, "mul"),
            r"reduction='mul'; expected 'update', 'add', 'max' or",
        ),
    ],
)
def test_what_a_rule_cannot_differentiate_is_an_error_that_says_what_it_expects(
    build: Callable[..., relax.Expr], message: str
) -> None:
    with pytest.raises(GradientError, match=message):
        differentiated(build, tensor(2, 2))
