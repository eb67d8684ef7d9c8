"""The command line: `autocast demo`, `env`, `rules`, `cache`, `warm` and `tune`."""

from __future__ import annotations

import argparse
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields

from rich.console import Console
from rich.markup import escape

from autocast import __version__, settings
from autocast.cache import command
from autocast.errors import AutocastError, InputError
from autocast.messages import nearest
from autocast.terminal import at_least, output

_POLICY = 'a policy, such as "mp1" or "mp4, dtype=float16, float32_ops=(nn.gelu,)"'


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status: 0, 1 if the demo's outputs are wrong, 2 for an error in its input.

    `argv` is what stands after the command's name; None: what this process was started with.
    """
    if argv is None:
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `| head` ends it without a word
    options = _parser().parse_args(argv)
    console = Console(stderr=True, emoji=False)
    try:
        return int(options.run(options))
    except AutocastError as error:
        console.print(
            f"[bold red]error:[/] {type(error).__name__}: {escape(str(error))}", highlight=False, soft_wrap=True
        )
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="autocast", description="A mixed-precision compiler: the cheapest casts, provably, and fast CPU kernels."
    )
    parser.add_argument("--version", action="version", version=f"autocast {__version__}")
    commands = parser.add_subparsers(required=True, metavar="command")

    demo = commands.add_parser(
        "demo", help="BERT in float32 and in mixed precision, run and trained: latency, memory, casts, error"
    )
    demo.set_defaults(run=_demo)
    for name, default, text in (
        ("layers", 1, "encoder layers"),
        ("batch", 8, "sequences in the batch"),
        ("sequence", 128, "tokens in a sequence"),
        ("hidden", 768, "width of the model"),
        ("heads", 12, "attention heads"),
        ("vocabulary", 30522, "tokens in the vocabulary"),
        ("rounds", 10, "how often each way is measured"),
        ("threads", 0, "threads of both sides; 0: one for each core"),
    ):
        kind = at_least(0 if name == "threads" else 1)
        demo.add_argument(f"--{name}", type=kind, default=default, metavar="N", help=f"{text} (default: {default})")
    demo.add_argument(
        "--dtype", choices=("bfloat16", "float16"), help="short for --policy dtype=... (default: bfloat16)"
    )
    demo.add_argument("--policy", help=_POLICY)
    demo.add_argument("--profile", action="store_true", help="also show operators and memory of both models")

    env = commands.add_parser("env", help="the environment variables that are read, and their values")
    env.set_defaults(run=_env)

    rules = commands.add_parser("rules", help="the casting rules: one for every operator, each with its reason")
    rules.add_argument("pattern", nargs="?", default="", help="only operators whose name contains this")
    rules.add_argument("--policy", help=f"what this makes of them: {_POLICY}")
    rules.set_defaults(run=_rules)
    command.add_to(commands)

    warm = commands.add_parser(
        "warm",
        help="compile models into the cache before anybody waits for them",
        description="Call a function of yours for each batch and length, and compile the models that it returns.",
    )
    tune = commands.add_parser(
        "tune",
        help="measure how the kernels of models are fastest on this machine, and keep it",
        description="Call a function of yours for each batch and length, measure several ways to compute the matrix "
        "products, convolutions and attention of the models that it returns, and say what was won. Whatever is "
        "compiled on this machine from now on goes by it, until autocast cache clear. Let nothing else run meanwhile.",
    )
    for one in (warm, tune):
        one.add_argument(
            "function",
            help="package.module:function, without arguments or with batch=, length= or both, that returns an autocast "
            "Model or several, such as amp.autocast(autocast.from_torch(module, (example,)))",
        )
        one.add_argument("--batch", type=at_least(1), nargs="+", default=[], metavar="N", help="batch sizes")
        one.add_argument("--length", type=at_least(1), nargs="+", default=[], metavar="N", help="lengths of sequences")
    tune.set_defaults(run=_tune)
    warm.add_argument("--jobs", type=at_least(1), default=1, metavar="N", help="processes that compile (default: 1)")
    warm.set_defaults(run=_warm)
    return parser


def _demo(options: argparse.Namespace) -> int:
    progress = Console(stderr=True, emoji=False)
    started = time.perf_counter()

    @contextmanager
    def step(text: str) -> Iterator[None]:
        begun = time.perf_counter()
        with progress.status(f"{text} ..."):
            yield
        progress.print(f"  {text}: {time.perf_counter() - begun:.1f} s", highlight=False, style="dim")

    with step("loading torch, transformers and TVM"):
        from autocast import vm
        from autocast.demos import bert, inference, training
        from autocast.policy import as_policy
    if options.hidden % options.heads:
        raise InputError(f"demo: --hidden {options.hidden} is no multiple of --heads {options.heads}")
    options.policy = as_policy(options.policy, dtype=options.dtype)
    chosen = bert.Options(**{field.name: getattr(options, field.name) for field in fields(bert.Options)})
    console = output()
    failures = []
    for half in (inference, training):
        result = half.run(chosen, step)
        console.print(result.table())
        if options.profile:
            for model in (result.float32, result.amp):
                console.print(vm.profile_vm_model(model, "cpu", result.inputs, number=1).table())
                console.print(vm.trace_memory(model, "cpu", result.inputs).table())
        failures += half.failures(result)
    progress.print(f"  everything: {time.perf_counter() - started:.1f} s", highlight=False, style="dim")
    for failure in failures:
        progress.print(f"[bold red]wrong:[/] {escape(failure)}", highlight=False)
    return 1 if failures else 0


def _env(options: argparse.Namespace) -> int:
    output().print(settings.table())
    return 0


def _rules(options: argparse.Namespace) -> int:
    import type_hints
    from autocast.policy import as_policy, operator_rules

    table = operator_rules(as_policy(options.policy))
    chosen = type_hints.RuleTable(row for row in table if options.pattern in row.name)
    if not chosen:
        names = [name for row in table for name in (row.name.removeprefix("relax."), row.name.rpartition(".")[2])]
        raise InputError(
            f"rules: none of {len(table)} operators has {options.pattern!r} in its name; nearest: "
            f"{nearest(options.pattern, names)}. Without a name, rules prints them all"
        )
    print(chosen)
    return 0


def _warm(options: argparse.Namespace) -> int:
    from autocast.vm.warm import table, warm

    results = warm(options.function, options.batch, options.length, options.jobs)
    output().print(table(options.function, results))
    return 1 if any(result.failed for result in results) else 0


def _tune(options: argparse.Namespace) -> int:
    from autocast.vm.tune import tables, tune

    for shown in tables(tune(options.function, options.batch, options.length)):
        output().print(shown, highlight=False)
    return 0
