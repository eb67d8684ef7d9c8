"""Small typed views of Relax expressions (TVM 0.27 spellings)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import repeat
from typing import Any

import tvm
import tvm_ffi
from tvm import relax

from autocast.errors import IllFormedModuleError

#: `relax.Constant` is gone in TVM 0.27; this is the class of what `relax.const` returns.
ConstantExpr = type(relax.const(1.0))

#: The floating-point storage dtypes that a cast decision may concern.
FLOATS = ("float32", "bfloat16", "float16")

#: Compiled kernels presume that every tensor starts at a multiple of this many bytes (TVM's `kAllocAlignment`).
ALIGNMENT = 64


#: A dictionary key for one IR node, good for as long as the node lives: every access to a field makes a new Python
#: object for the same node, and comparing two of them calls into C++.
identity = hash


def items(array: Sequence[Any]) -> list[Any]:
    """The items of an array of the IR: a slice of it would ask for their number and check their places in Python."""
    number = count(array)
    return list(map(_item, repeat(array, number), range(number)))


_item = tvm_ffi.get_global_func("ffi.ArrayGetItem")
#: Of two values, or of one, and whether free variables are the same if they stand in the same places, and whether the
#: contents of tensors do not count.
structural_equal = tvm_ffi.get_global_func("ffi.StructuralEqual")
structural_hash = tvm_ffi.get_global_func("ffi.StructuralHash")
#: How many items an array of the IR has.
count = tvm_ffi.get_global_func("ffi.ArraySize")


def is_constant(expr: relax.Expr) -> bool:
    """Whether `expr` is a literal tensor."""
    return type(expr) is ConstantExpr  # it has no subclasses, and the isinstance that fails is slow


def number_of(expr: relax.Expr) -> float | None:
    """The number that a literal tensor of one element holds; None for all else."""
    single = is_constant(expr) and math.prod(expr.value.shape) == 1
    return float(expr.value.numpy().reshape(())) if single else None


def is_tensor(expr: relax.Expr) -> bool:
    """Whether `expr` has a tensor type (not a shape, tuple, primitive value or function)."""
    return isinstance(expr.ty, relax.TensorType)


_OPERATOR_NAMES: dict[int, str] = {}


def dtype_of(expr: relax.Expr) -> str | None:
    """The element dtype of a tensor expression; None for what is not a tensor."""
    return str(expr.ty.dtype) if is_tensor(expr) else None


def storage(expr: relax.Expr) -> str:
    """The dtype that a tensor is stored in."""
    return str(expr.ty.dtype)


def shape_of(expr: relax.Expr) -> tuple | None:
    """The dimensions (int or PrimExpr) of a tensor expression; None where the shape is not known."""
    return shape_in(expr.ty)


def shape_in(ty: tvm.ir.Type) -> tuple | None:
    """The dimensions (int or PrimExpr) that a type gives a tensor; None where it is no tensor's, or does not say."""
    shape = ty.shape if isinstance(ty, relax.TensorType) else None
    if not isinstance(shape, relax.ShapeExpr):
        return None
    return tuple(dim.value if type(dim) is tvm.tirx.IntImm else dim for dim in items(shape.values))


def dims(expr: relax.Expr) -> tuple:
    """The dimensions (int or expression) of a tensor; an error where the type does not say them."""
    shape = shape_of(expr)
    if shape is None:
        raise IllFormedModuleError(
            f"kernels: got a {expr.ty}, expected a tensor of known shape; declare its dimensions"
        )
    return shape


def static_shape(expr: relax.Expr) -> tuple[int, ...] | None:
    """The shape of a tensor expression if all dimensions are known now; None otherwise."""
    shape = shape_of(expr)
    return shape if shape is not None and all(isinstance(d, int) for d in shape) else None


