"""Random numbers for modules that were written with `relax.nn.dropout`, which drops nothing."""

from __future__ import annotations

import tvm
from tvm import relax
from tvm.relax.expr_functor import mutator

from autocast.errors import TrainingError
from autocast.frontend.importing.randomness import RANDOM_STATE, next_random_state, random_state, random_state_variable
from autocast.ir import dtype_of, is_op
from autocast.ir.places import PlacedMutator
from autocast.messages import check_kind
from autocast.model.value import Model
from autocast.operators.own import seeded_dropout
from autocast.training.building import emit_body, new_function


def seed_dropout(model: Model, seed: int = 0) -> Model:
    """The model with every `relax.nn.dropout` of main as `relax.nn.seeded_dropout`, which does drop.

    Before::                                       After::

        def main(x, w):                                def main(x, w, random_state):
            y = R.nn.dropout(x, rate=0.1)                  z = R.nn.seeded_dropout(x, random_state, rate=0.1, stream=0)
            z = y[0]                                       s = R.add(random_state, [0, 1])
            return R.matmul(z, w)                          return R.matmul(z, w), s      # s is an update

    Parameters
    ----------
    model : Model
        Any model. One without `relax.nn.dropout` is given back as it is; `from_torch` makes none.
    seed : int
        Where the random numbers start.

    Returns
    -------
    Model
        Each call of dropout draws from a stream of its own. The masks of `relax.nn.dropout`, where something reads
        them, are 1 where an element is kept.
    """
    check_kind("seed_dropout", model, Model, TrainingError, "a Model: autocast.from_torch(module, example_args)")
    start = random_state(seed)
    seeded = _Seed(model.mod)
    main = seeded.visit_expr(model.main)
    if seeded.streams == 0:
        return model

    def build(builder: relax.BlockBuilder) -> dict[str, relax.Expr]:
        outputs = {f"output_{i}": output for i, output in enumerate(emit_body(builder, main))}
        return {**outputs, RANDOM_STATE: next_random_state(seeded.state)}

    attrs = dict(main.attrs)
    attrs["updates"] = [*attrs.get("updates", ()), len(model.params)]
    return model.replace(
        mod=new_function([*main.params, seeded.state], attrs, build, model.mod),
        params={**model.params, RANDOM_STATE: start},
        frozen=model.frozen | {RANDOM_STATE},
    )


@mutator
class _Seed(PlacedMutator):
    def __init__(self, mod: tvm.IRModule) -> None:
        super().__init__(mod)
        self.state = random_state_variable()
        self.streams = 0

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        call = super().visit_call_(call)
        if not is_op(call, "relax.nn.dropout"):
            return call
        x, rate, stream = call.args[0], float(call.attrs.rate), self.streams
        self.streams += 1
        ones = self.emit(relax.op.ones_like(x))
        result, kept = (self.emit(seeded_dropout(value, self.state, rate=rate, stream=stream)) for value in (x, ones))
        mask = relax.op.astype(relax.op.not_equal(kept, relax.const(0.0, dtype_of(x))), dtype_of(x))
        return relax.Tuple([result, self.emit(mask)])
