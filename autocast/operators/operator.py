"""Operators in TVM's registry that are not TVM's: a name, arguments, a result type, and what computes them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, NamedTuple, TypeAlias

import tvm
from tvm import relax
from tvm.ir import _ffi_api
from tvm.relax.script import parser
from tvm.script import relax as R

from autocast.errors import IllFormedModuleError
from autocast.ir.views import dtype_of

#: What an operator computes: a tensor, or one expression for each field of a tuple.
Expanded: TypeAlias = relax.Expr | Sequence[relax.Expr]


def wide_dtype(operand: relax.Expr) -> str:
    """What is computed in where a tensor is stored like `operand`: float64 or float32."""
    return "float64" if dtype_of(operand) == "float64" else "float32"


class Expansion(NamedTuple):
    """A call that is about to be replaced by operators of TVM.

    Attributes
    ----------
    call
        The call itself: its attributes say what is asked for.
    operands
        Its arguments. Those in bfloat16 and float16 are widened to float32, unless the operator is one of products.
    emit
        Binds an expression to a variable. Only what is used twice needs it: the rest may nest.
    """

    call: relax.Call
    operands: tuple[relax.Expr, ...]
    emit: Callable[[relax.Expr], relax.Var]

    def number(self, value: float) -> relax.Expr:
        """A literal in the dtype that is computed in: float64 where the first operand is, else float32."""
        return relax.const(value, wide_dtype(self.operands[0]))


@dataclass(frozen=True, eq=False)
class Operator:
    """One operator; calling it makes a `relax.Call`.

    Attributes
    ----------
    name
        Its name in TVM's registry, such as "relax.grad.gelu_backward".
    arguments
        The names of its arguments; those that end in "?" may be missing, one that ends in "*" is a tuple of tensors.
    result
        The type of a call's result.
    expand
        What it computes, in operators of TVM; None where `compute` says it.
    attributes
        The type of its attributes. `ir.DictAttrs` takes any.
    multiplies
        Whether it is made of matrix products, which take operands in bfloat16 and float16 as they are.
    compute
        What it computes, as a function of tensors (`tvm.te`) and attributes that gives tensors.
    """

    name: str
    arguments: tuple[str, ...]
    result: Callable[[relax.Call], tvm.ir.Type]
    expand: Callable[[Expansion], Expanded] | None
    attributes: str = "ir.DictAttrs"
    multiplies: bool = False
    compute: Callable[..., Any] | None = None

    def __call__(
        self, *operands: relax.Expr | Sequence[relax.Expr], attrs: tvm.ir.Attrs | None = None, **attributes: Any
    ) -> relax.Call:
        """A call with `attrs`, those of another call, or with `attributes` by name."""
        if attributes:
            attrs = tvm.ir.make_node(self.attributes, **attributes)
        fields = [relax.Tuple(operand) if isinstance(operand, tuple | list) else operand for operand in operands]
        return relax.Call(tvm.ir.Op.get(self.name), fields, attrs)

    def infer(self, call: relax.Call) -> tvm.ir.Type:
        """The type of a call's result.

        Raises
        ------
        IllFormedModuleError
            It has too few or too many arguments, or one that is no tensor.
        """
        required = sum(not argument.endswith("?") for argument in self.arguments)
        tensors = all(map(_fits, self.arguments, call.args))
        if not required <= len(call.args) <= len(self.arguments) or not tensors:
            given = ", ".join(str(operand.ty) for operand in call.args)
            raise IllFormedModuleError(f"{self.name}: got ({given}), expected tensors: {', '.join(self.arguments)}")
        return self.result(call)

    def legalized(self, builder: relax.BlockBuilder, call: relax.Call) -> relax.Call:
        """A call of the PrimFunc that `compute` makes."""
        if self.compute is None:
            return call
        attributes = {str(key): call.attrs[key] for key in call.attrs.keys()} if call.attrs else {}  # noqa: SIM118  (a node, no dict)
        hint = self.name.replace("relax.", "").replace(".", "_")
        return builder.call_te(self.compute, *call.args, **attributes, primfunc_name_hint=hint)


def _fits(argument: str, operand: relax.Expr) -> bool:
    """Whether an operand is what an argument of this name takes: a tensor, or for "x*" a tuple of tensors."""
    if argument.endswith("*"):
        fields = operand.ty.fields if isinstance(operand.ty, tvm.ir.TupleType) else ()
        return len(fields) > 0 and all(isinstance(field, relax.TensorType) for field in fields)
    return isinstance(operand.ty, relax.TensorType)


#: Every operator of our own and of users, by its name.
OPERATORS: dict[str, Operator] = {}


def define(
    name: str,
    arguments: str,
    *,
    result: Callable[[relax.Call], tvm.ir.Type],
    expand: Callable[[Expansion], Expanded] | None = None,
    compute: Callable[..., Any] | None = None,
    summary: str,
    attributes: str = "ir.DictAttrs",
    multiplies: bool = False,
) -> Operator:
    """Register an operator of our own with TVM; `arguments` are names in one string, "x gamma g".

    What it computes is said by `expand` or by `compute`.
    """
    return enter(Operator(name, tuple(arguments.split()), result, expand, attributes, multiplies, compute), summary)


def enter(operator: Operator, summary: str) -> Operator:
    """Put an operator into TVM's registry, so that TVMScript knows it as well; it takes the place of one of its name.

    "relax.mine.snake" is `relax.op.mine.snake`, and `R.mine.snake` in TVMScript.
    """
    name = operator.name
    if name not in OPERATORS:
        _ffi_api.RegisterOp(name, summary)
        entry = tvm.ir.Op.get(name)
        entry.set_num_inputs(-1)
        for argument in operator.arguments:
            kind = "Tuple of Tensors" if argument.endswith("*") else "Tensor"
            entry.add_argument(argument.rstrip("?*"), kind, argument)
        entry.set_attr("FInferType", lambda call, _: OPERATORS[name].infer(call))
        entry.set_attr("FLegalize", lambda builder, call: OPERATORS[name].legalized(builder, call))
        entry.set_attr("FPurity", True)
    OPERATORS[name] = operator
    _, namespace, short_name = name.split(".")
    for module in (relax.op, parser, R):
        if not hasattr(module, namespace):
            setattr(module, namespace, SimpleNamespace())
        setattr(getattr(module, namespace), short_name, operator)
    return operator


def like(*arguments: int) -> Callable[[relax.Call], tvm.ir.Type]:
    """The type of one argument; of several, the tuple of their types."""

    def result(call: relax.Call) -> tvm.ir.Type:
        types = [call.args[argument].ty for argument in arguments]
        return types[0] if len(types) == 1 else tvm.ir.TupleType(types)

    return result
