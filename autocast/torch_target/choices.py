"""Choices that are made when a model runs, as torch's `cond`."""

from __future__ import annotations

import torch
from torch.utils import _pytree as pytree
from tvm import relax

from autocast.errors import UnsupportedError
from autocast.torch_target.asked import Value
from autocast.torch_target.parts import Surroundings, as_modules, has_tensors_alone, of_its_own
from autocast.torch_target.scope import Scope


def chosen(scope: Scope, expr: relax.If) -> Value:
    """A choice between two branches: modules that take the tensors that either reads.

    Before::                          After::

        if flag:                          y = cond(flag, true_0, false_0, (x,))
            y = R.exp(x)                  # true_0: return (x.exp(),)
        else:                             # false_0: return (x.neg(),)
            y = R.negative(x)
    """
    if not has_tensors_alone(expr.ty):
        raise UnsupportedError(
            f"to_torch: a branch returns {expr.ty}, expected tensors: torch's cond returns nothing else"
        )
    branches = {"true": expr.true_branch, "false": expr.false_branch}
    read = dict.fromkeys(var for branch in branches.values() for var in relax.analysis.free_vars(branch))
    outer = Surroundings(scope, {var: scope.values[var] for var in read if var in scope.values}, branches.values())
    scopes, specs = [], []
    for branch in branches.values():
        inner = scope.inner()
        outer.enter(inner)
        results, spec = pytree.tree_flatten(inner.sequence(branch))
        inner.graph.output(tuple(of_its_own(inner, result).node for result in results))
        scopes.append(inner)
        specs.append(spec)
    modules, passed = as_modules(scope, dict(zip(branches, scopes, strict=True)), outer.tensors)
    arguments = (scope.value(expr.cond), *modules, tuple(passed))
    results = scope.tracer.create_proxy("call_function", torch.ops.higher_order.cond, arguments, {})
    return pytree.tree_unflatten([results[i] for i in range(specs[0].num_leaves)], specs[0])
