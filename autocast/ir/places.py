"""Where a value comes from, kept on its variable: the torch module, the region in which its author wrote it, in a
backward pass the forward call that it is the gradient of, and whether it follows a conversion to float32.

A variable's span holds this, as a span of a compiler names a file. It is not printed and makes no two modules
different. Regions decide which casting rule an operator is asked (`autocast.policy`); what is to be recomputed in
training is found by its module (`autocast.training.recompute`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator

from autocast.ir.views import all_bindings, identity, is_op, relax_functions

#: What regions are called: "" is none, "guard" `fp16_guard`, "leave" what keeps the author's dtypes, else a dtype.
REGIONS = ("", "guard", "leave", "float32", "bfloat16", "float16")

_SEPARATOR = "|"
_KERNEL_CALLS = ("relax.call_tir", "relax.call_tir_inplace")
#: The places that names of sources say, by `identity`: TVM has one object for each name, and keeps it.
_places: dict[int, tuple[tvm.ir.SourceName, Place]] = {}
_active: ContextVar[str] = ContextVar("autocast_region", default="")


class Place(NamedTuple):
    """Where a value comes from.

    Attributes
    ----------
    module : str
        The dotted path of the torch submodule (`bert.encoder.layer.0.attention.self`); empty for the model itself.
    region : str
        The innermost region around it, one of `REGIONS`.
    forward, forward_result : str
        In a backward pass, the operator (`relax.nn.conv2d`) of the forward call whose gradient this computes, and the
        name of the variable that the call is bound to; else empty.
    converted : str
        "float32" where this is computed from what its author converted to float32, which it was already; a low dtype on
        another name for a value that its author rounds to it, and that is stored so; else empty.
    """

    module: str = ""
    region: str = ""
    forward: str = ""
    forward_result: str = ""
    converted: str = ""

    def span(self) -> tvm.ir.Span | None:
        """The place as the span of a variable."""
        if self == NOWHERE:
            return None
        return tvm.ir.Span(tvm.ir.SourceName(_SEPARATOR.join(self)), 0, 0, 0, 0)


NOWHERE = Place()


def place_of(var: relax.Var) -> Place:
    """The place of a variable; `Place()` where nobody said."""
    span = var.span
    if span is None:
        return NOWHERE
    source = span.source_name
    key = identity(source)
    if key not in _places:
        _places[key] = source, _written(source.name)
    return _places[key][1]


def whereabouts(var: relax.Var, function: str) -> str:
    """What errors call a variable of a function: `%lv4 in @main`, and after it the submodule that it comes from.

    >>> whereabouts(relax.Var("lv4", span=Place("encoder.0.query").span()), "main")
    '%lv4 in @main (encoder.0.query)'
    """
    module = place_of(var).module
    return f"%{var.name} in @{function}{f' ({module})' if module else ''}"


def _written(name: str) -> Place:
    parts = name.rsplit(_SEPARATOR, len(NOWHERE) - 1)
    return Place(*parts) if len(parts) == len(NOWHERE) and parts[1] in REGIONS else NOWHERE


def places_of_kernels(mod: tvm.IRModule) -> dict[str, tuple[str, ...]]:
    """For each kernel that functions of `mod` call, the submodules that its calls come from, one for each call.

    Calls whose origin nobody said are left out: conversions of parameters, what a module that was written by hand has.
    """
    found: dict[str, list[str]] = {}
    for _, function in relax_functions(mod):
        for binding in all_bindings(function.body):
            callee = binding.value.args[0] if is_op(binding.value, *_KERNEL_CALLS) else None
            module = place_of(binding.var).module
            if isinstance(callee, tvm.ir.GlobalVar) and module:
                found.setdefault(callee.name_hint, []).append(module)
    return {name: tuple(modules) for name, modules in found.items()}


@contextmanager
def active_region(region: str) -> Iterator[None]:
    """Operators that a `PlacedBuilder` emits inside are in `region`; in this thread, or task, only."""
    token = _active.set(region)
    try:
        yield
    finally:
        _active.reset(token)


def current_region() -> str:
    """The innermost region that this thread, or task, has entered; empty if none."""
    return _active.get()


class PlacedMutator(PyExprMutator):
    """A mutator that knows the place of the binding it visits, and gives it to what it emits."""

    place = NOWHERE

    def visit_var_binding_(self, binding: relax.VarBinding) -> None:
        """Note the place, and go on."""
        self.place = place_of(binding.var)
        super().visit_var_binding_(binding)

    def emit(self, expr: relax.Expr) -> relax.Var:
        """Bind a part of the new value of the binding that is visited."""
        value = self.builder_.normalize(expr)
        kind = relax.DataflowVar if self.builder_.current_block_is_dataflow() else relax.Var
        var = kind(self.builder_.get_unique_name("lv"), value.ty, self.place.span())
        self.builder_.emit_normalized(relax.VarBinding(var, value))
        return var


class PlacedBuilder(relax.BlockBuilder):
    """A `relax.BlockBuilder` whose variables say where they come from.

    Every variable that it makes has the place `place`, or is in the region that is active (`amp.disable_autocast`,
    `amp.fp16_guard`) where `place` is None.

    ::

        builder = PlacedBuilder()
        with builder.function("main", [x, w]), builder.dataflow():
            with amp.disable_autocast(dtype="float32"):
                y = builder.emit(relax.op.nn.softmax(x))
    """

    place: Place | None = None

    def emit(self, expr: Any, name_hint: str = "") -> relax.Var:
        """Bind `expr`, and before it each call that it is made of, to new variables of the current block."""
        is_local = self.current_block_is_dataflow()
        name = name_hint or ("lv" if is_local else "gv")
        return self._bind(self._flat(expr, {}), relax.DataflowVar if is_local else relax.Var, name)

    def emit_output(self, output: Any, name_hint: str = "") -> relax.Var:
        """Bind `output` to a new variable that is seen outside the current block."""
        return self._bind(self._flat(output, {}), relax.Var, name_hint or "gv")

    def emit_normalized(self, binding: relax.Binding) -> None:
        """Emit a binding as it is; what is emitted after it has other names."""
        self.get_unique_name(binding.var.name)
        super().emit_normalized(binding)

    def _exit_function_scope(self, kind: Any, error: Any, trace: Any) -> None:
        """End what a function has begun that an error leaves, of which TVM's builder warns when it is destroyed."""
        if kind is not None:
            self._end_block()
            self.end_scope()
        super()._exit_function_scope(kind, error, trace)

    def _bind(self, expr: relax.Expr, kind: type[relax.Var], name: str) -> relax.Var:
        value = self.normalize(expr)
        if isinstance(value, relax.Var):
            place = place_of(value)  # TVM lets the new name of an old value replace the old one
        else:
            place = Place("", current_region()) if self.place is None else self.place
        var = kind(self.get_unique_name(name), value.ty, place.span())
        super().emit_normalized(relax.VarBinding(var, value))
        return var

    def _flat(self, expr: Any, bound: dict[relax.Expr, relax.Var]) -> Any:
        """`expr` with variables for the calls among its arguments, which TVM would bind without a place."""
        if isinstance(expr, list | tuple):
            return relax.Tuple([self._leaf(field, bound) for field in expr])
        if isinstance(expr, relax.Tuple):
            return relax.Tuple([self._leaf(field, bound) for field in expr.fields])
        if isinstance(expr, relax.TupleGetItem):
            return relax.TupleGetItem(self._leaf(expr.tuple_value, bound), expr.index)
        if isinstance(expr, relax.Call):
            old = list(expr.args)
            args = [self._leaf(arg, bound) for arg in old]
            if any(a is not b for a, b in zip(args, old, strict=True)):
                return relax.Call(expr.op, args, expr.attrs, expr.ty_args, expr.span)
        return expr

    def _leaf(self, expr: Any, bound: dict[relax.Expr, relax.Var]) -> Any:
        """A variable for a call, the same one for the same call."""
        if not isinstance(expr, relax.Call):
            return self._flat(expr, bound)
        if expr not in bound:
            bound[expr] = self.emit(self._flat(expr, bound))
        return bound[expr]


