"""What stands for each value of the old module in the new one: in which dtypes, and under which names.

A cast stands just before its first use, once for each tensor and dtype.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import cache, lru_cache
from itertools import count
from typing import Any, NamedTuple

import tvm
from tvm import relax

from autocast.ir import identity, is_constant
from autocast.ir.nodes import binding_of, typed_call, variable
from autocast.ir.places import Place, place_of
from autocast.passes.casting.costs import CastCost
from autocast.passes.casting.leaves import Leaf, Tree, fold, leaves
from autocast.passes.casting.plan import ModulePlan
from autocast.passes.casting.solver import CastTensor

_ASTYPE = tvm.ir.Op.get("relax.astype")


class InsertedCast(NamedTuple):
    """One cast of the rewritten module, between float32 and the AMP dtype.

    `variable` holds its result, in a module with no other of that name; `elements` is the tensor's size.
    """

    function: str
    tensor: str
    variable: str
    source: str
    target: str
    elements: int
    cost: CastCost


class Forms:
    """The expressions of the module that `builder` builds, for those of the module that `plan` was read from.

    A tensor is *natural* in the dtype that its producer stores, and *converted* in the other one. A natural tensor may
    have no name yet: then it is a field of a tuple.
    """

    def __init__(self, plan: ModulePlan, low: list[bool], builder: relax.BlockBuilder) -> None:
        self.plan, self.low, self.builder = plan, low, builder
        self.function = ""
        self.numbers: dict[str, Iterator[int]] = defaultdict(count)
        self.casts: list[InsertedCast] = []
        self.variables: dict[int, relax.Expr] = {}
        self.natural: dict[CastTensor, relax.Expr] = {}
        self.converted: dict[CastTensor, relax.Expr] = {}
        self.fields: dict[CastTensor, tuple[relax.Expr, int]] = {}

    def enter_function(self, name: str, params: Iterable[relax.Var]) -> None:
        """Forget what other functions saw."""
        self.function = name
        self.numbers = defaultdict(count)
        self.forget_since(({}, {}, {}))
        for param in params:
            self.name(param, param)

    def visible(self) -> tuple[dict, dict, dict]:
        """What can be seen here, to be given to `forget_since` at the end of a branch."""
        return self.natural.copy(), self.converted.copy(), self.fields.copy()

    def forget_since(self, visible: tuple[dict, dict, dict]) -> None:
        """Return to what was visible before."""
        self.natural, self.converted, self.fields = (known.copy() for known in visible)

    def leave_block(self) -> None:
        """Forget what only the block that ends could see."""
        self.natural = {key: value for key, value in self.natural.items() if not is_local(value)}
        self.converted = {key: value for key, value in self.converted.items() if not is_local(value)}
        self.fields = {key: value for key, value in self.fields.items() if not is_local(value[0])}

    # -- dtypes ------------------------------------------------------------------------------------

    def dtype(self, node: int) -> str:
        """The dtype of what `node` decides."""
        return self.plan.amp if self.low[node] else "float32"

    def natural_dtype(self, leaf: Leaf) -> str:
        """The dtype in which a leaf's producer stores it."""
        return leaf.dtype if leaf.tensor is None else self.dtype(leaf.node)

    def natural_type(self, type: Any, tree: Tree) -> Any:
        """`type` with the dtypes in which the leaves' producers store them."""
        if isinstance(tree, Leaf):
            dtype = self.natural_dtype(tree)
            return type if dtype == tree.dtype else relax.TensorType(type.shape, dtype)
        if isinstance(tree, list):
            fields = [self.natural_type(field, branch) for field, branch in zip(type.fields, tree, strict=True)]
            return tvm.ir.TupleType(fields)
        return type

    # -- names -------------------------------------------------------------------------------------

    def name(self, old: relax.Var, new: relax.Expr, key: int | None = None) -> None:
        """Record what stands for `old`, a variable of the `identity` `key`, now."""
        key = identity(old) if key is None else key
        self.variables[key] = new
        tree = self.plan.trees.get(key)
        if type(tree) is Leaf:
            if tree.tensor is not None and (tree.tensor not in self.natural or is_local(self.natural[tree.tensor])):
                self.natural[tree.tensor] = new
        elif isinstance(tree, list):
            self._name_fields(tree, new)

    def _name_fields(self, tree: list, new: relax.Expr) -> None:
        """Record where the tensors of a tuple are to be found."""
        for at, branch in enumerate(tree):
            if isinstance(branch, list):
                self._name_fields(branch, relax.TupleGetItem(new, at))
            elif branch is not None and branch.tensor is not None:
                self.fields[branch.tensor] = new, at

    def emit(self, value: relax.Expr, old: relax.Var) -> relax.Var:
        """Bind `value` to a variable like `old`: of its name and place, and seen where it was."""
        return self._bind(type(old), self.builder.normalize(value), old.name, old.span)

    def emit_rounded(self, value: relax.Expr, old: relax.Var, dtype: str) -> relax.Var:
        """Another name for `value`, like `old`, that says that its author rounds it to `dtype`, as it is stored."""
        span = place_of(old)._replace(converted=dtype).span()
        return self._bind(type(old), self.builder.normalize(value), old.name, span)

    def expose(self, local: relax.Var, name: str = "") -> relax.Var:
        """A name for `local` that is seen outside its block; it keeps the place."""
        return self._bind(relax.Var, local, name or self._unused("gv"), local.span)

    def bind(self, value: relax.Expr) -> relax.Var:
        """Bind `value` to a new variable, which only its block sees where it is a dataflow block."""
        kind, stem = (relax.DataflowVar, "lv") if self.builder.current_block_is_dataflow() else (relax.Var, "gv")
        return self._bind(kind, self.builder.normalize(value), self._unused(stem))

    def _unused(self, stem: str) -> str:
        """The next name of this stem that no variable of the old module has."""
        numbers = self.numbers[stem]
        while (name := f"{stem}{next(numbers) or ''}") in self.plan.names:
            pass
        return name

    def _bind(self, kind: type[relax.Var], value: relax.Expr, name: str, span: tvm.ir.Span | None = None) -> relax.Var:
        """Bind `value`, whose type is known."""
        var = variable(kind, name, value.ty, span)
        self.builder.emit_normalized(binding_of(var, value))
        return var

    # -- expressions -------------------------------------------------------------------------------

    def renamed(self, expr: relax.Expr) -> relax.Expr:
        """`expr` with the variables of the new module, in the dtypes that they have there."""
        key = identity(expr)
        if key in self.variables:
            return self.variables[key]
        if isinstance(expr, relax.Tuple):
            old = expr.fields[:]
            fields = [self.renamed(field) for field in old]
            return expr if all(map(same, fields, old)) else relax.Tuple(fields)
        if isinstance(expr, relax.TupleGetItem):
            new = self.renamed(expr.tuple_value)
            return expr if same(new, expr.tuple_value) else relax.TupleGetItem(new, expr.index)
        return expr

    def argument(self, arg: relax.Expr, key: int, demands: list[tuple[Leaf, int]]) -> relax.Expr:
        """An argument of a call (and its `identity`), as `use` has it; a plain tensor takes the short way."""
        if len(demands) != 1 or self.plan.trees.get(key) is not demands[0][0] or demands[0][0].literal is not None:
            return self.use(arg, demands)
        leaf, node = demands[0]
        value = self.variables.get(key, arg)
        if self.low[node] == self.low[leaf.node]:
            return value
        return self.form(leaf, value, self.dtype(node))

    def use(self, expr: relax.Expr, demands: list[tuple[Leaf, int]], output: bool = False) -> relax.Expr:
        """`expr` with its leaves in the demanded dtypes; an `output` has a name that is seen outside its block."""
        dtypes = (self.dtype(node) for _, node in demands)
        return self._convert(self.renamed(expr), self._tree_of(expr), dtypes, output)

    def _tree_of(self, expr: relax.Expr) -> Tree:
        if isinstance(expr, relax.Var):
            return self.plan.trees.get(identity(expr))
        if isinstance(expr, relax.Tuple):
            return [self._tree_of(field) for field in expr.fields]
        return self.plan.constants.get(identity(expr)) if is_constant(expr) else None

    def _convert(self, value: relax.Expr, tree: Tree, dtypes: Iterator[str], output: bool) -> relax.Expr:
        if isinstance(tree, Leaf):
            return self._seen(self.form(tree, value, next(dtypes), output), output)
        if not isinstance(tree, list):
            return self._seen(value, output)
        wanted = [[next(dtypes) for _ in leaves(branch)] for branch in tree]
        literal = isinstance(value, relax.Tuple)
        if not literal and self._is_natural(tree, wanted):
            return self._seen(value, output)
        fields = []
        for at, (branch, branch_dtypes) in enumerate(zip(tree, wanted, strict=True)):
            field = value.fields[at] if literal else self._field(value, at, branch)
            fields.append(self._convert(field, branch, iter(branch_dtypes), output))
        return value if literal and all(map(same, fields, value.fields[:])) else relax.Tuple(fields)

    def _seen(self, value: relax.Expr, output: bool) -> relax.Expr:
        return self.expose(value) if output and is_local(value) else value

    def _is_natural(self, tree: list, wanted: Iterable[list[str]]) -> bool:
        return all(
            [self.natural_dtype(leaf) for leaf in leaves(branch)] == dtypes
            for branch, dtypes in zip(tree, wanted, strict=True)
        )

    def _field(self, value: relax.Expr, at: int, branch: Tree) -> relax.Expr:
        if isinstance(branch, Leaf) and branch.tensor in self.natural:
            return self.natural[branch.tensor]
        return self.bind(relax.TupleGetItem(value, at))

    # -- casts -------------------------------------------------------------------------------------

    def form(self, leaf: Leaf, value: relax.Expr, dtype: str, output: bool = False) -> relax.Expr:
        """`value`, which holds `leaf`, in `dtype`: itself, a cast made before, a folded constant, or a new cast."""
        if leaf.literal is not None and dtype != leaf.dtype:
            return fold(leaf.literal, dtype)
        if leaf.literal is not None or dtype == self.natural_dtype(leaf):
            return value
        assert leaf.tensor is not None
        known = self.converted.get(leaf.tensor)
        return known if known is not None else self.cast(leaf, value, dtype, output)

    def cast(self, leaf: Leaf, value: relax.Expr, dtype: str, output: bool = False) -> relax.Expr:
        """A new cast of `value`, which holds `leaf`."""
        is_low = dtype == self.plan.amp
        blocks = {block for node, block in leaf.uses if self.low[node] is is_low}
        local = len(blocks) <= 1 and not output and self.builder.current_block_is_dataflow()
        # It comes from the submodule whose tensor it casts, and is in no region: nobody asked for it there.
        span = _span_in(place_of(value).module) if isinstance(value, relax.Var) else None
        call = typed_call(leaf.type_in(dtype), _ASTYPE, [value], _attributes(dtype))
        kind = relax.DataflowVar if local else relax.Var
        cast = self._bind(kind, call, self._unused(f"{leaf.name}_{dtype}"), span)
        assert leaf.tensor is not None
        self.converted[leaf.tensor] = cast
        source = "float32" if is_low else self.plan.amp
        cost = self.plan.cost(leaf.tensor, dtype, self.low)
        self.casts.append(InsertedCast(self.function, leaf.name, cast.name, source, dtype, leaf.elements, cost))
        return cast

    def cast_outside(self, leaf: Leaf, node: int) -> None:
        """Cast what a branch that follows wants of a tensor, once for both branches."""
        dtype = self.dtype(node)
        if leaf.literal is not None or leaf.tensor is None or dtype == self.natural_dtype(leaf):
            return
        if leaf.tensor not in self.converted:
            if leaf.tensor not in self.natural:
                value, at = self.fields[leaf.tensor]
                self.natural[leaf.tensor] = self.bind(relax.TupleGetItem(value, at))
            self.cast(leaf, self.natural[leaf.tensor], dtype)


@cache
def _attributes(dtype: str) -> tvm.ir.Attrs:
    """The attributes of a cast to `dtype`: calls share them."""
    return relax.op.astype(relax.const(0.0), dtype).attrs


@lru_cache(maxsize=1024)
def _span_in(module: str) -> tvm.ir.Span | None:
    return Place(module).span()


def is_local(value: relax.Expr) -> bool:
    """Whether only the dataflow block that binds it sees a value."""
    return type(value) is relax.DataflowVar


def same(new: relax.Expr, old: relax.Expr) -> bool:
    """Whether both are one node of the IR."""
    return identity(new) == identity(old)