def same_shape(left: Sequence | None, right: Sequence | None) -> bool:
    """Whether two shapes are equal for all values of their run-time dimensions."""
    if left is None or right is None or len(left) != len(right):
        return False
    analyzer = tvm.sym.Analyzer()
    return all(
        a == b if isinstance(a, int) and isinstance(b, int) else analyzer.can_prove_equal(a, b)
        for a, b in zip(left, right, strict=True)
    )


def is_static_type(ty: tvm.ir.Type) -> bool:
    """Whether a value of type `ty`, a tensor or a tuple of them, has dimensions that are all known now."""
    if isinstance(ty, tvm.ir.TupleType):
        return all(is_static_type(field) for field in ty.fields)
    shape = ty.shape if isinstance(ty, relax.TensorType) else None
    return isinstance(shape, relax.ShapeExpr) and all(isinstance(size, int | tvm.tirx.IntImm) for size in shape.values)


def op_name(expr: relax.Expr) -> str | None:
    """`relax.matmul` for a call of that operator; None for everything else, such as a size `T.if_then_else(...)`."""
    if not isinstance(expr, relax.Call):
        return None
    op = expr.op
    if not isinstance(op, tvm.ir.Op):
        return None
    # Operators live as long as the process, so their identities are good keys; reading a name copies it from C++.
    name = _OPERATOR_NAMES.get(identity(op))
    if name is None:
        name = _OPERATOR_NAMES[identity(op)] = "" if op.name.startswith("prim.") else str(op.name)
    return name or None


def is_op(expr: relax.Expr, *names: str) -> bool:
    """Whether `expr` calls one of the operators `names` (full names, such as `relax.add`)."""
    return op_name(expr) in names


def permutation(call: relax.Call) -> list[int]:
    """The axes of a permute_dims, none negative."""
    rank = call.ty.ndim
    if call.attrs.axes is None:
        return list(range(rank))[::-1]
    return [int(axis) % rank for axis in call.attrs.axes]


def relax_functions(mod: tvm.IRModule) -> Iterator[tuple[tvm.ir.GlobalVar, relax.Function]]:
    """The Relax functions of a module, in the order of their names."""
    functions = [(gv, f) for gv, f in mod.functions.items() if isinstance(f, relax.Function)]
    return iter(sorted(functions, key=lambda pair: pair[0].name_hint))


def with_functions(mod: tvm.IRModule, functions: Mapping[tvm.ir.GlobalVar | str, tvm.ir.BaseFunc]) -> tvm.IRModule:
    """`mod` with other functions under some of its names, or new ones."""
    changed = tvm.IRModule(mod.functions, attrs=mod.attrs, global_infos=mod.global_infos)
    for name, function in functions.items():
        changed[name] = function
    return changed


def main_of(mod: tvm.IRModule) -> relax.Function | None:
    """The Relax function `main` of a module, if it has one."""
    main = next((function for var, function in mod.functions.items() if var.name_hint == "main"), None)
    return main if isinstance(main, relax.Function) else None


def all_bindings(sequence: relax.SeqExpr) -> Iterator[relax.Binding]:
    """The bindings of a sequence in order, those inside its conditionals before the conditional's own."""
    for block in items(sequence.blocks):
        for binding in items(block.bindings):
            value = binding.value
            if type(value) is relax.If:  # it has no subclasses, and the isinstance that fails is slow
                for branch in (value.true_branch, value.false_branch):
                    yield from all_bindings(branch)
            yield binding


def parts_of(expr: relax.Expr, kind: type) -> list[Any]:
    """The parts of `expr` that are of a kind, nested functions' too, after what they are made of."""
    found: list[Any] = []
    relax.analysis.post_order_visit(expr, lambda part: found.append(part) if isinstance(part, kind) else None)
    return found


def with_captured(function: relax.Function, captured: Mapping[relax.Var, relax.Expr]) -> relax.Function:
    """A nested function that captures other values in place of variables."""
    opened = relax.Function(
        [*function.params, *captured], function.body, function.ret_ty, function.is_pure, function.attrs
    )
    return opened.bind_params(captured)
