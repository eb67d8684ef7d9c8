"""Runs matrix product kernels and the same in float64 numpy, for the tests of products."""

from __future__ import annotations

import numpy as np
import pytest
import tvm

from autocast.kernels.specs.products import Product
from autocast.kernels.targets.cpu.instruction_sets import detect_target, instruction_set
from autocast.kernels.targets.cpu.products.kernel import product
from autocast.kernels.targets.cpu.products.prepack import PackedWeight, pack_weight
from tests.kernels.compiling import compile_kernels
from tests.kernels.targets.cpu.dtypes import DTYPES, ROUNDING, SMALLEST
from tests.kernels.targets.cpu.epilogues import evaluated
from tests.kernels.targets.cpu.guards import Guarded

CPUS = ("sapphirerapids", "cooperlake", "skylake-avx512", "x86-64-v3", "x86-64")


def target_of(cpu: str, cores: int = 2) -> tvm.target.Target:
    """The LLVM target that generates code for `cpu`."""
    return tvm.target.Target({"kind": "llvm", "mcpu": cpu, "num-cores": cores})


def runs_here(cpu: str) -> bool:
    """Whether this machine can execute code that is generated for `cpu`."""
    order = ("generic", "avx2", "avx512", "avx512bf16", "amx")
    return order.index(instruction_set(target_of(cpu)).name) <= order.index(instruction_set(detect_target()).name)


has_pairs = pytest.mark.skipif(
    not runs_here("cooperlake"), reason="packing does not narrow where pairs are not multiplied"
)


_COMPILED: dict[tuple[Product, str, bool], tvm.runtime.Executable] = {}


class Case:
    """A product with random operands; `sizes` gives the extents that its spec leaves to run time.

    Operands surround zero with mean 0 and deviation 1, so that sums do not cancel systematically or grow with k.
    """

    def __init__(self, spec: Product, *, cpu: str = "cooperlake", cores: int = 2, **sizes: int) -> None:
        self.spec, self.target = spec, target_of(cpu, cores)
        rng = np.random.default_rng(0)
        m, n, k = (getattr(spec, name) or sizes[name] for name in "mnk")
        batch = tuple(extent or sizes[f"batch{i}"] for i, extent in enumerate(spec.batch_dims))
        self.k = k

        def random(shape: tuple[int, ...], dtype: str) -> np.ndarray:
            return rng.standard_normal(shape).astype(DTYPES[dtype])

        def leading(batched: bool, repeated: tuple[int, ...]) -> tuple[int, ...]:
            return tuple(1 if axis in repeated else d for axis, d in enumerate(batch)) if batched else ()

        a_batch, b_batch = leading(spec.a_batched, spec.a_repeated), leading(spec.b_batched, spec.b_repeated)
        self.a = random(a_batch + ((k, m) if spec.transpose_a else (m, k)), spec.a_dtype)
        self.b = random(b_batch + ((n, k) if spec.transpose_b else (k, n)), spec.b_dtype)
        self.extras = [
            random((n,) if operand.per_column else (*batch, m, n), operand.dtype) for operand in spec.epilogue.operands
        ]
        self.layout = PackedWeight.of(spec, instruction_set(self.target)) if spec.b_packed else None
        self.out = np.full((*batch, m, n), np.nan, DTYPES[spec.out_dtype])

    def operands(self) -> list[np.ndarray]:
        """The arguments of the kernel, but its output."""
        return [self.a, self.b, *self.extras]

    def compiled(self, in_place: bool) -> tvm.runtime.Executable:
        """The kernel, and what packs its weight; cases of one product whose sizes are known when it runs share it."""
        if (known := _COMPILED.get((self.spec, str(self.target), in_place))) is not None:
            return known
        function = product(self.spec, self.target, "main")
        if in_place:
            (result, argument), *_ = function.attrs["autocast.in_place"]
            operands = len(self.operands())
            function = function.specialize({function.params[operands + result]: function.params[argument]})
        functions = {"main": function}
        if self.layout is not None:
            functions["pack"] = pack_weight(self.layout, instruction_set(self.target), "pack")
        compiled = compile_kernels(functions, self.target)
        _COMPILED[self.spec, str(self.target), in_place] = compiled
        return compiled

    def run(self, *, in_place: bool = False) -> np.ndarray:
        """The kernel's output, as float64; its memory holds NaN before, or the residual if that is to be `in_place`."""
        compiled = self.compiled(in_place)
        tensors = [tvm.runtime.tensor(x) for x in self.operands()]
        if self.layout is not None:
            packed = np.full(self.layout.shape, np.nan, DTYPES[self.layout.packed_dtype])
            weight, tensors[1] = tensors[1], tvm.runtime.tensor(packed)
            compiled["pack"](weight, tensors[1])
        if in_place:
            compiled["main"](*tensors)
            return tensors[-1].numpy().astype(np.float64)
        out = Guarded(self.out)
        compiled["main"](*tensors, out.tensor)
        return out.numpy().astype(np.float64)

    def expected(self) -> tuple[np.ndarray, np.ndarray]:
        """The product in float64, and how far from it each element may be.

        A float32 sum of k products differs from the exact one by at most k roundings of the sum of their magnitudes
        (the kernels' blocks make it far fewer); operands rounded to bfloat16 add two of its roundings to each product;
        what the epilogue makes of an error see there; storing rounds once more.
        """
        spec = self.spec
        a, b = self.a.astype(np.float64), self.b.astype(np.float64)
        a = a.swapaxes(-1, -2) if spec.transpose_a else a
        b = b.swapaxes(-1, -2) if spec.transpose_b else b
        per_product = self.k * ROUNDING["float32"]
        if spec.compute == "bfloat16":
            per_product += 2 * ROUNDING["bfloat16"]
        sums, error = a @ b, per_product * (np.abs(a) @ np.abs(b))
        exact, error = evaluated(spec.epilogue, sums, error, self.extras)
        return exact, error + ROUNDING[spec.out_dtype] * np.abs(exact) * 1.01 + SMALLEST[spec.out_dtype] + 1e-30

    def check(self, *, in_place: bool = False) -> None:
        """Fail unless every element is where it may be; a NaN, or an element that was not written, is not."""
        got = self.run(in_place=in_place)
        exact, allowed = self.expected()
        wrong = ~(np.abs(got - exact) <= allowed)
        assert not wrong.any(), (
            f"{self.spec}: {wrong.sum()} of {wrong.size} elements are off, the first at {np.argwhere(wrong)[0]}: "
            f"got {got[wrong][0]}, expected {exact[wrong][0]} within {allowed[wrong][0]}"
        )
