"""Compute once, when a model is compiled, what depends on its parameters alone."""

from __future__ import annotations

import math

import tvm
import tvm_ffi
from tvm import relax

from autocast import ir
from autocast.ir.rewriting import parameters_of, replace_variables
from autocast.operators import Kind, is_kind
from autocast.runtime.program import PREPARE

#: A result of at most this many bytes is worth keeping whatever it was computed from.
SMALL = 64 * 1024

#: How much larger than its sources a kept result may be: packing pads the edges of a matrix.
PADDING = 1.25

#: Calls that are pure by declaration, yet write to an argument, run code that is not known, or give memory to write to.
_OPAQUE = (
    *("relax.call_tir_inplace", "relax.call_dps_packed", "relax.call_pure_packed", "relax.call_inplace_packed"),
    *("relax.builtin.alloc_tensor", "relax.memory.alloc_storage", "relax.memory.alloc_tensor"),
    *("relax.vm.alloc_storage", "relax.vm.alloc_tensor"),
)

#: Arguments that are no tensors, and the same at every call.
_LITERALS = (tvm.ir.GlobalVar, tvm.ir.StringImm, tvm.tirx.IntImm, tvm.tirx.FloatImm)


class _Analysis:
    """Which variables of a function are computed from its parameters and constants alone, and from which.

    Attributes
    ----------
    sources : dict of Var to dict
        Variable -> the bytes of each parameter and constant that it is computed from.
    values : dict of Var to Expr
        What the function binds those variables to, in order; parameters are not among them.
    bindings : dict of Var to VarBinding
        The same where of equal computations only the first is read.
    first : dict of Var to Var
        Variable -> the first that is bound to the same computation, such as the packing of a weight with two products.
    varying : list of Expr
        What all other variables are bound to.
    """

    def __init__(self, function: relax.Function) -> None:
        self.sources: dict[relax.Var, dict[object, float]] = {
            param: {param: _source_bytes(param)} for param in parameters_of(function)
        }
        self.values: dict[relax.Var, relax.Expr] = {}
        self.bindings: dict[relax.Var, relax.VarBinding] = {}
        self.first: dict[relax.Var, relax.Var] = {}
        self.varying: list[relax.Expr] = []
        computed: dict[tvm_ffi.StructuralKey, relax.Var] = {}
        for block in function.body.blocks:
            for binding in block.bindings:
                sources = self._of(binding.value) if isinstance(binding, relax.VarBinding) else None
                if sources is None:
                    self.varying.append(binding.value)
                else:
                    value = self._with_first(binding.value)
                    self.sources[binding.var] = sources
                    self.values[binding.var] = binding.value
                    self.bindings[binding.var] = relax.VarBinding(binding.var, value)
                    self.first[binding.var] = computed.setdefault(tvm_ffi.StructuralKey(value), binding.var)

    def _with_first(self, value: relax.Expr) -> relax.Expr:
        repeated = {
            var: self.first[var]
            for var in relax.analysis.free_vars(value)
            if var in self.first and not self.first[var].same_as(var)
        }
        return replace_variables(value, repeated) if repeated else value

    def _of(self, value: relax.Expr) -> dict[object, float] | None:
        """The sources of `value`; None where it depends on more than parameters and constants."""
        if isinstance(value, relax.Var):
            return self.sources.get(value)
        if ir.is_constant(value):
            return {value.value: _source_bytes(value)}
        if isinstance(value, relax.TupleGetItem):
            return self._of(value.tuple_value)
        if isinstance(value, relax.Tuple):
            return self._all(value.fields)
        if isinstance(value, relax.ShapeExpr):
            return None if any(not isinstance(size, int | tvm.tirx.IntImm) for size in value.values) else {}
        if isinstance(value, relax.Call):
            return self._all(value.args) if _is_pure(value) and ir.is_static_type(value.ty) else None
        return {} if isinstance(value, _LITERALS) else None

    def _all(self, values: list[relax.Expr]) -> dict[object, float] | None:
        together: dict[object, float] = {}
        for value in values:
            sources = self._of(value)
            if sources is None:
                return None
            together.update(sources)
        return together


def _is_pure(call: relax.Call) -> bool:
    return isinstance(call.op, tvm.ir.Op) and bool(call.op.get_attr("FPurity")) and ir.op_name(call) not in _OPAQUE


def _bytes(expr: relax.Expr, least: int = 1) -> float:
    """The bytes of a tensor, `least` for an element; infinity where its shape is not known, or `expr` is no tensor."""
    shape, dtype = ir.static_shape(expr), ir.dtype_of(expr)
    return math.inf if shape is None or dtype is None else math.prod(shape) * max(least, tvm.DataType(dtype).itemsize)


def _source_bytes(source: relax.Expr) -> float:
    """What is kept instead of a source may be as large: of integers the float32 numbers that they stand for."""
    return _bytes(source, 4 if "int" in str(ir.dtype_of(source)) else 1)


