"""Kernels that move data: transposes, heads, images, joins, cuts, lookups and casts; in the caches and out of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

import torch

from benchmarks.harness import Case, run
from benchmarks.sides import Call

#: Bytes that no cache holds.
FAR = 1 << 25


class Operation(NamedTuple):
    """An operator of one tensor: its shape, in torch, in Relax, whether it is measured with `--quick` too.

    A second argument holds the numbers of `rows` rows, where there are any.
    """

    shape: tuple[int, ...]
    torch: Callable[..., torch.Tensor]
    relax: Callable[..., Any]
    quick: bool = False
    rows: int = 0


def permuted(shape: tuple[int, ...], axes: tuple[int, ...], quick: bool = False) -> Operation:
    """A permutation of axes."""
    return Operation(shape, lambda x: x.permute(axes).contiguous(), lambda op, x: op.permute_dims(x, list(axes)), quick)


OPERATIONS = {
    "transpose 1024 x 3072": permuted((1024, 3072), (1, 0), True),
    "transpose 8192 x 4096": permuted((8192, 4096), (1, 0)),
    "heads 8 x 128 x 12 x 64": permuted((8, 128, 12, 64), (0, 2, 1, 3), True),
    "keys 8 x 12 x 128 x 64": permuted((8, 12, 128, 64), (0, 1, 3, 2)),
    "4 x 56 x 56 x 64 to NCHW": permuted((4, 56, 56, 64), (0, 3, 1, 2), True),
    "4 x 64 x 56 x 56 to NHWC": permuted((4, 64, 56, 56), (0, 2, 3, 1)),
    "concat 2 x 4096 x 2048": Operation(
        (4096, 2048), lambda x: torch.cat([x, x], 1), lambda op, x: op.concat([x, x], 1), True
    ),
    "middle third of 1024 x 2304": Operation(
        (1024, 2304), lambda x: x[:, 768:1536].contiguous(), lambda op, x: op.split(x, 3, 1)[1]
    ),
    "every second of 4096 x 2048": Operation(
        (4096, 2048), lambda x: x[:, ::2].contiguous(), lambda op, x: op.strided_slice(x, [1], [0], [2048], [2])
    ),
    "pad 4 x 56 x 56 x 64 by 1": Operation(
        (4, 56, 56, 64),
        lambda x: torch.nn.functional.pad(x, (0, 0, 1, 1, 1, 1)),
        lambda op, x: op.nn.pad(x, [0, 0, 1, 1, 1, 1, 0, 0]),
    ),
    "take 1024 of 30522 x 768": Operation(
        (30522, 768), lambda x, rows: x[rows], lambda op, x, rows: op.take(x, rows, axis=0), True, rows=1024
    ),
    "cast 8192 x 4096": Operation(
        (8192, 4096),
        lambda x: x.to(torch.float32 if x.dtype == torch.bfloat16 else torch.bfloat16),
        lambda op, x: op.astype(x, "float32" if str(x.ty.dtype) == "bfloat16" else "bfloat16"),
        True,
    ),
}


def operands(operation: Operation, dtype: str) -> list[torch.Tensor]:
    """What an operator reads."""
    torch.manual_seed(0)
    numbers = [torch.randint(0, operation.shape[0], (operation.rows,))] if operation.rows else []
    return [torch.randn(operation.shape).to(getattr(torch, dtype)), *numbers]


def ours(table: Mapping[str, Operation], name: str, dtype: str) -> Call:
    """The compiled operator, run by the virtual machine."""
    import tvm
    from tvm import relax

    from autocast.kernels import build, detect_target
    from autocast.runtime import threads

    threads.configure()
    tensors = operands(table[name], dtype)
    params = [
        relax.Var(f"x{i}", relax.TensorType(tensor.shape, str(tensor.dtype).removeprefix("torch.")))
        for i, tensor in enumerate(tensors)
    ]
    builder = relax.BlockBuilder()
    with builder.function("main", params):
        with builder.dataflow():
            result = builder.emit_output(builder.normalize(table[name].relax(relax.op, *params)))
        builder.emit_func_output(result)
    machine = relax.VirtualMachine(build(builder.get(), detect_target()), tvm.cpu())
    main, arguments = machine["main"], [tvm.runtime.from_dlpack(tensor) for tensor in tensors]
    return lambda: main(*arguments)


def theirs(table: Mapping[str, Operation], name: str, dtype: str, *, compiled: bool) -> Call:
    """torch's operator, as it is or compiled."""
    tensors = operands(table[name], dtype)
    function = torch.compile(table[name].torch) if compiled else table[name].torch
    return lambda: function(*tensors)


def cases_of(builders: tuple[Callable, Callable], table: Mapping[str, Operation], quick: bool) -> Iterator[Case]:
    """Every operator in bfloat16 and float32; bytes count only where they do not fit a cache."""
    build, peer = builders
    for dtype in ("bfloat16", "float32"):
        for name, operation in table.items():
            if quick and not operation.quick:
                continue
            x, *numbers = operands(operation, dtype)
            result = operation.torch(x, *numbers)
            read = result.nbytes if numbers else x.nbytes
            far = read + result.nbytes > FAR
            yield Case(
                name=f"{dtype} {name}",
                ours=partial(build, name, dtype),
                peers={
                    "torch: eager": partial(peer, name, dtype, compiled=False),
                    "torch: compile": partial(peer, name, dtype, compiled=True),
                },
                target=1 / 1.5,
                dtype=dtype,
                bytes=read + result.nbytes if far else 0,
                share=0.7 if far else None,
            )


def our_move(name: str, dtype: str) -> Call:
    """Our call of an operator that moves data."""
    return ours(OPERATIONS, name, dtype)


def their_move(name: str, dtype: str, *, compiled: bool) -> Call:
    """torch's call of it."""
    return theirs(OPERATIONS, name, dtype, compiled=compiled)


if __name__ == "__main__":
    run("layout", __doc__, partial(cases_of, (our_move, their_move), OPERATIONS))
