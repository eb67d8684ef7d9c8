"""What random programs are made of: statements over tensors that are there.

In a statement {a} and {b} are tensors, {d} and {e} axes of {a}, {i} is an index, {s} a subscript, {order} its axes in
some order. Sizes are written by `.shape`, so that a program is one for all sizes.
"""

from __future__ import annotations

ELEMENTWISE = (
    "{a}.tanh()", "{a}.sigmoid()", "{a} * 0.5", "-{a}", "F.relu({a})", "F.gelu({a})", "{a}.abs() + 0.1", "{a}.sin()",
    "{a} + 1", "F.silu({a})", "{a}.square() * 0.1", "{a}.clamp(-1, 1)", "F.softplus({a})", "{a}.contiguous()",
    "{a}.clone()", "{a}.detach()", "F.leaky_relu({a}, 0.1)", "torch.exp(-{a}.abs())", "{a}.double().float()",
    "{a}.nan_to_num()", "{a}.erf()", "{a}.atan()", "{a}.round()", "{a}.sign()", "F.hardswish({a})",
    "{a} * {a}.shape[{d}]", "torch.ones_like({a})", "torch.zeros({a}.shape) + {a}", "torch.full_like({a}, 0.3)",
)  # fmt: skip

VIEWS = (
    "{a}.transpose({d}, {e})", "{a}.unsqueeze({d})", "{a}.flip({d})", "{a}[{s}]",
    "{a}.narrow({d}, 0, {a}.shape[{d}] - 1)",
    "{a}.reshape(-1)", "{a}.flatten({d})", "{a}.permute({order})", "{a}.select({d}, {i})", "{a}.chunk(2, {d})[{i}]",
    "{a}.split(2, {d})[0]", "{a}.roll(1, {d})", "{a}.unbind({d})[{i}]", "{a}.diagonal(0, {d}, {e})",
    "{a}.unfold({d}, 2, 1)", "{a}.unfold({d}, 3, 2)", "{a}.expand(2, *{a}.shape)",
    "{a}.repeat(2, *[1] * ({a}.ndim - 1))",
    "{a}.repeat_interleave(2, {d})", "{a}.movedim({d}, {e})", "{a}.mT", "{a}.view({a}.shape)",
    "{a}.reshape({a}.shape[0], -1)", "{a}.unflatten({d}, (1, -1))", "{a}.squeeze({d})", "F.pad({a}, (1, 2))",
    "F.pad({a}, (-1, 1), value=0.5)", "{a}.tril()", "{a}.triu(1)", "{a}.reshape(*{a}.shape[:-1], -1, 1)",
    "{a}.swapaxes(0, -1)", "{a}.ravel()", "{a}.rot90()", "{a}.expand_as({b})", "{a}.tile((1, 2))", "{a}[:, None]",
    "{a}[..., None, :]", "{a}[..., -1:]", "{a}[{i}]", "{a}[{a}.shape[0] // 2 :]", "{a}[..., : {a}.shape[-1] // 2]",
    "torch.atleast_2d({a})", "{a}.index_select({d}, torch.tensor([1, 0, 1]))", "{a}[torch.tensor([1, 0])]",
    "{a}[..., torch.tensor([0, 1, 1])]", "{a}[[1, 0]]", "{a}[:, [0]]", "torch.block_diag({a}, {a})",
)  # fmt: skip

OF_TWO = (
    "{a} + {b}", "{a} * {b}", "{a} - {b}", "torch.maximum({a}, {b})", "torch.where({a} > {b}, {a}, {b})",
    "{a} / ({b}.abs() + 1)", "torch.cat([{a}, {b}], {d})", "torch.stack([{a}, {b}], {d})", "{a} @ {b}", "{a} @ {b}.mT",
    "{a}.mT @ {b}", "F.mse_loss({a}, {b})", "{a}.lerp({b}, 0.3)", "torch.atan2({a}, {b}.abs() + 1)",
    "torch.einsum('...i,...i->...', {a}, {b})", "torch.outer({a}.reshape(-1)[:3], {b}.reshape(-1)[:2])",
    "torch.addcmul({a}, {b}, {b}, value=0.1)", "F.cosine_similarity({a}, {b}, dim=-1)",
    "torch.minimum({a}, {b}.mean())",
    "{a} * ({b} > 0)", "torch.hypot({a}, {b} + 3)", "torch.cdist({a}, {b} + 5)", "torch.logaddexp({a}, {b})",
    "torch.broadcast_tensors({a}, {b})[0]", "F.scaled_dot_product_attention({a}, {b}, {b})",
    "torch.kron({a}.clone(), {b}.clone())",
    "torch.tensordot({a}, {b}, 1)", "{a}.masked_fill({b} > 0, 0.5)", "{a} % ({b}.abs() + 1)",
    "{a}.gather({d}, ({b}.abs() * 0).long())",
)  # fmt: skip

