"""Which casts of a module become kernels of their own: asked of the compiled kernels, not of what chose them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import ml_dtypes  # noqa: F401  (numpy then knows bfloat16)
import numpy as np
import tvm
from tvm import relax, tirx
from tvm.relax.expr_functor import PyExprMutator, mutator

from autocast.ir import all_bindings, dtype_of, is_op, relax_functions
from autocast.kernels import lower
from autocast.runtime.program import CARRY, PREPARE
from tests.kernels.compiling import compile_kernels

_FLOATS = frozenset(("float32", "bfloat16", "float16"))
_MARK = re.compile(r"v\d+q")
#: What a run-time dimension is while a kernel is tried.
_DIMENSION = 6


@dataclass(frozen=True)
class Cast:
    """A cast of a module: its variable's name, what it casts to, and the marks of its operand and of itself."""

    function: str
    variable: str
    dtype: str
    operand: str
    mark: str


@mutator
class _Mark(PyExprMutator):
    """Gives every variable a name of its own that phases keep."""

    def __init__(self, mod: tvm.IRModule) -> None:
        super().__init__(mod)
        self.marks: dict[relax.Var, str] = {}

    def visit_var_def_(self, var: relax.Var) -> relax.Var:
        return type(var)(self.marks.setdefault(var, f"v{len(self.marks)}q"), var.ty, var.span)


def _compared(function: relax.Function) -> list[relax.Binding]:
    """The casts that results depend on, unless they depend on the model's parameters alone.

    Such are made before the first call, in whatever way; parameters themselves are converted then.
    """
    bindings = list(all_bindings(function.body))
    reads: dict[relax.Var, set[relax.Var]] = {}
    for binding in bindings:
        read = reads[binding.var] = set()
        relax.analysis.post_order_visit(
            binding.value, lambda expr, read=read: read.add(expr) if isinstance(expr, relax.Var) else None
        )
    live: set[relax.Var] = set()
    pending = list(relax.analysis.free_vars(function.body.body))
    while pending:
        var = pending.pop()
        if var not in live:
            live.add(var)
            pending += reads.get(var, ())
    inputs = (function.attrs or {}).get("num_input", len(function.params))
    parameters = set(function.params[int(inputs) :])
    beforehand: set[relax.Var] = set()
    for var, read in reads.items():
        if read <= parameters | beforehand:
            beforehand.add(var)
    return [
        binding
        for binding in bindings
        if is_op(binding.value, "relax.astype") and binding.var in live and not reads[binding.var] & beforehand
    ]


def marked(mod: tvm.IRModule) -> tuple[tvm.IRModule, list[Cast]]:
    """`mod` with a name of its own for every variable, and its casts that are to be compared."""
    mutated = _Mark(mod)
    for var, function in relax_functions(mod):
        mutated.builder_.update_func(var, mutated.visit_expr(function))
    marks = mutated.marks
    casts = [
        Cast(
            function=global_var.name_hint,
            variable=binding.var.name,
            dtype=dtype_of(binding.value) or "",
            operand=marks.get(binding.value.args[0], ""),
            mark=marks[binding.var],
        )
        for global_var, function in relax_functions(mod)
        for binding in _compared(function)
    ]
    return mutated.builder_.get(), casts


def _pairs(call: relax.Call) -> list[tuple[int, int]]:
    """The results and arguments of a kernel's call, by their places, that may be one and the other in another dtype."""
    results, inputs = _results(call), [argument.ty for argument in call.args[1].fields]
    if not all(isinstance(type, relax.TensorType) for type in inputs):
        return []
    return [
        (result, argument)
        for result, stored in enumerate(results)
        for argument, read in enumerate(inputs)
        if _FLOATS.issuperset((str(stored.dtype), str(read.dtype)))
        and np.prod(_shape(read)) == np.prod(_shape(stored))
        and (stored.dtype != read.dtype or len(inputs) == 1)
    ]


