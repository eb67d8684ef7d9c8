"""Every operator that can be imported against torch, one module for each family."""

from __future__ import annotations

import pytest
import torch

from autocast import amp
from autocast.frontend import from_torch
from autocast.frontend.converters.masks import MASKS
from autocast.frontend.converters.noise import NOISE
from autocast.frontend.converters.quantized import QUANTIZED
from autocast.frontend.converters.table import CONVERTERS, TRUSTED
from autocast.frontend.nodes import name_of
from autocast.frontend.splitting.decompose import decompose
from tests.frontend.converters.image_samples import IMAGES
from tests.frontend.converters.movement_samples import MOVES
from tests.frontend.converters.operator_samples import NUMBERS, Sample
from tests.frontend.helpers import Calls, relative_error, runner

#: What torch says of operators of its own that have samples here.
pytestmark = [
    pytest.mark.filterwarnings(f"ignore:{text}:UserWarning")
    for text in (
        "The reduce argument of torch.scatter",
        r"index_reduce\(\) is in beta",
        r"var_mean\(\)",
    )
]


FAMILIES = {**NUMBERS, **MOVES}


def _compare(samples: dict[str, Sample], inputs: tuple[torch.Tensor, ...]) -> dict[str, float]:
    module = Calls(lambda *args: tuple(sample(*args) for sample in samples.values())).eval()
    got = runner(from_torch(module, inputs))(*inputs)
    expected = module(*inputs)
    return {name: relative_error(a, b) for name, a, b in zip(samples, got, expected, strict=True)}


@pytest.mark.parametrize("family", FAMILIES)
def test_operators_compute_what_torch_computes(family: str) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(3, 4, 6, generator=generator) * 4 - 2
    p = torch.rand(3, 4, 6, generator=generator) * 0.8 + 0.1
    i = torch.randint(-3, 4, (3, 4, 6), generator=generator)
    errors = _compare(FAMILIES[family], (x, p, i))
    assert {name: error for name, error in errors.items() if not error <= 1e-5} == {}


@pytest.mark.parametrize("with_self", [True, False], ids=["with itself", "without"])
@pytest.mark.parametrize("reduction", ["sum", "prod", "mean", "amax", "amin"])
def test_scatter_reduces_as_torch_does(reduction: str, with_self: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    x, source = torch.randn(3, 4, generator=generator), torch.randn(5, 4, generator=generator)
    places = torch.randint(0, 3, (5, 4), generator=generator)
    source[2, 1] = x[0, 3] = torch.nan
    module = Calls(
        lambda x, source, places: x.scatter_reduce(0, places, source, reduction, include_self=with_self)
    ).eval()
    model = from_torch(module, (x, source, places), fallback="error")
    torch.testing.assert_close(model(x, source, places), module(x, source, places), equal_nan=True)


def test_operators_of_images_and_products_compute_what_torch_computes() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2, 4, 9, 8, generator=generator)
    w = torch.randn(6, 4, 3, 3, generator=generator)
    b = torch.randn(6, generator=generator)
    errors = _compare(IMAGES, (x, w, b))
    assert {name: error for name, error in errors.items() if not error <= 1e-5} == {}


def test_every_operator_that_can_be_imported_has_a_sample() -> None:
    x, i = torch.rand(3, 4, 6), torch.ones(3, 4, 6, dtype=torch.int64)
    modules = [(samples, (x, x, i)) for samples in FAMILIES.values()]
    modules.append((IMAGES, (torch.rand(2, 4, 9, 8), torch.rand(6, 4, 3, 3), torch.rand(6))))
    seen = {
        "scaled_dot_product_attention.default",
        "sym_size.int",
        "full.default",
    }  # test_attention.py, test_dynamic.py
    seen |= set(MASKS)  # test_found_sizes.py
    seen |= set(NOISE)  # test_noise.py, and test_training_mode.py, as the next two
    seen |= {
        "_softmax.default",
        "_log_softmax.default",
    }  # the same converters as those of the operators that stay whole
    seen |= {
        f"{name}.default" for name in ("empty_permuted", "empty_strided", "new_empty_strided")
    }  # torch leaves their elements undefined
    seen |= {"empty.memory_format"}  # likewise
    seen |= {"copy.default", "_native_batch_norm_legit_functional.default"}
    for samples, inputs in modules:
        module = Calls(lambda *args, samples=samples: tuple(sample(*args) for sample in samples.values()))
        program = decompose(torch.export.export(module, inputs))
        seen |= {name_of(n) for n in program.graph.nodes if n.op == "call_function"}
    seen |= {f"_upsample_{how}2d_aa.default" for how in ("bicubic", "bilinear")}  # "bicubic antialiased", split further
    seen |= {f"_upsample_{how}2d_aa_backward.default" for how in ("bicubic", "bilinear")} | {
        f"fractional_max_pool{space}d_backward.default" for space in (2, 3)
    }  # tests/dynamo/test_gradients.py
    seen |= {
        "arange.default",
        "arange.start",
        "where.Scalar",
        "where.ScalarOther",
        "where.ScalarSelf",
        "rsub.Scalar",
        "isfinite.default",
        "__and__.Tensor",
        "__or__.Tensor",
        "__xor__.Tensor",
    }  # what torch splits grid_sampler into, and one that is like these
    seen |= {f"autocast::{layer}.default" for layer in ("gru", "lstm", "rnn")}  # test_recurrent.py
    seen |= {"_grouped_mm.default"} | {
        f"transformers::grouped_mm_fallback{of}.default" for of in ("", "_backward")
    }  # test_experts.py
    seen |= QUANTIZED.keys()  # test_quantized.py
    seen |= {"new_full.default", "unbind.int"}  # "ldexp" and "unbind_copy", split further
    seen |= {"scatter_reduce.two"}  # test_scatter_reduces_as_torch_does
    seen |= {"_unsafe_index.Tensor", "_unsafe_masked_index.default"}  # "index where a mask is true", "nearest exact"
    seen |= {
        f"bitwise_{to}_shift.{of}" for to in ("left", "right") for of in ("Tensor", "Tensor_Scalar", "Scalar_Tensor")
    }
    seen |= {"bitwise_or.Scalar_Tensor"}  # as the others of them
    seen |= {"_embedding_bag.default"}  # with gradients
    seen |= {"norm.Scalar"}  # "dist", split further
    seen |= {"_unsafe_view.default"}  # "grid_sample", split further
    seen |= {"diagonal.default"}  # test_numbers_of_sizes.py
    seen |= {"t.default"}  # of linear layers beside complex ones, test_complex_numbers.py
    seen |= {name.replace(".Tensor", ".Scalar") for name in seen}  # the same converter
    assert (CONVERTERS.keys() | TRUSTED) - seen == set()


def test_extremes_have_their_places_where_a_policy_rounds_what_moves_them() -> None:
    class Extremes(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.cummax(x, 1).values

    x = torch.linspace(0.1, 1.0, 8).repeat(2, 1)
    model = amp.autocast(from_torch(Extremes(), (x,)), low_ops="concat")
    assert torch.equal(model(x), x)
