"""The random state of a model, and seeded dropout for modules that were written with `relax.nn.dropout`.

The state is the parameter `random_state`, int32 (seed, steps taken), with an update that counts the step. So a checkpoint
holds it, and a run that is resumed draws the numbers that it would have drawn.
"""

from __future__ import annotations

import numpy as np
import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from autocast.ir import dtype_of, is_op
from autocast.ir.operators import seeded_dropout
from autocast.model.value import Model

#: The parameter's name.
RANDOM_STATE = "random_state"


def random_state(seed: int) -> tvm.runtime.Tensor:
    """The state before the first step: (seed modulo 2^32, 0) in int32."""
    return tvm.runtime.tensor(np.array([seed % 2**32, 0], "uint32").view("int32"))


def random_state_variable() -> relax.Var:
    """The parameter of main that holds the state."""
    return relax.Var(RANDOM_STATE, relax.TensorType([2], "int32"))


def next_random_state(state: relax.Expr) -> relax.Expr:
    """The state after a step."""
    return relax.op.add(state, relax.const(np.array([0, 1], "int32")))


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
        Where the random numbers start, unless the model has a random state already.

    Returns
    -------
    Model
        Each call of dropout draws from a stream of its own. The masks of `relax.nn.dropout`, where something reads
        them, are those numbers times `1 - rate`.
    """
    main = model.main
    mutated = _Seed(model)
    body = mutated.visit_expr(main.body)
    if mutated.streams == 0:
        return model
    updates = [int(position) for position in (main.attrs or {}).get("updates", ())]
    params, values = list(main.params), dict(model.params)
    if RANDOM_STATE not in values:
        params.append(mutated.state)
        updates.append(len(values))
        values[RANDOM_STATE] = random_state(seed)
        body = _with_output(body, next_random_state(mutated.state))
    function = relax.Function(params, body, None, main.is_pure, main.attrs).with_attr("updates", updates)
    mod = tvm.IRModule({**dict(model.mod.functions.items()), model.mod.get_global_var("main"): function})
    mod = relax.transform.CanonicalizeBindings()(relax.transform.Normalize()(mod))
    return model.replace(mod=mod, params=values, frozen=model.frozen | {RANDOM_STATE})


@mutator
class _Seed(PyExprMutator):
    def __init__(self, model: Model) -> None:
        super().__init__(model.mod)
        names = list(model.params)
        known = RANDOM_STATE in names
        self.state = (
            model.main.params[model.num_input + names.index(RANDOM_STATE)] if known else random_state_variable()
        )
        self.streams = 0

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        call = super().visit_call_(call)
        if not is_op(call, "relax.nn.dropout"):
            return call
        rate, stream = float(call.attrs.rate), self.streams
        self.streams += 1

        def drop(x: relax.Expr) -> relax.Expr:
            return self.builder_.emit(seeded_dropout(x, self.state, rate=rate, stream=stream))

        x = call.args[0]
        kept = drop(relax.op.ones_like(x))
        return relax.Tuple([drop(x), relax.op.multiply(kept, relax.const(1.0 - rate, dtype_of(x)))])
