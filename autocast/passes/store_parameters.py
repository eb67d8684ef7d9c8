"""Parameters cast offline: one that is only ever read through its cast is stored in low precision, once and for all.

    main(x, w: float32):                     main(x, w: bfloat16):
        w1 = permute_dims(w)                     w1 = permute_dims(w)
        w2 = astype(w1, "bfloat16")              y = matmul(x, w1)
        y = matmul(x, w2)

A cast of another layout of a parameter counts as its cast: moving data and rounding it commute.
What a training step updates stays float32, the optimizer's master, unless a policy wants none (`masters.py`).
Source: `cast_params_offline` of MXNet.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from autocast.ir import all_bindings, dtype_of, identity, op_name, out_of_range
from autocast.ir.places import canonicalize_bindings
from autocast.model import Model
from autocast.passes.masters import trained_parameters, without_masters
from autocast.policy.facts import moves_data
from autocast.runtime.tensors import copy

_MEBIBYTE = 2**20


@dataclass(frozen=True)
class StoredParameters:
    """Which parameters are stored in low precision now, and which could not be.

    Attributes
    ----------
    dtype : str
        The low dtype.
    stored : tuple of str
        Parameters that are stored in it alone.
    shared : tuple of str
        Parameters that are stored in both, since some uses are float32; the low copies are called NAME@DTYPE.
    mixed, unread : tuple of str
        Parameters that stay float32 because some uses are low and others are not, and because none is low.
    out_of_range : dict of str to str
        Parameters that the dtype cannot hold, which stay float32, and why.
    casts : int
        Casts that are no longer made at each call.
    saved_bytes : int
        By how much the parameters have shrunk; below 0 where copies take more than was saved.
    """

    dtype: str
    stored: tuple[str, ...] = ()
    shared: tuple[str, ...] = ()
    mixed: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()
    out_of_range: Mapping[str, str] = field(default_factory=dict)
    casts: int = 0
    saved_bytes: int = 0

    def summary(self) -> str:
        """One line: `40 parameters in bfloat16 (2 in float32, too): 12.1 MiB less, casts offline: 40`."""
        both = f" ({len(self.shared)} in float32, too)" if self.shared else ""
        change = f"{abs(self.saved_bytes) / _MEBIBYTE:.1f} MiB {'more' if self.saved_bytes < 0 else 'less'}"
        lost = f", {len(self.out_of_range)} out of its range" if self.out_of_range else ""
        count = len(self.stored) + len(self.shared)
        what = f"{count} parameter{'s' if count != 1 else ''} in {self.dtype}{both}"
        return f"{what}: {change}, casts offline: {self.casts}{lost}"


def copy_name(name: str, dtype: str) -> str:
    """What the low copy of a parameter is called that is stored in both precisions."""
    return f"{name}@{dtype}"


def store_parameters(
    model: Model,
    dtype: str,
    names: Iterable[str] | None = None,
    *,
    shared: bool = False,
    masters: bool = True,
) -> tuple[Model, StoredParameters]:
    """`model` with parameters in low precision wherever only that is read; main's signature changes accordingly.

    Parameters
    ----------
    model : Model
        After AutoCast: where `main` reads a parameter, or another layout of it, through a cast to `dtype`.
    dtype : str
        The low dtype.
    names : iterable of str, optional
        The only parameters to store; None: all.
    shared : bool
        Store a parameter twice that is read in both precisions; the copies come after all other parameters.
    masters : bool
        Whether all parameters stay float32 that a training step updates; if not, those of which low precision is read
        are stored in nothing else, and updates compute in float32 what they round then.

    Returns
    -------
    Model
        It shares every parameter that is stored as it was, unless torch may write to it.
    StoredParameters
    """
    variables = dict(zip(model.params, model.main.params[model.num_input :], strict=True))
    chosen = set(model.params if names is None else names) - set(model.updated)
    trained = set() if masters else trained_parameters(model)
    chosen |= trained
    candidates = {name: variables[name] for name in model.params if name in chosen and _is_float32(variables[name])}
    reads = _Reads(model.main, candidates.values(), dtype)
    groups: dict[str, list[str]] = defaultdict(list)
    reasons: dict[str, str] = {}
    values: dict[str, np.ndarray] = {}
    for name, variable in candidates.items():
        low, wide = reads.of(variable)
        if not low:
            groups["unread"].append(name)
        elif wide and not shared and name not in trained:
            groups["mixed"].append(name)
        else:
            value = model.params[name].numpy()
            reason = out_of_range(value, dtype)
            if reason is not None:
                reasons[name] = reason
            else:
                groups["shared" if wide and name not in trained else "stored"].append(name)
                values[name] = value.astype(dtype)
    low_forms = {
        identity(variables[name]): _low_parameter(variables[name], dtype, name in groups["shared"]) for name in values
    }
    rewriter = _Rewriter(reads, low_forms)
    params: dict[str, tvm.runtime.Tensor] = dict(model.params)
    trailing = dict(variables)
    for name, value in values.items():
        key = copy_name(name, dtype) if name in groups["shared"] else name
        params[key], trailing[key] = tvm.runtime.tensor(value), low_forms[identity(variables[name])]
    replaced = {name: low_forms[identity(variables[name])] for name in model.updated if name in values}
    main = without_masters(model, replaced) if replaced else model.main
    main = rewriter.function(main, [*model.main.params[: model.num_input], *trailing.values()])
    mod = _with_main(model.mod, main)
    if replaced:
        mod = canonicalize_bindings(mod)  # masters are no parameters and no results any more
    frozen = model.frozen | {copy_name(name, dtype) for name in groups["shared"]}
    if model.writes is not None:  # what stays as it was must not change alone
        params = {name: copy(value) if value is model.params.get(name) else value for name, value in params.items()}
    report = StoredParameters(
        dtype,
        **{group: tuple(members) for group, members in groups.items()},
        out_of_range=reasons,
        casts=rewriter.casts,
        saved_bytes=_bytes(model.params) - _bytes(params),
    )
    return model.replace(mod=mod, params=params, frozen=frozen, writes=None), report


def store_signature(mod: tvm.IRModule, dtype: str, names: Iterable[str]) -> tuple[tvm.IRModule, tuple[str, ...]]:
    """`store_parameters` for a module without values: of main's parameters `names`, those that are read low only.

    Returns
    -------
    IRModule
    tuple of str
        The parameters that `mod` takes in low precision now.
    """
    chosen, main = set(names), mod["main"]
    candidates = [param for param in main.params if param.name in chosen and _is_float32(param)]
    reads = _Reads(main, candidates, dtype)
    stored = [param for param in candidates if reads.of(param) == (True, False)]
    low_forms = {identity(param): _low_parameter(param, dtype, False) for param in stored}
    params = [low_forms.get(identity(param), param) for param in main.params]
    return _with_main(mod, _Rewriter(reads, low_forms).function(main, params)), tuple(param.name for param in stored)


def _with_main(mod: tvm.IRModule, main: relax.Function) -> tvm.IRModule:
    functions = {var: function for var, function in mod.functions.items() if var.name_hint != "main"}
    global_var = tvm.ir.GlobalVar("main")
    relax.expr._update_type(global_var, main.ty)
    return tvm.IRModule({**functions, global_var: main}, attrs=mod.attrs, global_infos=mod.global_infos)


def _is_float32(variable: relax.Var) -> bool:
    return dtype_of(variable) == "float32"


def _low_parameter(variable: relax.Var, dtype: str, is_copy: bool) -> relax.Var:
    name = f"{variable.name}_{dtype}" if is_copy else variable.name
    return relax.Var(name, relax.TensorType(variable.ty.shape, dtype), variable.span)


def _bytes(params: Mapping[str, tvm.runtime.Tensor]) -> int:
    return sum(tensor.numpy().nbytes for tensor in params.values())


class _Reads:
    """In which precisions a function reads some of its parameters, and their other layouts."""

    def __init__(self, function: relax.Function, parameters: Iterable[relax.Var], dtype: str) -> None:
        self.casts: dict[int, int] = {}  # the variable of a cast -> what it casts
        self._low: set[int] = set()
        self._wide: set[int] = set()
        tracked = {identity(parameter) for parameter in parameters}
        sources: list[tuple[int, int]] = []
        for binding in all_bindings(function.body):
            var, value = binding.var, binding.value
            source = identity(value.args[0]) if isinstance(value, relax.Call) and len(value.args) else None
            if source in tracked and isinstance(binding, relax.VarBinding):
                if op_name(value) == "relax.astype" and str(value.attrs.dtype) == dtype:
                    self.casts[identity(var)] = source
                    self._low.add(source)
                    continue
                if moves_data(value) and _is_float32(var):
                    tracked.add(identity(var))
                    sources.append((identity(var), source))
                    continue
            if isinstance(value, relax.If):
                for branch in (value.true_branch, value.false_branch):
                    self._wide |= _variables(branch.body)
            else:
                self._wide |= _variables(value)
        self._wide |= _variables(function.body.body)
        for layout, source in reversed(sources):
            for reads in (self._low, self._wide):
                if layout in reads:
                    reads.add(source)
        self.layouts = dict(sources)

    def of(self, variable: relax.Var) -> tuple[bool, bool]:
        """Whether a parameter, or a layout of it, is read in low precision, and whether it is in float32."""
        return identity(variable) in self._low, identity(variable) in self._wide


def _variables(expr: relax.Expr) -> set[int]:
    return {identity(var) for var in relax.analysis.free_vars(expr)}


@mutator
class _Rewriter(PyExprMutator):
    """Reads the low forms of parameters where their casts were read."""

    def __init__(self, reads: _Reads, low_forms: dict[int, relax.Var]) -> None:
        super().__init__()
        self.reads, self.low_forms = reads, low_forms
        self.casts = 0

    def function(self, function: relax.Function, params: list[relax.Var]) -> relax.Function:
        """`function` over other parameters."""
        self.builder_.begin_scope(params)
        body = self.visit_expr(function.body)
        self.builder_.end_scope()
        return relax.Function(params, body, function.ret_ty, function.is_pure, function.attrs, function.span)

    def visit_var_binding_(self, binding: relax.VarBinding) -> None:
        """Drop a cast of a parameter that is stored low, and give a layout of one the precision that is read."""
        var, value = binding.var, binding.value
        key = identity(var)
        if self.reads.casts.get(key) in self.low_forms:
            self.casts += 1
            low = self.low_forms[self.reads.casts[key]]
            if isinstance(var, relax.DataflowVar):
                self.set_var_remap(var, low)
            else:
                self.builder_.emit_normalized(relax.VarBinding(var, low))
            return
        source = self.reads.layouts.get(key)
        is_low, is_wide = self.reads.of(var)
        if source in self.low_forms and is_low:
            moved = self.builder_.normalize(
                relax.Call(value.op, [self.low_forms[source], *value.args[1:]], value.attrs, value.ty_args)
            )
            low = type(var)(var.name, moved.ty, var.span)
            self.builder_.emit_normalized(relax.VarBinding(low, moved))
            self.low_forms[key] = low
        if source in self.low_forms and not is_wide:
            return
        super().visit_var_binding_(binding)
