"""Operators that are not elementwise, beside torch's: what they make of numbers that are none, or far from one."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from tvm import relax

op, nn = relax.op, relax.op.nn
functional = torch.nn.functional

#: Numbers that take the place of some of the data, by name.
SPECIAL = {
    "NaN": float("nan"),
    "inf": float("inf"),
    "-inf": float("-inf"),
    "zero": 0.0,
    "-zero": -0.0,
    "subnormal": 1e-40,
    "tiny": 1e-20,
    "huge": 1e20,
    "vast": 1e30,
}
#: Those of float16, whose range is smaller.
SPECIAL_FLOAT16 = {**SPECIAL, "subnormal": 6e-8, "tiny": 1e-4, "huge": 3e4}


class Case(NamedTuple):
    """An operator of tensors of some shapes, and what torch calls it; both give one tensor."""

    body: Callable[..., relax.Expr]
    torch: Callable[..., torch.Tensor]
    shapes: tuple[tuple[int, ...], ...]
    #: Which of the tensors get special numbers.
    special: tuple[int, ...] = (0,)


def _moved(function: Callable[..., torch.Tensor], **options: object) -> Callable[..., torch.Tensor]:
    """A function of images for those whose channels are last."""
    return lambda x, *rest: function(x.permute(0, 3, 1, 2), *rest, **options).permute(0, 2, 3, 1)


def _batch_norm(training: bool) -> Callable[..., torch.Tensor]:
    return lambda x, g, b, mean, variance: functional.batch_norm(
        x, None if training else mean, None if training else variance.abs(), g, b, training
    )


def _relax_batch_norm(training: bool) -> Callable[..., relax.Expr]:
    return lambda x, g, b, mean, variance: nn.batch_norm(x, g, b, mean, op.abs(variance), 1, training=training)[0]


_ROWS, _LONG, _IMAGES, _CHANNELS_LAST = ((5, 37),), ((3, 1500),), ((2, 3, 9, 11),), ((2, 9, 11, 3),)
_CHANNELS = ((2, 3, 9, 11), *[(3,)] * 4)


def _reductions() -> dict[str, Case]:
    cases = {}
    for name, function in {
        "sum": torch.sum,
        "mean": torch.mean,
        "prod": torch.prod,
        "max": torch.amax,
        "min": torch.amin,
        "argmax": torch.argmax,
        "argmin": torch.argmin,
        "variance": lambda x, axis: torch.var(x, axis, unbiased=False),
        "std": lambda x, axis: torch.std(x, axis, unbiased=False),
    }.items():
        build = getattr(op, name)
        for where, axis in (("rows", 1), ("columns", 0)):
            cases[f"{name} of {where}"] = Case(
                lambda x, b=build, a=axis: b(x, a), lambda x, f=function, a=axis: f(x, a), _ROWS
            )
    return cases


def _sdpa(*args: torch.Tensor, **options: object) -> torch.Tensor:
    """torch's attention as it is defined: by products and a softmax."""
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        result = functional.scaled_dot_product_attention(*(x.transpose(1, 2) for x in args[:3]), *args[3:], **options)
    return result.transpose(1, 2)


def _attention() -> dict[str, Case]:
    cases = {}
    for queries, name in ((1, "attention of one query"), (20, "attention")):
        shapes = ((2, queries, 2, 8), *[(2, 20, 2, 8)] * 2)
        masked = (*shapes, (2, 2, queries, 20))
        cases |= {
            f"{name} with special queries": Case(nn.attention, _sdpa, shapes, (0,)),
            f"{name} with special keys": Case(nn.attention, _sdpa, shapes, (1,)),
            f"{name} with special values": Case(nn.attention, _sdpa, shapes, (2,)),
            f"{name} with a special mask": Case(nn.attention, _sdpa, masked, (3,)),
            f"{name} with hidden special keys": Case(_hiding, _sdpa_hiding, shapes, (1,)),
            f"{name} with hidden special values": Case(_hiding, _sdpa_hiding, shapes, (2,)),
        }
    causal = {"causal_mask": "TopLeft"}
    for at, what in enumerate(("queries", "keys", "values")):
        cases[f"causal attention with special {what}"] = Case(
            lambda q, k, v: nn.attention(q, k, v, **causal),
            lambda q, k, v: _sdpa(q, k, v, is_causal=True),
            ((2, 20, 2, 8),) * 3,
            (at,),
        )
    return cases


def _hidden(queries: int) -> np.ndarray:
    """A mask that hides every third key, and every key from the first query if there are several."""
    mask = np.where(np.arange(20) % 3 == 0, -np.inf, 0).astype("float32") * np.ones((2, 2, queries, 1), "float32")
    mask[np.isnan(mask)] = 0
    return mask


