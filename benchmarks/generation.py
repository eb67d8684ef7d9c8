"""How fast text is generated: first token and every later one, beside torch, and how near to reading each weight once.

    python -m benchmarks.generation [--quick] [--rounds 3] [--prompt 128] [--tokens 32]

A configuration of the size of Qwen2-0.5B with random weights, one sequence, greedy, bfloat16. Every side generates
through transformers' `generate`, in turn. A later token takes the difference between a run of all and a run of one.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from transformers import PreTrainedModel, Qwen2Config, Qwen2ForCausalLM

from autocast.generation import Generator
from benchmarks.timing import alternate, save

#: Elements of the arrays whose copy measures the bandwidth of memory: far more than caches hold.
_COPIED = 1 << 27


def model_of(layers: int) -> PreTrainedModel:
    """Qwen2-0.5B with random weights, or with fewer layers."""
    torch.manual_seed(0)
    config = Qwen2Config(
        hidden_size=896,
        intermediate_size=4864,
        num_hidden_layers=layers,
        num_attention_heads=14,
        num_key_value_heads=2,
        vocab_size=151936,
        tie_word_embeddings=True,
    )
    return Qwen2ForCausalLM(config).eval()


def sides(layers: int, length: int) -> dict[str, Callable[..., Any]]:
    """By name, what takes a prompt and the number of tokens to generate."""
    asked = {"do_sample": False, "pad_token_id": 0, "eos_token_id": None}
    ours = Generator(model_of(layers), max_length=length, amp="bfloat16")
    eager = model_of(layers).bfloat16()
    compiled = model_of(layers).bfloat16()
    compiled.forward = torch.compile(compiled.forward)
    return {
        "ours": partial(ours.generate, **asked),
        "torch, bfloat16": partial(eager.generate, **asked),
        "torch.compile, static cache": partial(
            compiled.generate, cache_implementation="static", **asked, max_length=None
        ),
    }


def bandwidth() -> float:
    """Bytes per second that a copy reads and writes."""
    source = torch.ones(_COPIED)
    target = torch.empty_like(source)
    seconds = []
    for _ in range(5):
        started = time.perf_counter()
        target.copy_(source)
        seconds.append(time.perf_counter() - started)
    return 2 * 4 * _COPIED / min(seconds)


def measure(layers: int, prompt: int, tokens: int, rounds: int) -> dict[str, Any]:
    """Milliseconds to the first token and for each later one, by side; the floor that memory sets a later one."""
    ids = torch.from_numpy(np.random.default_rng(0).integers(0, 1000, (1, prompt)))
    generate = sides(layers, prompt + tokens + 1)
    runs = {
        f"{name}: {count}": partial(call, ids, max_new_tokens=count)
        for name, call in generate.items()
        for count in (1, tokens + 1)
    }
    timed = alternate(runs, rounds=rounds, pause=0.5)
    figures: dict[str, Any] = {"layers": layers, "prompt": prompt, "tokens": tokens}
    for name in generate:
        first = timed[f"{name}: 1"].milliseconds
        whole = timed[f"{name}: {tokens + 1}"].milliseconds
        later = [(both - one) / tokens for one, both in zip(first, whole, strict=True)]
        figures[name] = {"first": statistics.median(first), "later": statistics.median(later)}
    weights = sum(parameter.numel() for parameter in model_of(layers).parameters()) * 2
    figures |= {"MiB": weights / 2**20, "copy GB/s": bandwidth() / 1e9}
    return figures | {"floor": weights / bandwidth() * 1e3}


def table(figures: dict[str, Any]) -> Table:
    """One row for each side."""
    size = f"{figures['layers']} layers, {figures['MiB']:.0f} MiB of weights, prompt of {figures['prompt']}"
    floor = f"the weights once, at the {figures['copy GB/s']:.1f} GB/s of a copy: {figures['floor']:.1f} ms"
    shown = Table(title=f"{size}: medians, ms", caption=floor)
    for heading in ("", "first token", "each later token", "share of a copy's bandwidth"):
        shown.add_column(heading, justify="left" if not heading else "right")
    for name, one in figures.items():
        if isinstance(one, dict):
            share = figures["floor"] / one["later"]
            shown.add_row(name, f"{one['first']:.0f}", f"{one['later']:.1f}", f"{share:.0%}")
    return shown


def main() -> None:
    """Measure, show, and write benchmarks/results/generation.json."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="4 layers instead of 24")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--prompt", type=int, default=128)
    parser.add_argument("--tokens", type=int, default=32)
    options = parser.parse_args()
    layers = 4 if options.quick else 24
    figures = measure(layers, options.prompt, options.tokens, 1 if options.quick else options.rounds)
    Console().print(table(figures))
    if not options.quick:
        save("generation", figures)


if __name__ == "__main__":
    main()
