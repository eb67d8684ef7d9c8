"""What computes nothing is removed, and chains are shortened."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import tvm
from torch.nn import functional as F
from tvm import relax
from tvm.script import ir as I
from tvm.script import relax as R

from autocast.kernels.phases.canonicalize import canonicalize
from tests.kernels.modules import EPSILON, error, module, operators, random, run

op = relax.op


def test_identities_are_removed() -> None:
    def body(x: relax.Expr) -> relax.Expr:
        x = op.broadcast_to(op.reshape(op.astype(x, "float32"), (2, 3)), (2, 3))
        return op.exp(op.permute_dims(x, [0, 1]))

    assert operators(canonicalize(module(body, ((2, 3), "float32")))) == ["relax.exp"]


def test_identities_with_a_run_time_dimension_are_removed() -> None:
    def body(x: relax.Expr) -> relax.Expr:
        return op.exp(op.squeeze(op.expand_dims(x, 0), [0]))

    assert operators(canonicalize(module(body, (("n", 3), "float32")))) == ["relax.exp"]


@pytest.mark.parametrize("dtype", ["float64", "int16", "int64", "uint8", "float32", "float16"])
@pytest.mark.parametrize("back", ["float64", "int16", "float32"])
def test_a_chain_of_casts_rounds_to_bfloat16(dtype: str, back: str) -> None:
    x = (np.arange(256, dtype="float64") * 2.01).astype(dtype)
    got = run(module(lambda x: op.astype(op.astype(x, "bfloat16"), back), ((256,), dtype)), x)[0]
    wanted = torch.from_numpy(x).to(torch.bfloat16).to(getattr(torch, back))
    np.testing.assert_array_equal(got, wanted.numpy())


def test_padding_by_nothing_is_removed() -> None:
    def body(x: relax.Expr) -> relax.Expr:
        return op.exp(op.nn.pad(x, [0, 0, 0, 0]))

    assert operators(canonicalize(module(body, ((2, 3), "float32")))) == ["relax.exp"]


@pytest.mark.parametrize(("batch", "own"), [(2, 0), ("n", 1)])
def test_zeros_around_what_a_convolution_reads_are_padding_of_its_own(batch: int | str, own: int) -> None:
    def body(x: relax.Expr, w: relax.Expr) -> relax.Expr:
        return op.nn.conv2d(op.nn.pad(x, [0, 0, 0, 0, 0, 1, 2, 3]), w, strides=2, padding=own)

    mod = module(body, ((batch, 3, 8, 7), "float32"), ((4, 3, 3, 3), "float32"))
    after = canonicalize(mod)
    assert operators(after) == ["relax.nn.conv2d"]
    assert list(after["main"].body.blocks[0].bindings[0].value.attrs.padding) == [own, 2 + own, 1 + own, 3 + own]
    arrays = [random(shape, "float32") for shape in ((2, 3, 8, 7), (4, 3, 3, 3))]
    x, w = (torch.from_numpy(array).double() for array in arrays)
    expected = F.conv2d(F.pad(x, [2, 3, 0, 1]), w, stride=2, padding=own).numpy()
    assert error(run(mod, *arrays)[0], expected) < 4 * EPSILON["float32"]


@pytest.mark.parametrize(
    ("widths", "mode", "value"),
    [
        ([0, 0, 0, 0, 1, 1, 1, 1], "reflect", 0.0),
        ([0, 0, 0, 0, 1, 1, 1, 1], "constant", 1.0),
        ([0, 0, 0, 1, 0, 0, 0, 0], "constant", 0.0),
        ([0, 0, 0, 0, -1, 1, 0, 0], "constant", 0.0),
    ],
)
def test_other_padding_is_left(widths: list[int], mode: str, value: float) -> None:
    def body(x: relax.Expr, w: relax.Expr) -> relax.Expr:
        return op.nn.conv2d(op.nn.pad(x, widths, mode, value), w)

    channels = 3 + widths[2] + widths[3]
    mod = canonicalize(module(body, ((2, 3, 8, 7), "float32"), ((4, channels, 3, 3), "float32")))
    assert operators(mod) == ["relax.nn.pad", "relax.nn.conv2d"]


def test_reshapes_of_reshapes_become_one() -> None:
    def body(x: relax.Expr) -> relax.Expr:
        return op.expand_dims(op.reshape(op.reshape(x, (3, 8)), (2, 12)), 0)

    assert operators(canonicalize(module(body, ((4, 6), "float32")))) == ["relax.reshape"]


def test_permutations_are_composed() -> None:
    def body(x: relax.Expr) -> relax.Expr:
        return op.permute_dims(op.permute_dims(x, [2, 0, 1]), [0, 2, 1])

    mod = canonicalize(module(body, ((2, 3, 4), "float32")))
    assert operators(mod) == ["relax.permute_dims"]
    x = random((2, 3, 4), "float32")
    np.testing.assert_array_equal(run(mod, x)[0], x.transpose(2, 0, 1).transpose(0, 2, 1))


def test_a_permutation_and_its_inverse_vanish() -> None:
    def body(x: relax.Expr) -> relax.Expr:
        return op.exp(op.permute_dims(op.permute_dims(x, [2, 0, 1]), [1, 2, 0]))

    assert operators(canonicalize(module(body, ((2, 3, 4), "float32")))) == ["relax.exp"]


def test_a_weight_is_not_repeated_for_the_batch() -> None:
    def body(x: relax.Expr, w: relax.Expr) -> relax.Expr:
        return op.matmul(x, op.broadcast_to(w, (5, 3, 2)))

    mod = canonicalize(module(body, ((5, 4, 3), "float32"), ((3, 2), "float32")))
    assert operators(mod) == ["relax.matmul"]


def test_equal_expressions_are_computed_once() -> None:
    def body(x: relax.Expr) -> relax.Expr:
        return op.add(op.exp(op.reshape(x, (3, 4))), op.exp(op.reshape(op.reshape(x, (2, 6)), (3, 4))))

    assert operators(canonicalize(module(body, ((12,), "float32")))) == ["relax.reshape", "relax.exp", "relax.add"]


def test_small_constants_are_folded() -> None:
    def body(x: relax.Expr) -> relax.Expr:
        return op.add(
            x, op.astype(op.broadcast_to(op.reshape(relax.const([1, 2], "int32"), (2, 1)), (2, 3)), "float32")
        )

    mod = canonicalize(module(body, ((2, 3), "float32")))
    assert operators(mod) == ["relax.add"]
    np.testing.assert_array_equal(run(mod, np.zeros((2, 3), "float32"))[0], [[1, 1, 1], [2, 2, 2]])


def test_batch_normalization_is_a_factor_and_an_offset() -> None:
    def body(x: relax.Expr, *statistics: relax.Expr) -> relax.Expr:
        return relax.TupleGetItem(op.nn.batch_norm(x, *statistics, axis=1, training=False), 0)

    mod = module(body, ((2, 3, 4), "float32"), *[((3,), "float32")] * 4)
    assert "relax.nn.batch_norm" not in operators(canonicalize(mod))
    x, (gamma, beta, mean) = random((2, 3, 4), "float32"), random((3, 3), "float32", 1)
    variance = np.array([0.5, 1.0, 2.0], "float32")
    expected = (x.astype("float64") - mean[:, None]) / np.sqrt(variance[:, None] + 1e-5) * gamma[:, None] + beta[
        :, None
    ]
    assert error(run(mod, x, gamma, beta, mean, variance)[0], expected) < 1e-6


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("training", [True, False])
def test_statistics_of_a_low_batch_are_not_stored_low(training: bool, dtype: str) -> None:
    def body(x: relax.Expr, *statistics: relax.Expr) -> relax.Expr:
        return relax.TupleGetItem(op.nn.batch_norm(x, *statistics, axis=1, training=training), 0)

    # Far from zero beside its deviation, so that a rounded mean would shift the result.
    x, gamma, beta = (random(shape, dtype, i) for i, shape in enumerate([(64, 3, 4), (3,), (3,)]))
    x, mean, variance = (x + 30).astype(x.dtype), np.full(3, 30.2, x.dtype), np.ones(3, x.dtype)
    wide = x.astype("float64")
    if training:
        centre, spread = wide.mean((0, 2)), wide.var((0, 2))
    else:
        centre, spread = mean.astype("float64"), variance.astype("float64")
    factor = gamma.astype("float64") / np.sqrt(spread + 1e-5)
    expected = (wide - centre[:, None]) * factor[:, None] + beta.astype("float64")[:, None]
    (got,) = run(module(body, ((64, 3, 4), dtype), *[((3,), dtype)] * 4), x, gamma, beta, mean, variance)
    assert np.abs(got - expected).max() < 2 * EPSILON[dtype] * np.abs(expected).max()


@I.ir_module
class Groups:
    @R.function
    def main(
        x: R.Tensor(("n", "4 * c", "h"), "float32"),
        g: R.Tensor(("4 * c",), "float32"),
        like: R.Tensor(("c",), "float32"),
    ):
        return R.nn.group_norm(x, g, g, num_groups=4, channel_axis=1, axes=[2])


@I.ir_module
class Unknown:
    @R.function
    def main(
        x: R.Tensor(("n", "c", "h"), "float16"),
        g: R.Tensor(("c",), "float16"),
        like: R.Tensor((3,), "float32"),
    ):
        return R.nn.group_norm(x, g, g, num_groups=4, channel_axis=1, axes=[2])


@pytest.mark.parametrize(("mod", "dtype"), [(Groups, "float32"), (Unknown, "float16")])
def test_groups_of_run_time_channels_lose_their_mean_before_they_are_squared(mod: tvm.IRModule, dtype: str) -> None:
    assert "relax.nn.group_norm" not in operators(canonicalize(mod))
    x, gamma = (random((3, 12, 50), "float32") + 100).astype(dtype), random((12,), dtype, 1)
    grouped = x.astype("float64").reshape(3, 4, 150)
    expected = grouped - grouped.mean(2, keepdims=True)
    expected /= np.sqrt((expected**2).mean(2, keepdims=True) + 1e-5)
    expected = expected.reshape(x.shape) * gamma[:, None] + gamma[:, None].astype("float64")
    (got,) = run(mod, x, gamma, np.zeros(3, "float32"))
    assert error(got, expected) < 64 * EPSILON[dtype]


@pytest.mark.parametrize(("scale", "center"), [(True, True), (False, False)])
def test_group_normalization_sums_each_channel_where_channels_are_last(scale: bool, center: bool) -> None:
    def body(x: relax.Expr, gamma: relax.Expr, beta: relax.Expr) -> relax.Expr:
        return op.nn.group_norm(x, gamma, beta, 2, 3, [1, 2], scale=scale, center=center)

    mod = module(body, (("n", 50, 60, 6), "float32"), *[((6,), "float32")] * 2)
    assert "relax.nn.group_norm" not in operators(canonicalize(mod))
    x, (gamma, beta) = random((3, 50, 60, 6), "float32") + 7, random((2, 6), "float32", 1)
    grouped = x.astype("float64").reshape(3, 50, 60, 2, 3)
    expected = grouped - grouped.mean((1, 2, 4), keepdims=True)
    expected /= np.sqrt((expected**2).mean((1, 2, 4), keepdims=True) + 1e-5)
    expected = expected.reshape(x.shape) * (gamma if scale else 1) + (beta if center else 0)
    assert error(run(mod, x, gamma, beta)[0], expected) < 1e-6


def test_what_is_reshaped_or_joined_is_narrowed_before_by_who_computes_it() -> None:
    def reshaped(x: relax.Expr) -> relax.Expr:
        return op.astype(op.reshape(op.exp(x), (3, 8)), "bfloat16")

    def joined(x: relax.Expr) -> relax.Expr:
        return op.astype(op.concat([op.exp(x), op.tanh(x)], 0), "bfloat16")

    mods = [canonicalize(module(body, ((4, 6), "float32"))) for body in (reshaped, joined)]
    assert operators(mods[0]) == ["relax.exp", "relax.astype", "relax.reshape"]
    assert sorted(operators(mods[1])) == ["relax.astype", "relax.astype", "relax.concat", "relax.exp", "relax.tanh"]
    x = random((4, 6), "float32")
    for mod, wide in zip(mods, (np.exp(x), np.concatenate([np.exp(x), np.tanh(x)])), strict=True):
        (got,) = run(mod, x)
        assert error(got, wide.reshape(got.shape).astype("float64")) < 2 * EPSILON["bfloat16"]


def test_a_narrowed_view_of_an_argument_stays_a_cast_of_the_view() -> None:
    mod = canonicalize(module(lambda x: op.astype(op.reshape(x, (3, 8)), "bfloat16"), ((4, 6), "float32")))
    assert operators(mod) == ["relax.reshape", "relax.astype"]
