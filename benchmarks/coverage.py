"""How much can be imported, measured: torch's own operators on torch's samples, and architectures of libraries.

python -m benchmarks.coverage                  # all of them: an hour; prints the table of docs/models_in.md
python -m benchmarks.coverage table            # measures nothing, and prints it
python -m benchmarks.coverage models llama     # architectures of transformers whose name has "llama" in it
python -m benchmarks.coverage vision timm.     # families of timm; torchvision.: models of torchvision
python -m benchmarks.coverage operators --samples 3
"""

from __future__ import annotations

import argparse
import importlib
import multiprocessing
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import torch
from torch.utils import _pytree as pytree

from autocast.terminal import at_least
from benchmarks.timing import load, save

#: Seconds after which an architecture counts as failed.
PATIENCE = 300

#: Relative to the largest number of an output: small models, so that sums are short.
TOLERANCE = 1e-4

#: What results are kept as, and what is measured.
NAME = "coverage"
TITLES = {
    "operators": "torch's operators (OpInfo), float32",
    "models": "transformers' architectures that torch exports",
    "vision": "timm's families and torchvision's models that torch exports",
    "generation": "those that generate text: [their tokens](generation.md#architectures)",
}

#: Where architectures, ways to make them and inputs that they take come from, by what they are kept as.
LIBRARIES = {"models": "benchmarks.small_models", "vision": "benchmarks.vision_models"}

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


def architecture(kind: str, name: str) -> Outcome:
    """Import, compile and run an architecture of one of `LIBRARIES`, and compare what it returns with torch."""
    from autocast import vm
    from autocast.errors import AutocastError
    from autocast.frontend import from_torch

    try:
        module, inputs, expected = _exportable(kind, name)
    except Exception as error:
        return Outcome("torch", line(error))
    try:
        model = from_torch(module, (), example_kwargs=inputs)
        got = vm.compile(model)(*_tensors(inputs))
    except AutocastError as error:
        return Outcome("refused", line(error))
    except Exception as error:
        return Outcome("failed", f"{type(error).__name__}: {line(error)}")
    names = model.output_names or ("",)
    results = got if isinstance(got, tuple) else (got,)
    worst = max(_difference(expected, name, result) for name, result in zip(names, results, strict=True))
    if not worst <= TOLERANCE:
        if not _is_settled(module, inputs, expected):
            return Outcome("torch", "it chooses by numbers so near that torch's own results differ in float64")
        return Outcome("wrong", f"off by {worst:.2g} of the largest number")
    left = ", ".join(f"{operator} x{count}" for operator, count in model.fallbacks.items())
    return Outcome("left", left) if left else Outcome("right", f"{worst:.1g}")


def _exportable(kind: str, name: str) -> tuple[torch.nn.Module, dict[str, Any], Any]:
    """An architecture that torch runs and exports as it was made here, inputs, and what it returns."""
    library = importlib.import_module(LIBRARIES[kind])
    refused: Exception | None = None
    for make in library.small_models(name):
        try:
            module = make()
            with torch.no_grad():
                inputs, expected = _runs(module, library.inputs_of(module))
                program = torch.export.export(module, (), inputs, strict=False)
                exported = program.module()(**inputs)
            if not _alike(exported, expected):
                raise ValueError("what torch.export makes of it computes something else")
            return module, inputs, expected
        except Exception as error:
            refused = refused or error
    assert refused is not None
    raise refused


def _is_settled(module: torch.nn.Module, inputs: dict[str, Any], expected: Any) -> bool:
    """Whether torch's results are the same in float64; an architecture that knows no float64 counts as one."""
    wide = pytree.tree_map_only(torch.Tensor, lambda x: x.double() if x.is_floating_point() else x, inputs)
    try:
        with torch.no_grad():
            exact = module.double()(**wide)
    except Exception:
        return True
    pairs = zip(*([x.double() for x in _tensors(value)] for value in (exact, expected)), strict=True)
    return all(_apart(*pair) <= TOLERANCE for pair in pairs)


def _tensors(value: Any) -> list[torch.Tensor]:
    return [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor)]


def _runs(module: torch.nn.Module, tried: Iterable[dict[str, Any]]) -> tuple[dict[str, Any], Any]:
    """The first of some inputs that a module takes, and what it returns."""
    refused: Exception | None = None
    for inputs in tried:
        try:
            return inputs, module(**inputs)
        except Exception as error:
            refused = refused or error
    raise refused or ValueError("its forward takes neither texts, pictures nor sounds")


def _alike(got: Any, expected: Any) -> bool:
    """Whether the tensors of two results are the same, but for rounding."""
    both = [_tensors(value) for value in (got, expected)]
    return len(both[0]) == len(both[1]) and all(_apart(*pair) <= TOLERANCE for pair in zip(*both, strict=True))


