"""Expressions of Relax, and the same in torch."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from tests.fuzz.torch_recurrent import back_through_time, layer

Row = tuple[str, dict[str, tuple[int, ...]], Callable[..., Any]]


def _adjoint(function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """What torch says of a function's adjoint."""

    def adjoint(x: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
        x = x.clone().requires_grad_()
        return torch.autograd.grad(function(x), x, g)[0]

    return adjoint


_CONVOLUTIONS = (F.conv1d, F.conv2d, F.conv3d)

_PLACES = "coordinate_transformation_mode"


#: An expression of Relax, its operands' shapes (those whose names begin with i are indices below 3, with c conditions),
#: and the same in torch.
ROWS: list[Row] = [
    ("R.nn.gelu(x)", {"x": (3, 4)}, F.gelu),
    ("R.nn.gelu_tanh(x)", {"x": (3, 4)}, lambda x: F.gelu(x, approximate="tanh")),
    ("R.nn.silu(x)", {"x": (3, 4)}, F.silu),
    ("R.nn.selu(x)", {"x": (3, 4)}, F.selu),
    ("R.nn.softplus(x)", {"x": (3, 4)}, F.softplus),
    ("R.nn.hardtanh(x, low=-0.5, high=0.75)", {"x": (3, 4)}, lambda x: F.hardtanh(x, -0.5, 0.75)),
    ("R.nn.leakyrelu(x, alpha=0.2)", {"x": (3, 4)}, lambda x: F.leaky_relu(x, 0.2)),
    ("R.nn.prelu(x, a, axis=1)", {"x": (3, 4), "a": (4,)}, F.prelu),
    ("R.erf(x)", {"x": (3, 4)}, torch.erf),
    ("R.tan(x)", {"x": (3, 4)}, torch.tan),
    ("R.atan2(x, y)", {"x": (3, 4), "y": (4,)}, torch.atan2),
    *(
        (f"R.special.{name}(R.tanh(x))", {"x": (3, 4)}, lambda x, name=name: getattr(torch.special, name)(x.tanh()))
        for name in [
            "bessel_j0",
            "bessel_j1",
            "digamma",
            "erfc",
            "erfcx",
            "erfinv",
            "i0",
            "i0e",
            "i1",
            "i1e",
            "log_ndtr",
        ]
    ),
    *(
        (f"R.special.{name}(R.sigmoid(x))", {"x": (3,)}, lambda x, name=name: getattr(torch.special, name)(x.sigmoid()))
        for name in ("bessel_y0", "bessel_y1", "log_ndtr", "ndtri")
    ),
    ("R.special.frexp(x)", {"x": (3, 4)}, lambda x: tuple(torch.frexp(x))),
    ("R.special.lgamma(x)", {"x": (3, 4)}, torch.lgamma),
    ("R.special.nextafter(x, y)", {"x": (3, 4), "y": (3, 4)}, torch.nextafter),
    ("R.special.polygamma(R.exp(x), n=2)", {"x": (3, 4)}, lambda x: torch.special.polygamma(2, x.exp())),
    ("R.special.signbit(x)", {"x": (3, 4)}, torch.signbit),
    (
        "R.special.zeta(R.add(R.exp(x), R.full_like(x, R.const(1.1, 'float64'))), R.exp(y))",
        {"x": (3, 4), "y": (3, 4)},
        lambda x, y: torch.special.zeta(x.exp() + 1.1, y.exp()),
    ),
    ("R.log_add_exp(x, y)", {"x": (3, 4), "y": (4,)}, torch.logaddexp),
    ("R.floor_mod(x, y)", {"x": (3, 4), "y": (4,)}, torch.remainder),
    ("R.mod(x, y)", {"x": (3, 4), "y": (4,)}, torch.fmod),
    ("R.where(c, x, y)", {"c": (3, 4), "x": (3, 4), "y": (4,)}, torch.where),
    ("R.clip(x, R.prim_value(-0.5), R.prim_value(0.5))", {"x": (3, 4)}, lambda x: x.clamp(-0.5, 0.5)),
    ("R.sum(x, axis=[0, 2])", {"x": (2, 3, 4)}, lambda x: x.sum((0, 2))),
    ("R.variance(x, axis=[1], keepdims=True)", {"x": (2, 3)}, lambda x: x.var(1, correction=0, keepdim=True)),
    ("R.std(x, axis=[-1])", {"x": (2, 3)}, lambda x: x.std(-1, correction=0)),
    ("R.prod(x)", {"x": (2, 3)}, torch.prod),
    ("R.cumsum(x, axis=1)", {"x": (2, 3)}, lambda x: x.cumsum(1)),
    ("R.cumprod(x, axis=0)", {"x": (2, 3)}, lambda x: x.cumprod(0)),
    ("R.median(x, axis=[1])", {"x": (2, 5)}, lambda x: tuple(x.median(1))),
    ("R.argmax(x, axis=1)", {"x": (2, 5)}, lambda x: x.argmax(1)),
    ("R.topk(x, k=2, axis=1, dtype='int64')", {"x": (2, 5)}, lambda x: tuple(x.topk(2))),
    ("R.sort(x, axis=0, descending=True)", {"x": (4, 2)}, lambda x: x.sort(0, descending=True)[0]),
    ("R.argsort(x, axis=0, dtype='int64')", {"x": (4, 2)}, lambda x: x.argsort(0)),
    ("R.take(x, i, axis=1)", {"x": (2, 3), "i": (4,)}, lambda x, i: x[:, i]),
    ("R.gather_elements(x, i, axis=0)", {"x": (3, 4), "i": (2, 4)}, lambda x, i: x.gather(0, i)),
    (
        'R.gather_elements(x, R.subtract(i, R.const(3, "int64")), axis=0)',
        {"x": (3, 4), "i": (2, 4)},
        lambda x, i: x.gather(0, i),
    ),
    (
        "R.nn.avg_pool3d(x, (2, 2, 2), (2, 2, 2), (1, 1, 1, 1, 1, 1), ceil_mode=True, count_include_pad=False)",
        {"x": (1, 2, 5, 5, 4)},
        lambda x: F.avg_pool3d(x, 2, 2, 1, ceil_mode=True, count_include_pad=False),
    ),
    (  # a last window would begin in the padding behind
        "R.nn.max_pool2d(x, (2, 2), (2, 2), (0, 1, 1, 0), ceil_mode=True)",
        {"x": (1, 2, 4, 5)},
        lambda x: F.max_pool2d(F.pad(x, (1, 0), value=-math.inf), 2, 2),
    ),
    ("R.gather_nd(x, i)", {"x": (3, 3, 2), "i": (4, 2)}, lambda x, i: x[i[:, 0], i[:, 1]]),
    (
        "R.scatter_elements(x, i, y, axis=0, reduction='add')",
        {"x": (3, 4), "i": (2, 4), "y": (2, 4)},
        lambda x, i, y: x.scatter_add(0, i, y),
    ),
    ("R.strided_slice(x, [1], [-1], [-9], [-2])", {"x": (2, 5)}, lambda x: x.flip(1)[:, ::2]),
    ("R.split(x, [1, 3], axis=1)", {"x": (2, 5)}, lambda x: x.tensor_split([1, 3], 1)),
    ("R.tile(x, (2, 1, 3))", {"x": (2, 3)}, lambda x: x.tile(2, 1, 3)),
    ("R.repeat(x, 2, axis=1)", {"x": (2, 3)}, lambda x: x.repeat_interleave(2, 1)),
    ("R.triu(x, 1)", {"x": (3, 4)}, lambda x: x.triu(1)),
    ("R.flip(x, axis=1)", {"x": (2, 3)}, lambda x: x.flip(1)),
    ("R.nn.pad(x, [1, 0, 2, 1], 'constant', 2.0)", {"x": (2, 3)}, lambda x: F.pad(x, (2, 1, 1, 0), value=2.0)),
    ("R.nn.pad(x, [0, 0, 2, 1], 'reflect')", {"x": (2, 3)}, lambda x: F.pad(x, (2, 1), mode="reflect")),
    ("R.nn.pixel_shuffle(x, 2)", {"x": (1, 8, 2, 3)}, lambda x: F.pixel_shuffle(x, 2)),
    ("R.matmul(x, y)", {"x": (2, 3, 4), "y": (4, 5)}, torch.matmul),
    ("R.matmul(x, y)", {"x": (4,), "y": (2, 4, 3)}, torch.matmul),
    ("R.einsum((x, y), 'bij,bkj->bik')", {"x": (2, 3, 4), "y": (2, 5, 4)}, lambda x, y: x @ y.mT),
    (
        "R.nn.conv2d(x, w, strides=[2, 1], padding=[1, 0, 2, 1], dilation=[1, 2], groups=2)",
        {"x": (2, 4, 6, 7), "w": (6, 2, 3, 2)},
        lambda x, w: F.conv2d(F.pad(x, (0, 1, 1, 2)), w, stride=(2, 1), dilation=(1, 2), groups=2),
    ),
    (
        "R.nn.conv1d_transpose(x, w, strides=[3], padding=[1, 1], output_padding=[2], groups=2)",
        {"x": (2, 4, 5), "w": (4, 3, 3)},
        lambda x, w: F.conv_transpose1d(x, w, stride=3, padding=1, output_padding=2, groups=2),
    ),
    (
        "R.nn.conv3d(x, w, padding=[1] * 6)",
        {"x": (1, 2, 3, 4, 3), "w": (2, 2, 3, 3, 3)},
        lambda x, w: F.conv3d(x, w, padding=1),
    ),
    (
        "R.nn.max_pool2d(x, [3, 2], [2, 2], [1, 1, 1, 1], ceil_mode=True)",
        {"x": (1, 2, 6, 5)},
        lambda x: F.max_pool2d(x, (3, 2), 2, 1, ceil_mode=True),
    ),
    (
        "R.nn.avg_pool1d(x, [3], [2], [1, 1], count_include_pad=True)",
        {"x": (1, 2, 7)},
        lambda x: F.avg_pool1d(x, 3, 2, 1),
    ),
    (
        "R.nn.avg_pool2d(x, [3, 3], [2, 2], [1, 1, 1, 1], count_include_pad=False)",
        {"x": (1, 2, 7, 6)},
        lambda x: F.avg_pool2d(x, 3, 2, 1, count_include_pad=False),
    ),
    (
        "R.nn.adaptive_avg_pool2d(x, [3, 2])",
        {"x": (1, 2, 7, 5)},
        lambda x: F.adaptive_avg_pool2d(x, (3, 2)),
    ),
    ("R.nn.softmax(x, axis=1)", {"x": (2, 3, 4)}, lambda x: x.softmax(1)),
    ("R.nn.log_softmax(x, axis=-1)", {"x": (2, 3)}, lambda x: x.log_softmax(-1)),
    (
        "R.nn.layer_norm(x, a, b, axes=[-1], epsilon=0.01)",
        {"x": (2, 3), "a": (3,), "b": (3,)},
        lambda x, a, b: F.layer_norm(x, (3,), a, b, 0.01),
    ),
    (
        "R.nn.rms_norm(x, a, axes=[-1], epsilon=0.01)",
        {"x": (2, 3), "a": (3,)},
        lambda x, a: F.rms_norm(x, (3,), a, 0.01),
    ),
    (
        "R.nn.group_norm(x, a, b, num_groups=2, channel_axis=1, axes=[2], epsilon=0.01)",
        {"x": (2, 4, 3), "a": (4,), "b": (4,)},
        lambda x, a, b: F.group_norm(x, 2, a, b, 0.01),
    ),
    (
        "R.nn.instance_norm(x, a, b, channel_axis=1, axes=[2], epsilon=0.01)",
        {"x": (2, 4, 3), "a": (4,), "b": (4,)},
        lambda x, a, b: F.instance_norm(x, weight=a, bias=b, eps=0.01),
    ),
    (
        "R.nn.batch_norm(x, a, b, m, R.abs(v), axis=1, epsilon=0.01, training=False)[0]",
        {"x": (2, 4, 3), "a": (4,), "b": (4,), "m": (4,), "v": (4,)},
        lambda x, a, b, m, v: F.batch_norm(x, m, v.abs(), a, b, eps=0.01),
    ),
    (
        "R.nn.nll_loss(x, i, y, reduction='mean')",
        {"x": (4, 3), "i": (4,), "y": (3,)},
        lambda x, i, y: F.nll_loss(x, i, y),
    ),
    (
        "R.nn.attention(q, k, v, causal_mask='TopLeft')",
        {"q": (1, 3, 2, 4), "k": (1, 3, 2, 4), "v": (1, 3, 2, 4)},
        lambda q, k, v: F.scaled_dot_product_attention(
            q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=True
        ).transpose(1, 2),
    ),
    *(
        (f"R.grad.{name}_backward(x, g{options})", {"x": (3, 4), "g": (3, 4)}, _adjoint(function))
        for name, options, function in (
            ("relu", "", F.relu),
            ("gelu", "", F.gelu),
            ("gelu_tanh", "", lambda x: F.gelu(x, approximate="tanh")),
            ("silu", "", F.silu),
            ("selu", "", F.selu),
            ("softplus", ", beta=1.0, threshold=20.0", F.softplus),
            ("leakyrelu", ", alpha=0.2", lambda x: F.leaky_relu(x, 0.2)),
        )
    ),
    (
        "R.grad.softmax_backward(R.nn.softmax(x), g, axis=-1)",
        {"x": (3, 4), "g": (3, 4)},
        _adjoint(lambda x: x.softmax(-1)),
    ),
    (
        "R.grad.log_softmax_backward(R.nn.log_softmax(x), g, axis=-1)",
        {"x": (3, 4), "g": (3, 4)},
        _adjoint(lambda x: x.log_softmax(-1)),
    ),
    (
        "R.grad.layer_norm_backward(x, a, g, axes=[-1], epsilon=0.01, center=True, scale=True)[0]",
        {"x": (3, 4), "a": (4,), "g": (3, 4)},
        lambda x, a, g: _adjoint(lambda x: F.layer_norm(x, (4,), a, eps=0.01))(x, g),
    ),
    (
        "R.grad.batch_norm_backward(x, a, g, axis=1, epsilon=0.01, center=True, scale=True, momentum=0.1, "
        "training=True)[1]",
        {"x": (3, 4), "a": (4,), "g": (3, 4)},
        lambda x, a, g: _adjoint(lambda a: F.batch_norm(x, None, None, a, training=True, eps=0.01))(a, g),
    ),
    (
        "R.grad.take_backward(g, x, i, axis=0)",
        {"g": (4, 2), "x": (3, 2), "i": (4,)},
        lambda g, x, i: _adjoint(lambda x: x[i])(x, g),
    ),
    *(
        (
            f"R.grad.conv{n}d_weight_backward(x, w, g, strides={[2, 1, 1][:n]}, padding={[1] * 2 * n}, "
            f"dilation={[1, 2, 1][:n]}, groups=2, data_layout='NC{'DHW'[-n:]}', kernel_layout='OI{'DHW'[-n:]}', "
            f"out_layout='NC{'DHW'[-n:]}', out_dtype='')",
            {"x": (2, 4, *(6, 7, 3)[:n]), "w": (6, 2, *(3, 2, 3)[:n]), "g": (2, 6, *(3, 7, 3)[:n])},
            lambda x, w, g, n=n: _adjoint(
                lambda w: _CONVOLUTIONS[n - 1](x, w, stride=(2, 1, 1)[:n], padding=1, dilation=(1, 2, 1)[:n], groups=2)
            )(w, g),
        )
        for n in (1, 2, 3)
    ),
    *(
        (
            f"R.grad.{kind}_pool2d_backward(g, x, pool_size=[3, 2], strides=[2, 1], padding=[1, 1, 1, 1]{options})",
            {"g": (2, 2, 3, 6), "x": (2, 2, 6, 5)},
            lambda g, x, pool=pool: _adjoint(lambda x: pool(x, (3, 2), (2, 1), (1, 1)))(x, g),
        )
        for kind, options, pool in (
            ("max", "", F.max_pool2d),
            ("avg", ", count_include_pad=True", F.avg_pool2d),
            ("avg", "", lambda *a: F.avg_pool2d(*a, count_include_pad=False)),
        )
    ),
    (
        "R.grad.group_norm_backward(x, a, g, num_groups=2, channel_axis=1, axes=[2], epsilon=0.01, center=True, "
        "scale=True)[0]",
        {"x": (2, 4, 3), "a": (4,), "g": (2, 4, 3)},
        lambda x, a, g: _adjoint(lambda x: F.group_norm(x, 2, a, eps=0.01))(x, g),
    ),
    *(
        (
            f"R.grad.cross_entropy_backward(x, i, {g}, ignore_index=1, label_smoothing=0.1, reduction='{reduction}')",
            {"x": (4, 3), "i": (4,), "g": (4,)},
            lambda x, i, g, reduction=reduction: _adjoint(
                lambda x: F.cross_entropy(x, i, ignore_index=1, label_smoothing=0.1, reduction=reduction)
            )(x, g if reduction == "none" else g.sum()),
        )
        for reduction, g in (("none", "g"), ("sum", "R.sum(g)"), ("mean", "R.sum(g)"))
    ),
    *(
        (
            f"R.grad.nll_loss_backward({g}, x, i, y, reduction='{reduction}', ignore_index=1)",
            {"x": (4, 3), "i": (4,), "g": (4,), "y": (3,)},
            lambda x, i, g, y, reduction=reduction: _adjoint(
                lambda x: F.nll_loss(x, i, y, ignore_index=1, reduction=reduction)
            )(x, g if reduction == "none" else g.sum()),
        )
        for reduction, g in (("none", "g"), ("sum", "R.sum(g)"), ("mean", "R.sum(g)"))
    ),
    (
        f"R.image.resize3d(x, R.shape([2, 5, 3]), layout='NCDHW', method='linear', {_PLACES}='half_pixel')",
        {"x": (1, 2, 3, 3, 4)},
        lambda x: F.interpolate(x, (2, 5, 3), mode="trilinear"),
    ),
    *(
        row
        for corners in (False, True)
        for row in (
            (
                f"R.image.affine_grid(x, R.shape([4, 3]), align_corners={corners})",
                {"x": (2, 2, 3)},
                lambda x, corners=corners: F.affine_grid(x, [2, 1, 4, 3], corners).permute(0, 3, 1, 2),
            ),
            (
                f"R.image.grid_sample(x, g, method='bilinear', align_corners={corners})",
                {"x": (2, 3, 4, 5), "g": (2, 2, 3, 3)},
                lambda x, g, corners=corners: F.grid_sample(x, g.permute(0, 2, 3, 1), align_corners=corners),
            ),
        )
    ),
    ("R.unique(i)", {"i": (4,)}, torch.unique),
    ("R.nonzero(i)", {"i": (3, 4)}, lambda i: i.nonzero().T),
    *(
        (
            f"R.grad.attention_backward(q, k, v, g, scale=None, causal_mask='TopLeft', window_size=None)[{i}]",
            {"q": (1, 3, 2, 4), "k": (1, 3, 2, 4), "v": (1, 3, 2, 4), "g": (1, 3, 2, 4)},
            lambda q, k, v, g, i=i: _adjoint(
                lambda x: F.scaled_dot_product_attention(
                    *(y.transpose(1, 2) for y in (*(q, k, v)[:i], x, *(q, k, v)[i + 1 :])), is_causal=True
                ).transpose(1, 2)
            )((q, k, v)[i], g),
        )
        for i in range(3)
    ),
    *(
        row
        for reverse in (False, True)
        for row in (
            (
                f"R.nn.lstm(x, w, h, s, reverse={reverse})",
                {"x": (3, 2, 8), "w": (8, 2), "h": (2, 2), "s": (2, 2)},
                layer("lstm", reverse),
            ),
            (
                f"R.nn.gru(x, w, b, h, reverse={reverse})",
                {"x": (3, 2, 6), "w": (6, 2), "b": (2,), "h": (2, 2)},
                layer("gru", reverse),
            ),
            *(
                (
                    f"R.nn.rnn(x, w, h, reverse={reverse}, activation='{activation}')",
                    {"x": (3, 2, 2), "w": (2, 2), "h": (2, 2)},
                    layer(f"rnn_{activation}", reverse),
                )
                for activation in ("tanh", "relu")
            ),
            (
                f"R.grad.lstm_backward(x, w, s, g, gh, gs, reverse={reverse})",
                {"x": (3, 2, 8), "w": (8, 2), "s": (2, 2), "g": (3, 2, 2), "gh": (2, 2), "gs": (2, 2)},
                back_through_time("lstm", reverse),
            ),
            (
                f"R.grad.gru_backward(x, w, p, g, gh, reverse={reverse})",
                {"x": (3, 2, 8), "w": (6, 2), "p": (3, 2, 2), "g": (3, 2, 2), "gh": (2, 2)},
                back_through_time("gru", reverse),
            ),
            (
                f"R.grad.rnn_backward(R.tanh(x), w, g, gh, reverse={reverse}, activation='tanh')",
                {"x": (3, 2, 2), "w": (2, 2), "g": (3, 2, 2), "gh": (2, 2)},
                back_through_time("rnn", reverse),
            ),
        )
    ),
    ("R.grad.broadcast_backward(g, axis=[0])", {"g": (3, 4)}, lambda g: g.sum(0)),
    *(
        (
            f"R.image.resize2d(x, R.shape([5, 3]), layout='NCHW', method='linear', {_PLACES}='{mode}')",
            {"x": (1, 2, 3, 4)},
            lambda x, corners=corners: F.interpolate(x, (5, 3), mode="bilinear", align_corners=corners),
        )
        for mode, corners in (("half_pixel", False), ("align_corners", True))
    ),
    (
        "R.image.resize2d(x, R.shape([5, 3]), layout='NCHW', method='cubic', cubic_alpha=-0.75, "
        f"{_PLACES}='half_pixel')",
        {"x": (1, 2, 3, 4)},
        lambda x: F.interpolate(x, (5, 3), mode="bicubic"),
    ),
    ("R.nn.log1p(R.square(x))", {"x": (3,)}, lambda x: torch.log1p(x.square())),
    ("R.one_hot(i, R.prim_value(1.0), R.prim_value(0.0), depth=3)", {"i": (4,)}, lambda i: F.one_hot(i, 3).double()),
    ("R.collapse_sum_to(x, R.shape([3, 1]))", {"x": (2, 3, 4)}, lambda x: x.sum_to_size(3, 1)),
]
