"""What random networks are made of: layers by the kind of tensor that they take.

{c} is the number of channels, {o} another one, {g} a divisor of both, {k} 1, 2 or 3, {s} a stride of 1 or 2, {yes} True
or False. Layers are written as in a module's constructor; what has no parameters, as a statement of {a} and {b}.
"""

from __future__ import annotations

ACTIVATIONS = (
    "nn.ReLU()", "nn.GELU()", "nn.SiLU()", "nn.Tanh()", "nn.Sigmoid()", "nn.ELU()", "nn.Hardswish()", "nn.Softplus()",
    "nn.LeakyReLU(0.1)", "nn.ReLU6()", "nn.Mish()", "nn.GELU(approximate='tanh')", "nn.SELU()", "nn.CELU(0.7)",
    "nn.Hardsigmoid()", "nn.LogSigmoid()", "nn.Softsign()", "nn.Tanhshrink()", "nn.Hardtanh(-1.5, 1.5)",
    "nn.Identity()", "nn.ReLU(inplace=True)", "nn.SiLU(inplace=True)", "nn.Dropout(0.0)",
)  # fmt: skip

IMAGE = (
    "nn.Conv2d({c}, {o}, 3, padding=1)", "nn.Conv2d({c}, {o}, {k}, stride={s}, padding={p})", "nn.Conv2d({c}, {o}, 1)",
    "nn.Conv2d({c}, {o}, 3, padding=2, dilation=2, bias={yes})", "nn.Conv2d({c}, {c}, 3, padding=1, groups={c})",
    "nn.Conv2d({c}, {o}, 3, padding=1, groups={g}, padding_mode='{mode}')", "nn.Conv2d({c}, {o}, 3, padding='same')",
    "nn.Conv2d({c}, {o}, ({k}, 1), stride=({s}, 1))", "nn.ConvTranspose2d({c}, {o}, {k}, stride={s})",
    "nn.ConvTranspose2d({c}, {o}, 3, stride=2, padding=1, output_padding=1, groups={g})", "nn.BatchNorm2d({c})",
    "nn.BatchNorm2d({c}, affine={yes}, momentum=None)", "nn.BatchNorm2d({c}, track_running_stats=False)",
    "nn.GroupNorm({g}, {c})", "nn.InstanceNorm2d({c}, affine={yes}, track_running_stats={yes})",
    "nn.MaxPool2d({k}, {s}, ceil_mode={yes})", "nn.MaxPool2d(3, 2, 1)", "nn.AvgPool2d(2, ceil_mode={yes})",
    "nn.AvgPool2d(3, {s}, 1, count_include_pad={yes})", "nn.AdaptiveAvgPool2d((None, 3))", "nn.AdaptiveAvgPool2d(3)",
    "nn.AdaptiveMaxPool2d((2, 3))", "nn.LPPool2d(2, 2)", "nn.Upsample(scale_factor=2, mode='nearest')",
    "nn.Upsample(scale_factor=2, mode='bilinear', align_corners={yes})", "nn.Upsample((7, 5), mode='bicubic')",
    "nn.PReLU({c})", "nn.Softmax2d()", "nn.ZeroPad2d((1, 0, 2, 1))", "nn.ReflectionPad2d(1)",
    "nn.ReplicationPad2d((0, 1, 1, 0))", "nn.CircularPad2d(1)", "nn.ChannelShuffle({g})", "nn.LocalResponseNorm(3)",
    "nn.PixelUnshuffle(2)", "nn.Conv2d({c}, 4 * {o}, 1), nn.PixelShuffle(2)", "nn.Dropout2d(0.0)",
    "nn.utils.parametrizations.weight_norm(nn.Conv2d({c}, {o}, 3))",
)  # fmt: skip

