"""Elementwise kernels: sums with activations, a chain of broadcasts, a choice; in the caches and out of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch.nn import functional

from benchmarks.harness import Case, run
from benchmarks.sides import Call

#: Rows and columns: in the caches, and out of them.
SHAPES = ((1024, 3072), (8192, 4096))

#: What is measured with `--quick`.
QUICK = (("add, gelu", 8192), ("broadcasts", 8192))

#: What is computed of the rows, a row vector, a column vector and a mask: in torch, and in Relax.
BODIES: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "add": (lambda x, y, c, m: x + y, lambda op, x, y, c, m: op.add(x, y)),
    "add, relu": (lambda x, y, c, m: torch.relu(x + y), lambda op, x, y, c, m: op.nn.relu(op.add(x, y))),
    "add, tanh": (lambda x, y, c, m: torch.tanh(x + y), lambda op, x, y, c, m: op.tanh(op.add(x, y))),
    "add, exp": (lambda x, y, c, m: torch.exp(x + y), lambda op, x, y, c, m: op.exp(op.add(x, y))),
    "add, gelu": (lambda x, y, c, m: functional.gelu(x + y), lambda op, x, y, c, m: op.nn.gelu(op.add(x, y))),
    "broadcasts": (
        lambda x, y, c, m: (x * c + y) * y - c,
        lambda op, x, y, c, m: op.subtract(op.multiply(op.add(op.multiply(x, c), y), y), c),
    ),
    "where": (lambda x, y, c, m: torch.where(m, x, y), lambda op, x, y, c, m: op.where(m, x, y)),
}


def operands(rows: int, columns: int, dtype: str) -> list[torch.Tensor]:
    """Rows, a row vector, a column vector and a mask."""
    torch.manual_seed(0)
    x, y, column = torch.randn(rows, columns), torch.randn(columns), torch.randn(rows, 1)
    return [*(tensor.to(getattr(torch, dtype)) for tensor in (x, y, column)), x > 0]


def ours(name: str, rows: int, columns: int, dtype: str) -> Call:
    """The compiled operators, run by the virtual machine."""
    import tvm
    from tvm import relax

    from autocast.kernels import build, detect_target
    from autocast.runtime import threads

    threads.configure()
    tensors = operands(rows, columns, dtype)
    dtypes = [str(tensor.dtype).removeprefix("torch.") for tensor in tensors]
    types = [relax.TensorType(tensor.shape, low) for tensor, low in zip(tensors, dtypes, strict=True)]
    params = [relax.Var(f"x{i}", ty) for i, ty in enumerate(types)]
    builder = relax.BlockBuilder()
    with builder.function("main", params):
        with builder.dataflow():
            result = builder.emit_output(builder.normalize(BODIES[name][1](relax.op, *params)))
        builder.emit_func_output(result)
    machine = relax.VirtualMachine(build(builder.get(), detect_target()), tvm.cpu())
    main, arguments = machine["main"], [tvm.runtime.from_dlpack(tensor) for tensor in tensors]
    return lambda: main(*arguments)


def theirs(name: str, rows: int, columns: int, dtype: str, *, compiled: bool) -> Call:
    """torch's operators, as they are or compiled to one."""
    tensors = operands(rows, columns, dtype)
    function = torch.compile(BODIES[name][0]) if compiled else BODIES[name][0]
    return lambda: function(*tensors)


def cases(quick: bool) -> Iterator[Case]:
    """Every body in bfloat16 and float32; bytes count only where they do not fit a cache."""
    for dtype in ("bfloat16", "float32"):
        size = 2 if dtype == "bfloat16" else 4
        for rows, columns in SHAPES:
            for name in BODIES:
                if quick and (name, rows) not in QUICK:
                    continue
                arguments = (name, rows, columns, dtype)
                moved = rows * columns * (2 * size + (name == "where"))
                far = moved > 1 << 26
                yield Case(
                    name=f"{dtype} {name} {rows} x {columns}",
                    ours=partial(ours, *arguments),
                    peers={
                        "torch: eager": partial(theirs, *arguments, compiled=False),
                        "torch: compile": partial(theirs, *arguments, compiled=True),
                    },
                    target=1 / 1.5,
                    dtype=dtype,
                    bytes=moved if far else 0,
                    share=0.7 if far else None,
                )


if __name__ == "__main__":
    run("elementwise", __doc__, cases)
