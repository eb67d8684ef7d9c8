"""Data-parallel training steps of two processes with a core each, beside DDP with `torch.autocast`, both by gloo.

python -m benchmarks.many_machines [--quick] [--latency-us 50 --gbit 10]

A step is forward, cross-entropy, backward and SGD with momentum. Both ranks step at the same time, alone (each by
itself, nothing is sent) and together. Ours and DDP's take turns; each row has processes of its own, which take 16 GiB
for BERT. What is hidden of the communication is what the step does not take longer than alone, as a part of what the
same messages take when nothing else runs; within one machine sending is work of the same cores, which nothing hides.
Bytes are those that a rank sends of gradients that are added up; rows of embeddings, 3 MiB for BERT, come on top.

The second table is a model, not a measurement. A ring all-reduce over N machines takes 2 (N - 1) latencies for each
bucket, and 2 (N - 1) / N of the bytes at the bandwidth. It assumes that every machine computes as long as one does
alone here, that all links are alike and nobody else uses them, that the network is not oversubscribed, that no machine
is ever late, and that all but the bucket that is begun last hides behind the backward pass, two thirds of a step.
Latency and bandwidth are fitted to all-reduces between both processes here, through this machine's memory; then they
are what the options say.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from benchmarks.sides import Call, Side
from benchmarks.timing import save
from benchmarks.workload import TRAINED

RANKS, BUCKET_MIB = 2, 25
LEARNING_RATE, MOMENTUM = 0.1, 0.9

#: What of the time of DDP with torch.autocast we may take, and how much of the communication has to be hidden.
TARGET, HIDDEN = 0.6, 0.8

MACHINES = (8, 16, 64, 256, 1024)

#: Bytes of the messages that latency and bandwidth are fitted to.
_MESSAGES = tuple(4 * 4**power for power in range(4, 12))

_MIB = 2**20


class Network(NamedTuple):
    """Seconds for a message, and for each byte."""

    latency: float
    per_byte: float

    def all_reduce(self, size: float, machines: int, buckets: int = 1) -> float:
        """Seconds of a ring all-reduce of `size` bytes."""
        return 2 * (machines - 1) * (buckets * self.latency + size / machines * self.per_byte)


def join(rank: int, file: str) -> None:
    """Make this process, on a core of its own, one of those that train together."""
    os.sched_setaffinity(0, {sorted(os.sched_getaffinity(os.getppid()))[rank]})
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=RANKS)


def _module(workload: str) -> tuple[torch.nn.Module, tuple[torch.Tensor, ...], torch.Tensor]:
    module, inputs = TRAINED[workload]()
    with torch.no_grad():
        logits = module(*inputs)
    return module, inputs, torch.randint(0, logits.shape[-1], logits.shape[:-1])


def ours(workload: str, amp: Any, parallel: str) -> Call:
    """A step of a Trainer."""
    import autocast
    from autocast.training import SGD, CrossEntropy, Trainer

    module, inputs, labels = _module(workload)
    options = {"learning_rate": LEARNING_RATE, "amp": amp, "parallel": parallel}
    trainer = Trainer(autocast.from_torch(module, inputs), CrossEntropy(), SGD(momentum=MOMENTUM), **options)
    trainer.step((*inputs, labels))
    return lambda: trainer.step((*inputs, labels))


def peer(workload: str, low: bool, parallel: str) -> Call:
    """A step of DDP."""
    from torch.nn.parallel import DistributedDataParallel

    module, inputs, labels = _module(workload)
    whole = DistributedDataParallel(module) if parallel == "data" else module
    optimizer = torch.optim.SGD(module.parameters(), lr=LEARNING_RATE, momentum=MOMENTUM, fused=True)

    def step() -> None:
        with torch.autocast("cpu", torch.bfloat16, enabled=low):
            logits = whole(*inputs)
            loss = torch.nn.functional.cross_entropy(logits.flatten(0, -2).float(), labels.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def buckets_of(workload: str) -> list[int]:
    """The bytes of gradients that a step sends together, in the order in which it begins to."""
    import autocast
    from autocast.ir import static_shape
    from autocast.training import SGD, CrossEntropy, training_step

    module, inputs, _ = _module(workload)
    model = autocast.from_torch(module, inputs)
    step = training_step(model, CrossEntropy(), SGD(momentum=MOMENTUM), parallel="data")
    sent = [binding.var for block in step.main.body.blocks for binding in block.bindings]
    sizes = [(static_shape(var) or (0,))[0] for var in sent if var.name.startswith("sums")]
    return [size for size in sizes if size > 4]  # without the loss


def sending(elements: int, dtype: torch.dtype) -> Call:
    """The messages of a step, by what our steps call."""
    from autocast.runtime import collectives

    bucket = BUCKET_MIB * _MIB // dtype.itemsize
    parts = [torch.ones(min(bucket, elements - start), dtype=dtype) for start in range(0, elements, bucket)]
    buffers = [torch.empty(part.numel() * dtype.itemsize, dtype=torch.uint8) for part in parts]
    scale = torch.empty(())

    def send() -> None:
        for part, buffer in zip(parts, buffers, strict=True):
            collectives.start(part, buffer)
        for buffer in buffers:
            collectives.done(buffer, scale)

    return send


def message(size: int) -> Call:
    """One all-reduce."""
    data = torch.ones(size // 4)
    return lambda: torch.distributed.all_reduce(data)


def _build(key: str, make: Callable[[], Call], _rank: int, side: Side) -> None:
    side.build(key, make)


class Pair:
    """The processes of one side, which build and are timed together."""

    def __init__(self, name: str, folder: Path) -> None:
        self.ranks = [Side(f"{name}, rank {rank}", threads=1) for rank in range(RANKS)]
        self._pool = ThreadPoolExecutor(RANKS)
        self._each(lambda rank, side: side.compute(partial(join, rank, str(folder / name))))

    def build(self, candidates: Mapping[str, Callable[[], Call]]) -> None:
        """Build candidates in both processes."""
        for key, make in candidates.items():
            self._each(partial(_build, key, make))

    def time(self, key: str, calls: int) -> list[float]:
        """Milliseconds of each call: of the rank that took longer."""
        both = self._each(lambda _, side: side.time(key, calls=calls, warmup=1))
        return [max(samples) for samples in zip(*both, strict=True)]

    def close(self) -> None:
        """End the processes."""
        self._each(lambda _, side: side.close())

    def _each(self, work: Callable[[int, Side], Any]) -> list[Any]:
        return list(self._pool.map(lambda pair: work(*pair), enumerate(self.ranks)))


class Row(NamedTuple):
    """A step of ours and DDP's, measured together: dtype of the step (None: float32), and of the messages."""

    name: str
    amp: str | None
    sent: str

    def ours(self, workload: str) -> dict[str, Callable[[], Call]]:
        """Our steps, alone and together, and what they send when nothing else runs."""
        from autocast.amp import Policy

        low = self.amp and self.sent == "bfloat16"
        together = Policy(low_ops=("collective.all_reduce_start",)) if low else self.amp
        return {how: partial(ours, workload, amp, how) for how, amp in (("none", self.amp), ("data", together))}

    def torch(self, workload: str) -> dict[str, Callable[[], Call]]:
        """DDP's."""
        return {how: partial(peer, workload, self.amp == "bfloat16", how) for how in ("none", "data")}


