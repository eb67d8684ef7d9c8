"""Text that transformers' architectures generate on our kernels beside torch's, token by token.

python -m benchmarks.generated                 # all of them: hours; prints the table of docs/generation.md
python -m benchmarks.generated llama mamba     # architectures whose name has one of these in it
python -m benchmarks.generated --table         # measures nothing, and prints it
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from typing import Any

import torch
import transformers
from transformers import PreTrainedModel
from transformers.models.auto import configuration_auto, modeling_auto

from benchmarks.coverage import OUTCOMES, Outcome, Worker, line, measure
from benchmarks.small_models import small_models
from benchmarks.timing import load

#: Tokens that are read at most, and generated.
_READ, _NEW = 11, 10

#: Relative to the largest logit: what logits may be apart in float32; and in bfloat16, where routers choose others.
_EXACT, _LOW = 1e-4, 0.5

#: Where a configuration has it: windows shorter than what is generated, heads that fit, attention among other layers.
_OTHERS = {
    "use_cache": True,
    "sliding_window": 6,
    "decoder_start_token_id": 3,
    "expand": 1,
    "mamba_expand": 1,
    "attn_layer_period": 2,
    "attn_layer_offset": 1,
}

_KINDS = (
    (modeling_auto.MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES, transformers.AutoModelForSpeechSeq2Seq),
    (modeling_auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES, transformers.AutoModelForSeq2SeqLM),
    (modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, transformers.AutoModelForCausalLM),
)


def generating(*parts: str) -> Iterator[str]:
    """The model types that generate text, whose name has one of `parts` in it, if there are any."""
    for name in sorted({name for names, _ in _KINDS for name in names}):
        if name in configuration_auto.CONFIG_MAPPING_NAMES and (not parts or any(part in name for part in parts)):
            yield name


def generates(name: str) -> Outcome:
    """What came of an architecture.

    Greedy tokens in float32 of a sequence, and of a batch of unequal lengths, have to be torch's, up to the first that
    torch itself chooses between logits as near as rounding; and bfloat16 has to run.
    """
    from autocast.errors import AutocastError
    from autocast.generation import Generator

    try:
        model, sources = _runs(name)
    except Exception as error:
        return Outcome("torch", line(error))
    try:
        worst = 0.0
        for amp, most in ((None, _EXACT), ("bfloat16", _LOW)):
            generator = Generator(model, max_batch=2, max_length=_READ + _NEW + 1, amp=amp)
            for source in sources:
                apart = _apart(_generate(generator, source), _generate(model, source))
                worst = max(worst, apart) if amp is None else worst
                if not apart <= most:
                    return Outcome("wrong", f"{amp or 'float32'}: logits off by {apart:.2g} of the largest")
    except AutocastError as error:
        return Outcome("refused", line(error))
    except Exception as error:
        return Outcome("failed", f"{type(error).__name__}: {line(error)}")
    return Outcome("right", f"{worst:.1g}")


def _runs(name: str) -> tuple[PreTrainedModel, list[dict[str, Any]]]:
    """An architecture with which torch generates, and what it reads: one sequence, and two of unequal lengths."""
    refused: Exception | None = None
    for kind in (kind for names, kind in _KINDS if name in names):
        for make in small_models(name, kind, _OTHERS):
            try:
                model = make()
                _spread(model)
                sources = list(_sources(model))
                for source in sources:
                    _generate(model, source)
                return model, sources
            except Exception as error:
                refused = refused or error
    raise refused or ValueError("no model of it generates text")


def _spread(model: PreTrainedModel) -> None:
    """Weights large enough that what was read decides what is generated."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1 and 0 < parameter.std() < 0.1:
                parameter *= 0.2 / parameter.std()


def _sources(model: PreTrainedModel) -> Iterator[dict[str, Any]]:
    torch.manual_seed(2)
    if model.main_input_name == "input_features":
        mels = getattr(model.config, "num_mel_bins", None) or model.config.input_feat_per_channel
        frames = 2 * getattr(model.config, "max_source_positions", 16)
        shape = (mels, frames) if model.config.model_type == "whisper" else (frames, mels)
        features = torch.randn(2, *shape)
        yield {"input_features": features[:1]}
        yield {"input_features": features}
        return
    prompts = torch.randint(3, 90, (2, _READ))
    mask = torch.ones_like(prompts)
    mask[1, slice(_READ - 4, None) if model.config.is_encoder_decoder else slice(0, 4)] = 0
    yield {"input_ids": prompts[:1], "attention_mask": mask[:1]}
    yield {"input_ids": prompts, "attention_mask": mask}


def _generate(model: Any, source: dict[str, Any]) -> Any:
    """Tokens and logits."""
    return model.generate(
        **source,
        max_new_tokens=_NEW,
        min_new_tokens=_NEW,
        do_sample=False,
        pad_token_id=0,
        use_cache=True,
        output_logits=True,
        return_dict_in_generate=True,
    )


def _apart(got: Any, expected: Any) -> float:
    """The largest difference of logits, relative to the largest: up to the first token that differs, with its own."""
    count = len(expected.logits)
    new = [one.sequences[:, -count:] for one in (got, expected)]
    worst = 0.0
    for row, (mine, true) in enumerate(zip(*new, strict=True)):
        agreed = int((mine == true).long().cumprod(0).sum())
        for step in range(min(agreed + 1, count)):
            left, right = got.logits[step][row], expected.logits[step][row]
            worst = max(worst, float((left - right).abs().max() / right.abs().max().clamp_min(1e-30)))
    return worst


def table() -> str:
    """The architectures that were ever measured, by what came of them, as Markdown."""
    known = load("coverage").get("generation", {})
    by_word = {word: [name for name, text in known.items() if text.split()[0] == word] for word in OUTCOMES}
    rows = [f"| {word} | {len(names)} | {', '.join(sorted(names))} |" for word, names in by_word.items() if names]
    return "\n".join(["| | number | architectures, as transformers calls them |", "|---|---|---|", *rows])


def main() -> int:
    """1 if anything is wrong."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.generated", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", help="only what has one of these in its name")
    parser.add_argument("--table", action="store_true", help="measure nothing, print what is known")
    options = parser.parse_args()
    if not options.table:
        worker = Worker(generates)
        measure("generation", ((name, worker.run(name)) for name in generating(*options.parts)))
    print(f"\n{table()}")
    return 1 if "| wrong |" in table() else 0


if __name__ == "__main__":
    sys.exit(main())
