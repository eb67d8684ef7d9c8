"""Modules of any size for measuring how AutoCast scales: transformer-like layers, all rule classes, shared tensors."""

from __future__ import annotations

from collections.abc import Iterator

import tvm
from tvm import relax

ROWS, WIDTH = 64, 64


def layered(size: int) -> tvm.IRModule:
    """A module whose "main" has `size` bindings: products, softmaxes, cheap arithmetic, residual additions."""
    builder = relax.BlockBuilder()
    data = relax.Var("data", relax.TensorType((ROWS, WIDTH), "float32"))
    weights = [relax.Var(f"weight{i}", relax.TensorType((WIDTH, WIDTH), "float32")) for i in range(8)]
    with builder.function("main", [data, *weights]):
        with builder.dataflow():
            value = data
            for index, make in zip(range(size - 1), _operators(weights), strict=False):
                if index % 11 == 0:
                    residual = value
                value = builder.emit(make(value, residual))
            result = builder.emit_output(relax.op.multiply(value, value))
        builder.emit_func_output(result)
    return builder.finalize()


def _operators(weights: list[relax.Var]) -> Iterator:
    """Functions (value, residual) -> expression, without end: eleven to a layer."""
    layer = 0
    while True:
        first, second = weights[layer % len(weights)], weights[(layer + 3) % len(weights)]
        yield lambda x, r, w=first: relax.op.matmul(x, w)
        yield lambda x, r: relax.op.nn.gelu(x)
        yield lambda x, r: relax.op.add(x, r)
        yield lambda x, r: relax.op.permute_dims(x)
        yield lambda x, r: relax.op.nn.softmax(x, axis=-1)
        yield lambda x, r, w=second: relax.op.matmul(x, w)
        yield lambda x, r: relax.op.reshape(x, (ROWS, WIDTH))
        yield lambda x, r: relax.op.nn.relu(x)
        yield lambda x, r: relax.op.multiply(x, x)
        yield lambda x, r: relax.op.add(x, r)
        yield lambda x, r: relax.op.tanh(x)
        layer += 1