class _Choice:
    """What main reads of the values that depend on parameters alone, and who computes each.

    Attributes
    ----------
    kept : list of Var
        Parameters that main still reads.
    lifted : list of Var
        Values that are computed beforehand and become parameters of main.
    replaced : dict of Var to Var
        Variable of main -> the lifted one that holds its value.
    """

    def __init__(self, function: relax.Function, *, only_small: bool) -> None:
        self.analysis = _Analysis(function)
        self.limit = 0.0 if only_small else PADDING
        kept: set[relax.Var] = set()
        self.replaced: dict[relax.Var, relax.Var] = {}
        returned = self._returned(function)
        pending = [*returned, *(var for value in self.analysis.varying for var in relax.analysis.free_vars(value))]
        seen: set[relax.Var] = set()
        while pending:
            var = pending.pop()
            if var in seen or var not in self.analysis.sources:
                continue
            seen.add(var)
            if var not in self.analysis.values:
                kept.add(var)
            elif var not in returned and self.is_worth_keeping(var):
                self.replaced[var] = self.analysis.first[var]
            else:
                pending.extend(relax.analysis.free_vars(self.analysis.values[var]))
        self.kept = [param for param in function.params if param in kept]
        lifted = set(self.replaced.values())
        self.lifted = [var for var in self.analysis.bindings if var in lifted]

    def is_worth_keeping(self, var: relax.Var) -> bool:
        sources, size = self.analysis.sources[var], _bytes(var)
        if not self.limit:
            return size <= SMALL and any(isinstance(source, relax.Var) for source in sources)
        value = self.analysis.bindings[var].value
        is_free = is_kind(value, Kind.VIEW) or (ir.is_op(value, "relax.astype") and size > _bytes(value.args[0]))
        return size <= SMALL or (not is_free and size <= self.limit * sum(sources.values()))

    def _returned(self, function: relax.Function) -> set[relax.Var]:
        """What `function` returns, whether by itself or as a field of a tuple."""
        bound = {binding.var: binding.value for block in function.body.blocks for binding in block.bindings}
        returned: set[relax.Var] = set()
        pending = list(relax.analysis.free_vars(function.body.body))
        while pending:
            var = pending.pop()
            returned.add(var)
            if isinstance(bound.get(var), relax.Tuple | relax.TupleGetItem | relax.Var):
                pending.extend(relax.analysis.free_vars(bound[var]))
        return returned

    def ancestors(self) -> list[relax.VarBinding]:
        """The bindings that the lifted values need, in order."""
        needed: set[relax.Var] = set()
        pending = list(self.lifted)
        while pending:
            var = pending.pop()
            if var in self.analysis.bindings and var not in needed:
                needed.add(var)
                pending.extend(relax.analysis.free_vars(self.analysis.bindings[var].value))
        return [binding for var, binding in self.analysis.bindings.items() if var in needed]


def prepare_parameters(mod: tvm.IRModule, *, only_small: bool = False) -> tvm.IRModule:
    """Move what `main` computes from its parameters alone to the function `autocast_prepare`.

    Before::                                        After::

        def main(x, w):  # num_input = 1                def autocast_prepare(w):
            b = R.astype(w, "bfloat16")                     b = R.astype(w, "bfloat16")
            y = R.matmul(x, b)                              return (b,)
                                                        def main(x, b):  # num_input = 1
                                                            y = R.matmul(x, b)

    `autocast_prepare` takes main's original parameters and returns its new ones: those that main still reads, then
    what was computed from them. A value that is larger than all it is computed from together (by more than padding,
    and than a few pages) is computed at each call: reading its sources is cheaper than keeping it. Of a quantized
    weight the real numbers are kept, though. A view and a widening cast, which kernels do while they load, are computed
    at each call, and so is what main returns, since a caller may write to it.
    Equal computations are done once.

    With `only_small`, just values of a few pages that depend on a parameter move, such as the factors of a
    batch_norm: rules then see parameters, and do not make their computation a part of a kernel.

    A `main` without the attribute `num_input` has no parameters, and stays as it is.
    """
    main = ir.main_of(mod)
    if main is None or "num_input" not in (main.attrs or {}):
        return mod
    choice = _Choice(main, only_small=only_small)
    inputs = int(main.attrs["num_input"])
    if len(choice.kept) == len(main.params) - inputs and not choice.lifted:
        return mod
    prepared = {var: relax.Var(var.name, var.ty) for var in choice.lifted}
    params = [*main.params[:inputs], *choice.kept, *prepared.values()]
    body = replace_variables(main.body, {var: prepared[lifted] for var, lifted in choice.replaced.items()})
    mod = tvm.IRModule(mod.functions, attrs=mod.attrs, global_infos=mod.global_infos)
    earlier = mod[PREPARE] if PREPARE in [var.name_hint for var in mod.get_global_vars()] else None
    mod[PREPARE] = _prepare(choice, main.params[inputs:], earlier)
    mod["main"] = relax.Function(params, body, main.ret_ty, main.is_pure, main.attrs)
    return relax.transform.DeadCodeElimination()(mod)


def _prepare(choice: _Choice, params: list[relax.Var], earlier: relax.Function | None) -> relax.Function:
    """The function from `params`, or from what `earlier` computes them of, to main's new parameters."""
    bindings = choice.ancestors()
    results: list[relax.Expr] = [*choice.kept, *choice.lifted]
    if earlier is not None:
        before, last = _computed(earlier)
        fields = dict(zip(params, last.fields, strict=True))
        after = [relax.VarBinding(binding.var, replace_variables(binding.value, fields)) for binding in bindings]
        bindings = [*before, *after]
        params, results = earlier.params, [fields.get(var, var) for var in results]
    values = relax.Tuple(results)
    out = relax.Var("prepared", tvm.ir.TupleType([result.ty for result in results]))
    block = relax.DataflowBlock([*bindings, relax.VarBinding(out, values)])
    body = relax.SeqExpr([block], out)
    function = relax.Function(params, body, out.ty).with_attr("global_symbol", PREPARE)
    return ir.with_new_variables(function)


def _computed(function: relax.Function) -> tuple[list[relax.Binding], relax.Tuple]:
    """What a function that `_prepare` made computes, and its result: an empty tuple is not bound to a variable."""
    bindings = [binding for block in function.body.blocks for binding in block.bindings]
    result = function.body.body
    return (bindings, result) if isinstance(result, relax.Tuple) else (bindings[:-1], bindings[-1].value)
