"""Operation counts against formulas worked out by hand."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from tvm import relax, tirx

from autocast.errors import InputError
from autocast.kernels import detect_target
from autocast.kernels.specs.epilogue import SUM, Epilogue, Operand
from autocast.kernels.specs.products import Product
from autocast.kernels.state.in_place import sharing
from autocast.kernels.targets.cpu.products.kernel import product
from autocast.operators import own
from autocast.runtime.sizes import evaluate
from autocast.vm.describe import describe_kernel
from autocast.vm.flops import calc_model_gflops
from tests.vm.modules import dense, steps


def gflops(build, *shapes):
    """GFLOP of a function that returns `build(*tensors)` for float32 inputs of these shapes."""
    inputs = [relax.Var(f"x{index}", relax.TensorType(shape, "float32")) for index, shape in enumerate(shapes)]
    builder = relax.BlockBuilder()
    with builder.function("main", inputs):
        builder.emit_func_output(builder.emit(build(*inputs)))
    return calc_model_gflops(builder.get(), "cpu", [torch.zeros(shape) for shape in shapes])


@pytest.mark.parametrize(
    ("build", "shapes", "expected"),
    [
        pytest.param(relax.op.matmul, [(5, 7), (7, 3)], 2 * 5 * 7 * 3, id="matmul"),
        pytest.param(relax.op.matmul, [(2, 4, 5, 7), (2, 4, 7, 3)], 2 * 8 * 5 * 7 * 3, id="batched matmul"),
        pytest.param(
            relax.op.nn.attention,
            [(2, 6, 3, 8), (2, 10, 3, 8), (2, 10, 3, 16)],
            2 * 2 * 3 * 6 * 10 * (8 + 16),
            id="attention",
        ),
        pytest.param(
            lambda x, w: relax.op.nn.conv2d(x, w, padding=1),
            [(2, 3, 8, 8), (16, 3, 3, 3)],
            2 * (2 * 16 * 8 * 8) * 3 * 9,
            id="conv2d",
        ),
        pytest.param(
            lambda x, w: relax.op.nn.conv2d(x, w, groups=4),
            [(1, 8, 5, 5), (16, 2, 1, 1)],
            2 * (16 * 5 * 5) * 2,
            id="grouped conv2d",
        ),
        pytest.param(
            lambda x, w: relax.op.nn.conv2d_transpose(x, w, strides=2),
            [(1, 8, 5, 5), (8, 4, 2, 2)],
            2 * (8 * 5 * 5) * 4 * 4,
            id="conv2d_transpose",
        ),
        pytest.param(
            partial(own.lstm, reverse=False),
            [(6, 2, 12), (12, 3), (2, 3), (2, 3)],
            2 * (6 * 2) * 12 * 3,
            id="lstm",
        ),
        pytest.param(relax.op.add, [(5, 7), (5, 7)], 0, id="add"),
    ],
)
def test_multiply_adds_count_as_two(build, shapes, expected):
    assert gflops(build, *shapes) == pytest.approx(expected / 1e9)


def test_symbolic_sizes_come_from_the_inputs():
    model = dense()
    for size in (3, 50):
        assert calc_model_gflops(model, "cpu", [torch.zeros(size, 16), torch.tensor(0.0)]) == 2 * size * 16 * 32 / 1e9


def test_a_product_of_unknown_size_is_refused():
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((4, 4), "float32"))
    with builder.function("main", [x]):
        where = builder.emit(relax.op.astype(relax.op.nonzero(x), "float32"))  # (2, number of elements that are not 0)
        builder.emit_func_output(builder.emit(relax.op.matmul(where, relax.op.permute_dims(where))))
    with pytest.raises(InputError, match=r"the sizes of relax\.matmul are not known from the inputs alone"):
        calc_model_gflops(builder.get(), "cpu", [torch.zeros(4, 4)])


def flops_of_call(kernel: tirx.PrimFunc, shapes: list[tuple[int, ...]]) -> int | None:
    described = describe_kernel(kernel)
    return evaluate(described.flops, described.sizes(shapes))


def test_a_kernel_tells_its_own_operations():
    kernels = {gv.name_hint: function for gv, function in steps().mod.functions.items()}
    assert flops_of_call(kernels["step"], [(1024, 256), (1024, 256)]) == 1024 * 256
    assert flops_of_call(kernels["join"], [(1024, 256)] * 3) is None


@pytest.mark.parametrize("transposed", [False, True])
def test_a_generated_product_counts_two_operations_a_multiply_add(transposed):
    spec = Product(m=None, n=3, k=7, transpose_a=transposed)
    kernel = product(spec, detect_target(), "product")
    a = (7, 5) if transposed else (5, 7)
    assert flops_of_call(kernel, [a, (7, 3), (5, 3)]) == 2 * 5 * 3 * 7


@pytest.mark.parametrize("rows", [5, None])
def test_a_product_that_is_added_to_an_argument_counts_the_same(rows):
    """The bias, a vector, is its last argument then."""
    epilogue = Epilogue(
        (SUM, ("load", 0), ("load", 1), ("add", 0, 1), ("add", 3, 2)),
        (Operand("float32"), Operand("float32", per_column=True)),
    )
    kernel = product(Product(m=rows, n=64, k=7, epilogue=epilogue), detect_target(), "product")
    alone = sharing(kernel, [(4, 2)])
    assert flops_of_call(kernel, [(5, 7), (7, 64), (5, 64), (64,), (5, 64)]) == 2 * 5 * 64 * 7
    assert flops_of_call(alone, [(5, 7), (7, 64), (5, 64), (64,)]) == 2 * 5 * 64 * 7


def test_the_loops_of_other_kernels_are_counted():
    kernel = steps().mod["step"].without_attr("autocast.flops").without_attr("op_pattern")
    assert flops_of_call(kernel, [(1024, 256), (1024, 256)]) == 1024 * 256


def test_a_count_that_does_not_fit_its_inputs_is_refused():
    with pytest.raises(InputError, match="got 0 inputs, expected 2"):
        calc_model_gflops(dense(), "cpu", [])
