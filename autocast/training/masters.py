"""Parameters that arrive in low precision are trained by float32 masters, of which the model reads a cast.

    main(x, w: bfloat16):                    main(x, w: float32):
        y = matmul(x, w)                         w1 = astype(w, "bfloat16")
                                                 y = matmul(x, w1)

An optimizer's step is often less than half a unit in the last place of a low parameter, and would be lost. A policy
that wants no masters (`fp32_params=False`) stores `w` low again: `autocast.passes.masters`.

Source: `--fp32-params` of SambaFlow, `multi_precision` of Paddle.
"""

from __future__ import annotations

from collections.abc import Iterable

import tvm
from tvm import relax

from autocast import ir
from autocast.model.value import Model
from autocast.training.building import emit_body, new_function


def with_masters(model: Model, names: Iterable[str]) -> Model:
    """`model` with float32 parameters in place of those called `names`; it computes what it did, in the same dtypes."""
    main, low = model.main, set(names)
    pairs = list(zip(model.params, main.params[model.num_input :], strict=True))
    masters = {
        name: relax.Var(var.name, relax.TensorType(var.ty.shape, "float32"), var.span)
        for name, var in pairs
        if name in low
    }

    def build(builder: ir.PlacedBuilder) -> dict[str, relax.Expr]:
        for name, var in pairs:
            if name in masters:
                cast = builder.normalize(relax.op.astype(masters[name], ir.dtype_of(var)))
                builder.emit_normalized(relax.VarBinding(var, cast))
        return {f"result_{at}": result for at, result in enumerate(emit_body(builder, main))}

    params = [*main.params[: model.num_input], *(masters.get(name, var) for name, var in pairs)]
    values = {name: tvm.runtime.tensor(model.params[name].numpy().astype("float32")) for name in masters}
    mod = new_function(params, dict(main.attrs), build, model.mod)
    return model.replace(mod=mod, params={**model.params, **values})
