"""Models from Relax modules."""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np
import pytest
import torch
import tvm
from tvm import relax
from tvm.script import ir as I
from tvm.script import relax as R
from tvm.script import tirx as T

from autocast import amp, vm
from autocast.errors import ImportModelError
from autocast.frontend import from_relax, from_torch
from tests.frontend.helpers import assert_close, runner

n = TypeVar("n")  # a symbolic dimension


@I.ir_module
class Scale:
    @R.function
    def scale(x: R.Tensor((n, 3), "float32"), w: R.Tensor((3,), "float32")) -> R.Tensor((n, 3), "float32"):
        with R.dataflow():
            y = R.multiply(x, w)
            R.output(y)
        return y


_W = np.array([1.0, 2.0, 3.0], "float32")


@pytest.mark.parametrize("params", [{"w": _W}, [_W], {"w": torch.from_numpy(_W)}, [tvm.runtime.tensor(_W)]])
def test_a_module_with_one_function_becomes_a_model(params: Any) -> None:
    model = from_relax(Scale, params)
    assert (model.input_names, list(model.params), model.num_input) == (("x",), ["w"], 1)
    x = torch.randn(2, 3)
    assert_close(runner(model)(x), (x * torch.from_numpy(_W),))


def test_a_model_from_torch_can_be_taken_apart_and_put_together() -> None:
    module = torch.nn.Linear(3, 2).requires_grad_(False)
    model = from_torch(torch.nn.Sequential(module), (torch.randn(4, 3),))
    same = from_relax(model.mod, model.params)
    assert list(same.params) == ["0.weight", "0.bias"]
    x = torch.randn(4, 3)
    assert_close(runner(same)(x), (module(x),))


def test_without_values_every_parameter_is_an_input() -> None:
    assert from_relax(Scale).input_names == ("x", "w")
    assert from_relax(Scale["scale"]).num_input == 2


def test_parameters_say_what_their_symbolic_dimensions_are() -> None:
    @I.ir_module
    class Shift:
        @R.function
        def main(
            x: R.Tensor((2, "k"), "float32"), w: R.Tensor(("k",), "float32"), v: R.Tensor(("k",), "float32")
        ) -> R.Tensor((2, "k"), "float32"):
            y = R.add(R.multiply(x, w), v)
            return y

    model = from_relax(Shift, [_W, _W])
    x = np.ones((2, 3), "float32")
    np.testing.assert_array_equal(model(x), [2 * _W, 2 * _W])
    assert vm.compile(model).signature.inputs[0].shape == (2, 3)
    with pytest.raises(ImportModelError, match=r"parameter 'w' is a R\.Tensor\(\(2,.*; got float32 of shape \(3,\)"):
        from_relax(Shift, [_W, _W[:2]])


def test_the_given_module_is_left_alone() -> None:
    from_relax(Scale, [_W])
    assert [gv.name_hint for gv in Scale.get_global_vars()] == ["scale"]


def _two() -> tvm.IRModule:
    function = Scale["scale"]
    return tvm.IRModule({"a": function.with_attr("global_symbol", "a"), "b": function.with_attr("global_symbol", "b")})


def _ill_formed() -> tvm.IRModule:
    x, y = (relax.Var(name, relax.TensorType([2], "float32")) for name in "xy")
    body = relax.SeqExpr([], y)
    return tvm.IRModule({"main": relax.Function([x], body, y.ty).with_attr("global_symbol", "main")})


def _declared(count: int = 1) -> tvm.IRModule:
    return tvm.IRModule({"main": Scale["scale"].with_attr("global_symbol", "main").with_attr("num_input", count)})


@I.ir_module
class _Product:
    @R.function
    def main(x: R.Tensor((3, 4), "float32"), w: R.Tensor(("m", 2), "float32")):
        return R.matmul(x, w)


def test_without_values_all_parameters_are_inputs_whatever_is_declared() -> None:
    model = from_relax(_declared())
    assert (model.num_input, model.input_names, model.params) == (2, ("x", "w"), {})


@I.ir_module
class _Grids:
    @R.function
    def main(x: R.Tensor((3,), "float32"), y: R.Tensor((2,), "float32")):
        grids = R.meshgrid((x, y), indexing="xy")
        return grids


@pytest.mark.parametrize(
    ("mod", "params", "message"),
    [
        (_Grids, None, r"indexing='xy'\) in @main has the type .*3.*2.* whose kernel swaps .* Try R\.meshgrid\(\(y, x"),
        (3, None, "got a int; expected a tvm.IRModule"),
        (tvm.IRModule({}), None, r"Relax functions \[\]; expected one"),
        (_two(), None, r"\['a', 'b'\]; expected one, or one of the name 'main'"),
        (Scale, {"v": _W}, r"no parameters \['v'\]; expected some of \['x', 'w'\]"),
        (Scale, {"x": _W}, r"\['x'\], expected main's last parameters, \['w'\]"),
        (Scale, [_W] * 3, "got 3 values, expected at most main's 2 parameters"),
        (Scale, [_W[:2]], r"parameter 'w' is a R\.Tensor.*; got float32 of shape \(2,\)"),
        (Scale, [_W.astype("float16")], "got float16"),
        (_declared(), {}, "num_input=1 of 2.*0 values.*expected 1"),
        (_declared(3), None, "num_input=3, but it has 2 parameters; expected the number of those that are inputs"),
        (
            _Product,
            [np.ones((5, 2), "float32")],
            "values that were given say m = 5, which TVM refuses in main: Matmul requires",
        ),
    ],
)
def test_what_is_not_a_model_is_an_error_that_says_why(mod: Any, params: Any, message: str) -> None:
    with pytest.raises(ImportModelError, match=message):
        from_relax(mod, params)