def canonicalize_bindings(mod: tvm.IRModule) -> tvm.IRModule:
    """TVM's pass of this name, which by itself forgets the places of results that are none any more."""
    mod = tvm.IRModule(dict(mod.functions.items()), attrs=mod.attrs, global_infos=mod.global_infos)
    for global_var, function in list(mod.functions.items()):
        if isinstance(function, relax.Function) and isinstance(function.body, relax.SeqExpr):
            blocks = [_with_local_results(block) for block in function.body.blocks]
            body = relax.SeqExpr(blocks, function.body.body)
            mod[global_var] = relax.Function(
                function.params, body, function.ret_ty, function.is_pure, function.attrs, function.span
            )
    return relax.transform.CanonicalizeBindings()(mod)


def _with_local_results(block: relax.BindingBlock) -> relax.BindingBlock:
    """The block with a local variable for each value that it shows, and shows another name of."""
    if not isinstance(block, relax.DataflowBlock):
        return block
    bindings: list[relax.Binding] = []
    for binding in block.bindings:
        var = binding.var
        if isinstance(binding, relax.VarBinding) and isinstance(binding.value, relax.Call) and type(var) is relax.Var:
            local = relax.DataflowVar(var.name, var.ty, var.span)
            bindings += [relax.VarBinding(local, binding.value), relax.VarBinding(var, local)]
        else:
            bindings.append(binding)
    return relax.DataflowBlock(bindings, block.span)
