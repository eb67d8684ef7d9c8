"""What cannot be compiled or called is refused where it is handed in, and says why."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.script import ir as I
from tvm.script import relax as R
from tvm.script import tirx as T

from autocast import amp, from_relax, vm
from autocast.errors import AutocastError, IllFormedModuleError, UnsupportedError

_F32 = relax.TensorType([2, 3], "float32")
_SIZES = relax.ShapeType([2, 3])


def _returns(value: Any, *params: relax.Var, pure: bool = True) -> tvm.IRModule:
    """A module whose main returns `value`, an expression of `params`."""
    builder = relax.BlockBuilder()
    with builder.function("main", list(params), pure=pure):
        builder.emit_func_output(builder.emit(value))
    return builder.get()


def _var(type: tvm.ir.Type) -> relax.Var:
    return relax.Var("x", type)


def _identity(type: tvm.ir.Type) -> tvm.IRModule:
    x = _var(type)
    return _returns(x, x)


def _packed(name: str) -> tvm.IRModule:
    x = _var(_F32)
    return _returns(relax.op.call_dps_packed(name, (x,), _F32), x)


def _python(name: str) -> tvm.IRModule:
    x = _var(_F32)
    return _returns(relax.op.call_py_func(tvm.ir.StringImm(name), (x,), _F32), x)


def _lowered_python(name: str) -> tvm.IRModule:
    x = _var(_F32)
    arguments = relax.Tuple([tvm.ir.StringImm(name), relax.Tuple([x])])
    mod = _returns(relax.Call(relax.ExternFunc("vm.builtin.call_py_func"), [arguments], ty_args=[_F32]), x)
    return tvm.IRModule({"main": mod["main"].with_attr("relax.force_pure", True)})


def _shape_of_shape() -> tvm.IRModule:
    x = _var(relax.ShapeType())
    return _returns(relax.op.shape_to_tensor(x), x)


def _packed_by_a_primfunc() -> tvm.IRModule:
    @I.ir_module
    class Module:
        @T.prim_func(s_tir=True)
        def kernel(a: T.Buffer((2, 3), "float32"), b: T.Buffer((2, 3), "float32")):
            T.evaluate(T.call_packed("no.such.function", a.data, b.data))

        @R.function
        def main(x: R.Tensor((2, 3), "float32")) -> R.Tensor((2, 3), "float32"):
            cls = Module
            y = R.call_tir(cls.kernel, (x,), out_ty=R.Tensor((2, 3), "float32"))
            return y

    return Module


def _on_cuda() -> tvm.IRModule:
    mod = _identity(_F32)
    mod.update_global_info("vdevice", [relax.VDevice("cuda")])
    return mod


def _on_a_second_cpu() -> tvm.IRModule:
    mod = _identity(_F32)
    mod.update_global_info("vdevice", [relax.VDevice("llvm", 0), relax.VDevice("llvm", 1)])
    return mod


def _kernel_that_calls_another() -> tvm.IRModule:
    @I.ir_module
    class Module:
        @T.prim_func(private=True, s_tir=True)
        def inner(x: T.Buffer((2,), "float32"), z: T.Buffer((2,), "float32")):
            for i in range(2):
                z[i] = x[i] + T.float32(1)

        @T.prim_func(private=True, s_tir=True)
        def outer(x: T.Buffer((2,), "float32"), z: T.Buffer((2,), "float32")):
            Module.inner(x.data, z.data)

        @R.function
        def main(x: R.Tensor((2,), "float32")):
            y = R.call_tir(Module.outer, (x,), out_ty=R.Tensor((2,), "float32"))
            return y

    return Module


def _same_symbols() -> tvm.IRModule:
    mod = _identity(_F32)
    mod["other"] = relax.utils.copy_with_new_vars(mod["main"])
    return mod


def _declared(shape: list[int], dtype: str) -> tvm.IRModule:
    """A function that returns what it takes, (2, 3) of float32, and says that it returns something else."""
    main = _identity(_F32)["main"]
    type = relax.TensorType(shape, dtype)
    return tvm.IRModule({"main": relax.Function(main.params, main.body, type, True, main.attrs)})


_DECLARED = r"@main returns R.Tensor\(\(2, 3\), dtype=\"float32\"\) and declares R.Tensor\(\(.*"


def _unbound() -> tvm.IRModule:
    x, y = relax.Var("x", _F32), relax.Var("y", _F32)
    return tvm.IRModule({"main": relax.Function([x], relax.SeqExpr([], y), _F32).with_attr("global_symbol", "main")})


def _function() -> tvm.IRModule:
    @I.ir_module
    class Module:
        @R.function
        def main(
            x: R.Tensor((2,), "float32"),
        ) -> R.Callable((R.Tensor((2,), "float32"),), R.Tensor((2,), "float32")):
            @R.function
            def add_x(y: R.Tensor((2,), "float32")) -> R.Tensor((2,), "float32"):
                z = R.add(x, y)
                return z

            return add_x

    return Module


def _unknown_sizes() -> tvm.IRModule:
    @I.ir_module
    class Module:
        @R.function
        def main(x: R.Tensor(("n", "m"), "float32"), y: R.Tensor(("k", "l"), "float32")) -> R.Tensor(
            dtype="float32", ndim=2
        ):
            z = R.add(x, y)
            return z

    return Module


def _bits_of_floats() -> tvm.IRModule:
    x = _var(_F32)
    return _returns(relax.op.bitwise_and(x, x), x)


def _nan_of_integers() -> tvm.IRModule:
    x = relax.Var("x", relax.TensorType([4], "int32"))
    return _returns(relax.op.take(x, relax.const([0, 7], "int64"), 0, "nan"), x)


REFUSED = {
    "no module": (3, IllFormedModuleError, r"got a int, expected a Model or a tvm\.IRModule"),
    "no main": (tvm.IRModule(), IllFormedModuleError, "expected a Relax function 'main'"),
    "ill-formed": (_unbound(), IllFormedModuleError, "not well formed: Var y is not defined"),
    "another dtype than declared": (_declared([2, 3], "float16"), IllFormedModuleError, _DECLARED + '"float16"'),
    "another shape than declared": (_declared([6], "float32"), IllFormedModuleError, _DECLARED),
    "one symbol twice": (_same_symbols(), IllFormedModuleError, "several functions have the global_symbol 'main'"),
    "a function as result": (_function(), UnsupportedError, r"main returns R\.Callable.*Call the function in main"),
    "another device": (_on_cuda(), UnsupportedError, "places values on cuda"),
    "a second CPU": (_on_a_second_cpu(), UnsupportedError, "places values on the CPU's device 1"),
    "a kernel that calls another": (_kernel_that_calls_another(), UnsupportedError, "PrimFunc outer calls inner of"),
    "a tuple as input": (_identity(tvm.ir.TupleType([_F32])), UnsupportedError, "passes the fields of a tuple"),
    "a shape as input": (_identity(_SIZES), UnsupportedError, "passes its sizes as a tensor"),
    "a number as input": (_identity(tvm.ir.PrimType("int64")), UnsupportedError, "passes a whole number as a tensor"),
    "another number": (_identity(tvm.ir.PrimType("float32")), UnsupportedError, r"bind_params\(.*0.5, 'float32'"),
    "no rank": (_identity(relax.TensorType(dtype="float32")), UnsupportedError, "Declare its dtype and dimensions"),
    "no dtype": (_identity(relax.TensorType([2], None)), UnsupportedError, r"%x in @main is a R\.Tensor.*with_dtypes"),
    "a packed function": (_packed("no.such.function"), UnsupportedError, "not registered: 'no.such.function' in @main"),
    "one of a PrimFunc": (_packed_by_a_primfunc(), UnsupportedError, "registered: 'no.such.function' in @kernel"),
    "a Python function": (_python("nobody"), UnsupportedError, r"@main calls the Python function 'nobody'.*not reg"),
    "a Python function, lowered": (
        _lowered_python("nobody"),
        UnsupportedError,
        "the Python function 'nobody'.*not reg",
    ),
    "bounds that are no numbers": (
        tvm.IRModule({"main": _identity(_F32)["main"].with_attr("tir_var_upper_bound", {"n": [4]})}),
        IllFormedModuleError,
        r"main has the attribute 'tir_var_upper_bound' with .*; expected a whole number",
    ),
    "a size that there is not": (_shape_of_shape(), UnsupportedError, r"%gv in @main is a R\.Tensor\(\(-1,\).*ndim=2"),
    "bits of floats": (_bits_of_floats(), UnsupportedError, "%gv in @main is relax.bitwise_and of numbers of float32"),
    "NaN of integers": (_nan_of_integers(), UnsupportedError, r"%gv in @main is relax.take\(mode='nan'\) of .* int32"),
    "unknown sizes": (
        _unknown_sizes(),
        UnsupportedError,
        r"no kernel for relax\.add\(.*bound to %z in @main.*match_cast",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused_says_why(case: str) -> None:
    mod, error, message = REFUSED[case]
    with pytest.raises(error, match=message) as refusal:
        vm.compile(mod)
    assert isinstance(refusal.value, AutocastError)


def test_packed_functions_are_found_in_the_registry_and_in_the_module() -> None:
    assert tvm.get_global_func("vm.builtin.copy") is not None
    x = _var(_F32)
    copied = _returns(relax.op.call_pure_packed("vm.builtin.copy", x, ty_args=_F32), x)
    data = np.ones((2, 3), "float32")
    np.testing.assert_array_equal(vm.compile(copied)(data), data)

    @I.ir_module
    class Module:
        @T.prim_func(s_tir=True)
        def double(a: T.Buffer((2, 3), "float32"), b: T.Buffer((2, 3), "float32")):
            T.func_attr({"global_symbol": "double"})
            for i, j in T.grid(2, 3):
                with T.sblock("double"):
                    p, q = T.axis.remap("SS", [i, j])
                    b[p, q] = a[p, q] * T.float32(2)

        @R.function
        def main(x: R.Tensor((2, 3), "float32")) -> R.Tensor((2, 3), "float32"):
            y = R.call_dps_packed("double", (x,), out_ty=R.Tensor((2, 3), "float32"))
            return y

    np.testing.assert_array_equal(vm.compile(Module)(data), 2 * data)


def test_a_python_function_that_is_registered_is_called() -> None:
    data = np.ones((2, 3), "float32")
    register, clear = (
        tvm.get_global_func(f"vm.builtin.{name}") for name in ("register_py_func", "clear_py_func_registry")
    )
    register("twice", lambda x: tvm.runtime.tensor(2 * x.numpy()))
    try:
        np.testing.assert_array_equal(vm.compile(_python("twice"))(data), 2 * data)
    finally:
        clear()


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (relax.ShapeExpr([2, 3]), (2, 3)),
        (relax.prim_value(7), 7),
        (relax.Tuple([]), ()),
        (relax.Tuple([relax.ShapeExpr([4]), relax.Tuple([relax.prim_value(1)])]), ((4,), (1,))),
    ],
    ids=str,
)
def test_shapes_numbers_and_tuples_are_results(value: relax.Expr, expected: Any) -> None:
    x = _var(_F32)
    assert vm.compile(_returns(value, x))(np.zeros((2, 3), "float32")) == expected


@pytest.mark.parametrize("flag", [True, False])
def test_dtypes_that_annotations_leave_out_are_those_of_the_values(flag: bool) -> None:
    @I.ir_module
    class Module:
        @R.function
        def main(x: R.Tensor((2, 3), "float32"), flag: R.Tensor((), "bool")) -> R.Any:
            with R.dataflow():
                a: R.Tensor = R.add(x, x)
                b: R.Tensor = a
                R.output(b)
            if flag:
                c: R.Tensor = R.add(b, x)
                y = c
            else:
                y = x
            t = (y, b)
            u: R.Tuple(R.Tensor, R.Tensor) = t
            z: R.Any = R.add(u[0], u[1])
            return z

    data = np.arange(6, dtype="float32").reshape(2, 3)
    for module in (Module, from_relax(Module), amp.autocast(from_relax(Module))):
        np.testing.assert_array_equal(vm.compile(module)(data, np.array(flag)), (5 if flag else 3) * data)


def test_a_part_of_a_program_for_several_workers() -> None:
    x = _var(_F32)
    with pytest.raises(UnsupportedError, match=r"@main calls relax\.ccl\.allreduce, which works among several workers"):
        vm.compile(_returns(relax.op.ccl.allreduce(x, "sum"), x))
    call = relax.op.call_pure_packed("runtime.disco.worker_id", ty_args=_F32)
    with pytest.raises(UnsupportedError, match=r"calls runtime\.disco\.worker_id"):
        vm.compile(_returns(call, x))


_OF_UNKNOWN_SIZES = {
    "relax.matmul": lambda x: relax.op.matmul(x, x),
    "relax.strided_slice": lambda x: relax.op.strided_slice(x, [0], [0], [2]),
    "relax.cumsum": lambda x: relax.op.cumsum(x, 0),
    "relax.topk": lambda x: relax.op.topk(x, 2),
    "relax.concat": lambda x: relax.op.concat([x, x]),
}


@pytest.mark.parametrize("name", _OF_UNKNOWN_SIZES)
def test_an_operator_of_a_tensor_whose_sizes_nobody_says_is_refused_by_its_name(name: str) -> None:
    unknown = relax.TensorType(None, "float32", ndim=2)
    x, builder = _var(_F32), relax.BlockBuilder()
    with builder.function("main", [x], pure=False):
        made = builder.emit(relax.Call(relax.ExternFunc("tests.makes"), [x], None, [unknown]))
        builder.emit_func_output(builder.emit(_OF_UNKNOWN_SIZES[name](made)))
    tvm.register_global_func("tests.makes", lambda x: x, override=True)
    with pytest.raises(UnsupportedError, match=rf"no kernel for {name}\(.*bound to %.* in @main.*R\.match_cast"):
        vm.compile(builder.get())


@pytest.mark.parametrize("long", [True, False])
def test_sizes_that_an_author_left_out_and_an_operator_knows_are_known(long: bool) -> None:
    @I.ir_module
    class Module:
        @R.function
        def main(c: R.Tensor((), "bool"), x: R.Tensor(("n", 3), "float32"), w: R.Tensor((3, 3), "float32")):
            m = T.int64()
            if c:
                r: R.Tensor(ndim=2, dtype="float32") = R.matmul(R.concat([x, x], axis=0), w)
            else:
                r: R.Tensor(ndim=2, dtype="float32") = R.matmul(x, w)
            z = R.match_cast(r, R.Tensor((m, 3), "float32"))
            return R.exp(z)

    x, w = np.ones((2, 3), "float32"), np.eye(3, dtype="float32")
    expected = np.full((4 if long else 2, 3), np.e)
    np.testing.assert_allclose(vm.compile(Module)(np.array(long), x, w), expected, rtol=1e-6)
