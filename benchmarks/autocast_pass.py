"""The AutoCast pass itself: how many casts it needs beside others, its CPU time beside TVM's own C++ pass, and by step.

python -m benchmarks.autocast_pass [--layers 12] [--rounds 5] [--sizes 1000 5000 20000 100000]
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any
from unittest.mock import patch

import torch
import tvm
from rich.console import Console
from rich.table import Table
from tvm import relax
from tvm.relax.frontend.torch import from_exported_program

import autocast
from autocast import amp
from autocast.ir import Reading, is_op
from autocast.passes import auto_cast as steps
from autocast.passes.casting.planner import Planner
from autocast.passes.casting.rewriter import CastRewriter
from autocast.passes.casting.rulings import Rulings
from autocast.policy import Decisions
from benchmarks.counting import Casts, bindings, casts_in, to_mixed_precision, torch_autocast_casts
from benchmarks.raf_rules import raf_rules
from benchmarks.synthetic import layered
from benchmarks.timing import Timing, alternate, save
from benchmarks.workload import bert


def unmended_import(module: torch.nn.Module, ids: torch.Tensor) -> tvm.IRModule:
    """The model as TVM's importer leaves it, attention and linear layers in many small operators.

    Only the importer's `out_dtype="float32"` on each product is removed: it would forbid low-precision results.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # torch.export's own, of its own pytree API
        exported = torch.export.export(module, (ids,))
        mod = from_exported_program(exported, keep_params_as_input=True, unwrap_unit_return_tuple=True)
    mod = relax.frontend.detach_params(mod)[0]
    return tvm.IRModule({"main": _PlainProducts(mod).visit_expr(mod["main"])})


@relax.expr_functor.mutator
class _PlainProducts(relax.PyExprMutator):
    """Replaces `matmul(a, b, out_dtype="float32")` by `matmul(a, b)`."""

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        call = self.visit_expr_post_order(call)
        return relax.op.matmul(*call.args) if is_op(call, "relax.matmul") else call


def added(mod: tvm.IRModule, mixed: tvm.IRModule) -> Casts:
    """The casts of `mixed` beyond those that `mod` has already."""
    before, after = casts_in(mod), casts_in(mixed)
    return Casts(after.count - before.count, after.mebibytes - before.mebibytes)


def count_casts(module: torch.nn.Module, ids: torch.Tensor, ours: tvm.IRModule) -> dict[str, Casts]:
    """Casts of every system on one model: name -> casts."""
    raw = unmended_import(module, ids)
    counts = {
        "AutoCast, objective bytes": added(ours, amp.autocast(ours, objective="bytes")),
        "AutoCast, objective casts": added(ours, amp.autocast(ours, objective="casts")),
        "AutoCast, greedy": added(ours, amp.autocast(ours, solver="greedy")),
    }
    counts["torch.autocast, eager"] = torch_autocast_casts(module, ids)
    counts["ToMixedPrecision"] = added(ours, to_mixed_precision(ours))
    with raf_rules(raw):
        like_raf = "RAF's rules on TVM's own import"
        counts[f"{like_raf}, objective bytes"] = added(raw, amp.autocast(raw, objective="bytes"))
        counts[f"{like_raf}, objective casts"] = added(raw, amp.autocast(raw, objective="casts"))
        counts[f"{like_raf}, greedy"] = added(raw, amp.autocast(raw, solver="greedy"))
    counts["ToMixedPrecision on TVM's own import"] = added(raw, to_mixed_precision(raw))
    return counts


def time_passes(mod: tvm.IRModule, rounds: int) -> dict[str, Timing]:
    """AutoCast, everything included, beside ToMixedPrecision."""
    passes = {
        "AutoCast": lambda: amp.autocast(mod),
        "AutoCast, objective casts": lambda: amp.autocast(mod, objective="casts"),
        "AutoCast, greedy": lambda: amp.autocast(mod, solver="greedy"),
        "ToMixedPrecision (C++)": lambda: to_mixed_precision(mod),
    }
    return alternate(passes, rounds=rounds, clock=time.process_time)


#: What each step of the pass calls.
STEPS: dict[str, tuple[tuple[Any, str], ...]] = {
    "is it well formed": ((steps, "check_well_formed"), (steps, "check_types")),
    "read the bindings": ((Reading, "blocks"),),
    "plan": ((steps, "Decisions"), (Planner, "read")),
    "ask": ((Decisions, "ruling"), (Rulings, "of")),
    "solve": ((steps, "solve"),),
    "rewrite": ((CastRewriter, "rewrite"),),
    "check": ((steps, "check_erasure"),),
}