IMAGE_CALLS = (
    "{a}.flatten(2).transpose(1, 2)", "{a}.mean((2, 3))", "{a}.amax((2, 3), keepdim=True) + {a}", "{a}.flatten(2)",
    "{a} * {a}.mean((2, 3), keepdim=True).sigmoid()", "{a}.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)",
    "torch.cat([{a}, {a}.flip(3)], 1)", "{a}[:, :, ::2, 1:]", "{a} - {a}.mean(1, keepdim=True)",
    "F.interpolate({a}, scale_factor=0.5, mode='area')", "torch.cat({a}.chunk(2, 1)[::-1], 1)",
    "{a}[:, :{h}] * {a}[:, -{h}:]", "{a}.softmax(1)", "{a}.transpose(2, 3)",
    "F.pad({a}, (1, 1, 0, 1), mode='replicate')", "F.normalize({a}, dim=1)",
    "F.layer_norm({a}.permute(0, 2, 3, 1), ({c},)).permute(0, 3, 1, 2)", "F.unfold({a}, 2).transpose(1, 2)",
    "{a}.to(memory_format=torch.channels_last)", "{a}.roll((1, -1), (2, 3))",
    "F.grid_sample({a}, {a}[:, :2].permute(0, 2, 3, 1).tanh(), align_corners=False)",
    "{a}.view({a}.shape[0], {g}, -1, *{a}.shape[2:]).sum(1)", "{a}.unsqueeze(2)",
    "torch.einsum('nchw,nchv->nwv', {a}, {a}) * 0.1",
)  # fmt: skip

SEQUENCE = (
    "nn.Linear({c}, {o})", "nn.Linear({c}, {o}, bias=False)", "nn.LayerNorm({c})", "nn.RMSNorm({c})",
    "nn.LayerNorm({c}, elementwise_affine={yes})", "nn.LSTM({c}, {o}, batch_first=True, bidirectional={yes})",
    "nn.GRU({c}, {o}, num_layers=2, batch_first=True)", "nn.RNN({c}, {o}, nonlinearity='relu', batch_first={yes})",
    "nn.LSTM({c}, 6, proj_size=3, batch_first=True, bias={yes})", "nn.GRU({c}, {o}, bidirectional=True)",
    "nn.MultiheadAttention({c}, {g}, batch_first={yes}, add_bias_kv={yes})",
    "nn.TransformerEncoderLayer({c}, {g}, 10, 0.0, '{relu}', batch_first={yes}, norm_first={yes})", "nn.Softmax(-1)",
    "nn.TransformerDecoderLayer({c}, {g}, 10, 0.0, batch_first=True)", "nn.Softmin(1)", "nn.LogSoftmax(2)",
    "nn.utils.parametrizations.spectral_norm(nn.Linear({c}, {o}))", "nn.Bilinear({c}, {c}, {o})",
)  # fmt: skip

SEQUENCE_CALLS = (
    "{a}.transpose(1, 2)", "{a}.mean(1)", "{a}[:, -1]", "{a}.cumsum(1) * 0.2", "{a}.amax(1)", "{a} @ {a}.mT * 0.1",
    "({a} @ {a}.mT).softmax(-1) @ {a}", "F.scaled_dot_product_attention({a}, {a}, {a}, is_causal={yes})",
    "F.scaled_dot_product_attention(*[{a}.unflatten(-1, ({g}, -1)).transpose(1, 2)] * 3).transpose(1, 2).flatten(2)",
    "F.glu(torch.cat([{a}, {a} * 0.5], -1))", "{a}.sort(1).values", "{a}.flip(1)", "{a}[:, 1:] - {a}[:, :-1]",
    "torch.cat([{a}[:, :1], {a}], 1)", "{a} + torch.arange({a}.shape[1])[:, None] * 0.1", "{a}.repeat_interleave(2, 1)",
    "{a}.topk(2, 1).values", "torch.stack([{a}, -{a}], 1)", "{a}.unfold(1, 2, 1).mean(-1)",
    "torch.einsum('ntc,nsc->nts', {a}, {a}).tril() * 0.1", "{a} * {a}.std(1, keepdim=True)", "{a}.logsumexp(1)",
    "{a}.unflatten(2, ({g}, -1)).transpose(2, 3).flatten(2)", "{a}.var(-1, keepdim=True) + {a}", "{a}.reshape(-1, {c})",
    "torch.cat([{a}, {a}.mean(1, keepdim=True).expand_as({a})], -1)", "{a}.gather(1, {a}.argsort(1))",
    "{a}.tanh() * {a}.norm(dim=-1, keepdim=True)", "F.softmax({a}, 1).mul({a}).sum(1)",
    "{a}.view({a}.shape[0], -1, {c})",
)  # fmt: skip

