"""What two ranks do together in one start of two processes, each scenario by itself; `main` writes what they return."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import torch

import autocast
from autocast.errors import AutocastError, RankError
from autocast.model import Model
from autocast.policy import Policy
from autocast.training import LANS, SGD, AdamW, Trainer
from autocast.training.losses import MSE, CrossEntropy
from autocast.training.optimizers import Optimizer
from autocast.training.parallel.options import DataParallel
from autocast.training.parallel.ranks import Ranks
from autocast.training.parallel.shards import shard_of
from autocast.vm import trace_memory
from tests.training.parallel.ranks import connect, set_timeout

ROWS, STEPS = 12, 5

#: Seconds after which ranks stop to wait for one that is missing.
TIMEOUT = 2

_SENDS_LOW = Policy(low_ops=("collective.all_reduce_start",))
_SCATTERS_LOW = Policy(low_ops=("collective.reduce_scatter_start",))

#: Optimizers, and how their steps are made.
WAYS: dict[str, tuple[Optimizer, dict[str, Any]]] = {
    "many buckets": (SGD(momentum=0.9), {"parallel": DataParallel(bucket_mib=1e-5)}),
    "one bucket": (AdamW(weight_decay=0.1), {"clip_norm": 0.05, "loss_scaling": 1024.0, "recompute": ["0", "1"]}),
    "bfloat16": (AdamW(), {"amp": "bfloat16"}),
    "sent in bfloat16": (SGD(momentum=0.9), {"amp": _SENDS_LOW}),
    "accumulated": (AdamW(), {"accumulate": 2, "clip_norm": 0.05}),
    "zero": (AdamW(), {"parallel": DataParallel(zero=1, bucket_mib=1e-4), "clip_norm": 0.05, "loss_scaling": 1024.0}),
    "zero, LANS": (LANS(), {"parallel": DataParallel(zero=1), "accumulate": 2}),
    "zero, sent in bfloat16": (SGD(momentum=0.9), {"parallel": DataParallel(zero=1), "amp": _SCATTERS_LOW}),
    "torch": (SGD(momentum=0.9), {"device": "torch:cpu", "mode": "eager"}),
    "torch, sent in bfloat16": (SGD(momentum=0.9), {"device": "torch:cpu", "mode": "eager", "amp": _SENDS_LOW}),
}


def network(seed: int = 1, *, dropout: float = 0.0, norm: bool = False) -> torch.nn.Sequential:
    """5 features in, 7 out; other parameters for other seeds."""
    torch.manual_seed(seed)
    middle: list[torch.nn.Module] = [torch.nn.BatchNorm1d(8)] if norm else [torch.nn.Tanh()]
    middle += [torch.nn.Dropout(dropout)] if dropout else []
    return torch.nn.Sequential(torch.nn.Linear(5, 8), *middle, torch.nn.Linear(8, 7))


@cache
def model(rows: int, seed: int = 1, **options: Any) -> Model:
    """The network, imported in training mode for batches of this many rows."""
    return autocast.from_torch(network(seed, **options).train(), (torch.zeros(rows, 5),))


class Words(torch.nn.Module):
    """A table of 97 rows that words are looked up in, and predicted by; kinds have a table of 53, cases one of 2."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.words, self.kinds, self.cases = (torch.nn.Embedding(rows, 6) for rows in (97, 53, 2))
        self.head = torch.nn.Linear(6, 97, bias=False)
        self.head.weight = self.words.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(torch.tanh(self.words(ids) + self.kinds(ids % 53) + self.cases(ids % 2)))


def batch(step: int, rows: int = ROWS) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs and targets of a step, for all ranks together."""
    generator = torch.Generator().manual_seed(step)
    return torch.randn(rows, 5, generator=generator), torch.randn(rows, 7, generator=generator)


def losses(way: str, rank: int, count: int) -> list[float]:
    """Losses of a few steps on this rank's rows of each batch; only rank 0 has the parameters of seed 1."""
    optimizer, options = WAYS[way]
    each = options.get("accumulate", 1)
    rows = ROWS // count // each
    trainer = Trainer(model(rows, seed=1 + rank), MSE(), optimizer, learning_rate=0.05, **options)

    def own(step: int) -> list[tuple[torch.Tensor, ...]]:
        return list(zip(*(tensor.split(rows) for tensor in batch(step)), strict=True))[rank * each : (rank + 1) * each]

    return [trainer.step(*own(step)) for step in range(STEPS)]


