"""Operators of complex numbers: all in one module, none left to torch."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from autocast import amp, vm
from autocast.frontend import from_torch

ROWS = torch.tensor([2, 0])
PLACES = torch.tensor([[0], [1], [2]])

WHOLE = torch.arange(12).reshape(3, 4) % 3 - 1

#: Functions of two complex matrices (3, 4).
FUNCTIONS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "addmm": lambda z, w: torch.addmm(z[:, :3], z, w.T, beta=2, alpha=0.5),
    "angle": lambda z, w: z.angle(),
    "baddbmm": lambda z, w: torch.baddbmm(z[:, :3], z[None], w.mT[None]),
    "chunk": lambda z, w: torch.stack(z.chunk(2, 1)),
    "column": lambda z, w: z.select_scatter(w[:, 0], 1, 2),
    "cos": lambda z, w: z.cos(),
    "cosh": lambda z, w: z.cosh(),
    "cumsum": lambda z, w: z.cumsum(1),
    "diagonal": lambda z, w: z.diagonal(),
    "div": lambda z, w: z / w,
    "div by 0": lambda z, w: z / (z - z),
    "div of a number": lambda z, w: (2 - 1j) / w,
    "div of real numbers": lambda z, w: z.real / w,
    "dot": lambda z, w: torch.dot(z[0], w[0]),
    "embedding": lambda z, w: nn.functional.embedding(ROWS, z),
    "eq": lambda z, w: z == torch.where(w.real > 0, z, w),
    "eq of a number": lambda z, w: torch.complex(z.real.round(), z.imag * 0) == 1,
    "eq of whole numbers": lambda z, w: torch.complex(z.real.round(), z.imag * 0) == WHOLE,
    "flip": lambda z, w: z.flip(1),
    "gather": lambda z, w: z.gather(1, PLACES),
    "index": lambda z, w: z[ROWS],
    "index_put": lambda z, w: z.index_put((ROWS,), w[:2], accumulate=True),
    "index_select": lambda z, w: z.index_select(0, ROWS),
    "isnan": lambda z, w: torch.isnan(z.masked_fill(w.real > 0, complex(0, float("nan")))),
    "linear": lambda z, w: nn.functional.linear(z, w, w[:, 0]),
    "log": lambda z, w: z.log(),
    "masked_fill": lambda z, w: z.masked_fill(w.real > 0, 1 - 2j),
    "masked_fill of a real number": lambda z, w: z.masked_fill(w.real > 0, 2),
    "mean": lambda z, w: z.mean(),
    "mean of an axis": lambda z, w: z.mean(1, keepdim=True),
    "mv": lambda z, w: z @ w[0],
    "ne": lambda z, w: z != 0,
    "norm": lambda z, w: torch.linalg.vector_norm(z, 1, dim=1),
    "power": lambda z, w: z**3 + z**2 + z**-1 + z**0.5,
    "reciprocal": lambda z, w: z.reciprocal(),
    "repeat": lambda z, w: z.repeat(2, 1),
    "reshape": lambda z, w: z.reshape(2, -1),
    "roll": lambda z, w: z.roll(1, 1),
    "scatter": lambda z, w: z.scatter(1, PLACES, w),
    "scatter_add": lambda z, w: z.scatter_add(1, PLACES, w),
    "sgn": lambda z, w: z.sgn(),
    "sigmoid": lambda z, w: z.sigmoid(),
    "sin": lambda z, w: z.sin(),
    "sinh": lambda z, w: z.sinh(),
    "split": lambda z, w: z.split([1, 3], 1)[1] + w.unbind(1)[0].unsqueeze(1),
    "sqrt": lambda z, w: z.sqrt(),
    "stack": lambda z, w: torch.stack([z, w], 1),
    "stack of whole numbers": lambda z, w: torch.stack([z, WHOLE]),
    "std": lambda z, w: z.std(1, correction=0),
    "sum": lambda z, w: z.sum(),
    "tanh": lambda z, w: z.tanh(),
    "tril": lambda z, w: z.tril() + z.triu(1),
    "unfold": lambda z, w: z.unfold(1, 2, 1),
    "var": lambda z, w: z.var(),
    "vdot": lambda z, w: torch.vdot(z[0], w[0]),
    "where": lambda z, w: torch.where(w.real > 0, z, w.real),
    "where of whole numbers": lambda z, w: torch.where(w.real > 0, z, WHOLE),
    "where of a number": lambda z, w: torch.where(w.real > 0, z, 1 + 2j),
}


class _All(nn.Module):
    def forward(self, z: Tensor, w: Tensor) -> list[Tensor]:
        pairs = torch.view_as_complex(z), torch.view_as_complex(w)
        results = [function(*pairs) for function in FUNCTIONS.values()]
        return [torch.view_as_real(result) if result.is_complex() else result for result in results]


@pytest.fixture(scope="module")
def compiled() -> vm.Executable:
    model = from_torch(_All(), (torch.randn(3, 4, 2), torch.randn(3, 4, 2)), fallback="error")
    return vm.compile(model)


def _compare(compiled: vm.Executable, z: Tensor, w: Tensor, names: list[str], **tolerance: float) -> None:
    found = dict(zip(FUNCTIONS, zip(compiled(z, w), _All()(z, w), strict=True), strict=True))
    for name in names:
        got, expected = found[name]
        torch.testing.assert_close(
            got, expected, equal_nan=True, msg=lambda text, name=name: f"{name}: {text}", **tolerance
        )


@pytest.mark.parametrize("seed", range(3))
def test_complex_numbers_are_computed_as_by_torch(compiled: vm.Executable, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    z, w = torch.randn(2, 3, 4, 2, generator=generator)
    _compare(compiled, z, w, list(FUNCTIONS), rtol=2e-5, atol=2e-6)


def test_large_and_small_complex_numbers_do_not_overflow(compiled: vm.Executable) -> None:
    z, w = (
        torch.randn(2, 3, 4, 2, generator=torch.Generator().manual_seed(0))
        * torch.tensor([1e25, 1e-25])[:, None, None, None]
    )
    _compare(compiled, w, z, ["div", "log", "reciprocal", "sgn", "sqrt", "tanh"], rtol=2e-5, atol=0)
    _compare(compiled, z, z.roll(1, 0), ["angle", "div", "log", "sgn", "sqrt", "tanh"], rtol=2e-5, atol=0)


def test_zeros_and_numbers_on_the_axes_are_as_torchs(compiled: vm.Executable) -> None:
    axes = torch.tensor([[0, 0], [1, 0], [-4, 0], [0, 1], [0, -9], [4, 0]], dtype=torch.float32).repeat(2, 1)
    z = axes.reshape(3, 4, 2)
    _compare(compiled, z, z.flip(0), ["angle", "cos", "eq", "ne", "sgn", "sinh", "sqrt", "tanh"], rtol=2e-6, atol=2e-6)


def test_complex_products_keep_float32_and_real_ones_beside_them_do_not() -> None:
    """As torch's autocast leaves complex tensors alone."""

    class Spectral(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight, self.linear = nn.Parameter(torch.randn(9, 9, dtype=torch.complex64)), nn.Linear(16, 16)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            z = torch.fft.rfft(x) @ self.weight
            return torch.view_as_real(z), self.linear(torch.fft.irfft(nn.functional.linear(z, self.weight), n=16))

    module, x = Spectral().eval(), torch.randn(4, 16)
    model = from_torch(module, (x,), fallback="error")
    spectrum, result = amp.autocast(model)(x)
    with torch.no_grad():
        expected = module(x)
    torch.testing.assert_close(spectrum, expected[0])
    error = float((result - expected[1]).norm() / expected[1].norm())
    assert 1e-4 < error < 1e-2
