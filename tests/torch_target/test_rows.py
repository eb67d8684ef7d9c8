"""Each operator's row computes what torch computes for the same expression, in float64; and none is forgotten."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tvm import relax

import autocast
from autocast import vm
from autocast.errors import UnsupportedError
from tests.fuzz import torch_rows
from tests.fuzz.expressions import module_of
from tests.fuzz.generator import parse


@pytest.mark.parametrize(
    ("expression", "shapes", "reference"), torch_rows.ROWS, ids=[row[0] for row in torch_rows.ROWS]
)
def test_rows_compute_what_torch_does(
    expression: str, shapes: dict[str, tuple[int, ...]], reference: Callable[..., Any]
) -> None:
    mod, operands = module_of(expression, shapes)
    try:
        module = autocast.to_torch(autocast.from_relax(mod))
    except UnsupportedError as error:
        pytest.skip(str(error))
    got, expected = module(*operands), reference(*operands)
    pairs = zip(got, expected, strict=True) if isinstance(got, tuple) else [(got, expected)]
    for value, wanted in pairs:
        torch.testing.assert_close(value, wanted, rtol=1e-12, atol=1e-12, check_dtype=False)


@pytest.mark.parametrize("dtype", ["int64", "int32", "int8", "uint8"])
@pytest.mark.parametrize("operator", ["divide", "floor_divide", "floor_mod", "mod"])
def test_whole_numbers_are_divided_by_0_and_minus_1_as_by_our_kernels(operator: str, dtype: str) -> None:
    limits = torch.iinfo(getattr(torch, dtype))
    x = torch.tensor([limits.min, limits.max, 7, 5, 0, 9, limits.min, 3], dtype=getattr(torch, dtype))
    y = torch.tensor([limits.max if dtype == "uint8" else -1, 0, 0, 2, 0, 4, 3, 1], dtype=x.dtype)
    tensor = f'R.Tensor((8,), "{dtype}")'
    divided = ", ".join(f"R.{operator}(x, {y})" for y in ("y", f'R.const(3, "{dtype}")', f'R.const(0, "{dtype}")'))
    model = autocast.from_relax(
        parse(
            "@I.ir_module\nclass Module:\n    @R.function\n"
            f"    def main(x: {tensor}, y: {tensor}):\n        z = ({divided})\n        return z\n"
        )
    )
    for got, expected in zip(autocast.to_torch(model)(x, y), vm.compile(model)(x, y), strict=True):
        torch.testing.assert_close(got, expected, rtol=0, atol=0)


def test_places_of_truth_values_are_those_of_our_kernels() -> None:
    places = ", ".join(f"R.{name}(x, {axis})" for name in ("argmax", "argmin") for axis in ("axis=1", ""))
    source = f'R.Tensor((2, 3), "bool")):\n        z = ({places})\n        return z\n'
    model = autocast.from_relax(parse(f"@I.ir_module\nclass Module:\n    @R.function\n    def main(x: {source}"))
    x = torch.tensor([[False, True, True], [True, False, False]])
    for got, expected in zip(autocast.to_torch(model)(x), vm.compile(model)(x), strict=True):
        assert torch.equal(got, expected)


def test_bounds_of_whole_numbers_are_whole_numbers() -> None:
    x = torch.arange(-3, 4)
    model = autocast.from_torch(torch.nn.Hardtanh(-1.5, 2.5), (x,))
    for run in (autocast.to_torch(model), vm.compile(model)):
        torch.testing.assert_close(run(x), torch.nn.functional.hardtanh(x, -1.5, 2.5))


def _averages(dtype: str) -> autocast.Model:
    averages = ", ".join(f"R.{name}(x, axis=[1])" for name in ("mean", "variance"))
    return autocast.from_relax(
        parse(
            "@I.ir_module\nclass Module:\n    @R.function\n"
            f'    def main(x: R.Tensor((2, 3), "{dtype}")):\n        z = ({averages})\n        return z\n'
        )
    )


def test_averages_of_whole_numbers_are_those_of_our_kernels() -> None:
    model, x = _averages("int64"), torch.tensor([[-1, -1, -3], [1, 7, 2]])
    for got, expected in zip(autocast.to_torch(model)(x), vm.compile(model)(x), strict=True):
        assert torch.equal(got, expected)


def test_averages_without_a_kernel_are_refused_as_by_the_compiler() -> None:
    for door in (autocast.to_torch, vm.compile):
        with pytest.raises(UnsupportedError, match=r"relax\.mean of int32, bound to .* try R\.astype\(x, 'float32'\)"):
            door(_averages("int32"))


def test_attention_within_a_window_is_refused_as_by_the_compiler() -> None:
    x = relax.Var("x", relax.TensorType((1, 6, 1, 8), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        builder.emit_func_output(builder.emit(relax.op.nn.attention(x, x, x, causal_mask="TopLeft", window_size=2)))
    model = autocast.from_relax(builder.get())
    for door in (autocast.to_torch, vm.compile):
        with pytest.raises(UnsupportedError, match=r"nn\.attention: got window_size=2, expected None"):
            door(model)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("lowest", [torch.finfo(torch.float32).min, -1e9, -1e5])
def test_a_row_of_the_lowest_numbers_of_float32_has_its_weights_in_low_precision(dtype: str, lowest: float) -> None:
    def attend(query: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        mask = hidden * lowest
        return torch.nn.functional.scaled_dot_product_attention(query, query, query, mask)

    class Attention(torch.nn.Module):
        forward = staticmethod(attend)

    query, hidden = torch.randn(1, 1, 4, 4), torch.zeros(1, 1, 4, 4)
    hidden[..., 1, :] = hidden[..., 2, 0] = 1
    hidden[..., 3, :] = torch.tensor([1, 0.5, 1, 1])
    mixed = autocast.amp.autocast(autocast.from_torch(Attention(), (query, hidden)), dtype=dtype)
    for run in (vm.compile(mixed), autocast.to_torch(mixed)):
        torch.testing.assert_close(run(query, hidden), attend(query, hidden), rtol=0.02, atol=0.02)


def test_an_output_that_is_nothing_is_none() -> None:
    mod, operands = module_of("(R.exp(x), R.null_value())", {"x": (2, 3)})
    model = autocast.from_relax(mod)
    computed, nothing = autocast.to_torch(model)(*operands)
    assert torch.equal(computed, operands[0].exp())
    assert nothing is None
    assert model(*operands)[1] is None


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_transposed_convolutions_of_16_bits_are_rounded_once(rank: int, dtype: torch.dtype) -> None:
    name = str(dtype).removeprefix("torch.")
    sizes = (8, 8, *(3,) * rank)
    tensor = f'R.Tensor({sizes}, "{name}")'
    module = autocast.to_torch(
        autocast.from_relax(
            parse(
                "@I.ir_module\nclass Module:\n    @R.function\n"
                f"    def main(x: {tensor}, w: {tensor}):\n        y = R.nn.conv{rank}d_transpose(x, w)\n"
                "        return y\n"
            )
        )
    )
    generator = torch.Generator().manual_seed(0)
    x, w = (torch.randn(sizes, generator=generator).to(dtype) for _ in range(2))
    expected = getattr(torch.nn.functional, f"conv_transpose{rank}d")(x.double(), w.double())
    torch.testing.assert_close(module(x, w), expected.to(dtype), rtol=torch.finfo(dtype).eps, atol=1e-4)
