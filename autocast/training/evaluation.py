"""A model as it is evaluated: no dropout, running statistics in place of a batch's, and nothing that is updated."""

from __future__ import annotations

from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from autocast.ir import op_name, relax_functions, with_functions
from autocast.ir.places import canonicalize_bindings
from autocast.model import Model
from autocast.model.mode import in_training_only


def evaluation_form(model: Model) -> Model:
    """`model`, imported in training mode, as `module.eval()` would have been: a pure model.

        d = R.nn.seeded_dropout(x, state)                    n = R.nn.batch_norm(x, gamma, beta, mean, variance)
        n = R.nn.batch_norm(d, gamma, beta,                  return n[0]
                            mean, variance, training=True)
        return (n[0], n[1], n[2], state + (0, 1))

    A model without such parts comes back equal. Parameters that nothing reads any more (the random state) are dropped.
    """
    functions = {var: _Evaluation().visit_expr(function) for var, function in relax_functions(model.mod)}
    mod = with_functions(model.mod, functions)
    if model.updated or model.written:
        mod["main"] = _with_results(mod["main"], model.num_results)
    mod = canonicalize_bindings(mod)
    mod = relax.transform.DeadCodeElimination(["main"])(mod)
    main = mod["main"]
    read = set(relax.analysis.free_vars(main.body))
    variables = dict(zip(model.params, main.params[model.num_input :], strict=True))
    params = {name: model.params[name] for name, variable in variables.items() if variable in read}
    kept = [*main.params[: model.num_input], *(variables[name] for name in params)]
    mod["main"] = relax.Function(kept, main.body, main.ret_ty, main.is_pure, main.attrs)
    return model.replace(mod=mod, params=params, frozen=model.frozen & params.keys(), report=None)


def _with_results(main: relax.Function, count: int) -> relax.Function:
    """`main` with its first `count` results only: without updates, and inputs that it writes into."""
    outputs = main.body.body
    results = [relax.TupleGetItem(outputs, index) for index in range(count)]
    result = results[0] if count == 1 else relax.Tuple(results)
    body = relax.BlockBuilder().normalize(relax.SeqExpr(main.body.blocks, result))
    return (
        relax.Function(main.params, body, None, main.is_pure, main.attrs)
        .without_attr("updates")
        .without_attr("written")
    )


@mutator
class _Evaluation(PyExprMutator):
    """Replaces what a model does in training only."""

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        call = super().visit_call_(call)
        name = op_name(call)
        if name == "relax.nn.seeded_dropout":
            return call.args[0]
        if name == "relax.nn.dropout":  # (result, mask)
            x = call.args[0]
            return relax.Tuple([x, relax.op.ones_like(x)])
        if name == "relax.nn.batch_norm" and in_training_only(call):
            kept = {field: getattr(call.attrs, field) for field in ("axis", "epsilon", "center", "scale", "momentum")}
            return relax.op.nn.batch_norm(*call.args, **kept, training=False)
        return call
