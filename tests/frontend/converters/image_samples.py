"""Modules of one operator each, of images and products."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from tests.frontend.converters.operator_samples import Sample


def _flat(parts: tuple[torch.Tensor, ...]) -> torch.Tensor:
    return torch.cat([part.flatten() for part in parts])


# x: (2, 4, 9, 8), w: (6, 4, 3, 3), b: (6)
IMAGES: dict[str, Sample] = {
    "conv2d": lambda x, w, b: F.conv2d(x, w, b, stride=2, padding=(1, 2)),
    "dilated": lambda x, w, b: F.conv2d(x, w, None, dilation=2, padding="same"),
    "grouped": lambda x, w, b: F.conv2d(x, w[:, :2], b, groups=2),
    "conv1d": lambda x, w, b: F.conv1d(x[:, :, 0], w[..., 0], b, padding=1),
    "transposed": lambda x, w, b: F.conv_transpose2d(x, w[:4], None, stride=2, output_padding=1),
    "transposed 1d": lambda x, w, b: F.conv_transpose1d(x[..., 0], w[:4, :, 0], stride=2, padding=1),
    "transposed 3d": lambda x, w, b: F.conv_transpose3d(x[None], w[:2].reshape(2, 1, 4, 3, 3), stride=2),
    "unbatched": lambda x, w, b: F.conv2d(x[0], w, b),
    "max_pool2d": lambda x, w, b: F.max_pool2d(x, 3, 2, 1),
    "max_pool2d ceil": lambda x, w, b: F.max_pool2d(x, 2, ceil_mode=True),
    "avg_pool2d": lambda x, w, b: F.avg_pool2d(x, 3, 2, 1),
    "avg_pool2d without padding": lambda x, w, b: F.avg_pool2d(x, 3, 2, 1, count_include_pad=False),
    "max_pool2d unbatched": lambda x, w, b: F.max_pool2d(x[0], 2),
    "max_pool3d": lambda x, w, b: F.max_pool3d(x[None], 2, (1, 2, 2), 1, dilation=(1, 2, 1), ceil_mode=True),
    "avg_pool3d": lambda x, w, b: F.avg_pool3d(x[None], 2, 2, (1, 0, 1), count_include_pad=False),
    "avg_pool3d unbatched": lambda x, w, b: F.avg_pool3d(x, (2, 3, 2), ceil_mode=True),
    "adaptive_avg_pool3d": lambda x, w, b: F.adaptive_avg_pool3d(x[None], (3, 2, None)),
    "adaptive_max_pool1d": lambda x, w, b: F.adaptive_max_pool1d(x[..., 0], 5),
    "adaptive_max_pool2d": lambda x, w, b: F.adaptive_max_pool2d(x, (3, 5)),
    "adaptive_max_pool3d": lambda x, w, b: F.adaptive_max_pool3d(x[None], (3, 2, 4)),
    "adaptive_avg_pool2d": lambda x, w, b: F.adaptive_avg_pool2d(x, (3, 2)),
    "adaptive_avg_pool1d": lambda x, w, b: F.adaptive_avg_pool1d(x[..., 0], 3),
    "group_norm": lambda x, w, b: F.group_norm(x, 2, b[:4], b[2:6]),
    "group_norm without weight": lambda x, w, b: F.group_norm(x, 2),
    "layer_norm with statistics": lambda x, w, b: _flat(torch.native_layer_norm(x, [8], None, b[:1].expand(8), 1e-5)),
    "group_norm with statistics": lambda x, w, b: _flat(torch.native_group_norm(x, b[:4], None, 2, 4, 72, 2, 1e-5)),
    "instance_norm": lambda x, w, b: F.instance_norm(x, weight=b[:4], bias=b[2:6]),
    "nearest exact": lambda x, w, b: F.interpolate(x, size=(13, 6), mode="nearest-exact"),
    "unfold": lambda x, w, b: F.unfold(x, 3, stride=2),
    "fold": lambda x, w, b: F.fold(F.unfold(x, 3, stride=2), (9, 8), 3, stride=2),
    "layer_norm": lambda x, w, b: F.layer_norm(x, (9, 8), eps=1e-3),
    "batch_norm": lambda x, w, b: F.batch_norm(x, b[:4], b[:4].abs() + 0.5, b[1:5], b[2:6], eps=1e-3),
    "batch_norm without weight": lambda x, w, b: F.batch_norm(x, b[:4], b[:4].abs() + 0.5),
    "rms_norm": lambda x, w, b: F.rms_norm(x, (8,), b[:1].expand(8)),
    "nearest": lambda x, w, b: F.interpolate(x, scale_factor=2),
    "nearest down": lambda x, w, b: F.interpolate(x, size=(4, 5)),
    "bilinear": lambda x, w, b: F.interpolate(x, size=(13, 6), mode="bilinear"),
    "bilinear aligned": lambda x, w, b: F.interpolate(x, size=(13, 6), mode="bilinear", align_corners=True),
    "bicubic": lambda x, w, b: F.interpolate(x, scale_factor=2, mode="bicubic"),
    **{
        f"{mode} by a scale that is not the ratio": lambda x, w, b, mode=mode: F.interpolate(
            x, scale_factor=(1.7, 0.6), mode=mode
        )
        for mode in ("bilinear", "bicubic")
    },
    "bilinear aligned, by a scale": lambda x, w, b: F.interpolate(
        x, scale_factor=1.7, mode="bilinear", align_corners=True
    ),
    "sampled beyond the borders": lambda x, w, b: F.grid_sample(
        x, 3 * w[:2, :, :, :2], mode="bicubic", padding_mode="reflection", align_corners=False
    ),
    "sampled at places": lambda x, w, b: F.grid_sample(x, w[:2, :, :, :2].tanh(), align_corners=False),
    "bicubic antialiased": lambda x, w, b: F.interpolate(x, size=(5, 11), mode="bicubic", antialias=True),
    "bilinear antialiased": lambda x, w, b: F.interpolate(x, scale_factor=0.6, mode="bilinear", antialias=True),
    "pixel_shuffle": lambda x, w, b: F.pixel_shuffle(x, 2),
    "addbmm": lambda x, w, b: torch.addbmm(x[0, 0, :, :4], x[0], x[1, :, :4].mT, beta=0.5, alpha=2),
    "addmm": lambda x, w, b: torch.addmm(b[:4], x[0, 0], x[1, 0].T[:, :4], beta=0.5, alpha=2),
    "baddbmm": lambda x, w, b: torch.baddbmm(x[0], x[0], x[1, :, :8], beta=2, alpha=0.5),
    "mm": lambda x, w, b: torch.mm(x[0, 0], x[0, 1].T),
    "bmm": lambda x, w, b: torch.bmm(x[0], x[1].transpose(1, 2)),
    "matmul": lambda x, w, b: x @ x[0, 0].T,
    "matrix_exp": lambda x, w, b: torch.matrix_exp(torch.stack([x[0, :, :, :3], 9 * x[1, :, :, 2:5]])[..., :3, :]),
    "vector": lambda x, w, b: x @ b.repeat(2)[:8],
    "einsum": lambda x, w, b: torch.einsum("bchw,dcij->bdhw", x, w[:, :, :1, :1]),
    "linear": lambda x, w, b: F.linear(x, w.reshape(6, -1)[:, :8], b),
}