ALONG_AN_AXIS = (
    "{a}.sum({d})", "{a}.mean({d}, keepdim=True)", "{a}.amax({d})", "{a}.max({d}).values", "{a}.softmax({d})",
    "{a}.log_softmax({d})", "{a}.cumsum({d})", "{a}.var({d}, unbiased=False)", "{a}.std({d})", "{a}.sort({d}).values",
    "{a}.topk(2, {d}).values", "{a}.logsumexp({d})", "F.layer_norm({a}, {a}.shape[-1:])", "F.normalize({a}, dim={d})",
    "{a}.norm(dim={d})", "{a}.sum()", "{a}.mean()", "{a}.prod({d})", "{a}.argmax({d}).float()",
    "{a}.median({d}).values",
    "{a}.cummax({d}).values", "{a}.cumprod({d})", "F.avg_pool1d({a}, 2)", "F.max_pool1d({a}, 2, 1)",
    "F.adaptive_avg_pool1d({a}, 3)", "F.interpolate({a}, scale_factor=2, mode='linear')",
    "F.interpolate({a}, scale_factor=2, mode='nearest')", "{a}.count_nonzero({d}).float()", "{a}.diff(dim={d})",
    "torch.arange({a}.shape[{d}]) * 1.0", "{a}.new_zeros({a}.shape[0])", "{a}.argsort({d}).float()",
    "F.one_hot({a}.argmax({d}), {a}.shape[{d}]).float()", "torch.linspace(0, 1, {a}.shape[{d}])",
    "F.glu(torch.cat([{a}, {a}], {d}), {d})", "torch.eye({a}.shape[{d}])", "F.instance_norm({a})",
    "{a}.aminmax(dim={d})[0]", "torch.var_mean({a}, {d})[1]", "torch.trapezoid({a}, dim={d})",
    "F.conv1d({a}, torch.ones(2, {a}.shape[-2], 2) * 0.1)", "{a}.logcumsumexp({d})", "F.max_pool1d({a}, 3, 2, 1)",
    "torch.bucketize({a}, torch.tensor([-0.5, 0.0, 0.5])).float()", "F.avg_pool1d({a}, 3, 2, 1)",
    "{a}.kthvalue(1, {d}).values", "F.group_norm({a}, 1)", "torch.combinations({a}.reshape(-1)[:3])",
    "torch.vander({a}.reshape(-1)[:3], 3)", "{a}.quantile(0.3, {d})",
)  # fmt: skip

WRITES = (
    "{a}.add_(0.5)", "{a}.mul_({b})", "{a}.copy_({b})", "{a}[{s}] = 0.25", "{a}[{s}] *= 2", "{a}[0] += 1",
    "{a}.masked_fill_({a} > 0.3, -0.1)", "{a}[{a} > 0.5] = 0.0", "{a}.zero_()", "{a}.clamp_(-0.5, 0.5)",
    "{a}.index_fill_({d}, torch.tensor([0]), 0.7)", "{a}.transpose({d}, {e}).mul_(0.5)", "{a}.select({d}, {i}).add_(1)",
    "{a}.tanh_()", "{a}.fill_diagonal_(0.2)", "{a}.diagonal(0, {d}, {e}).fill_(1.0)", "{a}.narrow({d}, 0, 1).sub_(0.1)",
    "{a}.index_add_({d}, torch.tensor([0]), {a}.detach().narrow({d}, 1, 1) * 0.5)", "{a}.unsqueeze(0).add_({b})",
    "{a}.view(-1).mul_(0.9)", "{a}.relu_()", "{a}[..., 1:] = {a}[..., :-1].clone()", "{a}[..., -1] = {b}.mean()",
    "{a}.scatter_({d}, torch.zeros_like({a}).long(), 0.1)", "{a}.lerp_({b}, 0.5)", "{a}[[0, 1]] = {b}[[1, 0]]",
    "{a}.index_copy_({d}, torch.tensor([1]), {b}.narrow({d}, 0, 1))", "{a}.chunk(2, {d})[0].neg_()", "{a} += {b}",
    "{a}.unbind({d})[0].add_({b}.unbind({d})[1])", "{a}[{i}][0] = 2.0", "{a}.addcmul_({b}, {b}, value=0.1)",
    "{a}.flatten()[0] = 3.0", "{a}.reshape(-1)[1:].add_(0.3)", "{a}[None][..., 0] = 0.4",
    "{a}.detach().mul_(0.5)", "{a}.detach()[0] = 0.1",
)  # fmt: skip

#: Kinds of statements, and how many there are of each.
KINDS = {ELEMENTWISE: 2, VIEWS: 3, OF_TWO: 3, ALONG_AN_AXIS: 3, WRITES: 3}