def everywhere(rank: int, count: int, directory: Path) -> dict[str, Any]:
    """Losses of all ways, and the state of the last."""
    return {way: losses(way, rank, count) for way in WAYS}


def state(rank: int, count: int, directory: Path) -> dict[str, str]:
    """What each rank has after some steps on batches of its own: bytes of each tensor of the state."""
    trainer = Trainer(model(6, norm=True), MSE(), AdamW(), learning_rate=0.05)
    for step in range(3):
        trainer.step(batch(10 * rank + step, 6))
    return {name: tensor.numpy().tobytes().hex() for name, tensor in trainer.executable.state.items()}


class Residual(torch.nn.Module):
    """A small residual network of images, with BatchNorms."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.enter = torch.nn.BatchNorm2d(3)
        self.conv, self.norm = torch.nn.Conv2d(3, 3, 3, padding=1, bias=False), torch.nn.BatchNorm2d(3, momentum=0.3)
        self.head = torch.nn.Linear(3, 7)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.enter(x))
        x = torch.relu(x + self.norm(self.conv(x)))
        return self.head(x.mean((2, 3)))


def images(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Images and targets of a step, for all ranks together."""
    generator = torch.Generator().manual_seed(step)
    return 3 + 2 * torch.randn(ROWS, 3, 8, 8, generator=generator), torch.randn(ROWS, 7, generator=generator)


#: How BatchNorm's statistics are synchronized: of images or not, and options of the Trainer.
NORMS: dict[str, tuple[bool, dict[str, Any]]] = {
    "images": (True, {}),
    "bfloat16": (False, {"amp": "bfloat16"}),
    "torch": (False, {"device": "torch:cpu", "mode": "eager"}),
}


def normalized(way: str, rank: int, count: int) -> dict[str, list[float]]:
    """Losses of a few steps on this rank's rows of each batch, and the running statistics after them."""
    of_images, options = NORMS[way]
    rows, draw = ROWS // count, images if of_images else batch
    imported = autocast.from_torch(Residual().train(), (images(0)[0][:rows],)) if of_images else model(rows, norm=True)
    parallel = DataParallel(sync_batch_norm=True, bucket_mib=1e-4)
    trainer = Trainer(imported, MSE(), SGD(momentum=0.9), learning_rate=0.05, parallel=parallel, **options)
    found: dict[str, list[float]] = {"losses": []}
    for step in range(STEPS):
        found["losses"].append(trainer.step(tuple(tensor[rank * rows :][:rows] for tensor in draw(step))))
    state = trainer.state_dict()["tensors"]
    return found | {name: tensor.tolist() for name, tensor in state.items() if ".running_" in f".{name}"}


def synchronized(rank: int, count: int, directory: Path) -> dict[str, Any]:
    """The same in all ways."""
    return {way: normalized(way, rank, count) for way in NORMS}


#: How a model with tables is trained: the optimizer, and options of the Trainer.
LOOKUPS: dict[str, tuple[Optimizer, dict[str, Any]]] = {
    "clipped": (AdamW(), {"clip_norm": 0.05, "parallel": DataParallel(bucket_mib=1e-5)}),
    "zero": (AdamW(), {"parallel": DataParallel(zero=1)}),
    "bfloat16": (SGD(momentum=0.9), {"amp": "bfloat16"}),
    "accumulated": (AdamW(), {"accumulate": 2}),
    "torch": (SGD(momentum=0.9), {"device": "torch:cpu", "mode": "eager"}),
}


def looked_up(way: str, rank: int, count: int) -> dict[str, Any]:
    """Losses of a few steps on this rank's words, the tables after them, and how many tensors are sent by rows."""
    optimizer, options = LOOKUPS[way]
    torch.manual_seed(0)
    words = torch.randint(0, 97, (STEPS, options.get("accumulate", 1), ROWS, 4))
    ids = words.chunk(count, dim=2)[rank]
    imported = autocast.from_torch(Words().train(), (ids[0, 0],))
    trainer = Trainer(imported, CrossEntropy(), optimizer, learning_rate=0.05, **options)
    losses = [trainer.step(*((part, part.flip(1)) for part in step)) for step in ids]
    state = trainer.state_dict()["tensors"]
    tables = {name: tensor.tolist() for name, tensor in state.items() if name.endswith(".weight") and "/" not in name}
    return {"losses": losses, "sent": trainer.step_model.script().count("all_gather_start"), **tables}


