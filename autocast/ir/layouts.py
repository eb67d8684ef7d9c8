"""Convolutions and pooling in the layouts that kernels, gradients and TVM know: results in that of their data."""

from __future__ import annotations

import tvm
from tvm import relax
from tvm.relax.expr_functor import mutator

from autocast.ir.rewriting import BindingRewriter, rewrite_functions
from autocast.ir.views import all_bindings, op_name, relax_functions

_TRANSPOSED = tuple(f"relax.nn.conv{rank}d_transpose" for rank in (1, 2, 3))


def with_plain_layouts(mod: tvm.IRModule) -> tvm.IRModule:
    """`mod`, in which results have the layout of the data, and transposed convolutions channels first.

    Before::                                                After::

        y = R.nn.conv2d(x, w, out_layout="NHWC")                gv = R.nn.conv2d(x, w)
                                                                gv1 = R.permute_dims(gv, [0, 2, 3, 1])
                                                                y = gv1

    TVM's kernels, and its adjoints, do not look at `out_layout`, which its types follow.
    """
    values = [binding.value for _, function in relax_functions(mod) for binding in all_bindings(function.body)]
    return rewrite_functions(mod, _Layouts) if any(map(_plain, values)) else mod


def _plain(value: relax.Expr) -> dict[str, str] | None:
    """The layouts that a call gets, by attribute; None where it has them, or is in blocks such as NCHW4c."""
    attrs = getattr(value, "attrs", None) if op_name(value) is not None else None
    if not hasattr(attrs, "out_layout"):
        return None
    data = "data_layout" if hasattr(attrs, "data_layout") else "layout"
    plain = {data: str(getattr(attrs, data))}
    if op_name(value) in _TRANSPOSED:
        space = "".join(letter for letter in plain[data] if letter not in "NC")
        plain = {data: f"NC{space}", "kernel_layout": f"IO{space}"}
    plain["out_layout"] = plain[data]
    pairs = [(str(getattr(attrs, name) or plain[name]), layout) for name, layout in plain.items()]
    if all(old == new for old, new in pairs) or any(sorted(old) != sorted(new) for old, new in pairs):
        return None
    return plain


@mutator
class _Layouts(BindingRewriter):
    def rewrite(self, binding: relax.VarBinding) -> relax.Expr | None:
        call = binding.value
        plain = _plain(call)
        if plain is None:
            return None
        old = {name: str(getattr(call.attrs, name)) for name in plain}
        operands = [
            self.moved(self.new(operand), old[name], plain[name])
            for operand, name in zip(call.args, [name for name in plain if name != "out_layout"], strict=False)
        ]
        operands += map(self.new, call.args[len(operands) :])
        names = [field.name for field in type(call.attrs).__tvm_ffi_type_info__.fields]
        attrs = type(call.attrs)(**{**{name: getattr(call.attrs, name) for name in names}, **plain})
        result = self.emit(relax.Call(call.op, operands, attrs, call.ty_args))
        return self.moved(result, plain["out_layout"], old["out_layout"])

    def moved(self, x: relax.Expr, old: str, new: str) -> relax.Expr:
        """A tensor of one layout in another."""
        return x if old == new else self.emit(relax.op.permute_dims(x, [old.index(letter) for letter in new]))