ROWS = (
    Row("float32", None, "float32"),
    Row("bfloat16", "bfloat16", "float32"),
    Row("bfloat16, sent low", "bfloat16", "bfloat16"),
)


def measured(workload: str, row: Row, rounds: int) -> tuple[dict[str, list[float]], list[int]]:
    """Milliseconds of each candidate of a row, all in turn in each round; and the bytes of each bucket of gradients."""
    with tempfile.TemporaryDirectory() as folder:
        pairs = {name: Pair(name, Path(folder)) for name in ("ours", "torch")}
        buckets = pairs["ours"].ranks[0].compute(partial(buckets_of, workload))
        sent = partial(sending, sum(buckets) // 4, getattr(torch, row.sent))
        network = {"messages": sent, **{str(size): partial(message, size) for size in _MESSAGES}}
        candidates = {"ours": row.ours(workload) | network, "torch": row.torch(workload)}
        for name, own in candidates.items():
            pairs[name].build(own)
        samples: dict[str, list[float]] = {f"{name} {key}": [] for name, own in candidates.items() for key in own}
        for _ in range(rounds):
            for name, own in candidates.items():
                for key in own:
                    samples[f"{name} {key}"] += pairs[name].time(key, 20 if key.isdigit() else 2)
        for pair in pairs.values():
            pair.close()
    return samples, buckets


def fitted(times: Mapping[int, float]) -> Network:
    """Latency and bandwidth of all-reduces between two processes, by least squares of relative errors."""
    sizes, seconds = (np.array(list(values)) for values in (times.keys(), times.values()))
    terms = np.stack([np.full(len(sizes), 2.0), sizes.astype(float)], axis=1) / seconds[:, None]
    latency, per_byte = np.linalg.lstsq(terms, np.ones(len(sizes)), rcond=None)[0]
    return Network(max(float(latency), 0.0), max(float(per_byte), 0.0))


def step_seconds(network: Network, compute: float, buckets: Sequence[int], machines: int) -> float:
    """The model: a step on that many machines, whose gradients are sent in buckets of so many bytes."""
    sent = network.all_reduce(sum(buckets), machines, len(buckets))
    return compute + max(sent - compute * 2 / 3, network.all_reduce(buckets[-1], machines))


def steps_table(workload: str, medians: Mapping[Row, Mapping[str, float]], elements: int) -> Table:
    """What was measured."""
    table = Table(title=f"{workload}: {RANKS} processes x 1 core, ms")
    for column in ("step", "alone", "together", "messages", "hidden", "MiB sent", "of DDP's time"):
        table.add_column(column, justify="left" if column == "step" else "right")
    share = 2 * (RANKS - 1) / RANKS / _MIB
    for name in ("ours", "torch"):
        for row, median in medians.items():
            if name == "torch" and row.sent != "float32":
                continue
            alone, together, messages = median[f"{name} none"], median[f"{name} data"], median["ours messages"]
            hidden = max(0.0, min(1.0, 1 - (together - alone) / messages))
            figures = (alone, together, messages, 100 * hidden, share * getattr(torch, row.sent).itemsize * elements)
            table.add_row(f"{name} {row.name}", *(f"{f:.0f}" for f in figures),
                          f"{together / median['torch data']:.2f}")  # fmt: skip
    return table


def model_table(networks: Mapping[str, Network], compute: float, buckets: Sequence[int]) -> Table:
    """The model, which is not measured."""
    table = Table(title=f"a model, not measured: ms of a step that computes {compute * 1e3:.0f} ms, and efficiency")
    table.add_column("machines")
    for name in networks:
        table.add_column(name, justify="right")
    for machines in MACHINES:
        steps = [step_seconds(network, compute, buckets, machines) for network in networks.values()]
        table.add_row(str(machines), *(f"{step * 1e3:.0f}  {compute / step:.0%}" for step in steps))
    return table


def main(arguments: Iterable[str] | None = None) -> None:
    """Measure, fit, and show."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="three rounds of one layer")
    parser.add_argument("--latency-us", type=float, default=50.0, help="of the network that the model is for")
    parser.add_argument("--gbit", type=float, default=10.0, help="its bandwidth, Gbit/s")
    options = parser.parse_args(None if arguments is None else list(arguments))
    figures = {}
    for workload in ["BERT-base 1 layer, 8 x 128"] if options.quick else ["BERT-base, 8 x 128", "ResNet-50, 4 images"]:
        figures[workload] = _show(workload, options)
    if not options.quick:
        save("many_machines", figures)


def _show(workload: str, options: argparse.Namespace) -> dict[str, Any]:
    """Measure one workload; what was measured."""
    figures, medians = {}, {}
    for row in ROWS:
        samples, buckets = measured(workload, row, 3 if options.quick else 10)
        figures[row.name] = samples
        medians[row] = {key: statistics.median(values) for key, values in samples.items()}
    median = medians[ROWS[1]]
    here = fitted({size: median[f"ours {size}"] / 1e3 for size in _MESSAGES})
    networks = {
        f"fitted: {here.latency * 1e6:.0f} us, {8e-9 / here.per_byte:.1f} Gbit/s": here,
        f"{options.latency_us:g} us, {options.gbit:g} Gbit/s": Network(options.latency_us / 1e6, 8e-9 / options.gbit),
    }
    console = Console(width=150)
    console.print(steps_table(workload, medians, sum(buckets) // 4))
    console.print(f"aims: {TARGET:g} of DDP's time with torch.autocast; {HIDDEN:.0%} of the messages hidden")
    console.print(model_table(networks, median["ours none"] / 1e3, buckets))
    return {"buckets": buckets, "milliseconds": figures, "fitted": here._asdict()}


if __name__ == "__main__":
    main()