class _Stopwatch:
    """CPU ms that each step takes, without those that it calls."""

    def __init__(self) -> None:
        self.spent = dict.fromkeys([*STEPS, "the rest"], 0.0)
        self.running = ["the rest"]
        self.since = time.process_time()

    def turn(self) -> None:
        """Book the time since the last turn on the step that was running."""
        now = time.process_time()
        self.spent[self.running[-1]] += 1e3 * (now - self.since)
        self.since = now

    def timed(self, step: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """`function`, whose time is that of `step`."""

        def call(*args: Any, **named: Any) -> Any:
            self.turn()
            self.running.append(step)
            result = function(*args, **named)
            self.turn()
            self.running.pop()
            return result

        return call


def time_steps(mod: tvm.IRModule, rounds: int) -> dict[str, Timing]:
    """CPU ms of each step of AutoCast; "the rest" frees what was made, too."""
    samples: dict[str, list[float]] = {step: [] for step in (*STEPS, "the rest")}
    for _ in range(rounds):
        watch = _Stopwatch()
        with ExitStack() as patches:
            for step, calls in STEPS.items():
                for owner, name in calls:
                    patches.enter_context(patch.object(owner, name, watch.timed(step, getattr(owner, name))))
            watch.since = time.process_time()
            amp.autocast(mod)
            watch.turn()
        for step, milliseconds in watch.spent.items():
            samples[step].append(milliseconds)
    return {step: Timing(step, tuple(milliseconds)) for step, milliseconds in samples.items()}


def main(arguments: list[str] | None = None) -> None:
    """Measure, print the tables and write `benchmarks/results/autocast_pass.json`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=12, help="layers of the BERT-base")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of alternating measurements")
    parser.add_argument("--sizes", type=int, nargs="*", default=[1000, 5000, 20000, 100000], help="bindings of modules")
    options = parser.parse_args(arguments)
    console = Console(width=120)

    module, (ids,) = bert(options.layers)
    model = autocast.from_torch(module, (ids,))
    size = bindings(model.mod)

    counts = count_casts(module, ids, model.mod)
    table = Table("casts of", "number", "MiB moved", title=f"BERT-base, {options.layers} layers, {size} bindings")
    for name, casts in counts.items():
        table.add_row(name, str(casts.count), f"{casts.mebibytes:.0f}")
    console.print(table)

    timings = time_passes(model.mod, options.rounds)
    reference = timings["ToMixedPrecision (C++)"].median
    table = Table("pass", "CPU ms, median", "us a binding", "ratio", title="the same model, alternating")
    for timing in timings.values():
        each = timing.median * 1e3 / size
        table.add_row(timing.name, f"{timing.median:.1f}", f"{each:.1f}", f"{timing.median / reference:.1f}")
    console.print(table)

    by_step = time_steps(model.mod, 4 * options.rounds)
    table = Table("step of AutoCast", "CPU us a binding, median", "minimum", title="the same model")
    for step in by_step.values():
        table.add_row(step.name, f"{step.median * 1e3 / size:.1f}", f"{step.best * 1e3 / size:.1f}")
    console.print(table)

    table = Table("bindings", title="synthetic modules")
    for name in ("AutoCast", "ToMixedPrecision"):
        table.add_column(f"{name}, CPU ms")
        table.add_column("us a binding")
    scaling = {}
    for synthetic_size in options.sizes:
        mod = layered(synthetic_size)
        passes = {"AutoCast": lambda m=mod: amp.autocast(m), "ToMixedPrecision": lambda m=mod: to_mixed_precision(m)}
        both = alternate(passes, rounds=max(1, options.rounds // 2), warmup=0, clock=time.process_time)
        scaling[synthetic_size] = both
        medians = [timing.median for timing in both.values()]
        columns = [text for ms in medians for text in (f"{ms:.0f}", f"{ms * 1e3 / synthetic_size:.1f}")]
        table.add_row(str(synthetic_size), *columns)
    console.print(table)

    figures = {
        "layers": options.layers,
        "bindings": size,
        "casts": {name: vars(casts) for name, casts in counts.items()},
        "passes": timings,
        "steps": by_step,
        "scaling": scaling,
    }
    console.print(f"written to {save('autocast_pass', figures)}")


if __name__ == "__main__":
    main()