def by_rows(rank: int, count: int, directory: Path) -> dict[str, Any]:
    """The same in all ways."""
    return {way: looked_up(way, rank, count) for way in LOOKUPS}


#: How many rows each rank has of a batch.
UNEVEN = (8, 4)


def uneven(rank: int, count: int, directory: Path) -> dict[str, dict[str, list[float]]]:
    """The state after a step with synchronized BatchNorm on more rows than the other rank has, by where it was run."""
    rows = {"batch": ("*", 0, 1, ROWS)}
    imported = autocast.from_torch(network(norm=True).train(), (torch.zeros(4, 5),), dynamic=rows)
    found = {}
    for device in ("cpu", "torch:cpu"):
        parallel = DataParallel(sync_batch_norm=True)
        mode = "eager" if "torch" in device else None
        trainer = Trainer(imported, MSE(), SGD(), learning_rate=0.5, parallel=parallel, device=device, mode=mode)
        trainer.step(tuple(tensor.split(UNEVEN)[rank] for tensor in batch(0)))
        found[device] = {name: tensor.tolist() for name, tensor in trainer.state_dict()["tensors"].items()}
    return found


def fitted(rank: int, count: int, directory: Path) -> dict[str, Any]:
    """Losses of `fit` by each kind of batches, and means of `evaluate`, which ranks divide among themselves."""

    def fit(batches: Any, **options: Any) -> list[float]:
        trainer = Trainer(model(6), MSE(), SGD(), learning_rate=0.05)
        return trainer.fit(batches, progress=False, **options)

    listed = [batch(step, 6) for step in range(7)]
    trainer = Trainer(model(6), MSE(), SGD(), learning_rate=0.05)
    own = Trainer(model(6), MSE(), SGD(), learning_rate=0.05, parallel=DataParallel(shard=False))
    return {
        "list": fit(listed),
        "epochs": fit(listed, epochs=2),
        "iterator": fit(iter(listed)),
        "function": fit(lambda step: batch(step, 6), steps=3),
        "own": own.fit(listed[rank::count][:3], progress=False),
        "evaluated": trainer.evaluate(listed, {"rows": lambda outputs, labels: float(labels[0, 0])}),
    }


def shuffled(rank: int, count: int, directory: Path) -> list[list[int]]:
    """What this rank takes of 20 numbers in two epochs of a DataLoader that shuffles; torch's seeds differ."""
    torch.manual_seed(rank)
    numbers = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.arange(20)), batch_size=2, shuffle=True)
    own = shard_of(numbers, Ranks(rank, count))
    return [[int(number) for (batch,) in own for number in batch] for _ in range(2)]


def resumed(rank: int, count: int, directory: Path) -> dict[str, Any]:
    """Losses of a run that goes on from its checkpoint, beside those of one that was not interrupted."""

    def trainer() -> Trainer:
        return Trainer(model(6, dropout=0.5), MSE(), AdamW(), learning_rate=0.05)

    def draw(step: int) -> tuple[torch.Tensor, torch.Tensor]:
        return batch(step, 6)

    path = directory / "run.safetensors"
    whole = trainer().fit(draw, steps=6, progress=False)
    begun = trainer()
    first = begun.fit(draw, steps=3, save_to=path, progress=False)
    exists = path.exists()
    second = trainer().fit(draw, steps=6, save_to=path, progress=False)
    begun.load_state_dict(begun.state_dict())
    third = begun.fit(draw, steps=6, progress=False)
    return {"whole": whole, "resumed": first + second, "again": first + third, "exists": exists}


