"""The command line that a model's file has after two lines at its end::

from autocast.compat.sambaflow.samba.utils.argparser import main
main(mymodel, (a, b, c))

$ python mymodel.py compile --graphamp-preset mp1
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from typing import Any

import torch

from autocast import amp, vm
from autocast.compat.names import named
from autocast.compat.sambaflow.presets import add_arguments, graphamp_preset
from autocast.errors import AutocastError
from autocast.frontend import from_torch
from autocast.training import Loss, Optimizer, training_step

__all__ = ["main"]


def main(
    module: torch.nn.Module,
    inputs: Sequence[Any],
    *,
    loss: Loss | None = None,
    optimizer: Optimizer | None = None,
    argv: Sequence[str] | None = None,
) -> None:
    """Do what the command line says: `compile` prints the decision about each operator, and compiles the model.

    Parameters
    ----------
    module
        What is compiled, as it stands: in training or in evaluation mode.
    inputs
        Example inputs.
    loss, optimizer
        Both: the training step is compiled, to which `--weight-grad-reduce` and `--fp32-params` matter. None: the
        module's forward.
    argv
        The arguments; None: those that this process was started with.

    Raises
    ------
    SystemExit
        The command line is not understood (status 2), or the module cannot be compiled (1); stderr says why.
    """
    parser = argparse.ArgumentParser(allow_abbrev=False, description="Compile the torch module of this file.")
    compiler = parser.add_subparsers(required=True, metavar="command").add_parser(
        "compile", help="print the decisions of mixed precision, and compile", allow_abbrev=False
    )
    add_arguments(compiler)
    policy = graphamp_preset(**vars(parser.parse_args(argv)))
    if (loss is None) != (optimizer is None):
        parser.error("the file gives a loss or an optimizer; expected both, for a training step, or none")
    try:
        model = from_torch(module, inputs)
        if loss is not None and optimizer is not None:
            model = training_step(model, loss, optimizer)
        converted = amp.autocast(model, policy=policy)
        print(policy)
        for decision in converted.report.decisions:
            print(decision)
        print(converted.report.summary())
        started = time.perf_counter()
        vm.compile(converted)
    except AutocastError as error:
        print(f"{parser.prog}: error: {type(error).__name__}: {error}", file=sys.stderr)
        sys.exit(1)
    print(f"compiled in {time.perf_counter() - started:.1f} s")


__getattr__ = named(__name__, __all__)
