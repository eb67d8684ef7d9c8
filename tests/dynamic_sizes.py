"""The architectures with a dynamic batch, dynamic sizes, or both, in every dtype: `python -m tests.dynamic_sizes`."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import nn

from autocast import vm
from autocast.frontend import from_torch
from tests.architectures import ARCHITECTURES, flatten

#: Relative error of a result as a whole: rounded at each of some 50 operators, in a random walk.
TOLERANCES = {
    torch.float32: 1e-5,
    torch.bfloat16: 8 * torch.finfo(torch.bfloat16).eps,
    torch.float16: 8 * torch.finfo(torch.float16).eps,
}

#: What varies: sizes of 1, whole vectors and tiles, and none of that.
BATCHES, LENGTHS = (1, 2, 5, 8), (1, 7, 13, 16, 31)


class Case(NamedTuple):
    """A module, example inputs by name, which axes of the first the length is: {axis: a multiple of it}, its bounds."""

    module: nn.Module
    inputs: dict[str, torch.Tensor]
    lengths: dict[int, int]
    least: int = 1
    most: int = 32

    def dynamic(self, kind: str) -> dict[str, dict[int, Any]]:
        """Torch's own spelling of "batch", "length" or "both"."""
        batch = torch.export.Dim("batch", min=1, max=8)
        lengths = {axis: torch.export.Dim(f"length{axis}", min=self.least, max=self.most) for axis in self.lengths}
        axes: dict[str, dict[int, Any]] = {}
        for number, name in enumerate(self.inputs):
            own = {axis: times * lengths[axis] if times > 1 else lengths[axis] for axis, times in self.lengths.items()}
            if number and own:  # the decoder's length is its own
                own = {1: torch.export.Dim("target", min=1, max=self.most)}
            axes[name] = ({0: batch} if kind != "length" else {}) | (own if kind != "batch" else {})
        return axes

    def fresh(self, batch: int | None, length: int | None) -> dict[str, torch.Tensor]:
        """Inputs of other sizes; None leaves one as it is."""

        def size(axis: int, extent: int) -> int:
            if axis == 0:
                return batch or extent
            return self.lengths[axis] * length if length and axis in self.lengths else extent

        shapes = {name: [size(*pair) for pair in enumerate(value.shape)] for name, value in self.inputs.items()}
        return {
            name: torch.randint(0, 101, shapes[name]) if value.dtype is torch.int64 else torch.randn(shapes[name])
            for name, value in self.inputs.items()
        }


def _wide(build: Callable[[], nn.Module]) -> Callable[[], Case]:
    def case() -> Case:
        torch.manual_seed(0)
        return Case(build().eval().requires_grad_(False), {"input_ids": torch.randint(0, 101, (2, 11))}, {1: 1})

    return case


def _bert_768() -> nn.Module:
    from transformers import BertConfig, BertForMaskedLM

    return BertForMaskedLM(BertConfig(vocab_size=101, num_hidden_layers=1, max_position_embeddings=32))


def _gpt2_768() -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = {"vocab_size": 101, "n_layer": 1, "n_positions": 32, "bos_token_id": 0, "eos_token_id": 0}
    return GPT2LMHeadModel(GPT2Config(**config, use_cache=False))


#: Axes of the first input that are lengths, which a U-Net halves once. ViT has positions for one size of images, and
#: torch.export writes out each step of an LSTM.
_LENGTHS: dict[str, dict[int, int]] = {
    **{name: {1: 1} for name in ("bert", "gpt2", "llama", "t5")},
    "resnet": {2: 1, 3: 1},
    "unet": {2: 2, 3: 2},
    **{name: {} for name in ("vit", "lstm")},
}


def _architecture(name: str) -> Callable[[], Case]:
    def case() -> Case:
        architecture = ARCHITECTURES[name]()
        names = {"vit": "pixel_values", "resnet": "pixel_values", "lstm": "input", "unet": "image"}
        positional = dict(zip((names.get(name, "input_ids"),), architecture.args, strict=False))
        # Smaller images become one pixel on their way, which torch.export takes for a constant.
        bounds = (9, 64) if name == "resnet" else (1, 32)
        return Case(architecture.module, positional | architecture.kwargs, _LENGTHS[name], *bounds)

    return case


CASES: dict[str, Callable[[], Case]] = {
    **{name: _architecture(name) for name in ARCHITECTURES},
    "bert of width 768": _wide(_bert_768),
    "gpt2 of width 768": _wide(_gpt2_768),
}


def errors(name: str, kind: str, dtype: torch.dtype) -> Iterator[tuple[tuple[int | None, int | None], float]]:
    """The sizes (batch, length) that were run, and the relative error of each result beside torch in float32."""
    case = CASES[name]()
    module, reference = case.module.to(dtype), CASES[name]().module
    reference.load_state_dict({key: value.to(torch.float32) for key, value in module.state_dict().items()})

    def narrowed(value: torch.Tensor) -> torch.Tensor:
        return value.to(dtype) if value.is_floating_point() else value

    examples = {name: narrowed(value) for name, value in case.inputs.items()}
    executable = vm.compile(from_torch(module, (), example_kwargs=examples, dynamic=case.dynamic(kind)))
    batches = BATCHES if kind != "length" else (None,)
    lengths = [length for length in LENGTHS if length >= case.least] if kind != "batch" else (None,)
    for sizes in itertools.product(batches, lengths):
        inputs = {name: narrowed(value) for name, value in case.fresh(*sizes).items()}
        wide = {name: value.float() if value.is_floating_point() else value for name, value in inputs.items()}
        with torch.no_grad():
            expected = flatten(reference(**wide))
        for got, exact in zip(flatten(executable(*inputs.values())), expected, strict=True):
            assert (got.dtype, got.shape) == (dtype, exact.shape), f"{got.dtype}{list(got.shape)} at {sizes}"
            yield sizes, float((got.double() - exact.double()).norm() / exact.double().norm())


def main() -> int:
    """1 if anything fails."""
    failed = 0
    for name, kind, dtype in itertools.product(CASES, ("batch", "length", "both"), TOLERANCES):
        if kind != "batch" and not CASES[name]().lengths:
            continue
        try:
            found = list(errors(name, kind, dtype))
            worst, right = max(error for _, error in found), all(error <= TOLERANCES[dtype] for _, error in found)
            verdict = f"{'right' if right else 'WRONG'}: {worst:.1e} off at most"
        except Exception as error:
            right, verdict = False, f"{type(error).__name__}: {error}"
        failed += not right
        print(f"{name:20} {kind:7} {str(dtype).removeprefix('torch.'):9} {verdict}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
