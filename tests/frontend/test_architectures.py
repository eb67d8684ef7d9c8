"""The eight architectures, imported with a fixed and with a dynamic batch, compute what torch computes."""

from __future__ import annotations

import pytest

from tests.architectures import ARCHITECTURES, imported
from tests.frontend.helpers import assert_close, operators, runner


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_model_with_a_fixed_batch_computes_what_torch_computes(name: str) -> None:
    architecture = ARCHITECTURES[name]()
    args, kwargs = architecture.inputs(2)
    assert_close(runner(imported(name))(*args, *kwargs.values()), architecture.reference(*args, **kwargs))


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_model_with_a_dynamic_batch_computes_what_torch_computes_for_several_batches(name: str) -> None:
    architecture = ARCHITECTURES[name]()
    model = imported(name, True)
    assert dict(model.main.attrs["tir_var_upper_bound"]) == {"batch": 8}
    run = runner(model)
    for batch in (1, 5):
        args, kwargs = architecture.inputs(batch)
        assert_close(run(*args, *kwargs.values()), architecture.reference(*args, **kwargs))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("bert", {"nn.attention": 1, "matmul": 8, "permute_dims": 8, "nn.layer_norm": 4, "nn.gelu": 2}),
        ("gpt2", {"nn.attention": 1, "matmul": 5, "permute_dims": 1, "nn.layer_norm": 3, "nn.gelu_tanh": 1}),
        ("llama", {"nn.attention": 2, "matmul": 15, "nn.silu": 2, "repeat": 4, "broadcast_to": 0}),
        ("vit", {"nn.attention": 1, "matmul": 7, "permute_dims": 8, "nn.conv2d": 1}),
        ("unet", {"nn.conv2d": 4, "nn.conv2d_transpose": 1, "nn.group_norm": 3}),
    ],
)
@pytest.mark.parametrize("dynamic", [False, True])
def test_operators_arrive_whole_and_without_noise(name: str, expected: dict[str, int], dynamic: bool) -> None:
    model = imported(name, dynamic)
    found = operators(model)
    assert {op: found[op] for op in expected} == expected
    assert found["nn.attention_bias"] == 0, "a mask that lets everything pass, or is causal, was imported as a bias"
    script = model.script()
    assert 'mode="fast"' not in script
    assert 'out_dtype="float32"' not in script