def conversions(
    function: tirx.PrimFunc, call: relax.Call, pairs: list[tuple[int, int]], target: tvm.target.Target
) -> list[tuple[int, int]]:
    """Those of `pairs` whose result is the argument's elements in another dtype.

    The kernel of `call` is compiled and run, and its results are compared with numpy's conversions.
    """
    results, inputs = _results(call), [argument.ty for argument in call.args[1].fields]
    if not pairs or len(function.params) != len(inputs) + len(results):
        return []
    built = compile_kernels({"f": function.with_attr("global_symbol", "f")}, target)
    for integer in (0, 1):  # which way a choice goes
        generator = np.random.default_rng(integer)
        arrays = [
            (3.0 * generator.standard_normal(_shape(type))).astype(str(type.dtype))
            if str(type.dtype) in _FLOATS
            else np.full(_shape(type), integer, str(type.dtype))
            for type in (*inputs, *results)
        ]
        tensors = [tvm.runtime.tensor(array) for array in arrays]
        built["f"](*tensors)
        pairs = [
            (result, argument)
            for result, argument in pairs
            if _converted(arrays[argument], tensors[len(inputs) + result].numpy())
        ]
    return pairs


def _results(call: relax.Call) -> list[relax.TensorType]:
    (out,) = call.ty_args
    return list(out.fields) if isinstance(out, tvm.ir.TupleType) else [out]


def _converted(source: np.ndarray, result: np.ndarray) -> bool:
    """Whether `result` is `source` in another dtype, or rounded to one."""
    if source.dtype == result.dtype and np.array_equal(source.ravel(), result.ravel()):
        return False
    forms = [source, *(source.astype(dtype) for dtype in _FLOATS)]
    return any(np.array_equal(form.astype(result.dtype).ravel(), result.ravel()) for form in forms)


def _shape(type: relax.TensorType) -> list[int]:
    return [_extent(dim) for dim in type.shape.values]


def _extent(dim: object) -> int:
    analyzer = tvm.sym.Analyzer()
    for var in tirx.analysis.undefined_vars(dim):
        analyzer.bind(var, tirx.const(_DIMENSION, var.ty))
    return int(analyzer.simplify(dim))


def stored_casts(
    mod: tvm.IRModule,
    target: tvm.target.Target,
    may_be: Callable[[str, str, str], bool] = lambda argument, result, dtype: True,
) -> Iterator[tuple[str, str, str]]:
    """What kernels of a lowered module convert and store: the names of argument and result, and the result's dtype.

    Only of such as `may_be` one that is asked for, by the same three, kernels are compiled and tried.
    """
    known: dict[tuple[str, tuple[tuple[int, int], ...]], list[tuple[int, int]]] = {}
    for global_var, function in relax_functions(mod):
        if global_var.name_hint in (PREPARE, CARRY):
            continue
        bound = [binding for block in function.body.blocks for binding in block.bindings]
        for binding in bound:
            call = binding.value
            if not is_op(call, "relax.call_tir"):
                continue
            names = {pair: _names(bound, binding, *pair) for pair in _pairs(call)}
            key = call.args[0].name_hint, tuple(pair for pair, three in names.items() if may_be(*three))
            if key not in known:
                known[key] = conversions(mod[call.args[0]], call, [*key[1]], target)
            yield from (names[pair] for pair in known[key])


def _names(bound: list[relax.Binding], binding: relax.Binding, result: int, argument: int) -> tuple[str, str, str]:
    """An argument and a result of the kernel that a binding calls: their names, and the result's dtype."""
    var = binding.var
    if isinstance(var.ty, tvm.ir.TupleType):
        items = [b for b in bound if isinstance(b.value, relax.TupleGetItem) and b.value.index == result]
        var = next((b.var for b in items if b.value.tuple_value.same_as(binding.var)), var)
    return getattr(binding.value.args[1].fields[argument], "name", ""), var.name, dtype_of(var) or ""


def own_kernels(mod: tvm.IRModule, target: tvm.target.Target) -> dict[tuple[str, str], bool]:
    """For each cast (function, variable) that is compared, whether a kernel stores it that reads its operand."""
    named, casts = marked(mod)
    if not casts:
        return {}
    by_mark = {cast.mark: cast for cast in casts}
    by_operand = {(cast.operand, cast.dtype): cast for cast in casts}
    own = {(cast.function, cast.variable): False for cast in casts}

    def cast_of(argument: str, result: str, dtype: str) -> Cast | None:
        return by_mark.get(_mark_of(result)) or by_operand.get((_mark_of(argument), dtype))

    # Other kernels widen or narrow what the model has no cast of.
    for stored in stored_casts(lower(named, target), target, lambda *names: cast_of(*names) is not None):
        cast = cast_of(*stored)
        own[cast.function, cast.variable] = True
    return own


def _mark_of(name: str) -> str:
    """The mark that a variable's name begins with."""
    match = _MARK.match(name)
    return match.group() if match else ""
