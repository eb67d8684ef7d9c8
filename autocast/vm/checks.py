"""What a module must be to be compiled and called; what is not says so here, and not in the middle of TVM."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

import tvm
import tvm_ffi
from tvm import relax, tirx

from autocast.errors import IllFormedModuleError, UnsupportedError
from autocast.ir import (
    all_bindings,
    check_well_formed,
    dtype_of,
    is_op,
    lacks_dtype,
    op_name,
    relax_functions,
    shape_of,
    whereabouts,
    with_functions,
    with_inferred_types,
    with_plain_layouts,
)
from autocast.ir.matched import with_equal_sizes
from autocast.runtime import torch_calls

#: What makes a Model, for messages.
A_MODEL = "a Model: autocast.from_torch(module, example_args) or autocast.from_relax(mod, params)"

#: What the text of a PrimFunc says where it calls a packed function.
_TIR_CALL = re.compile(r'T\.(?:call_packed|call_cpacked)\("([^"]+)"')

#: How the names of operators and packed functions begin that one worker calls together with others.
_TOGETHER = ("relax.ccl.", "relax.dist.", "runtime.disco.")

#: Operators that call the packed function which is their first argument.
_CALLS = ("relax.call_dps_packed", "relax.call_pure_packed", "relax.call_inplace_packed")


def check_module(mod: tvm.IRModule) -> tvm.IRModule:
    """A module that can be compiled: `mod`, whose `main` is seen from outside, and whose tensors have dtypes.

    Raises
    ------
    IllFormedModuleError
        It has no Relax function `main`, or is not well formed.
    UnsupportedError
        `main` returns a function, a packed or Python function is called that nobody has registered, a tensor has no
        dtype, a value is not on the CPU, or several workers are needed.
    """
    if not isinstance(mod, tvm.IRModule):
        raise IllFormedModuleError(
            f"compile: got a {type(mod).__name__}, expected a Model or a tvm.IRModule; a torch module becomes a Model "
            "with autocast.from_torch(module, example_args), a Relax function with autocast.from_relax(function)"
        )
    names = [gv.name_hint for gv in mod.get_global_vars()]
    if "main" not in names or not isinstance(mod["main"], relax.Function):
        raise IllFormedModuleError(
            f"compile: the module has functions {names}, expected a Relax function 'main'; autocast.from_relax(mod) "
            "takes a module with one Relax function of another name"
        )
    symbols = Counter(
        str(function.attrs["global_symbol"])
        for function in mod.functions.values()
        if "global_symbol" in (function.attrs or {})
    )
    if repeated := [symbol for symbol, count in symbols.items() if count > 1]:
        raise IllFormedModuleError(
            f"compile: several functions have the global_symbol {repeated[0]!r}; expected a name of its own for each. "
            "Rename them, or make those private that are called from the module alone: function.without_attr"
        )
    check_well_formed("compile", mod, IllFormedModuleError)
    main = mod["main"]
    if any(isinstance(type, relax.FuncType) for type in _fields(main.ret_ty)):
        raise UnsupportedError(
            f"compile: main returns {main.ret_ty}, expected tensors, shapes, numbers or tuples of them. Call the "
            "function in main, or make it the main of a module of its own"
        )
    _check_devices(mod)
    mod = with_equal_sizes(with_plain_layouts(with_inferred_types(mod)))
    _check_types(mod)
    _check_packed_functions(mod)
    _check_python_functions(mod)
    _check_workers(mod)
    _check_kernels(mod)
    if "global_symbol" in (main.attrs or {}):
        return mod
    return with_functions(mod, {"main": mod["main"].with_attr("global_symbol", "main")})


def _fields(type: tvm.ir.Type) -> Iterator[tvm.ir.Type]:
    if isinstance(type, tvm.ir.TupleType):
        for field in type.fields:
            yield from _fields(field)
    else:
        yield type


def _check_devices(mod: tvm.IRModule) -> None:
    """UnsupportedError unless all values are in the memory of a CPU."""
    devices = (mod.global_infos or {}).get("vdevice", ())
    if others := sorted({str(device.target.kind.name) for device in devices} - {"llvm", "c"}):
        raise UnsupportedError(
            f"compile: the module places values on {', '.join(others)} (its global_infos have the vdevice), expected "
            "llvm. Build it for the CPU: without relax.transform.RealizeVDevice, and without vdevice in its types"
        )
    if others := sorted({device.vdevice_id for device in devices} - {0}):
        raise UnsupportedError(
            f"compile: the module places values on the CPU's device {others[0]} (its global_infos have the vdevice), "
            "expected 0: a CPU is one device, whose cores are threads. Build it without vdevice in its types"
        )


#: Operators of bits, which TVM's types let have floating-point operands, too.
_OF_BITS = {f"relax.bitwise_{name}" for name in ("and", "not", "or", "xor")} | {"relax.left_shift", "relax.right_shift"}


def _check_types(mod: tvm.IRModule) -> None:
    """UnsupportedError unless each tensor says its dtype, and no size that there is not, and operators suit dtypes."""
    for var, function in relax_functions(mod):
        bindings = tuple(all_bindings(function.body))
        for binding in bindings:
            if op_name(binding.value) in _OF_BITS and "float" in str(dtype_of(binding.var)):
                raise UnsupportedError(
                    f"compile: {whereabouts(binding.var, var.name_hint)} is {op_name(binding.value)} of numbers of "
                    f"{dtype_of(binding.var)}, expected integers or truth values; R.astype(x, 'int32') converts to them"
                )
            if _lacks_nan(binding.value):
                raise UnsupportedError(
                    f"compile: {whereabouts(binding.var, var.name_hint)} is relax.take(mode='nan') of numbers of "
                    f"{dtype_of(binding.var)}, which have no NaN; expected floating-point numbers, or the mode 'clip' "
                    "or 'wrap'"
                )
        below_0 = {*filter(_is_below_0, function.params), *(b.var for b in bindings if _makes_sizes_below_0(b.value))}
        for value in (*function.params, *(binding.var for binding in bindings)):
            if lacks_dtype(value.ty):
                raise UnsupportedError(
                    f"compile: {whereabouts(value, var.name_hint)} is a {value.ty}, expected a tensor whose dtype is "
                    "known. autocast.frontend.with_dtypes(mod, {...}) completes a module by the dtypes of its inputs; "
                    "R.match_cast says that of one value"
                )
            if value in below_0:
                raise UnsupportedError(
                    f"compile: {whereabouts(value, var.name_hint)} is a {value.ty}, expected sizes of 0 and more, or "
                    "names of them. TVM says -1 where the number of sizes of a shape is not known: declare it, "
                    "R.Shape(ndim=2)"
                )


def _lacks_nan(value: relax.Expr) -> bool:
    """Whether NaN is looked up, where an index is out of range, among numbers that have none."""
    return is_op(value, "relax.take") and str(value.attrs.mode) == "nan" and "float" not in str(dtype_of(value))


def _check_kernels(mod: tvm.IRModule) -> None:
    """UnsupportedError unless each PrimFunc is complete in itself: in TVM's builds of Relax none can call another."""
    for var, kernel in mod.functions.items():
        if isinstance(kernel, tirx.PrimFunc) and (called := _called(kernel)):
            raise UnsupportedError(
                f"compile: the PrimFunc {var.name_hint} calls {', '.join(called)} of the module, expected kernels that "
                "call none. Write into it what these compute, or let main call each with R.call_tir"
            )


