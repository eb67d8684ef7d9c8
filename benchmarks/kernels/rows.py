"""Kernels over rows: softmax, normalizations, reductions, and cross-entropy with its gradient."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

from benchmarks.harness import Case, run
from benchmarks.sides import Call

#: Operator, rows, columns, and whether it is measured with `--quick` too.
SHAPES = (
    ("softmax", 12288, 128, True),
    ("softmax", 1024, 30522, False),
    ("log_softmax", 1024, 30522, False),
    ("layer_norm", 1024, 768, True),
    ("layer_norm", 1024, 3072, False),
    ("layer_norm", 16384, 3072, False),
    ("rms_norm", 1024, 3072, False),
    ("sum", 12288, 128, False),
    ("sum", 1024, 30522, False),
    ("max", 1024, 30522, False),
    ("cross_entropy", 1024, 30522, True),
)

_TORCH: dict[str, Callable[..., torch.Tensor]] = {
    "softmax": lambda x: torch.softmax(x, -1),
    "log_softmax": lambda x: torch.log_softmax(x, -1),
    "layer_norm": lambda x, g, b: torch.nn.functional.layer_norm(x, x.shape[-1:], g, b),
    "rms_norm": lambda x, g: torch.nn.functional.rms_norm(x, x.shape[-1:], g, 1e-5),
    "sum": lambda x: x.sum(-1),
    "max": lambda x: x.amax(-1),
    "cross_entropy": torch.nn.functional.cross_entropy,
}


def operands(name: str, rows: int, columns: int, dtype: str) -> list[torch.Tensor]:
    """The rows, and what else the operator reads."""
    torch.manual_seed(0)
    low = getattr(torch, dtype)
    vectors = {"layer_norm": 2, "rms_norm": 1}.get(name, 0)
    labels = [torch.randint(0, columns, (rows,))] if name == "cross_entropy" else []
    return [torch.randn(rows, columns).to(low), *[torch.randn(columns).to(low) for _ in range(vectors)], *labels]


def relax_module(name: str, tensors: list[torch.Tensor]) -> Any:
    """A module whose "main" computes the operator; cross-entropy answers its gradient too."""
    import tvm
    from tvm import relax

    op = relax.op
    dtypes = [str(tensor.dtype).removeprefix("torch.") for tensor in tensors]
    params = [
        relax.Var(f"x{i}", relax.TensorType(tensor.shape, dtype))
        for i, (tensor, dtype) in enumerate(zip(tensors, dtypes, strict=True))
    ]
    functions: dict[str, Callable[..., relax.Expr]] = {
        "softmax": op.nn.softmax,
        "log_softmax": op.nn.log_softmax,
        "layer_norm": lambda x, g, b: op.nn.layer_norm(x, g, b, axes=[-1]),
        "rms_norm": lambda x, g: op.nn.rms_norm(x, g, axes=[-1]),
        "sum": lambda x: op.sum(x, axis=-1),
        "max": lambda x: op.max(x, axis=-1),
    }

    def cross_entropy(x: relax.Expr, labels: relax.Expr) -> relax.Expr:
        predictions = op.nn.log_softmax(op.astype(x, "float32") if dtypes[0] != "float32" else x)
        loss = op.nn.nll_loss(predictions, labels)
        backward = tvm.ir.Op.get("relax.grad.nll_loss_backward")
        adjoint = relax.Call(backward, [op.ones((), "float32"), predictions, labels], loss.attrs)
        total = op.sum(adjoint, axis=[-1], keepdims=True)
        gradient = op.subtract(adjoint, op.multiply(total, op.exp(predictions)))
        return relax.Tuple([loss, op.astype(gradient, dtypes[0])])

    builder = relax.BlockBuilder()
    with builder.function("main", params):
        with builder.dataflow():
            result = builder.emit_output(builder.normalize(functions.get(name, cross_entropy)(*params)))
        builder.emit_func_output(result)
    return builder.get()


def ours(name: str, rows: int, columns: int, dtype: str) -> Call:
    """The compiled operator, run by the virtual machine."""
    import tvm
    from tvm import relax

    from autocast.kernels import build, detect_target
    from autocast.runtime import threads

    threads.configure()
    tensors = operands(name, rows, columns, dtype)
    machine = relax.VirtualMachine(build(relax_module(name, tensors), detect_target()), tvm.cpu())
    main, arguments = machine["main"], [tvm.runtime.from_dlpack(tensor) for tensor in tensors]
    return lambda: main(*arguments)


def theirs(name: str, rows: int, columns: int, dtype: str, *, compiled: bool) -> Call:
    """torch's operator, as it is or compiled."""
    tensors = operands(name, rows, columns, dtype)
    function = torch.compile(_TORCH[name]) if compiled else _TORCH[name]
    if name != "cross_entropy":
        return lambda: function(*tensors)
    logits, labels = tensors

    def step() -> None:
        leaf = logits.detach().requires_grad_()
        function(leaf, labels).backward()

    return step


def cases(quick: bool) -> Iterator[Case]:
    """Every operator in bfloat16 and float32; bytes count only where they do not fit a cache."""
    for dtype in ("bfloat16", "float32"):
        size = 2 if dtype == "bfloat16" else 4
        for name, rows, columns, in_quick in SHAPES:
            if quick and not in_quick:
                continue
            tensors = 1 if name in ("sum", "max") else 2
            far = size * rows * columns > 1 << 25
            arguments = (name, rows, columns, dtype)
            loss = name == "cross_entropy"
            yield Case(
                name=f"{dtype} {name} {rows} x {columns}",
                ours=partial(ours, *arguments),
                peers={
                    "torch: eager": partial(theirs, *arguments, compiled=False),
                    "torch: compile": partial(theirs, *arguments, compiled=True),
                },
                target=1 / 3 if loss else 1 / 1.5,
                dtype=dtype,
                bytes=tensors * size * rows * columns if far else 0,
                share=0.7 if far and not loss else None,
            )


if __name__ == "__main__":
    run("rows", __doc__, cases)