def test_an_ill_formed_module_is_an_error_that_says_what_is_wrong_where_and_how_to_see_it() -> None:
    other = _ill_formed()["main"].with_attr("global_symbol", "other")
    mod = tvm.IRModule({"main": Scale["scale"].with_attr("global_symbol", "main"), "other": other})
    with pytest.raises(ImportModelError, match=r"not well formed: Var y is not defined, in @other\. Expected") as error:
        from_relax(mod)
    assert "mod.script() shows it" in str(error.value) and "Normalize" in str(error.value)


@pytest.mark.parametrize(
    "type",
    [
        relax.TensorType([2, 4], None),
        relax.TensorType(None, "float32"),
        tvm.ir.TupleType([relax.TensorType(None, None)]),
    ],
    ids=str,
)
def test_a_tensor_that_no_kernel_can_be_made_for_is_refused_when_it_is_imported(type: tvm.ir.Type) -> None:
    builder, x = relax.BlockBuilder(), relax.Var("x", type)
    with builder.function("main", [x]):
        builder.emit_func_output(x)
    with pytest.raises(ImportModelError, match=r"the argument 'x(_0)?' of main is a R.Tensor.* Declare .*with_dtypes"):
        from_relax(builder.get())


def test_sizes_of_inputs_that_have_no_names_get_some() -> None:
    @I.ir_module
    class Vague:
        @R.function
        def main(x: R.Tensor(dtype="float32", ndim=2), w: R.Tensor((8, 8), "float32")):
            rows = T.int64()
            y = R.exp(x)
            z = R.match_cast(x, R.Tensor((rows, 8), "float32"))
            return y, R.matmul(z, w)

    model = from_relax(Vague)
    assert [str(size) for size in model.main.params[0].ty.shape.values] == ["x_0", "x_1"]
    x, w = np.ones((3, 8), "float32"), np.eye(8, dtype="float32")
    powers, product = vm.compile(model)(x, w)
    np.testing.assert_allclose(powers, np.exp(x), rtol=1e-6)
    np.testing.assert_array_equal(product, x)


def test_parameters_of_one_name_are_told_apart() -> None:
    x, first, second = (relax.Var(name, relax.TensorType((4, 4), "float32")) for name in "xww")
    builder = relax.BlockBuilder()
    with builder.function("main", [x, first, second]):
        product = builder.emit(relax.op.matmul(x, first))
        builder.emit_func_output(builder.emit(relax.op.subtract(product, second)))
    eye = np.eye(4, dtype="float32")
    model = from_relax(builder.get(), [2 * eye, eye])
    assert (model.input_names, list(model.params)) == (("x",), ["w", "w_1"])
    np.testing.assert_array_equal(vm.compile(model)(eye), eye)


def test_a_private_function_or_one_that_calls_itself_becomes_main() -> None:
    @I.ir_module
    class Loop:
        @R.function(private=True)
        def loop(x: R.Tensor((3,), "float32")) -> R.Tensor((3,), "float32"):
            cls = Loop
            again = R.less(R.max(x), R.const(10.0))
            if again:
                y = cls.loop(R.add(x, x))
            else:
                y = x
            return y

    private = tvm.IRModule({"main": Scale["scale"].without_attr("global_symbol")})
    for mod, inputs, expected in ((Loop, (_W,), 4 * _W), (private, (_W[None], _W), (_W * _W)[None])):
        np.testing.assert_array_equal(vm.compile(from_relax(mod))(*inputs), expected)


def test_one_of_several_functions_becomes_main() -> None:
    @I.ir_module
    class Several:
        @R.function(private=True)
        def shared(x: R.Tensor((3,), "float32")) -> R.Tensor((3,), "float32"):
            y = R.add(x, x)
            return y

        @R.function
        def main(x: R.Tensor((3,), "float32")) -> R.Tensor((3,), "float32"):
            cls = Several
            y = cls.shared(x)
            return y

        @R.function
        def other(x: R.Tensor((3,), "float32")) -> R.Tensor((3,), "float32"):
            cls = Several
            y = cls.main(cls.shared(x))
            return y

    def result(**options: str) -> np.ndarray:
        return vm.compile(from_relax(Several, **options))(_W)

    np.testing.assert_array_equal(result(), 2 * _W)
    np.testing.assert_array_equal(result(function="other"), 4 * _W)
    np.testing.assert_array_equal(result(function="shared"), 2 * _W)
    with pytest.raises(ImportModelError, match=r"\['main', 'other', 'shared'\]; expected one.*'none'.*function='main'"):
        result(function="none")


def test_devices_and_their_names_survive() -> None:
    builder = relax.BlockBuilder()
    device = relax.VDevice("llvm")
    x = relax.Var("x", relax.TensorType([2, 3], "float32", device))
    with builder.function("cumulated", [x]):
        builder.emit_func_output(builder.emit(relax.op.cumsum(x, axis=1)))
    mod = builder.get()
    mod.update_global_info("vdevice", [device])
    data = np.arange(6, dtype="float32").reshape(2, 3)
    for model in (from_relax(mod), amp.autocast(from_relax(mod))):
        np.testing.assert_array_equal(vm.compile(model)(data), data.cumsum(axis=1))