def _called(kernel: tirx.PrimFunc) -> list[str]:
    """The functions of the module that a PrimFunc calls."""
    functions: list[Any] = []
    tvm_ffi.structural_walk(kernel.body, (tvm.ir.Call, lambda call: functions.append(call.op)))
    return sorted({function.name_hint for function in functions if isinstance(function, tvm.ir.GlobalVar)})


def _is_below_0(value: relax.Expr) -> bool:
    return any(isinstance(size, int) and size < 0 for size in shape_of(value) or ())


def _makes_sizes_below_0(value: relax.Expr) -> bool:
    """Whether `value` makes a size below 0 itself. Slices that end before they begin are mended when lowered."""
    if is_op(value, "relax.strided_slice") or not _is_below_0(value):
        return False
    return not any(map(_is_below_0, value.args if isinstance(value, relax.Call) else ()))


def _check_packed_functions(mod: tvm.IRModule) -> None:
    """UnsupportedError unless all packed functions that `mod` calls exist, or are part of it."""
    if "external_mods" in (mod.attrs or {}):
        return  # the functions of compiled libraries, which do not say their names
    called: dict[str, str] = {}
    for var, function in relax_functions(mod):
        for name in _packed_functions(function):
            called.setdefault(name, var.name_hint)
    torch_calls.provide(called)
    for var, function in mod.functions.items():
        if isinstance(function, tirx.PrimFunc):
            for name in _TIR_CALL.findall(function.script()):
                called.setdefault(name, var.name_hint)
    symbols = {
        str(function.attrs["global_symbol"])
        for function in mod.functions.values()
        if isinstance(function, tirx.PrimFunc) and "global_symbol" in (function.attrs or {})
    }
    missing = {
        name: caller
        for name, caller in called.items()
        if name not in symbols and tvm_ffi.get_global_func(name, allow_missing=True) is None
    }
    if missing:
        places = ", ".join(f"{name!r} in @{caller}" for name, caller in sorted(missing.items()))
        raise UnsupportedError(
            f"compile: calls of packed functions that are not registered: {places}. Expected their names in tvm-ffi's "
            f'registry; try tvm_ffi.register_global_func("{min(missing)}", function), or import what registers it'
        )


