"""Matrix products against float64, for every layout, dtype, epilogue, extent known or not, and instruction set."""

from __future__ import annotations

import itertools

import pytest
import tvm
from hypothesis import given, settings
from hypothesis import strategies as st
from tvm import relax

from autocast.errors import UnsupportedError
from autocast.kernels.specs.epilogue import Epilogue, Operand
from autocast.kernels.specs.products import Product
from autocast.kernels.targets.cpu.products.kernel import product
from tests.kernels.compiling import compile_kernels
from tests.kernels.targets.cpu.dtypes import DTYPES
from tests.kernels.targets.cpu.epilogues import ACTIVATIONS, epilogue
from tests.kernels.targets.cpu.products.cases import CPUS, Case, runs_here, target_of

needs = {cpu: pytest.mark.skipif(not runs_here(cpu), reason=f"this machine cannot run {cpu} code") for cpu in CPUS}
every_cpu = pytest.mark.parametrize("cpu", [pytest.param(cpu, marks=needs[cpu]) for cpu in CPUS])
here = next(cpu for cpu in CPUS if runs_here(cpu))

ROUNDED_TO = (None, None, "bfloat16", "float16")
dtypes = st.sampled_from(list(DTYPES))
extents = st.sampled_from([1, 2, 3, 7, 8, 15, 16, 17, 31, 33, 47, 48, 49, 64, 65, 97, 128, 130])


@st.composite
def products(draw: st.DrawFn) -> tuple[Product, dict[str, int]]:
    """Any product, and the extents that it leaves to run time."""
    sizes = {name: draw(extents) for name in "mnk"}
    known = {name: draw(st.sampled_from([size, size, None])) for name, size in sizes.items()}
    batch = draw(st.sampled_from([1, 3, None, (2, 3), (None, 2)]))
    dims = batch if isinstance(batch, tuple) else (batch,)
    sizes |= {f"batch{i}": 5 for i, extent in enumerate(dims) if extent is None}
    a_dtype, b_dtype = draw(dtypes), draw(dtypes)
    compute = draw(st.sampled_from([None, "bfloat16"])) if "float16" not in (a_dtype, b_dtype) else None
    finish = epilogue(
        scale=draw(st.sampled_from([None, 0.125])),
        bias=draw(st.sampled_from([None, *DTYPES])),
        activation=draw(st.sampled_from(list(ACTIVATIONS))),
        residual=draw(st.sampled_from([None, *DTYPES])),
        residual_scale=draw(st.sampled_from([None, 0.75])),
        residual_first=draw(st.booleans()),
        gate=draw(st.sampled_from([None, None, *DTYPES])),
        roundings=(draw(st.sampled_from(ROUNDED_TO)), draw(st.sampled_from(ROUNDED_TO))),
    )
    flags = [draw(st.booleans()) for _ in range(4)]
    return Product(
        known["m"],
        known["n"],
        known["k"],
        a_dtype,
        b_dtype,
        draw(dtypes),
        transpose_a=flags[0],
        transpose_b=flags[1],
        batch=batch,
        a_batched=flags[2],
        b_batched=flags[3],
        a_repeated=draw(st.sampled_from([(), tuple(range(len(dims) - 1))])),
        b_repeated=draw(st.sampled_from([(), (len(dims) - 1,)])),
        epilogue=finish,
        compute=compute,
    ), sizes


@every_cpu
@settings(max_examples=10, deadline=None, derandomize=True)
@given(case=products())
def test_any_product_equals_float64(cpu: str, case: tuple[Product, dict[str, int]]) -> None:
    spec, sizes = case
    Case(spec, cpu=cpu, **sizes).check()


IN_PLACE = {
    "whole tiles": Product(64, 96, 40, transpose_a=True, epilogue=epilogue(residual="float32", residual_scale=0.9)),
    "tails": Product(25, 97, 33, epilogue=epilogue(residual="float32")),
    "blocks of k": Product(64, 50, 9001, transpose_a=True, epilogue=epilogue(residual="float32")),
    "an activation and a bias": Product(
        33, 50, 20, out_dtype="bfloat16", epilogue=epilogue(bias="float32", activation="gelu", residual="bfloat16")
    ),
    "a batch": Product(20, 50, 20, batch=3, a_batched=True, b_batched=True, epilogue=epilogue(residual="float32")),
}


