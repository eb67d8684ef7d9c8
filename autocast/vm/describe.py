"""What there is to know of a compiled module: see `autocast.runtime.program.Program`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

import tvm
from tvm import relax, tirx
from tvm.target import codegen

from autocast import ir
from autocast.kernels.phases.agreement import compared_sizes
from autocast.kernels.state.state import num_state
from autocast.kernels.targets.cpu.instruction_sets import slow_dtype
from autocast.runtime import torch_calls
from autocast.runtime.processors import architecture_of, needed
from autocast.runtime.program import Kernel, Mismatches, Program
from autocast.runtime.signature import Input, Signature
from autocast.runtime.sizes import tensor_bytes
from autocast.vm.dimensions import Dimensions
from autocast.vm.flops import kernel_flops
from autocast.vm.steps import described
from autocast.vm.workspace import workspace


def describe(
    planned: tvm.IRModule,
    kernels: Mapping[str, Kernel],
    signature: Signature,
    state: Sequence[str],
    places: Mapping[str, tuple[str, ...]],
    target: tvm.target.Target,
) -> Program:
    """Describe a compiled module.

    Parameters
    ----------
    planned : IRModule
        Relax functions after memory planning: every allocation and every release is a binding of its own.
    kernels : mapping of str to Kernel
        What `describe_kernel` says of each.
    signature : Signature
        Of `main` as its caller knows it.
    state : sequence of str
        The names of the parameters that a call replaces.
    places : mapping
        For each kernel the submodules that its calls come from, where that is known: one for each call.
    target : Target
        What code was generated for.
    """
    main = planned["main"]
    held = [_input(var) for var in main.params[len(signature.inputs) :]]
    copies = num_state(main)
    return Program(
        signature=signature,
        state=tuple(replace(own, name=name) for own, name in zip(held, state, strict=False)),
        copies=tuple(held[len(state) : copies]),
        params=tuple(held[copies:]),
        functions={var.name_hint: described(planned, function) for var, function in ir.relax_functions(planned)},
        kernels={name: replace(kernel, modules=places.get(name, ())) for name, kernel in kernels.items()},
        constants=_constant_bytes(planned),
        outputs_vary=not ir.is_static_type(main.ret_ty),
        mismatches=_mismatches(planned),
        notes=_slow_dtypes(main, target),
        target=str(target),
        architecture=architecture_of(target.attrs.get("mtriple")),
        features=needed(codegen.llvm_get_cpu_features(target)),
        torch_calls=_torch_calls(planned),
    )


def _input(var: relax.Var) -> Input:
    return Input(var.name, ir.dtype_of(var) or "", ir.static_shape(var) or ())


def _torch_calls(planned: tvm.IRModule) -> tuple[str, ...]:
    """The packed functions that call torch."""
    functions = (function for _, function in ir.relax_functions(planned))
    callees = {
        str(callee.global_symbol) for function in functions for callee in ir.parts_of(function, relax.ExternFunc)
    }
    return tuple(sorted(name for name in callees if name.startswith(torch_calls.PREFIX)))


def describe_kernel(kernel: tirx.PrimFunc) -> Kernel:
    """What the calls of a kernel take and do; its loops are final, and so are the buffers that it allocates."""
    dimensions = Dimensions()
    buffers = [param for param in kernel.params if isinstance(param.ty, tirx.buffer.BufferType)]
    shapes = tuple(dimensions.declared(buffer.shape) for buffer in buffers)
    flops = kernel_flops(kernel, shapes, dimensions)
    return Kernel(shapes, workspace(kernel, dimensions), flops)


def _mismatches(planned: tvm.IRModule) -> Mismatches:
    """What the `match_cast`s of a module are called in errors, by the types that they assert."""
    declared: dict[str, list[str]] = {}
    compared: dict[str, list[str]] = {}
    for var, function in ir.relax_functions(planned):
        for binding in ir.all_bindings(function.body):
            if not isinstance(binding, relax.MatchCast):
                continue
            declared.setdefault(str(binding.ty), []).append(ir.whereabouts(binding.var, var.name_hint))
            if pair := compared_sizes(binding):
                needs = f"{_plain(pair.left)} to be {'at most ' * pair.less}{_plain(pair.right)}"
                compared.setdefault(str(pair.type), []).append(f"%{pair.name} in @{var.name_hint} needs {needs}")
    return Mismatches(declared, compared)


def _plain(size: object) -> str:
    """A size as its module writes it: 4 * n."""
    return re.sub(r"T\.int64\((-?\d+)\)", r"\1", str(size))


def _slow_dtypes(main: relax.Function, target: tvm.target.Target) -> tuple[str, ...]:
    """A line for each low-precision dtype that `main` stores and that its target has no fast arithmetic for."""
    bindings = (binding for block in main.body.blocks for binding in block.bindings)
    tensors = [*main.params, *(b.var for b in bindings if isinstance(b, relax.VarBinding))]
    stored = {ir.dtype_of(var) or "" for var in tensors if ir.is_tensor(var)}
    return tuple(filter(None, (slow_dtype(dtype, target) for dtype in sorted(stored))))


def _constant_bytes(planned: tvm.IRModule) -> int:
    """Bytes of the distinct literal tensors in a module's functions."""
    found = {
        constant.value: tensor_bytes(ir.static_shape(constant) or (), ir.dtype_of(constant))
        for _, function in ir.relax_functions(planned)
        for constant in ir.parts_of(function, ir.ConstantExpr)
        if ir.is_tensor(constant)
    }
    return sum(found.values())