def _difference(expected: Any, path: str, result: torch.Tensor) -> float:
    """How far a result is from the one at a path (`logits`, `hidden_states.0`; empty: there is but one)."""
    for key in filter(None, path.split(".")):
        expected = expected[int(key)] if key.isdigit() else expected[key]
    if not isinstance(expected, torch.Tensor):
        expected = torch.tensor(expected, dtype=torch.float64 if isinstance(expected, float) else None)
    return _apart(result, expected)


def _apart(result: torch.Tensor, expected: torch.Tensor) -> float:
    """The largest difference, relative to the largest number."""
    if result.shape != expected.shape or result.dtype != expected.dtype:
        return float("inf")
    got, true = result.double(), expected.double()
    return float(((got - true).abs().max() / true.abs().max().clamp_min(1e-30)) if true.numel() else 0.0)


def line(error: Exception) -> str:
    """The beginning of an error's message."""
    return " | ".join(line.strip() for line in str(error).strip().splitlines()[:3])[:300] or type(error).__name__


class Worker:
    """A process that `judge`s one architecture after the other, and is replaced when it dies or takes too long."""

    def __init__(self, judge: Callable[[str], Outcome]) -> None:
        context = multiprocessing.get_context("spawn")
        self.judge = judge
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=_work, args=(judge, theirs), daemon=True)
        self.process.start()
        theirs.close()

    def run(self, name: str) -> Outcome:
        """What it says of one."""
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
        self.__init__(self.judge)  # type: ignore[misc]
        return Outcome("failed", detail)


def _work(judge: Callable[[str], Outcome], connection: Connection) -> None:
    warnings.simplefilter("ignore")
    while True:
        try:
            name = connection.recv()
        except EOFError:  # there are no more
            return
        connection.send(judge(name))


def models(kind: str, parts: Iterable[str]) -> Iterator[tuple[str, Outcome]]:
    """What came of the architectures of one of `LIBRARIES`."""
    worker = Worker(partial(architecture, kind))
    for name in importlib.import_module(LIBRARIES[kind]).architectures(*parts):
        yield name, worker.run(name)


def operators(parts: Iterable[str], samples: int) -> Iterator[tuple[str, Outcome]]:
    """What came of torch's operators, on so many of torch's samples of each."""
    from tests.opinfo import samples as table
    from tests.opinfo.check import worst
    from tests.opinfo.workers import Task, Worker

    worker = Worker()
    for name in dict.fromkeys(operator.name for operator in table.operators(*parts)):
        verdicts = worker.run(Task(name, samples or None))
        details = sorted({verdict.detail for verdict in verdicts if verdict.detail})
        yield name, Outcome(str(worst(verdicts)).replace("crashed", "failed"), " | ".join(details)[:200])
    worker.close()


def measure(kind: str, found: Iterable[tuple[str, Outcome]]) -> None:
    """Print outcomes, and keep each in `benchmarks/results/coverage.json` beside those of earlier runs."""
    for name, outcome in found:
        print(f"{name:50} {outcome.word:8} {outcome.detail}", flush=True)
        known = load(NAME)
        known.setdefault(kind, {})[name] = " ".join(outcome).strip()
        save(NAME, {key: known[key] for key in TITLES if key in known})


def counted() -> dict[str, Counter[str]]:
    """How many came to which outcome, by what they are, of all that was ever measured."""
    known = load(NAME)
    return {TITLES[kind]: Counter(text.split()[0] for text in known[kind].values()) for kind in TITLES if kind in known}


def table(rows: dict[str, Counter[str]]) -> str:
    """Counts as Markdown: what torch itself does not run is left out."""
    words = ("right", "left", "refused", "wrong", "failed")
    lines = [
        "| of | right | left to torch, in part | refused | wrong | failed | all |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, counts in rows.items():
        total = sum(counts[word] for word in words)
        cells = [f"{counts[word]} ({100 * counts[word] / max(total, 1):.0f} %)" for word in words]
        lines.append(f"| {name} | {' | '.join(cells)} | {total} |")
    return "\n".join(lines)


def main() -> int:
    """1 if anything is wrong."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.coverage", description=__doc__)
    parser.add_argument("what", nargs="?", choices=("all", "operators", *LIBRARIES, "table"), default="all")
    parser.add_argument("parts", nargs="*", help="only what has one of these in its name")
    parser.add_argument("--samples", type=at_least(0), default=10, help="of each operator (10), 0: all")
    options = parser.parse_args()
    if options.what in ("all", "operators"):
        measure("operators", operators(options.parts, options.samples))
    for kind in LIBRARIES:
        if options.what in ("all", kind):
            measure(kind, models(kind, options.parts))
    rows = counted()
    print(f"\n{table(rows)}")
    return 1 if any(counts["wrong"] for counts in rows.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
