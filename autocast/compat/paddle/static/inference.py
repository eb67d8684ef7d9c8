"""Programs in files: the model, and the names that are fed and fetched."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

from autocast.compat.paddle.static.executor import Executor
from autocast.compat.paddle.static.program import Program, Variable
from autocast.errors import UnsupportedError
from autocast.model import load


def save_inference_model(
    path_prefix: str | os.PathLike[str],
    feed_vars: Sequence[Variable] | Variable,
    fetch_vars: Sequence[Variable] | Variable,
    executor: Executor,
    program: Program | None = None,
) -> None:
    """Write a program as it is now, in the precision that it is in.

    Parameters
    ----------
    path_prefix
        PREFIX.autocast (the model, as `Model.save` writes it) and PREFIX.json (the names) are written.
    feed_vars, fetch_vars
        All inputs that its module takes, in order, and outputs.
    executor
        Not looked at.
    program
        None: that of the first of `fetch_vars`, evaluated: without dropout, with running statistics.

    Raises
    ------
    UnsupportedError
        A variable is no input, or no output, of the program's module.
    """
    feeds = [feed_vars] if isinstance(feed_vars, Variable) else list(feed_vars)
    fetches = [fetch_vars] if isinstance(fetch_vars, Variable) else list(fetch_vars)
    program = fetches[0].program.clone(for_test=True) if program is None else program
    names, outputs = ([variable.name for variable in each] for each in (program.arguments, program.outputs))
    wrong = [variable.name for variable in fetches if variable.name not in outputs]
    if wrong or [variable.name for variable in feeds] != names:
        raise UnsupportedError(
            f"save_inference_model: got feed_vars {[variable.name for variable in feeds]} and fetch_vars "
            f"{[variable.name for variable in fetches]}, expected {names}, and some of {outputs}"
        )
    prefix = Path(path_prefix)
    program.forward.replace(params=program.parameters).save(_file(prefix, "autocast"))
    facts = {
        "feed": [[variable.name, variable.shape, variable.dtype] for variable in program.arguments],
        "outputs": [[variable.name, variable.shape, variable.dtype] for variable in program.outputs],
        "fetch": [variable.name for variable in fetches],
    }
    _file(prefix, "json").write_text(json.dumps(facts))


def load_inference_model(
    path_prefix: str | os.PathLike[str], executor: Executor
) -> tuple[Program, list[str], list[Variable]]:
    """A program that `save_inference_model` wrote, the names that it is fed, and what to fetch of it."""
    prefix = Path(path_prefix)
    facts = json.loads(_file(prefix, "json").read_text())
    program = Program()
    program.model = load(_file(prefix, "autocast"))
    program.arguments = tuple(program.add_input(*each) for each in facts["feed"])
    program.outputs = tuple(Variable(name, tuple(shape), dtype, program) for name, shape, dtype in facts["outputs"])
    return program, list(program.inputs), [program.variable(name) for name in facts["fetch"]]


def _file(prefix: Path, ending: str) -> Path:
    return prefix.with_name(f"{prefix.name}.{ending}")
