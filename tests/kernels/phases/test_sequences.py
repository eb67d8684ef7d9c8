"""Attention of packed sequences beside torch's, sequence by sequence."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import autocast
from autocast import amp, vm
from autocast.errors import UnsupportedError
from tests.fuzz.generator import parse

_HEADS, _DEPTH, _WIDTH = 3, 8, 5


def _model(options: str = "", rows: str = '"n"', keys: str = '"m"', starts: int = 5) -> autocast.Model:
    names = "".join(f"        {name} = T.int64()\n" for name in "nm" if f'"{name}"' in rows + keys)
    packed = ", ".join(
        f'{name}: R.Tensor((1, {length}, {_HEADS}, {depth}), "float32")'
        for name, length, depth in (("q", rows, _DEPTH), ("k", keys, _DEPTH), ("v", keys, _WIDTH))
    )
    return autocast.from_relax(
        parse(
            "@I.ir_module\nclass Module:\n    @R.function\n"
            f'    def main({packed}, a: R.Tensor(({starts},), "int32"), b: R.Tensor(({starts},), "int32"), '
            'most: R.Tensor((), "int32")):\n'
            f"{names}        y = R.nn.attention_var_len(q, k, v, a, most, b, most{options})\n        return y\n"
        )
    )


def _inputs(queries: list[int], keys: list[int]) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(0)
    packed = (
        torch.randn(1, sum(lengths), _HEADS, depth, generator=generator)
        for lengths, depth in ((queries, _DEPTH), (keys, _DEPTH), (keys, _WIDTH))
    )
    starts = (torch.tensor([0, *lengths]).cumsum(0).to(torch.int32) for lengths in (queries, keys))
    return (*packed, *starts, torch.tensor(max(*queries, *keys), dtype=torch.int32))


def _one_by_one(
    inputs: tuple[torch.Tensor, ...], causal: str | None = None, scale: float | None = None
) -> torch.Tensor:
    query, key, value, query_starts, key_starts, _ = inputs
    parts = []
    for number in range(len(query_starts) - 1):
        rows, columns = (slice(starts[number], starts[number + 1]) for starts in (query_starts, key_starts))
        q, k, v = (x[:, part].transpose(1, 2) for x, part in ((query, rows), (key, columns), (value, columns)))
        offset = abs(k.shape[2] - q.shape[2]) if causal == "BottomRight" else 0
        mask = None if causal is None else torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).tril(offset)
        parts.append(torch.nn.functional.scaled_dot_product_attention(q, k, v, mask, scale=scale).transpose(1, 2))
    return torch.cat(parts, 1)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("", {}),
        (", scale=0.3", {"scale": 0.3}),
        (', causal_mask="TopLeft"', {"causal": "TopLeft"}),
        (', causal_mask="BottomRight"', {"causal": "BottomRight"}),
    ],
)
def test_a_query_sees_the_keys_of_its_own_sequence(options: str, expected: dict[str, Any]) -> None:
    model = _model(options)
    compiled, module = vm.compile(model), autocast.to_torch(model)
    for queries, keys in (([3, 1, 0, 7], [3, 1, 0, 7]), ([2, 5, 1, 33], [4, 2, 9, 40]), ([1, 1, 1, 1], [1, 2, 3, 4])):
        inputs = _inputs(queries, keys)
        for run in (compiled, module):
            torch.testing.assert_close(run(*inputs), _one_by_one(inputs, **expected), rtol=1e-5, atol=1e-6)


def test_packed_sequences_are_cast_as_others_are() -> None:
    inputs = _inputs([20, 3, 9], [20, 3, 9])
    mixed = amp.autocast(_model(rows="32", keys="32", starts=4))
    assert "low by rule" in str(next(d for d in mixed.report.decisions if d.operator == "relax.nn.attention_var_len"))
    torch.testing.assert_close(vm.compile(mixed)(*inputs), _one_by_one(inputs), rtol=2e-2, atol=2e-2)


def test_a_window_is_refused() -> None:
    with pytest.raises(UnsupportedError, match=r"window_size=2, expected None; call relax\.nn\.attention_bias"):
        vm.compile(_model(", window_size=2"))
