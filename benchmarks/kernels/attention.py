"""Attention kernels beside torch's: encoders, causal decoders, masks, grouped heads, and the decoding of one token."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

import torch
from torch.nn import functional

from benchmarks.harness import Case, run
from benchmarks.sides import Call


class Shape(NamedTuple):
    """Heads of (batch, heads, sequence, depth) tensors."""

    batch: int
    heads: int
    queries: int
    keys: int
    depth: int
    key_heads: int
    causal: bool = False
    masked: bool = False

    @property
    def name(self) -> str:
        """What the table shows."""
        length = f"{self.queries}" if self.queries == self.keys else f"{self.queries} of {self.keys}"
        extras = [
            "causal" if self.causal else "",
            "mask" if self.masked else "",
            f"{self.key_heads} key heads" if self.key_heads < self.heads else "",
        ]
        return " ".join([f"{self.batch} x {self.heads} x {length} x {self.depth}", *filter(None, extras)])


#: `True`: measured with `--quick` too.
SHAPES = (
    (Shape(8, 12, 128, 128, 64, 12), True),
    (Shape(1, 12, 1024, 1024, 64, 12), False),
    (Shape(1, 12, 512, 512, 64, 12, causal=True), True),
    (Shape(4, 12, 197, 197, 64, 12), False),
    (Shape(8, 12, 128, 128, 64, 12, masked=True), False),
    (Shape(1, 32, 512, 512, 128, 8, causal=True), False),
    (Shape(1, 12, 16, 16, 64, 12), False),
    (Shape(1, 12, 1, 1024, 64, 12), False),
    (Shape(1, 32, 1, 1024, 128, 8), False),
)
#: Our time is to be at most this part of torch's.
TARGETS = {"bfloat16": 1 / 4, "float32": 1 / 2}


def operands(shape: Shape, dtype: str) -> list[torch.Tensor]:
    """Q, K, V and, where there is one, a mask of keys."""
    torch.manual_seed(0)
    heads = ((shape.heads, shape.queries), (shape.key_heads, shape.keys), (shape.key_heads, shape.keys))
    tensors = [torch.randn(shape.batch, count, length, shape.depth) for count, length in heads]
    if shape.masked:
        tensors.append(torch.where(torch.rand(shape.batch, 1, 1, shape.keys) < 0.1, -10000.0, 0.0))
    return [tensor.to(getattr(torch, dtype)) for tensor in tensors]


def ours(shape: Shape, dtype: str) -> Call:
    """The compiled operator, run by the virtual machine."""
    import tvm
    from tvm import relax

    from autocast.kernels import build, detect_target
    from autocast.runtime import threads

    threads.configure()
    tensors = operands(shape, dtype)
    params = [relax.Var(f"x{i}", relax.TensorType(tensor.shape, dtype)) for i, tensor in enumerate(tensors)]
    group, heads_second = shape.heads // shape.key_heads, [0, 2, 1, 3]
    builder = relax.BlockBuilder()
    with builder.function("main", params):
        with builder.dataflow():
            query, key, value, *mask = params
            if group > 1:
                key, value = (relax.op.repeat(tensor, group, axis=1) for tensor in (key, value))
            query, key, value = (relax.op.permute_dims(tensor, heads_second) for tensor in (query, key, value))
            result = relax.op.nn.attention(query, key, value, *mask, causal_mask="TopLeft" if shape.causal else None)
            result = builder.emit_output(builder.normalize(relax.op.permute_dims(result, heads_second)))
        builder.emit_func_output(result)
    machine = relax.VirtualMachine(build(builder.get(), detect_target()), tvm.cpu())
    main, arguments = machine["main"], [tvm.runtime.from_dlpack(tensor) for tensor in tensors]
    return lambda: main(*arguments)


def theirs(shape: Shape, dtype: str, *, fused: bool) -> Call:
    """torch's fused attention; or products around a softmax, compiled."""
    query, key, value, *rest = operands(shape, dtype)
    mask = rest[0] if rest else None
    grouped = shape.key_heads < shape.heads
    if fused:
        return lambda: functional.scaled_dot_product_attention(
            query, key, value, attn_mask=mask, is_causal=shape.causal, enable_gqa=grouped
        )
    seen = torch.ones(shape.queries, shape.keys, dtype=torch.bool).tril()

    def products() -> torch.Tensor:
        group = shape.heads // shape.key_heads
        keys, values = (tensor.repeat_interleave(group, 1) if grouped else tensor for tensor in (key, value))
        scores = query @ keys.transpose(-1, -2) * shape.depth**-0.5
        if mask is not None:
            scores = scores + mask
        if shape.causal:
            scores = scores.masked_fill(~seen, float("-inf"))
        return scores.softmax(-1) @ values

    return torch.compile(products)


def cases(quick: bool) -> Iterator[Case]:
    """Every shape in both dtypes; a causal kernel computes half of the scores, which is what counts."""
    for dtype in ("bfloat16", "float32"):
        for shape, always in SHAPES:
            if quick and not always:
                continue
            scores = shape.batch * shape.heads * shape.queries * shape.keys
            stored = 2 * shape.batch * shape.key_heads * shape.keys * shape.depth * (2 if dtype == "bfloat16" else 4)
            yield Case(
                f"{dtype} {shape.name}",
                partial(ours, shape, dtype),
                {
                    "torch: fused": partial(theirs, shape, dtype, fused=True),
                    "torch: compile": partial(theirs, shape, dtype, fused=False),
                },
                target=TARGETS[dtype],
                dtype=dtype,
                flops=4.0 * scores * shape.depth / (2 if shape.causal else 1),
                bytes=float(stored) if shape.queries == 1 else 0.0,
            )


if __name__ == "__main__":
    run("attention", __doc__, cases)
