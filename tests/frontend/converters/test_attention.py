"""scaled_dot_product_attention, and the masks that transformers make."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention as sdpa

from autocast.frontend import from_torch
from tests.architectures import ARCHITECTURES
from tests.frontend.helpers import Calls, assert_close, operators, runner


def _qkv(*shape: int, keys: int = 5) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    short = (*shape[:-2], keys, shape[-1])
    return tuple(torch.randn(s, generator=generator) for s in (shape, short, short))  # type: ignore[return-value]


_SHORT_MASK = torch.tensor([[True, True, False, True, False]]).expand(7, 5)


@pytest.mark.parametrize(
    ("attend", "operator"),
    [
        (lambda q, k, v: sdpa(q, k, v), "nn.attention"),
        (lambda q, k, v: sdpa(q, k, v, scale=0.3), "nn.attention"),
        (lambda q, k, v: sdpa(q, k, v, is_causal=True), "nn.attention"),
        (lambda q, k, v: sdpa(q[:, 0], k[:, 0], v[:, 0]), "nn.attention"),
        (lambda q, k, v: sdpa(q, k[:, :2], v[:, :2], enable_gqa=True), "nn.attention"),
        (lambda q, k, v: sdpa(q, k, v[..., :3]), "nn.attention"),
        (lambda q, k, v: sdpa(q, k, v, _SHORT_MASK), "nn.attention_bias"),
        (lambda q, k, v: sdpa(q, k, v, q[:, :, :, :5]), "nn.attention_bias"),
        (lambda q, k, v: sdpa(q, k, v, q[:, :1, :, :1] > 0), "nn.attention_bias"),
        (
            lambda q, k, v: sdpa(q[:, 0], k[:, 0], v[:, 0], q[:, 0, :, :5]),
            "nn.attention_bias",
        ),
        (lambda q, k, v: sdpa(q, k, v, torch.ones(7, 5).tril().bool()), "nn.attention"),
    ],
    ids=[
        *("plain", "scale", "causal", "one head", "groups", "narrow values"),
        *("mask", "bias", "mask by query", "bias for one head", "causal mask"),
    ],
)
def test_attention_is_one_operator(attend: object, operator: str) -> None:
    inputs = _qkv(2, 4, 7, 8)
    module = Calls(attend)  # type: ignore[arg-type]
    model = from_torch(module, inputs)
    assert operators(model)[operator] == 1
    assert operators(model)["nn.softmax"] == 0
    assert_close(runner(model)(*inputs), (module(*inputs),))


@pytest.mark.parametrize("dtype", [torch.bool, torch.float32])
@pytest.mark.parametrize("constant", [False, True], ids=["given", "constant"])
def test_queries_that_may_look_at_nothing_give_zero_as_in_torch(dtype: torch.dtype, constant: bool) -> None:
    q, k, v = _qkv(2, 4, 7, 8)
    seen = torch.ones(2, 1, 7, 5, dtype=torch.bool)
    seen[0, :, :3] = False
    mask = seen if dtype is torch.bool else torch.zeros(seen.shape).masked_fill(~seen, float("-inf"))
    module = Calls((lambda q, k, v: sdpa(q, k, v, mask)) if constant else sdpa)
    inputs = (q, k, v) if constant else (q, k, v, mask)
    got = runner(from_torch(module, inputs))(*inputs)
    assert float(got[0][0, :, :3].abs().max()) == 0.0
    assert_close(got, (module(*inputs),))


def test_a_constant_mask_that_hides_no_query_needs_no_zeros() -> None:
    hidden = torch.zeros(7, 5).masked_fill(~_SHORT_MASK, float("-inf"))
    model = from_torch(Calls(lambda q, k, v: sdpa(q, k, v, hidden)), _qkv(2, 4, 7, 8))
    assert operators(model)["where"] == 0


def test_inverse_permutations_around_attention_cancel() -> None:
    def attend(x: torch.Tensor) -> torch.Tensor:
        heads = x.view(2, 7, 4, 8).transpose(1, 2)
        return sdpa(heads, heads, heads).transpose(1, 2).reshape(2, 7, 32)

    assert operators(from_torch(Calls(attend), (torch.randn(2, 7, 32),)))["permute_dims"] == 0


@pytest.mark.parametrize(
    ("query", "key", "value"),
    [
        ((5, 8), (6, 8), (6, 8)),
        ((2, 1, 3, 5, 8), (2, 1, 3, 5, 8), (2, 1, 3, 5, 8)),
        ((2, 4, 5, 8), (2, 1, 6, 8), (2, 1, 6, 8)),
        ((2, 4, 5, 8), (4, 6, 8), (1, 4, 6, 3)),
    ],
    ids=["rank 2", "rank 5", "one head of keys", "fewer dimensions"],
)
def test_attention_of_any_rank_broadcasts_as_torch_does(
    query: tuple[int, ...], key: tuple[int, ...], value: tuple[int, ...]
) -> None:
    inputs = torch.randn(query), torch.randn(key), torch.randn(value)
    model = from_torch(Calls(sdpa), inputs)
    assert_close(runner(model)(*inputs), (sdpa(*inputs),))
    assert_close((model(*inputs),), (sdpa(*inputs),))


@pytest.mark.parametrize("side", ["left", "right"])
def test_llama_with_a_padding_mask_computes_what_torch_computes(side: str) -> None:
    architecture = ARCHITECTURES["llama"]()
    ids = architecture.args[0]
    mask = torch.ones_like(ids)
    mask[1, :3] = 0
    mask = mask if side == "left" else mask.flip(1)
    model = from_torch(architecture.module, (ids, torch.ones_like(mask)), dynamic={"batch": ("*", 0, 1, 8)})
    assert model.input_names == ("input_ids", "attention_mask")
    assert_close(runner(model)(ids, mask), architecture.reference(ids, mask))


def test_bert_with_a_padding_mask_computes_what_torch_computes() -> None:
    architecture = ARCHITECTURES["bert"]()
    ids = architecture.args[0]
    mask = torch.ones_like(ids)
    mask[1, 8:] = 0
    model = from_torch(architecture.module, (ids,), example_kwargs={"attention_mask": torch.ones_like(mask)})
    assert_close(runner(model)(ids, mask), architecture.reference(ids, attention_mask=mask))


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_eager_attention_works_as_well(name: str) -> None:
    architecture = ARCHITECTURES[name]()
    expected = architecture.reference(*architecture.args)
    architecture.module.set_attn_implementation("eager")
    model = from_torch(architecture.module, architecture.args)
    assert operators(model)["nn.softmax"] == architecture.module.config.num_hidden_layers
    assert_close(runner(model)(*architecture.args), expected)


def test_layers_of_a_transformer_take_masks_whose_values_are_not_known() -> None:
    torch.manual_seed(0)
    module = nn.TransformerDecoder(nn.TransformerDecoderLayer(8, 2, 16, batch_first=True), 1).eval()
    x, memory = torch.randn(2, 5, 8), torch.randn(2, 3, 8)
    for mask in (
        nn.Transformer.generate_square_subsequent_mask(5),
        torch.zeros(5, 5).index_fill_(1, torch.tensor(2), -9),
    ):
        model = from_torch(module, (x, memory, mask))
        with torch.no_grad():
            assert_close(runner(model)(x, memory, mask), (module(x, memory, mask),))