def _hiding(q: relax.Expr, k: relax.Expr, v: relax.Expr) -> relax.Expr:
    mask = relax.const(_hidden(int(q.ty.shape[1])), "float32")
    return nn.attention(q, k, v, op.astype(mask, q.ty.dtype.dtype))


def _sdpa_hiding(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return _sdpa(q, k, v, torch.from_numpy(_hidden(q.shape[1])))


_LABELS = np.array([3, 36, 0, -100, 5])


def _losses() -> dict[str, Case]:
    labels = relax.const(_LABELS, "int64")
    return {
        f"cross entropy, {reduction}": Case(
            lambda x, r=reduction: nn.nll_loss(
                nn.log_softmax(op.astype(x, "float32"), -1), labels, reduction=r, ignore_index=-100
            ),
            lambda x, r=reduction: functional.cross_entropy(x, torch.from_numpy(_LABELS), reduction=r),
            _ROWS,
        )
        for reduction in ("none", "sum", "mean")
    }


def _max_pool_gradient(x: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
    x = x.permute(0, 3, 1, 2).detach().requires_grad_()
    functional.max_pool2d(x, 3, 2, 1).backward(g.permute(0, 3, 1, 2))
    assert x.grad is not None
    return x.grad.permute(0, 2, 3, 1)


CASES: dict[str, Case] = {
    **_reductions(),
    "cumsum of rows": Case(lambda x: op.cumsum(x, 1), lambda x: x.cumsum(1), _ROWS),
    "cumsum of columns": Case(lambda x: op.cumsum(x, 0), lambda x: x.cumsum(0), _ROWS),
    "cumprod": Case(lambda x: op.cumprod(x, 1), lambda x: x.cumprod(1), _ROWS),
    "sort": Case(lambda x: op.sort(x, -1), lambda x: x.sort(-1).values, _ROWS),
    "sort descending": Case(lambda x: op.sort(x, -1, True), lambda x: x.sort(-1, descending=True).values, _ROWS),
    "argsort": Case(lambda x: op.argsort(x, -1), lambda x: x.sort(stable=True, dim=-1).indices, _ROWS),
    "topk": Case(lambda x: op.topk(x, 5, ret_type="values"), lambda x: x.topk(5).values, _ROWS),
    "topk smallest": Case(
        lambda x: op.topk(x, 5, ret_type="values", largest=False), lambda x: x.topk(5, largest=False).values, _ROWS
    ),
    "softmax": Case(nn.softmax, lambda x: x.softmax(-1), _ROWS),
    "softmax of long rows": Case(nn.softmax, lambda x: x.softmax(-1), _LONG),
    "softmax of columns": Case(lambda x: nn.softmax(x, 0), lambda x: x.softmax(0), _ROWS),
    "log_softmax": Case(nn.log_softmax, lambda x: x.log_softmax(-1), _ROWS),
    "log_softmax of columns": Case(lambda x: nn.log_softmax(x, 0), lambda x: x.log_softmax(0), _ROWS),
    "layer_norm": Case(
        lambda x, g, b: nn.layer_norm(x, g, b, -1),
        lambda x, g, b: functional.layer_norm(x, (37,), g, b),
        ((5, 37), (37,), (37,)),
    ),
    "layer_norm of long rows": Case(
        lambda x, g, b: nn.layer_norm(x, g, b, -1),
        lambda x, g, b: functional.layer_norm(x, (1500,), g, b),
        ((3, 1500), (1500,), (1500,)),
    ),
    "rms_norm": Case(
        lambda x, g: nn.rms_norm(x, g, -1), lambda x, g: functional.rms_norm(x, (37,), g, 1e-5), ((5, 37), (37,))
    ),
    "group_norm": Case(
        lambda x, g, b: nn.group_norm(x, g, b, 1, 1, [2, 3]),
        lambda x, g, b: functional.group_norm(x, 1, g, b),
        _CHANNELS[:3],
    ),
    "instance_norm": Case(
        lambda x, g, b: nn.instance_norm(x, g, b, 1, [2, 3]),
        lambda x, g, b: functional.instance_norm(x, None, None, g, b),
        _CHANNELS[:3],
    ),
    "batch_norm": Case(_relax_batch_norm(False), _batch_norm(False), _CHANNELS),
    "batch_norm in training": Case(_relax_batch_norm(True), _batch_norm(True), _CHANNELS),
    "max_pool2d": Case(
        lambda x: nn.max_pool2d(x, (3, 3), (2, 2), (1, 1)), lambda x: functional.max_pool2d(x, 3, 2, 1), _IMAGES
    ),
    "max_pool2d of channels last": Case(
        lambda x: nn.max_pool2d(x, (3, 3), (2, 2), (1, 1), layout="NHWC"),
        _moved(functional.max_pool2d, kernel_size=3, stride=2, padding=1),
        _CHANNELS_LAST,
    ),
    "max_pool1d": Case(lambda x: nn.max_pool1d(x, 3, 2, 1), lambda x: functional.max_pool1d(x, 3, 2, 1), ((2, 3, 40),)),
    "max_pool3d": Case(
        lambda x: nn.max_pool3d(x, (2, 2, 2), (2, 2, 2)), lambda x: functional.max_pool3d(x, 2), ((2, 3, 4, 6, 8),)
    ),
    "avg_pool2d": Case(
        lambda x: nn.avg_pool2d(x, (3, 3), (2, 2), (1, 1), count_include_pad=True),
        lambda x: functional.avg_pool2d(x, 3, 2, 1),
        _IMAGES,
    ),
    "avg_pool2d of channels last": Case(
        lambda x: nn.avg_pool2d(x, (3, 3), (2, 2), (1, 1), layout="NHWC"),
        _moved(functional.avg_pool2d, kernel_size=3, stride=2, padding=1, count_include_pad=False),
        _CHANNELS_LAST,
    ),
    "average of large windows": Case(
        lambda x: nn.avg_pool2d(x, (20, 20), (20, 20), layout="NHWC"),
        _moved(functional.avg_pool2d, kernel_size=20),
        ((2, 40, 40, 3),),
    ),
    "adaptive_avg_pool2d": Case(
        lambda x: nn.adaptive_avg_pool2d(x, (1, 1)), lambda x: functional.adaptive_avg_pool2d(x, 1), _IMAGES
    ),
    "matmul": Case(op.matmul, torch.matmul, ((5, 37), (37, 7)), (0, 1)),
    "matmul of many rows": Case(op.matmul, torch.matmul, ((65, 37), (37, 50)), (0,)),
    "matmul with special weights": Case(op.matmul, torch.matmul, ((65, 37), (37, 50)), (1,)),
    "matmul with a transposed matrix": Case(
        lambda a, b: op.matmul(a, op.permute_dims(b)), lambda a, b: a @ b.T, ((33, 37), (50, 37)), (0, 1)
    ),
    "matmul of a transposed matrix": Case(
        lambda a, b: op.matmul(op.permute_dims(a), b), lambda a, b: a.T @ b, ((37, 33), (37, 50)), (0, 1)
    ),
    "conv2d": Case(
        lambda x, w: nn.conv2d(x, w, padding=(1, 1)),
        lambda x, w: functional.conv2d(x, w, padding=1),
        ((2, 3, 9, 11), (5, 3, 3, 3)),
    ),
    "conv2d with special weights": Case(
        lambda x, w: nn.conv2d(x, w, padding=(1, 1)),
        lambda x, w: functional.conv2d(x, w, padding=1),
        ((2, 3, 9, 11), (5, 3, 3, 3)),
        (1,),
    ),
    "depthwise conv2d": Case(
        lambda x, w: nn.conv2d(x, w, padding=(1, 1), groups=3),
        lambda x, w: functional.conv2d(x, w, padding=1, groups=3),
        ((2, 3, 9, 11), (3, 1, 3, 3)),
        (0, 1),
    ),
    "conv2d_transpose": Case(
        lambda x, w: nn.conv2d_transpose(x, w, strides=(2, 2), padding=(1, 1)),
        lambda x, w: functional.conv_transpose2d(x, w, stride=2, padding=1),
        ((2, 3, 5, 6), (3, 5, 3, 3)),
        (0, 1),
    ),
    "conv1d": Case(
        lambda x, w: nn.conv1d(x, w, padding=1),
        lambda x, w: functional.conv1d(x, w, padding=1),
        ((2, 3, 20), (5, 3, 3)),
        (0, 1),
    ),
    "einsum": Case(
        lambda a, b: op.einsum((a, b), "ij,kj->ki"),
        lambda a, b: torch.einsum("ij,kj->ki", a, b),
        ((5, 7), (4, 7)),
        (0,),
    ),
    "resize": Case(
        lambda x: op.image.resize2d(
            x, (18, 22), layout="NCHW", method="linear", coordinate_transformation_mode="half_pixel"
        ),
        lambda x: functional.interpolate(x, scale_factor=2.0, mode="bilinear"),
        _IMAGES,
    ),
    **_attention(),
    **_losses(),
    "max_pool2d backward": Case(
        lambda x, g: op.grad.max_pool2d_backward(g, x, (3, 3), (2, 2), (1, 1, 1, 1), layout="NHWC"),
        _max_pool_gradient,
        ((2, 9, 11, 3), (2, 5, 6, 3)),
    ),
    "lookup": Case(lambda x: op.take(x, relax.const(np.array([3, 0, 3]), "int64"), 0), lambda x: x[[3, 0, 3]], _ROWS),
}