CHANNELS = (
    "nn.Conv1d({c}, {o}, {k}, stride={s}, padding={p})", "nn.Conv1d({c}, {o}, 3, padding=2, dilation=2, groups={g})",
    "nn.ConvTranspose1d({c}, {o}, {k}, stride={s})", "nn.BatchNorm1d({c})", "nn.InstanceNorm1d({c}, affine=True)",
    "nn.MaxPool1d({k}, {s})", "nn.AvgPool1d(3, {s}, 1)", "nn.AdaptiveAvgPool1d(4)", "nn.GroupNorm({g}, {c})",
    "nn.Upsample(scale_factor=2, mode='linear', align_corners={yes})", "nn.ConstantPad1d((2, 0), 0.1)", "nn.PReLU()",
    "nn.Conv1d({c}, {c}, 3, padding=1, groups={c}, padding_mode='{mode}')", "nn.AdaptiveMaxPool1d(2)",
    "nn.BatchNorm1d({c}, momentum=0.3, eps=1e-3)",
)  # fmt: skip

VECTOR = (
    "nn.Linear({c}, {o})", "nn.LayerNorm({c})", "nn.BatchNorm1d({c})", "nn.Softmax(-1)", "nn.Unflatten(1, ({g}, -1))",
    "nn.Bilinear({c}, {c}, {o})", "nn.GroupNorm({g}, {c})", "nn.LSTMCell({c}, {o})", "nn.GRUCell({c}, {c})",
)  # fmt: skip

VECTOR_CALLS = (
    "{a}[:, None]", "{a} @ {a}.T * 0.1", "{a}.unsqueeze(-1)", "{a}[:, :, None, None]", "F.normalize({a})",
    "{a}.mean(0)[None]", "F.cosine_similarity({a}[:, None], {a}[None], dim=-1)", "torch.outer({a}[0], {a}[-1])",
    "torch.cdist({a}, {a} + 1)", "{a}.softmax(0)", "{a} - {a}.mean(0)", "torch.cat([{a}, {a}], 1)",
    "F.log_softmax({a}, -1).exp()", "{a}[..., 1:]",
)  # fmt: skip

TOKENS = (
    "nn.Embedding(11, {o})", "nn.Embedding(11, {o}, padding_idx=1)", "nn.EmbeddingBag(11, {o}, mode='{bag}')",
    "nn.Embedding(11, {o}, scale_grad_by_freq=True)",
)  # fmt: skip

TOKENS_CALLS = (
    "F.one_hot({a}, 11).type_as(image)", "{a}.type_as(image)[..., None] * 0.1", "{a}.flip(1)", "{a}[:, 1:]", "{a} % 5",
)  # fmt: skip

VOLUME = (
    "nn.Conv3d({c}, {o}, ({k}, 3, 3), padding=({p}, 1, 1))", "nn.BatchNorm3d({c})", "nn.AvgPool3d((1, 2, 2))",
    "nn.MaxPool3d((1, 2, 2))", "nn.ConvTranspose3d({c}, {o}, (1, 2, 2), stride=(1, 2, 2))",
    "nn.AdaptiveAvgPool3d((1, 3, 3))", "nn.GroupNorm({g}, {c})", "nn.Conv3d({c}, {o}, 1, groups={g})",
    "nn.Upsample(scale_factor=(1, 2, 2), mode='trilinear')",
)  # fmt: skip

VOLUME_CALLS = ("{a}.flatten(1, 2)", "{a}.mean(2)", "{a}.sum((3, 4)).transpose(1, 2)", "{a}[:, :, 0]")

#: What is done to two tensors of the same shape, and to any one.
OF_TWO = (
    "{a} + {b}", "{a} * {b}", "torch.cat([{a}, {b}], 1)", "{a} * {b}.sigmoid()", "torch.maximum({a}, {b})",
    "{a} - {b} * 0.5", "torch.stack([{a}, {b}]).mean(0)", "torch.lerp({a}, {b}, 0.3)", "{a} / (1 + {b}.square())",
)  # fmt: skip