def divided(rank: int, count: int, directory: Path) -> dict[str, Any]:
    """A run with zero=1 that goes on from its checkpoint, with it and without; what each rank keeps of the state."""

    def trainer(zero: int) -> Trainer:
        parallel = DataParallel(zero=zero)
        return Trainer(model(6, dropout=0.5), MSE(), AdamW(), learning_rate=0.05, parallel=parallel)

    def draw(step: int) -> tuple[torch.Tensor, torch.Tensor]:
        return batch(step, 6)

    path = directory / "divided.safetensors"
    whole, begun = trainer(0), trainer(1)
    expected = whole.fit(draw, steps=6, progress=False)
    first = begun.fit(draw, steps=3, save_to=path, progress=False)
    again = {zero: trainer(zero) for zero in (0, 1)}
    rest = {}
    for zero, each in again.items():
        each.load(path)
        rest[zero] = each.fit(draw, steps=6, progress=False)
    reached = {zero: each.state_dict()["tensors"] for zero, each in again.items()}
    inputs = [*batch(0, 6), torch.tensor(0.1)]
    return {
        "expected": expected,
        "first": first,
        "rest": [rest[0], rest[1]],
        "equal": [bool((tensor == reached[1][name]).all()) for name, tensor in reached[0].items()],
        "parameters": {n: t.numpy().tobytes().hex() for n, t in begun.executable.state.items() if "/" not in n},
        "shares": {
            name: list(map(int, tensor.shape)) for name, tensor in begun.executable.state.items() if "/" in name
        },
        "MiB": [trace_memory(each.executable, "cpu", inputs).params for each in (whole, begun)],
    }


def dropped(rank: int, count: int, directory: Path) -> list[str]:
    """The seed of this rank, and the one that it would save."""
    trainer = Trainer(model(6, dropout=0.5), MSE(), SGD(), learning_rate=0.05)
    trainer.step(batch(0, 6))
    own = trainer.executable.state["random_state"].numpy().tolist()
    return [str(own), str(trainer.state_dict()["tensors"]["random_state"].tolist())]


def refused(rank: int, count: int, directory: Path) -> dict[str, str]:
    """The errors of processes that were not started alike, or whose rank 0 fails."""

    def message(make: Callable[[], object]) -> str:
        try:
            make()
        except AutocastError as error:
            return f"{type(error).__name__}: {error}"
        return "no error"

    def trainer(rows: int = 6, optimizer: Optimizer | None = None, *, norm: bool = False, **options: Any) -> Trainer:
        return Trainer(model(rows, norm=norm), MSE(), optimizer or SGD(), learning_rate=0.05, **options)

    whole = trainer()
    (directory / "broken.safetensors").write_bytes(b"nothing")
    return {
        "model": message(lambda: trainer(norm=rank == 1)),
        "rows": message(lambda: trainer(rows=6 + rank)),
        "zero": message(lambda: trainer(rows=6, parallel=DataParallel(zero=rank))),
        "optimizer": message(lambda: trainer(optimizer=SGD(momentum=0.5 * rank))),
        "checkpoint": message(lambda: whole.load(directory / "broken.safetensors")),
        "unwritable": message(lambda: whole.save(directory / "broken.safetensors" / "in no folder")),
        "zero on torch": message(lambda: trainer(parallel=DataParallel(zero=1), device="torch:cpu")),
        "zero low": message(lambda: trainer(parallel=DataParallel(zero=1), amp=Policy(fp32_params=False))),
        "few": message(lambda: whole.fit([batch(0, 6)])),
        "afterwards": message(lambda: whole.step(batch(0, 6))),
    }


def missed(rank: int, count: int, directory: Path) -> list[Any]:
    """The error of a step that rank 1 comes to too late, and the seconds that it took; the last of all scenarios."""
    trainer = Trainer(model(6), MSE(), SGD(), learning_rate=0.05)
    trainer.step(batch(0, 6))
    set_timeout(TIMEOUT)
    time.sleep(2 * TIMEOUT * rank)
    began = time.monotonic()
    try:
        trainer.step(batch(0, 6))
    except RankError as error:
        return [str(error), time.monotonic() - began]
    return ["no error", 0.0]


def main() -> None:
    """Run all scenarios on this rank, and write what they return."""
    rank, count, directory = connect(sys.argv)
    scenarios = (
        everywhere,
        synchronized,
        by_rows,
        uneven,
        state,
        fitted,
        shuffled,
        resumed,
        divided,
        dropped,
        refused,
        missed,
    )
    found = {scenario.__name__: scenario(rank, count, directory) for scenario in scenarios}
    (directory / f"{rank}.json").write_text(json.dumps(found))
    os._exit(0)  # gloo's threads may still be in what was missed


if __name__ == "__main__":
    main()
