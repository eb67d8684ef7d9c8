"""Matrix products: the layers of BERT, forward and backward, their attention, and a few rows times a weight."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

import torch

from benchmarks.harness import Case, run
from benchmarks.kernels import reorders
from benchmarks.sides import Call


class Shape(NamedTuple):
    """A product of (m, k) and (k, n), stored as `layout` says: N as it is, T transposed.

    `weight` marks a constant right factor, which we and oneDNN pack once; `out` is the result's dtype where it is not
    that of the operands.
    """

    m: int
    k: int
    n: int
    layout: str = "NT"
    weight: bool = True
    batch: int = 1
    out: str | None = None

    @property
    def name(self) -> str:
        """What the table shows."""
        batch = f"{self.batch} x " if self.batch > 1 else ""
        return f"{batch}{self.m}, {self.k}, {self.n} {self.layout}" + (" weight" if self.weight else "")


#: `True`: measured with `--quick` too.
SHAPES = (
    (Shape(1024, 768, 3072), True),
    (Shape(1024, 768, 768), False),
    (Shape(1024, 3072, 768), False),
    (Shape(1024, 768, 30522), False),
    (Shape(1024, 768, 3072, weight=False), False),
    (Shape(1024, 768, 30522, weight=False), False),
    (Shape(1024, 3072, 768, "NN", weight=False), False),
    (Shape(1024, 30522, 768, "NN", weight=False), False),
    (Shape(3072, 1024, 768, "TN", weight=False, out="float32"), True),
    (Shape(30522, 1024, 768, "TN", weight=False, out="float32"), False),
    (Shape(512, 64, 512, weight=False, out="float32"), False),
    (Shape(512, 512, 64, "NN", weight=False, out="float32"), False),
    (Shape(128, 64, 128, weight=False, batch=96, out="float32"), False),
    (Shape(128, 128, 64, "NN", weight=False, batch=96), False),
    (Shape(1, 768, 3072), True),
    (Shape(16, 768, 3072), False),
    (Shape(1, 768, 30522), False),
    (Shape(16, 768, 30522), False),
)


def operands(shape: Shape, dtype: str) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Both factors as they are stored, and a place for the result."""
    batch = (shape.batch,) if shape.batch > 1 else ()
    m, k, n = shape.m, shape.k, shape.n
    torch.manual_seed(0)
    a = torch.randn(*batch, *((k, m) if shape.layout[0] == "T" else (m, k)))
    b = torch.randn(*batch, *((n, k) if shape.layout[1] == "T" else (k, n)))
    low = getattr(torch, dtype)
    return a.to(low), b.to(low), torch.empty(*batch, m, n, dtype=getattr(torch, shape.out or dtype))


def ours(shape: Shape, dtype: str) -> Call:
    """Our kernel, its weight packed beforehand."""
    import tvm

    from autocast.kernels.specs.products import Product
    from autocast.kernels.targets.cpu.instruction_sets import detect_target, instruction_set
    from autocast.kernels.targets.cpu.products.kernel import product
    from autocast.kernels.targets.cpu.products.prepack import PackedWeight, pack_weight
    from autocast.runtime import threads

    threads.configure()
    target = detect_target()
    isa = instruction_set(target)
    batched = shape.batch > 1
    transposes = (shape.layout[0] == "T", shape.layout[1] == "T")
    dtypes = (dtype, dtype, shape.out or dtype)
    spec = Product(
        shape.m, shape.n, shape.k, *dtypes, *transposes, shape.batch, batched, batched, b_packed=shape.weight
    )
    functions = {"product": product(spec, target, "product")}
    layout = PackedWeight.of(spec, isa) if shape.weight else None
    if layout is not None:
        functions["pack"] = pack_weight(layout, isa, "pack")
    compiled = tvm.compile(tvm.IRModule(functions), target=target)
    a, b, out = (tvm.runtime.from_dlpack(x) for x in operands(shape, dtype))
    if layout is not None:
        packed = tvm.runtime.empty(layout.shape, layout.packed_dtype)
        compiled["pack"](b, packed)
        b = packed
    kernel = compiled["product"]
    return lambda: kernel(a, b, out)


def eager(shape: Shape, dtype: str) -> Call:
    """torch.mm or torch.bmm to a place that exists, in the operands' dtype."""
    a, b, _ = operands(shape, dtype)
    a, b = (x.mT if flag == "T" else x for x, flag in zip((a, b), shape.layout, strict=True))
    multiply = torch.bmm if shape.batch > 1 else torch.mm
    out = multiply(a, b)
    return lambda: multiply(a, b, out=out)


def onednn(shape: Shape, dtype: str) -> Call:
    """oneDNN with the weight in its own layout."""
    a, b, _ = operands(shape, dtype)
    packed = torch.ops.mkldnn._reorder_linear_weight(b, shape.m)
    multiply = torch.ops.mkldnn._linear_pointwise
    return lambda: multiply(a, packed, None, "none", [], "")


def cases(quick: bool) -> Iterator[Case]:
    """Every shape in bfloat16 and float32."""
    for dtype in ("bfloat16", "float32"):
        size = 2 if dtype == "bfloat16" else 4
        for shape, in_quick in SHAPES:
            if quick and not in_quick:
                continue
            arguments = (shape, dtype)
            peers = {"torch: out=": partial(eager, *arguments)}
            if shape.weight and reorders(dtype):
                peers["torch: oneDNN prepacked"] = partial(onednn, *arguments)
            large = min(shape.m, shape.k, shape.n) >= 512
            yield Case(
                name=f"{dtype} {shape.name}",
                ours=partial(ours, *arguments),
                peers=peers,
                target=1.0,
                dtype=dtype,
                flops=2 * shape.batch * shape.m * shape.k * shape.n,
                bytes=size * shape.k * shape.n if shape.m < 64 and shape.n > 10_000 else 0,
                share=0.85 if large else None,
            )


if __name__ == "__main__":
    run("products", __doc__, cases)
