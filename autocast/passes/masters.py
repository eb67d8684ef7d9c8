"""Training without float32 masters: parameters that are stored low, and updated there.

    main(x, w: float32):                     main(x, w: bfloat16):
        w1 = astype(w, "bfloat16")               v = astype(w, "float32")
        y = matmul(x, w1)                        y = matmul(x, w)
        ...                                      ...
        u = sgd(w, g, rate)                      u = sgd(v, g, rate)
        return loss, u[0]                        return loss, astype(u[0], "bfloat16")

Source: `multi_precision=False` of Paddle, and SambaFlow without `--fp32-params`.
"""

from __future__ import annotations

from collections.abc import Mapping

from tvm import relax

from autocast.ir import all_bindings, dtype_of, identity
from autocast.model import Model
from autocast.model.step import PARAMETER, updated_by


def trained_parameters(model: Model) -> set[str]:
    """The parameters that a training step updates by an optimizer's function; none of another model."""
    calls = [binding.value for binding in all_bindings(model.main.body)]
    places = [(call, updated_by(call, model.mod).get(PARAMETER)) for call in calls]
    updated = {identity(call.args[place]) for call, place in places if place is not None}
    variables = zip(model.params, model.main.params[model.num_input :], strict=True)
    return {name for name, variable in variables if identity(variable) in updated}


def without_masters(model: Model, low_forms: Mapping[str, relax.Var]) -> relax.Function:
    """The `main` of a training step with masters computed from their low forms, and rounded where they are replaced.

    It still has the masters for parameters: who calls this puts the low forms in their place, and reads those where the
    masters are cast.
    """
    main = model.main
    variables = dict(zip(model.params, main.params[model.num_input :], strict=True))
    widened = [relax.VarBinding(variables[name], relax.op.astype(low, "float32")) for name, low in low_forms.items()]
    narrowed = []
    outputs = list(main.body.body.fields)
    for name, low in low_forms.items():
        place = model.num_results + len(model.written) + model.updated.index(name)
        rounded = relax.Var(f"{low.name}_rounded", low.ty)
        narrowed.append(relax.VarBinding(rounded, relax.op.astype(outputs[place], dtype_of(low))))
        outputs[place] = rounded
    blocks = [relax.DataflowBlock(widened), *main.body.blocks, relax.DataflowBlock(narrowed)]
    body = relax.BlockBuilder().normalize(relax.SeqExpr(blocks, relax.Tuple(outputs)))
    return relax.Function(main.params, body, None, main.is_pure, main.attrs)
