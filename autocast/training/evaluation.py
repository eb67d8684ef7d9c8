"""A model as it is evaluated: no dropout, running statistics in place of a batch's, and nothing that is updated."""

from __future__ import annotations

import warnings
from collections.abc import Mapping

from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from autocast.errors import TrainingModeWarning
from autocast.frontend.importing.randomness import RANDOM_STATE
from autocast.ir import all_bindings, op_name, relax_functions, with_functions
from autocast.ir.places import canonicalize_bindings
from autocast.model import Model
from autocast.model.mode import in_training_only
from autocast.training.paths import straight_line


def evaluation_form(model: Model) -> Model:
    """`model`, imported in training mode, as `module.eval()` would have been: a pure model.

        d = R.nn.seeded_dropout(x, state)                    n = R.nn.batch_norm(x, gamma, beta, mean, variance)
        n = R.nn.batch_norm(d, gamma, beta,                  return n[0]
                            mean, variance, training=True)
        return (n[0], n[1], n[2], state + (0, 1))

    A model without such parts comes back equal. Parameters that nothing reads any more (the random state) are dropped.

    Warns
    -----
    TrainingModeWarning
        The module's own code updates something: nobody knows what it does in evaluation instead.
    """
    if others := _updated_otherwise(model):
        warnings.warn(
            f"evaluation: the model updates {', '.join(others)} by the module's own code, which may do so in training "
            "alone (`if self.training`), and is evaluated as it was imported. To evaluate what module.eval() computes, "
            "write what was trained into it, trainer.to_torch(module), and import it again",
            TrainingModeWarning,
            stacklevel=3,
        )
    functions = {var: _Evaluation(function).visit_expr(function) for var, function in relax_functions(model.mod)}
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


def _updated_otherwise(model: Model) -> list[str]:
    """Names of what a call updates that is no running statistic, no count and no random state."""
    bindings, results = straight_line(model.main)
    values = {binding.var: binding.value for binding in bindings}
    news = dict(zip(model.updated, results[len(results) - len(model.updated) :], strict=True))
    return [
        name
        for name, new in news.items()
        if name != RANDOM_STATE and "float" in str(new.ty.dtype) and _moved_by(new, values) is None
    ]


def _moved_by(expr: relax.Expr, values: Mapping[relax.Var, relax.Expr]) -> relax.TupleGetItem | None:
    """The running statistic, beside the result of a batch norm in training, that a value is computed of."""
    left: list[relax.Expr] = [expr]
    seen: set[relax.Expr] = set()
    while left:
        expr = left.pop()
        if expr in seen:
            continue
        seen.add(expr)
        of = values.get(expr.tuple_value) if isinstance(expr, relax.TupleGetItem) else None
        if isinstance(of, relax.Tuple):
            left.append(of.fields[expr.index])
            continue
        if of is not None and op_name(of) == "relax.nn.batch_norm" and expr.index > 0:
            return expr
        left.extend([values[expr]] if expr in values else relax.analysis.free_vars(expr))
    return None


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

    def __init__(self, function: relax.Function) -> None:
        super().__init__()
        #: In training: a norm that is called again reads what it has moved, and in evaluation what it had.
        self.values = {binding.var: binding.value for binding in all_bindings(function.body)}

    def kept(self, running: relax.Expr) -> relax.Expr:
        """The statistic that a call reads, or that an earlier call of the same norm has moved."""
        moved = _moved_by(running, self.values)
        if moved is None:
            return running
        return self.kept(self.values[moved.tuple_value].args[2 + moved.index])

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        written, call = call, super().visit_call_(call)
        name = op_name(call)
        if name == "relax.nn.seeded_dropout":
            return call.args[0]
        if name == "relax.nn.dropout":  # (result, mask)
            x = call.args[0]
            return relax.Tuple([x, relax.op.ones_like(x)])
        if name == "relax.nn.batch_norm" and in_training_only(call):
            kept = {field: getattr(call.attrs, field) for field in ("axis", "epsilon", "center", "scale", "momentum")}
            statistics = [self.visit_expr(self.kept(running)) for running in written.args[3:]]
            return relax.op.nn.batch_norm(*call.args[:3], *statistics, **kept, training=False)
        return call
