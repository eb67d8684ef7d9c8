"""How much can be imported, measured: torch's own operators on torch's samples, and transformers' architectures.

python -m benchmarks.coverage                  # prints the table of docs/models_in.md
python -m benchmarks.coverage models llama     # architectures whose name has "llama" in it
python -m benchmarks.coverage operators --samples 3
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import warnings
from collections import Counter
from collections.abc import Iterable
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import torch

from autocast.terminal import at_least

#: Seconds after which an architecture counts as failed.
PATIENCE = 300

#: Relative to the largest number of an output: small models, so that sums are short.
TOLERANCE = 1e-4

#: What may come of an architecture, and what it means.
OUTCOMES = {
    "right": "every result within 1e-4 of torch's",
    "left": "right, with operators that are left to torch",
    "wrong": "a result that is another",
    "refused": "an error of ours",
    "failed": "another error, or it takes too long",
    "torch": "torch.export cannot export it, or it does not run as it was made here",
}


class Outcome(NamedTuple):
    """One of `OUTCOMES`, and why."""

    word: str
    detail: str = ""


def architecture(name: str) -> Outcome:
    """Import, compile and run an architecture of transformers, and compare what it returns with torch."""
    from autocast import vm
    from autocast.errors import AutocastError
    from autocast.frontend import from_torch
    from benchmarks.small_models import inputs_of, small_model

    try:
        module = small_model(name)
        with torch.no_grad():
            inputs, expected = _runs(module, inputs_of(module))
            torch.export.export(module, (), inputs, strict=False)
    except Exception as error:
        return Outcome("torch", _line(error))
    try:
        model = from_torch(module, (), example_kwargs=inputs)
        got = vm.compile(model)(*inputs.values())
    except AutocastError as error:
        return Outcome("refused", _line(error))
    except Exception as error:
        return Outcome("failed", f"{type(error).__name__}: {_line(error)}")
    names = model.output_names
    results = got if isinstance(got, tuple) else (got,)
    worst = max(_difference(expected, name, result) for name, result in zip(names, results, strict=True))
    if not worst <= TOLERANCE:
        return Outcome("wrong", f"off by {worst:.2g} of the largest number")
    left = ", ".join(f"{operator} x{count}" for operator, count in model.fallbacks.items())
    return Outcome("left", left) if left else Outcome("right", f"{worst:.1g}")


def _runs(module: torch.nn.Module, tried: Iterable[dict[str, torch.Tensor]]) -> tuple[dict[str, torch.Tensor], Any]:
    """The first of some inputs that a module takes, and what it returns."""
    refused: Exception = ValueError("its forward takes neither texts, pictures nor sounds")
    for inputs in tried:
        try:
            return inputs, module(**inputs)
        except Exception as error:
            refused = error
    raise refused


def _difference(expected: Any, path: str, result: torch.Tensor) -> float:
    """The largest difference of a result from the one at a path (`logits`, `hidden_states.0`), relative."""
    for key in path.split("."):
        expected = expected[int(key)] if key.isdigit() else expected[key]
    if result.shape != expected.shape or result.dtype != expected.dtype:
        return float("inf")
    got, true = result.double(), expected.double()
    return float(((got - true).abs().max() / true.abs().max().clamp_min(1e-30)) if true.numel() else 0.0)


def _line(error: Exception) -> str:
    return " | ".join(line.strip() for line in str(error).strip().splitlines()[:3])[:300] or type(error).__name__


class _Worker:
    """A process that judges one architecture after the other, and is replaced when it dies or takes too long."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=_work, args=(theirs,), daemon=True)
        self.process.start()
        theirs.close()

    def run(self, name: str) -> Outcome:
        self.connection.send(name)
        try:
            if self.connection.poll(PATIENCE):
                outcome: Outcome = self.connection.recv()
                return outcome
            detail = f"it takes more than {PATIENCE} s"
        except (EOFError, ConnectionResetError):
            self.process.join()
            detail = f"the process ended with {self.process.exitcode}"
        self.process.kill()
        self.__init__()  # type: ignore[misc]
        return Outcome("failed", detail)


def _work(connection: Connection) -> None:
    warnings.simplefilter("ignore")
    while True:
        name = connection.recv()
        connection.send(architecture(name))


def models(parts: Iterable[str]) -> Counter[str]:
    """How many architectures came to which outcome; each is printed."""
    from benchmarks.small_models import architectures

    worker, counts = _Worker(), Counter[str]()
    for name in architectures(*parts):
        outcome = worker.run(name)
        counts[outcome.word] += 1
        print(f"{name:36} {outcome.word:8} {outcome.detail}", flush=True)
    return counts


def operators(parts: Iterable[str], samples: int) -> Counter[str]:
    """How many of torch's operators came to which outcome, on so many of torch's samples of each."""
    from tests.opinfo import samples as table
    from tests.opinfo.check import worst
    from tests.opinfo.workers import Task, Worker

    worker, counts = Worker(), Counter[str]()
    for name in dict.fromkeys(operator.name for operator in table.operators(*parts)):
        verdicts = worker.run(Task(name, samples or None))
        counts[str(worst(verdicts))] += 1
        details = sorted({verdict.detail for verdict in verdicts if verdict.detail})
        print(f"{name:50} {worst(verdicts):8} {' | '.join(details)[:200]}", flush=True)
    worker.close()
    return counts


def table(rows: dict[str, Counter[str]]) -> str:
    """Counts as Markdown: what torch itself does not run is left out."""
    words = ("right", "left", "refused", "wrong", "crashed")
    lines = [
        "| of | right | left to torch, in part | refused | wrong | failed | all |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, counts in rows.items():
        counts["crashed"] += counts.pop("failed", 0)
        total = sum(counts[word] for word in words)
        cells = [f"{counts[word]} ({100 * counts[word] / max(total, 1):.0f} %)" for word in words]
        lines.append(f"| {name} | {' | '.join(cells)} | {total} |")
    return "\n".join(lines)


def main() -> int:
    """1 if anything is wrong."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.coverage", description=__doc__)
    parser.add_argument("what", nargs="?", choices=("all", "operators", "models"), default="all")
    parser.add_argument("parts", nargs="*", help="only what has one of these in its name")
    parser.add_argument("--samples", type=at_least(0), default=10, help="of each operator (10), 0: all")
    options = parser.parse_args()
    rows = {}
    if options.what in ("all", "operators"):
        rows["torch's operators (OpInfo), float32"] = operators(options.parts, options.samples)
    if options.what in ("all", "models"):
        rows[f"transformers' architectures that torch {torch.__version__.partition('+')[0]} exports"] = models(
            options.parts
        )
    print(f"\n{table(rows)}")
    return 1 if any(counts["wrong"] for counts in rows.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