def _check_python_functions(mod: tvm.IRModule) -> None:
    """UnsupportedError unless all functions that `mod` calls by R.call_py_func are registered."""
    for var, function in relax_functions(mod):
        for name in map(_python_function, _calls(function)):
            if name is not None and not _is_registered(name):
                raise UnsupportedError(
                    f"compile: @{var.name_hint} calls the Python function {name!r}, which is not registered; expected "
                    "its name in the virtual machine's registry. Try "
                    f'tvm.get_global_func("vm.builtin.register_py_func")("{name}", function)'
                )


def _python_function(call: relax.Call) -> str | None:
    """The function that R.call_py_func calls, as it stands in a module or as TVM's pipeline leaves it."""
    if op_name(call) == "relax.call_py_func":
        return str(call.args[0].value)
    if isinstance(call.op, relax.ExternFunc) and call.op.global_symbol == "vm.builtin.call_py_func":
        name = call.args[0]
        return str((name.fields[0] if isinstance(name, relax.Tuple) else name).value)
    return None


def _is_registered(name: str) -> bool:
    try:
        tvm_ffi.get_global_func("vm.builtin.get_py_func")(name)
    except RuntimeError:
        return False
    return True


def _check_workers(mod: tvm.IRModule) -> None:
    """UnsupportedError where `mod` is a part of a program for several workers."""
    for var, function in relax_functions(mod):
        operators = (op_name(binding.value) or "" for binding in all_bindings(function.body))
        for name in (*operators, *_packed_functions(function)):
            if name.startswith(_TOGETHER):
                raise UnsupportedError(
                    f"compile: @{var.name_hint} calls {name}, which works among several workers (TVM's Disco); "
                    "expected a module that one machine runs by itself. Compile it before it is distributed"
                )


def _packed_functions(function: relax.Function) -> Iterator[str]:
    for call in _calls(function):
        callee = call.args[0] if op_name(call) in _CALLS else call.op
        if isinstance(callee, relax.ExternFunc):
            yield str(callee.global_symbol)


def _calls(function: relax.Function) -> Iterator[relax.Call]:
    """The calls of a function and of those in it."""
    for binding in all_bindings(function.body):
        if isinstance(binding.value, relax.Call):
            yield binding.value
        elif isinstance(binding.value, relax.Function):
            yield from _calls(binding.value)
