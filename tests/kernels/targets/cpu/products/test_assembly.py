"""The generated machine code: sums stay in registers in the innermost loop, and code for a product is made quickly."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest

from autocast.kernels.specs.products import Product
from autocast.kernels.targets.cpu.products.kernel import product
from tests.kernels.compiling import assembly_of
from tests.kernels.targets.cpu.epilogues import epilogue
from tests.kernels.targets.cpu.products.cases import CPUS, target_of

#: The instruction that multiplies, by CPU and by dtype.
MULTIPLY = {
    ("znver4", "bfloat16"): "vdpbf16ps",
    ("znver4", "float32"): "vfmadd",
    ("skylake-avx512", "float32"): "vfmadd",
    ("x86-64-v3", "float32"): "vfmadd",
    ("x86-64", "float32"): "mulps",
}
GELU = epilogue(bias="float32", activation="gelu")


def assembly_of_product(spec: Product, cpu: str) -> str:
    target = target_of(cpu)
    return assembly_of({"main": product(spec, target, "main")}, target)


def straight_loops(assembly: str) -> list[list[str]]:
    """The bodies of loops that neither branch nor contain other loops."""
    loops, label, body = [], "", []
    for line in (line.strip() for line in assembly.splitlines()):
        if start := re.fullmatch(r"(\.LBB\w+):.*", line):
            label, body = start[1], []
        elif jump := re.match(r"j\w+\s+(\.LBB\w+)", line):
            if jump[1] == label:
                loops.append(body)
            label, body = "", []
        elif line and not line.startswith((".", "#")):
            body.append(line)
    return loops


def tile_loops(assembly: str, multiply: str) -> list[list[str]]:
    """Loops that multiply into at least six sums; gelu's, which bound their argument, are not of them."""
    return [
        body
        for body in straight_loops(assembly)
        if sum(multiply in line for line in body) >= 6 and not any("minps" in line for line in body)
    ]


_EXTENTS = [(1024, 768, 768), (1024, 3072, 768), (1000, 30522, 64), (None, 64, 512), (128, 128, 64), (65, None, None)]
_TRANSPOSES = [(False, True), (True, False)]


@pytest.mark.parametrize(
    ("cpu", "dtype", "extents", "transposes"),
    [
        (cpu, dtype, extents, transposes)
        for at, (cpu, dtype) in enumerate(MULTIPLY)
        for number, extents in enumerate(_EXTENTS)
        # On one processor all, on others each in one of both ways.
        for transposes in (_TRANSPOSES if cpu == "znver4" else _TRANSPOSES[(at + number) % 2 :][:1])
    ],
)
def test_sums_stay_in_registers(cpu: str, dtype: str, extents: tuple, transposes: tuple[bool, bool]) -> None:
    check_registers(Product(*extents, dtype, dtype, dtype, *transposes, epilogue=GELU), cpu)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_sums_that_are_finished_in_registers_stay_there(dtype: str) -> None:
    finish = epilogue(scale=0.5, bias="float32", activation="relu", residual="bfloat16")
    check_registers(Product(130, 100, 4096, dtype, dtype, "bfloat16", epilogue=finish, b_packed=True), "znver4")


@pytest.mark.parametrize(
    ("spec", "streams"),
    [
        (Product(400, 16384, 24), True),
        (Product(400, 16383, 24), False),  # rows begin anywhere in a line
        (Product(400, 8192, 24), False),
        (Product(400, 16384, 24, epilogue=epilogue(residual="float32")), False),  # whose place it may take
        (Product(None, 16384, 24), False),
    ],
)
def test_only_far_outputs_are_stored_past_the_caches(spec: Product, streams: bool) -> None:
    assert ("movnt" in assembly_of_product(spec, "znver4")) == streams


def check_registers(spec: Product, cpu: str) -> None:
    """Fail where a loop that multiplies keeps vectors on the stack."""
    assembly = assembly_of_product(spec, cpu)
    loops = tile_loops(assembly, MULTIPLY[cpu, spec.a_dtype])
    assert loops, "no innermost loop multiplies"
    # What is spilled has a place of its own; an index means that a sum is put where it is finished.
    frame = r"\(%r[sb]p\)" if "movq\t%rsp, %rbp" in assembly else r"\(%rsp\)"
    for body in loops:
        # Addresses and counters may be on the stack, vectors may not: neither as operands nor moved to and fro.
        spilled = [x for x in body if re.search(frame, x) and re.search(r"%[xyz]mm", x)]
        assert not spilled, f"{len(spilled)} of {len(body)} instructions use the stack, such as {spilled[0]}"


@pytest.mark.parametrize("cpu", CPUS)
@pytest.mark.parametrize("extents", [(1024, 3072, 768), (None, 3072, 768), (None, None, None)], ids=str)
def test_a_product_with_an_epilogue_is_little_code(cpu: str, extents: tuple) -> None:
    """Time to compile goes by it: 6,000 lines, the most there are, take 0.3 s where nothing else runs."""
    spec = Product(*extents, "bfloat16", "bfloat16", "bfloat16", transpose_b=True, epilogue=GELU)
    assert len(assembly_of_product(spec, cpu).splitlines()) < 8000


@pytest.mark.parametrize("extents", [(1024, 768, 768), (None, None, None), (65, 100, 4096), (20, 64, 64)], ids=str)
@pytest.mark.parametrize("transposes", [(False, True), (True, False)], ids=["NT", "TN"])
def test_tiles_are_multiplied_where_the_processor_has_them(extents: tuple, transposes: tuple[bool, bool]) -> None:
    spec = Product(*extents, "bfloat16", "bfloat16", "bfloat16", *transposes, epilogue=GELU)
    lines = assembly_of_product(spec, "sapphirerapids").splitlines()
    products = [i for i, line in enumerate(lines) if "tdpbf16ps" in line]
    assert products
    # All is inlined; between the products of a step, and from step to step, vectors have no part.
    assert not [line for line in lines if re.search(r"autocast_tiles_\d", line)]
    for before, after in pairwise(products):
        between = lines[before:after]
        if not any("tilestored" in line or "tilezero" in line for line in between):
            assert not [line for line in between if re.search(r"%[xyz]mm|call", line)]
    setups, ends = (sum(name in line for line in lines) for name in ("sttilecfg", "ldtilecfg"))
    assert ends == 2 * setups > 0, "what was set up on the thread is put back"
