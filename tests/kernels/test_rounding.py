"""A cast that the model asks for rounds, whichever kernel computes what stands before and after it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from tvm import relax

from tests.kernels.modules import NUMPY, module, random, run

op = relax.op

LOW = ("bfloat16", "float16")


def _operands(*shapes: tuple) -> list[tuple]:
    return [(shape, "float32") for shape in shapes]


def _attention(q: relax.Expr, k: relax.Expr, v: relax.Expr) -> relax.Expr:
    return op.matmul(op.nn.softmax(op.matmul(q, op.permute_dims(k, [0, 2, 1]))), v)


#: What makes a float32 tensor, by the family of its kernel, and its operands.
_PRODUCERS: dict[str, tuple[Callable[..., relax.Expr], list[tuple]]] = {
    "argument": (lambda x: x, _operands((5, 77))),
    "product": (op.matmul, _operands((4, 64), (64, 33))),
    "product and bias": (lambda x, w, b: op.add(op.matmul(x, w), b), _operands((4, 64), (64, 33), (33,))),
    "product and activation": (lambda x, w: op.nn.gelu(op.matmul(x, w)), _operands(("n", 64), (64, 33))),
    "product of vectors": (op.matmul, _operands((64,), (64,))),
    "convolution": (op.nn.conv2d, _operands((1, 8, 9, 9), (8, 8, 3, 3))),
    "convolution along three axes": (op.nn.conv3d, _operands((1, 4, 5, 5, 5), (4, 4, 3, 3, 3))),
    "attention": (_attention, _operands((2, 16, 32), (2, 16, 32), (2, 16, 32))),
    "pooling": (lambda x: op.nn.avg_pool2d(x, (3, 3)), _operands((1, 8, 9, 9))),
    "row": (op.nn.softmax, _operands((5, 77))),
    "norm": (lambda x, g, b: op.nn.layer_norm(x, g, b, -1), _operands(("n", 77), (77,), (77,))),
    "scan": (lambda x: op.cumsum(x, 1), _operands((5, 77))),
    "reduction of rows": (lambda x: op.sum(x, 1), _operands((5, 77))),
    "reduction of columns": (lambda x: op.variance(x, 0), _operands((50, 7))),
    "elementwise": (op.exp, _operands((5, "n"))),
    "permutation": (op.permute_dims, _operands((50, 77))),
    "concatenation": (lambda x, y: op.concat([x, y], 1), _operands((50, 7), (50, 9))),
    "sort": (op.sort, _operands((5, 77))),
}

#: What reads the rounded tensor, and changes none of its elements but their signs and places.
_READERS: dict[str, Callable[[relax.Expr], relax.Expr]] = {
    "nothing": lambda x: x,
    "relu": op.nn.relu,
    "negative": op.negative,
    "scale": lambda x: op.multiply(x, relax.const(2.0)),
    "zero residual": lambda x: op.add(x, op.full_like(x, relax.const(0.0))),
    "maximum of a row": lambda x: op.max(x, -1),
    "maximum of a column": lambda x: op.max(x, 0),
    "permutation": op.permute_dims,
}


def _is_rounded(name: str, read: Callable[[relax.Expr], relax.Expr], dtype: str) -> bool:
    body, arguments = _PRODUCERS[name]

    def rounded(*operands: relax.Expr) -> relax.Expr:
        return read(op.astype(op.astype(body(*operands), dtype), "float32"))

    shapes = [[7 if size == "n" else size for size in shape] for shape, _ in arguments]
    (got,) = run(module(rounded, *arguments), *[random(shape, "float32", i) for i, shape in enumerate(shapes)])
    return bool(np.array_equal(got.astype(NUMPY.get(dtype, dtype)).astype("float32"), got))


@pytest.mark.parametrize("name", _PRODUCERS)
def test_what_is_narrowed_is_rounded(name: str) -> None:
    assert _is_rounded(name, op.nn.relu, "bfloat16")


@pytest.mark.parametrize("dtype", LOW)
@pytest.mark.parametrize("name", ["product and bias", "row"])
@pytest.mark.parametrize("reader", _READERS)
def test_whatever_reads_it_next(name: str, reader: str, dtype: str) -> None:
    assert _is_rounded(name, _READERS[reader], dtype)


def test_scores_of_attention_are_rounded() -> None:
    """With integers only the rounding of the scores counts: 257 becomes 256, and both keys are equally near."""

    def body(q: relax.Expr, k: relax.Expr, v: relax.Expr) -> relax.Expr:
        scores = op.matmul(q, op.permute_dims(k, [0, 2, 1]))
        return op.matmul(op.nn.softmax(op.astype(op.astype(scores, "bfloat16"), "float32")), v)

    query = np.ones((1, 1, 16), "float32")
    key = np.zeros((1, 2, 16), "float32")
    key[0, :, 0] = 256, 257
    value = np.zeros((1, 2, 16), "float32")
    value[0, 1] = 1
    arguments = [(array.shape, "float32") for array in (query, key, value)]
    (got,) = run(module(body, *arguments), query, key, value)
    np.testing.assert_allclose(got, 0.5, rtol=1e-6)