@pytest.mark.parametrize("case", IN_PLACE)
def test_a_product_may_be_written_over_its_residual(case: str) -> None:
    Case(IN_PLACE[case], cpu=here).check(in_place=True)


@pytest.mark.parametrize(
    "spec",
    [
        Product(20, 20, 20),
        Product(5, 100, 20, epilogue=epilogue(residual="float32")),  # rows of an incomplete tile are computed twice
        Product(None, 100, 20, epilogue=epilogue(residual="float32")),
    ],
)
def test_other_products_are_not(spec: Product) -> None:
    assert not product(spec, target_of(here), "main").attrs["autocast.in_place"]


@every_cpu
@pytest.mark.parametrize("dtype", list(DTYPES))
@pytest.mark.parametrize(("transpose_a", "transpose_b"), list(itertools.product([False, True], repeat=2)))
def test_all_transposes_with_a_tail_of_one_everywhere(
    cpu: str, dtype: str, transpose_a: bool, transpose_b: bool
) -> None:
    Case(Product(25, 97, 33, dtype, dtype, dtype, transpose_a, transpose_b), cpu=cpu).check()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("transpose_a", [False, True])
@pytest.mark.parametrize("k", [4095, 4096, None])
def test_sums_too_long_for_one_block_go_through_partial_sums(dtype: str, transpose_a: bool, k: int | None) -> None:
    spec = Product(19, 50, k, dtype, dtype, "float32", transpose_a, epilogue=epilogue(bias="float32"))
    Case(spec, cpu=here, k=4097).check()


@pytest.mark.parametrize("cores", [1, 2, 3, 5])
def test_every_number_of_tasks_covers_the_whole_output(cores: int) -> None:
    Case(Product(300, 1000, 64, "bfloat16", "bfloat16", "float32"), cpu=here, cores=cores).check()
    Case(Product(2000, 60, 64, "float32", "float32", "float32", transpose_a=True), cpu=here, cores=cores).check()


@every_cpu
@pytest.mark.parametrize("out_dtype", list(DTYPES))
def test_a_tail_of_one_column_does_not_spill_into_the_next_row(cpu: str, out_dtype: str) -> None:
    # Here LLVM sees how wide the tail is, and the next row's first column is written before it.
    Case(Product(1, 65, 1, b_dtype="float16", out_dtype=out_dtype, batch=3, a_batched=True), cpu=cpu).check()


@pytest.mark.parametrize("n", [20, 32, 96, 128])  # tiles of one vector across, of two, three and four
@pytest.mark.parametrize(("dtype", "transpose_a"), [("float32", False), ("bfloat16", False), ("bfloat16", True)])
def test_one_kernel_serves_any_number_of_rows(n: int, dtype: str, transpose_a: bool) -> None:
    for rows in (*range(1, 30), 130):
        Case(Product(None, n, 64, dtype, dtype, dtype, transpose_a, transpose_b=True), cpu=here, m=rows).check()


@pytest.mark.parametrize("rows", [1, 3, 11])
@pytest.mark.parametrize("transpose_b", [False, True])
@pytest.mark.parametrize(("dtype", "compute"), [("float32", None), ("bfloat16", None), ("float32", "bfloat16")])
def test_few_rows(rows: int, transpose_b: bool, dtype: str, compute: str | None) -> None:
    finish = epilogue(bias="float32", activation="gelu", residual=dtype)
    spec = Product(rows, 301, 515, dtype, dtype, dtype, transpose_b=transpose_b, epilogue=finish, compute=compute)
    Case(spec, cpu=here).check()


