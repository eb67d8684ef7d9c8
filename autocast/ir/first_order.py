"""Functions as the rest of the project knows them: global ones, called by their names, that nobody else compiles.

    Before                                              After

    def main(x, w):                                     def main(x, w):
        g = R.matmul(x, w)                                  g = R.matmul(x, w)
        def inner(y):                                       r = cls.main_inner(w, g)
            return R.add(y, g)                              a = R.nn.conv2d(r, w)
        r = inner(w)                                        return R.nn.relu(a)
        return cls.fused_conv2d_relu(r, w)
                                                        def main_inner(y, g):
    def fused_conv2d_relu(r, w):  # Composite = "dnnl"      return R.add(y, g)
        a = R.nn.conv2d(r, w)
        return R.nn.relu(a)

TVM's own pass for nested functions, `LambdaLift`, makes objects of them at run time, which neither casts nor gradients
nor memory plans can look into.
"""

from __future__ import annotations

import tvm
from tvm import relax

from autocast.ir.dataflow import to_dataflow
from autocast.ir.groups import is_grouped, is_tir_group, with_plain_main
from autocast.ir.lifting import lift
from autocast.ir.private import is_private
from autocast.ir.resolving import FlatFunctions, returns_nothing
from autocast.ir.views import all_bindings, is_op, relax_functions
from autocast.ir.written_out import write_out_literals


def first_order(mod: tvm.IRModule, *, inline_private: bool = False) -> tvm.IRModule:
    """Make global functions of nested ones, and inline what takes or returns functions, or was grouped for others.

    Groups are inlined whoever they were meant for: what they compute is said by their bodies, and here there are
    kernels for that. Those of PrimFuncs alone stay what they are: `FuseTIR` makes one PrimFunc of each. What returns
    nothing is inlined, too. A function that is chosen at run time remains an object of the virtual machine.

    With `inline_private`, so are private functions, unless they call themselves: `main` then reads a model's weights
    itself, which are cast and packed ahead of time only there.

    Raises
    ------
    UnsupportedError
        A function that calls itself takes or returns functions.
    """
    mod = with_plain_main(mod)
    called = [function for var, function in relax_functions(mod) if var.name_hint != "main"]
    inlines = inline_private and any(is_private(function) for function in called)
    if not inlines and not any(_needs_rewriting(function) for _, function in relax_functions(mod)):
        return mod
    functions = lift(relax.transform.ToNonDataflow()(write_out_literals(mod)))
    program = FlatFunctions(functions, inline_private)
    rest = {var: function for var, function in mod.functions.items() if not isinstance(function, relax.Function)}
    rewritten = {var: program.rewritten(var, function) for var, function in functions.values()}
    mod = tvm.IRModule({**rest, **rewritten}, attrs=mod.attrs, global_infos=mod.global_infos)
    return relax.transform.DeadCodeElimination()(to_dataflow(mod))


def _needs_rewriting(function: relax.Function) -> bool:
    if is_grouped(function):
        return not is_tir_group(function)
    return returns_nothing(function) or any(
        isinstance(binding.value, relax.Function) or is_op(binding.value, "relax.make_closure")
        for binding in all_bindings(function.body)
    )
