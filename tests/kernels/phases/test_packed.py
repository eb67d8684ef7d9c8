"""What packed functions return is what the calls of them say, or an error that names the value."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import relax
from tvm.script import ir as I
from tvm.script import relax as R

from autocast import vm
from autocast.errors import InputError
from autocast.kernels.phases.packed import match_packed

X = np.arange(4, dtype="float32")
_RETURNED = {
    "as declared": lambda x: tvm.runtime.tensor(x.numpy() + 1),
    "of another dtype": lambda x: tvm.runtime.tensor(x.numpy().astype("float64")),
    "of another shape": lambda x: tvm.runtime.tensor(x.numpy()[:2]),
}


def _register(name: str, function: Callable[..., object]) -> None:
    tvm_ffi.register_global_func(name, function, override=True)


def test_a_call_is_matched_with_the_type_that_it_says() -> None:
    @I.ir_module
    class Before:
        @R.function
        def main(x: R.Tensor((4,), "float32")) -> R.Tensor((4,), "float32"):
            with R.dataflow():
                y = R.call_pure_packed("tests.f", x, ty_args=R.Tensor((4,), "float32"))
                z = R.add(y, x)
                R.output(z)
            return z

    @I.ir_module
    class Expected:
        @R.function
        def main(x: R.Tensor((4,), "float32")) -> R.Tensor((4,), "float32"):
            with R.dataflow():
                lv = R.call_pure_packed("tests.f", x, ty_args=R.Any)
                y = R.match_cast(lv, R.Tensor((4,), "float32"))
                z = R.add(y, x)
                R.output(z)
            return z

    tvm.ir.assert_structural_equal(match_packed(Before), Expected)
    tvm.ir.assert_structural_equal(match_packed(Expected), Expected)


def _module(callee: relax.Expr, python: bool, is_read: bool) -> tvm.IRModule:
    x = relax.Var("x", relax.TensorType([4], "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        call = (
            relax.op.call_py_func(callee, (x,), x.ty) if python else relax.op.call_pure_packed(callee, x, ty_args=x.ty)
        )
        y = builder.emit(call, "y")
        builder.emit_func_output(builder.emit(relax.op.add(y, x)) if is_read else y)
    return builder.get()


@pytest.mark.parametrize("is_read", [True, False])
@pytest.mark.parametrize("returned", list(_RETURNED))
def test_what_a_packed_function_returns_is_what_is_declared(returned: str, is_read: bool) -> None:
    _register("tests.returned", _RETURNED[returned])
    call = vm.compile(_module(relax.ExternFunc("tests.returned"), False, is_read))
    if returned == "as declared":
        np.testing.assert_array_equal(call(X), X + 1 + X * is_read)
        return
    with pytest.raises(InputError, match=r"main: %y in @main, which the module declares to be R.Tensor\(\(4,\)"):
        call(X)


def test_what_a_python_function_returns_is_what_is_declared() -> None:
    tvm.get_global_func("vm.builtin.register_py_func")("tests.double", _RETURNED["of another dtype"])
    try:
        with pytest.raises(InputError, match="expect Tensor with dtype float32 but get float64"):
            vm.compile(_module(tvm.ir.StringImm("tests.double"), True, True))(X)
    finally:
        tvm.get_global_func("vm.builtin.clear_py_func_registry")()


def test_fields_of_a_tuple_are_matched() -> None:
    _register("tests.pair", lambda x: (x, tvm.runtime.tensor(x.numpy().astype("int64"))))

    @I.ir_module
    class Module:
        @R.function
        def main(x: R.Tensor((4,), "float32")):
            pair = R.call_pure_packed(
                "tests.pair", x, ty_args=R.Tuple(R.Tensor((4,), "float32"), R.Tensor((4,), "int32"))
            )
            y = pair[1]
            z = R.add(y, y)
            return z

    with pytest.raises(InputError, match=r"%pair in @main, .* int32 but get int64"):
        vm.compile(Module)(X)