@pytest.mark.parametrize("transpose_a", [False, True])
@pytest.mark.parametrize(("dtype", "rows"), [("float32", 301), ("bfloat16", None)])
def test_one_column_is_multiplied_as_one_row(transpose_a: bool, dtype: str, rows: int | None) -> None:
    spec = Product(rows, 1, 65, dtype, dtype, dtype, transpose_a, batch=3, a_batched=True)
    Case(spec, cpu=here, m=77).check()


def test_a_float32_weight_is_computed_in_float32_unless_narrowing_is_asked_for() -> None:
    wide = Case(Product(40, 50, 60, "bfloat16", "float32", "float32", transpose_b=True), cpu=here)
    wide.check()
    spec = Product(40, 50, 60, "bfloat16", "float32", "float32", transpose_b=True, compute="bfloat16")
    Case(spec, cpu=here).check()


@needs["cooperlake"]
def test_narrowing_while_packing_rounds_the_weight_to_bfloat16() -> None:
    case = Case(Product(40, 50, 60, "bfloat16", "float32", "float32", transpose_b=True, compute="bfloat16"))
    got = case.run()
    case.b = case.b.astype(DTYPES["bfloat16"]).astype("float32")
    exact, _ = case.expected()
    assert abs(got - exact).max() < 1e-4


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_far_output(dtype: str) -> None:
    Case(Product(801, 16384, 24, dtype, dtype, dtype, epilogue=epilogue(bias=dtype)), cpu=here).check()


def test_a_product_is_callable_from_relax_and_passes_its_pipeline() -> None:
    spec = Product(None, 24, 32, epilogue=epilogue(bias="float32", activation="relu"))
    builder = relax.BlockBuilder()
    kernel = builder.add_func(product(spec, target_of(here), "kernel"), "kernel")
    rows = tvm.tirx.Var("rows", "int64")
    x, w, b = (
        relax.Var(name, relax.TensorType(shape, "float32"))
        for name, shape in (("x", (rows, 32)), ("w", (32, 24)), ("b", (24,)))
    )
    with builder.function("main", [x, w, b]):
        with builder.dataflow():
            y = builder.emit(relax.call_tir(kernel, [x, w, b], relax.TensorType((rows, 24), "float32")))
            out = builder.emit_output(relax.op.reshape(y, (rows * 24,)))
        builder.emit_func_output(out)
    executable = tvm.compile(builder.get(), target=target_of(here))
    machine = relax.VirtualMachine(executable, tvm.cpu())
    case = Case(spec, cpu=here, m=5)
    got = machine["main"](*(tvm.runtime.tensor(x) for x in case.operands())).numpy().reshape(5, 24)
    exact, allowed = case.expected()
    assert (abs(got - exact) <= allowed).all()


def test_kernels_of_one_module_share_their_snippets() -> None:
    target = target_of(here)
    functions = {
        name: product(Product(8, 16, 16, dtype, dtype, dtype), target, name)
        for name, dtype in (("first", "float32"), ("second", "bfloat16"), ("third", "bfloat16"))
    }
    assert compile_kernels(functions, target)["third"] is not None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"m": 0}, "Product.m: got 0"),
        ({"a_dtype": "int8"}, "Product.a_dtype: got 'int8', expected one of float32, bfloat16, float16"),
        ({"a_dtype": "float16", "compute": "bfloat16"}, "use compute='float32'"),
        ({"compute": "float16"}, "Product.compute: got 'float16'"),
    ],
)
def test_an_illegal_product_names_what_is_legal(arguments: dict, message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        Product(**{"m": 1, "n": 1, "k": 1, **arguments})


def test_an_illegal_epilogue_names_what_is_legal() -> None:
    with pytest.raises(UnsupportedError, match=r"Epilogue\.operands: got 'int8', expected one of float32, bfloat16"):
        Epilogue(operands=(Operand("int8"),))
    with pytest.raises(UnsupportedError, match=r"step 1 is \('relu', 1\), expected one of earlier steps"):
        Epilogue((("sum",), ("relu", 1)))
    with pytest.raises(UnsupportedError, match=r"step 0 is \('load', 0\), expected .* of the 0 operands"):
        Epilogue((("load", 0),))
