"""What TVM infers for a call when its arguments change dtype, and which operators can store their result in either."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tvm
from tvm import relax

from autocast.errors import CastingRuleError
from autocast.ir import identity
from autocast.messages import reason
from autocast.operators import Kind, is_kind
from autocast.passes.casting.leaves import Tree, leaves, retype, signature
from type_hints import TableRule

_attributes: dict[Any, tuple[str, ...]] = {}
_inferred: dict[Any, tuple[str, ...]] = {}


def has_out_dtype(call: relax.Call) -> bool:
    """Whether an attribute of the call says in which dtype its result is stored.

    The gradients of convolutions' weights have a convolution's attributes, and the dtype of the weights.
    """
    return "out_dtype" in _dtype_names(call) and not is_kind(call, Kind.CONVOLUTION_GRADIENT)


def with_out_dtype(call: relax.Call, dtype: str | None) -> tvm.ir.Attrs:
    """The attributes of `call` with `out_dtype` set (None: that of the operands)."""
    info = type(call.attrs).__tvm_ffi_type_info__
    values = {field.name: getattr(call.attrs, field.name) for field in info.fields}
    return tvm.ir.make_node(info.type_key, **{**values, "out_dtype": dtype})


def inferred_dtypes(
    call: relax.Call, trees: list[Tree], dtypes: tuple[str, ...], amp: str, rule: str, where: Callable[[], str]
) -> tuple[str, ...]:
    """The dtypes of the castable tensors in the result of `call` when its castable arguments have `dtypes`.

    TVM's own type inference is asked once for each operator, dtype attributes, argument dtypes and number of results.
    `rule` and `where` say in a message who wants these dtypes, and for which call.

    Raises
    ------
    CastingRuleError
        TVM refuses arguments of these dtypes.
    """
    results = len(tuple(_castable_dtypes(call.ty, amp)))
    key = (identity(call.op), dtype_attributes(call), signature(trees), results, dtypes, amp)
    if key not in _inferred:
        given = iter(dtypes)
        args = [
            relax.Var("argument", retype(arg.ty, tree, given)) if any(True for _ in leaves(tree)) else arg
            for arg, tree in zip(call.args, trees, strict=True)
        ]
        try:
            type = relax.BlockBuilder().normalize(relax.Call(call.op, args, call.attrs, call.ty_args)).ty
        except Exception as error:
            concerned = [position for position, tree in enumerate(trees) if any(True for _ in leaves(tree))]
            rules = [str(TableRule(label, concerned)) for label in ("low", "full")]
            remedy = f"{' or '.join(rules)}, one dtype for all" if len(set(dtypes)) > 1 else rules[-1]
            raise CastingRuleError(
                f"AutoCast: TVM refuses the dtypes ({', '.join(map(str, dtypes))}) that the casting rule {rule} wants "
                f"for {where()}: {reason(error)}. Try {remedy}"
            ) from error
        _inferred[key] = tuple(_castable_dtypes(type, amp))
    return _inferred[key]


def dtype_attributes(call: relax.Call) -> tuple[str, ...]:
    """The values of a call's attributes that name dtypes or have them."""
    names = _dtype_names(call)
    return tuple([str(getattr(call.attrs, name)) for name in names]) if names else names


def _dtype_names(call: relax.Call) -> tuple[str, ...]:
    key = identity(call.op)
    if key not in _attributes:
        fields = type(call.attrs).__tvm_ffi_type_info__.fields if call.attrs is not None else ()
        _attributes[key] = tuple(field.name for field in fields if field.name.endswith(("dtype", "value")))
    return _attributes[key]


def _castable_dtypes(type: Any, amp: str):
    if isinstance(type, tvm.ir.TupleType):
        for field in type.fields:
            yield from _castable_dtypes(field, amp)
    elif isinstance(type, relax.TensorType) and type.dtype is not None and type.dtype.dtype in ("float32", amp):
        yield type.dtype.dtype
