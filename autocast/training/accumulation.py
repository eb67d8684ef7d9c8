"""Gradients of several batches for one update: a larger batch in the memory of a small one, and one reduction for it.

Two programs share the state of a training. The training step adds what it computes of its batch to accumulators, and
updates by the sums, which it clears; `accumulation_step` is the same program without the updates, and keeps the sums.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from typing import Any

from tvm import relax

from autocast.errors import InputError, TrainingError
from autocast.ir import Place, PlacedBuilder, is_op
from autocast.ir.places import canonicalize_bindings
from autocast.model import Model
from autocast.training.batches import Batch, arranged
from autocast.training.building import new_block, new_function
from autocast.training.paths import straight_line

op = relax.op

#: What the parameters of a training step are called that hold sums between the batches of one update: this, and the
#: name of what is summed up. Between updates they are zero.
ACCUMULATED = "accumulated/"

#: The attribute of the `main` of a training step that says how many of its first updates are the model's own.
OF_MODEL = "updates_of_model"


def is_accumulator(name: str) -> bool:
    """Whether a parameter of a training step holds a sum between the batches of one update."""
    return name.startswith(ACCUMULATED)


def add_accumulated(function: relax.Function, accumulators: Mapping[int, relax.Var]) -> relax.Function:
    """A function whose results, those at the places in `accumulators`, are added to those parameters.

    Before::                                       After::

        def main(x, w, sum):                           def main(x, w, sum):
            w_grad = R.matmul(xt, g)                       w_grad = R.matmul(xt, g)
            ...                                            total = R.add(sum, w_grad)
            return w_grad                                  ...
                                                           return total

    Each is added, in float32, as soon as it is computed: what sends it need not wait for others.
    """
    bindings, results = straight_line(function)
    places: dict[relax.Expr, list[int]] = defaultdict(list)
    for place in accumulators:
        places[results[place]].append(place)

    builder = PlacedBuilder()
    with builder.function("main", list(function.params), attrs=dict(function.attrs or {})):
        with new_block(builder, function):

            def add(var: relax.Expr) -> None:
                builder.place = Place("", "float32")
                for place in places.pop(var, ()):
                    results[place] = builder.emit(op.add(accumulators[place], var), "total")

            for param in function.params:
                add(param)
            for binding in bindings:
                builder.emit_normalized(binding)
                add(binding.var)
            outputs = [builder.emit_output(result, getattr(result, "name", "result")) for result in results]
        builder.emit_func_output(outputs)
    return canonicalize_bindings(builder.get())["main"]


def accumulation_step(step: Model) -> Model:
    """The program that adds the loss and the gradients of one batch to the accumulators of a training step.

    Before::                                       After::

        def main(x, labels, rate, w, m, sum):          def main(x, labels, rate, w, m, sum):
            ...                                            ...
            total = R.add(sum, w_grad)                     total = R.add(sum, w_grad)
            u = sgd(w, total, m, rate, ...)                return loss, w, m, total
            return loss, u[0], u[1], zeros

    Parameters
    ----------
    step : Model
        What `training_step(..., accumulate=...)` returned, or what AutoCast made of that: casts are the same in both.

    Returns
    -------
    Model
        Takes what the step takes, and has the same parameters and updates, so that an executable of it can `share` the
        state of the step's. Its result is the sum of the losses so far. Nothing is sent to other processes.

    Raises
    ------
    TrainingError
        The step accumulates nothing.
    """
    variables = dict(zip(step.params, step.main.params[step.num_input :], strict=True))
    accumulators = {var: name for name, var in variables.items() if is_accumulator(name)}
    if not accumulators:
        raise TrainingError(
            "accumulation_step: the model has no accumulators, expected what training_step(..., accumulate=4) returned"
        )
    bindings, results = straight_line(step.main)
    news = dict(zip(step.updated, results[step.num_results :], strict=True))
    totals = {
        accumulators[binding.value.args[0]]: binding.var
        for binding in bindings
        if is_op(binding.value, "relax.add") and binding.value.args[0] in accumulators
    }
    own = step.updated[: int(step.main.attrs[OF_MODEL])]

    def build(builder: PlacedBuilder) -> Mapping[str, relax.Expr]:
        for binding in bindings:
            builder.emit_normalized(binding)
        kept = {name: _of_this_rank(news[name], bindings) for name in own}
        total = totals[f"{ACCUMULATED}loss"]
        return {"loss": total, **{name: {**variables, **kept, **totals}[name] for name in step.updated}}

    mod = new_function(step.main.params, dict(step.main.attrs), build, step.mod)
    return step.replace(mod=mod)


def _of_this_rank(value: relax.Expr, bindings: Sequence[relax.Binding]) -> relax.Expr:
    """What `value` is the mean over ranks of, on this rank; itself where it is none."""
    bound = {binding.var: binding.value for binding in bindings}
    source: Any = value
    while source in bound and isinstance(bound[source], relax.Var):
        source = bound[source]
    field: Any = bound.get(source)
    done: Any = bound.get(field.tuple_value) if isinstance(field, relax.TupleGetItem) else None
    if not is_op(done, "relax.collective.all_reduce_done"):
        return value
    (parts,) = bound[done.args[0]].args
    return parts.fields[field.index]


def groups_of(
    batches: Iterable[Batch] | Callable[[int], Batch], size: int
) -> Iterable[Sequence[Batch]] | Callable[[int], Sequence[Batch]]:
    """Batches in groups of `size` that follow each other, each for one step; the last ones that are too few are left.

    A function is asked for the batches `step * size`, `step * size + 1` and so on.

    Raises
    ------
    InputError
        There are fewer batches than one step takes.
    """
    if callable(batches):
        draw = batches
        return lambda step: [draw(step * size + number) for number in range(size)]
    if isinstance(batches, Sized) and len(batches) < size:
        raise InputError(
            f"Trainer.fit: got {len(batches)} batches and accumulate={size}, expected that many for each step at "
            "least. Give more, smaller ones, or accumulate less"
        )

    def grouped() -> Iterator[list[Batch]]:
        group: list[Batch] = []
        for batch in batches:
            group.append(batch)
            if len(group) == size:
                yield group
                group = []

    return arranged(batches, grouped, lambda length: length // size)
