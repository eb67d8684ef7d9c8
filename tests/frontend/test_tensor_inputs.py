"""Tuples, numbers and shapes that `main` takes become tensors."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax, tirx
from tvm.script import ir as I
from tvm.script import relax as R
from tvm.script import tirx as T

from autocast import amp, from_relax, vm
from autocast.errors import ImportModelError

_X, _Y = np.array([1.0, 2.0], "float32"), np.array([3.0, 5.0], "float32")


@I.ir_module
class Tuples:
    @R.function
    def main(
        t: R.Tuple(R.Tensor((2,), "float32"), R.Tuple(R.Tensor(("n",), "float32"), R.Tuple())),
        t_0: R.Tensor((2,), "float32"),
        w: R.Tuple(R.Tensor((2,), "float32"), R.Tensor((2,), "float32")),
    ):
        inner = t[1]
        joined = R.concat((t[0], inner[0]), axis=0)
        scaled = R.add(R.multiply(t_0, w[0]), w[1])
        return (joined, scaled)


def test_a_tuple_is_passed_as_its_tensors() -> None:
    model = from_relax(Tuples)
    assert model.input_names == ("t_0_", "t_1_0", "t_0", "w_0", "w_1")
    inputs = (_X, np.ones(3, "float32"), _Y, _X, _Y)
    for prepared in (model, amp.autocast(model)):
        joined, scaled = prepared(*inputs)
        np.testing.assert_array_equal(joined, [1, 2, 1, 1, 1])
        np.testing.assert_array_equal(scaled, _Y * _X + _Y)


@pytest.mark.parametrize("values", [[(_X, _Y)], [_X, _Y], {"w_0": _X, "w_1": _Y}])
def test_a_tuple_of_parameters_is_given_as_one_or_by_its_tensors(values: Any) -> None:
    mod = Tuples.clone()
    mod["main"] = mod["main"].with_attr("num_input", 2)
    model = from_relax(mod, values)
    assert (model.num_input, [*model.params]) == (3, ["w_0", "w_1"])
    np.testing.assert_array_equal(model(_X, _X, _Y)[1], _Y * _X + _Y)


def test_fields_of_a_tuple_of_parameters_are_parameters_to_a_policy() -> None:
    @I.ir_module
    class Packed:
        @R.function
        def main(
            x: R.Tensor((3, 8), "float32"),
            w: R.Tuple(R.Tensor((8, 8), "float32"), R.Tuple(R.Tensor((8, 2), "float32"))),
        ):
            with R.dataflow():
                first, rest = w[0], w[1]
                y = R.matmul(R.matmul(x, first), rest[0])
                R.output(y, first)
            return (y, first)

    model = from_relax(Packed, [np.full((8, 8), 0.5, "float32"), np.ones((8, 2), "float32")])
    low = amp.autocast(model, preset="pure")
    assert low.report.parameters.stored == ("w_1_0",) and low.report.parameters.mixed == ("w_0",)
    wide = amp.autocast(model, policy="mp4, float32_names=w_1_0")
    assert [decision.mode for decision in wide.report.decisions if decision.operator == "relax.matmul"][1] == "float32"
    for prepared in (model, low, wide):
        y, first = prepared(np.ones((3, 8), "float32"))
        np.testing.assert_array_equal(y, np.full((3, 2), 32, "float32"))
        np.testing.assert_array_equal(first, model.params["w_0"].numpy())


@I.ir_module
class Numbers:
    @R.function
    def main(
        k: R.Prim("int64"),
        x: R.Tensor(("2 * k", "m", 1), "float32"),
        small: R.Prim("int32"),
        twice: R.Prim("bool"),
        s: R.Shape(["m", "c"]),
        vague: R.Shape(ndim=2),
        vaguest: R.Shape,
    ):
        m = T.int64()
        c = T.int64()
        if twice:
            y = R.add(x, x)
        else:
            y = x
        ones = R.ones(R.shape([k, m, c]), "float32")
        zeros = R.zeros(vague, "float32")
        return (y, ones, zeros, k, small, s, vaguest, R.prim_value(k - 8))


@pytest.mark.parametrize("twice", [False, True])
@pytest.mark.parametrize("prepare", [lambda model: model, amp.autocast])
def test_numbers_and_shapes_are_passed_as_tensors(twice: bool, prepare: Any) -> None:
    model = prepare(from_relax(Numbers))
    x = np.arange(12, dtype="float32").reshape(4, 3, 1)
    inputs = (np.array(2), x, np.array(-3, "int32"), np.array(twice), *map(np.array, ([3, 5], [2, 1], [4, 5, 6])))
    y, ones, zeros, *others = model(*inputs)
    np.testing.assert_array_equal(y, x * (2 if twice else 1))
    assert (ones.shape, zeros.shape) == ((2, 3, 5), (2, 1))
    assert others == [2, -3, (3, 5), (4, 5, 6), -6]


@pytest.mark.parametrize("dtype", ["int64", "int32"])
def test_a_slice_begins_at_a_number_from_the_end(dtype: str) -> None:
    @I.ir_module
    class Slice:
        @R.function
        def main(x: R.Tensor((4,), "float32"), begin: R.Prim(dtype)):
            return R.strided_slice(x, axes=[0], begin=[T.cast(begin, "int64")], end=[4])

    model = from_relax(Slice)
    x = np.arange(4, dtype="float32")
    for begin in (-5, -3, 0, 3, 5):
        np.testing.assert_array_equal(model(x, np.array(begin, dtype)), x[begin:])


def test_numbers_in_a_tuple_are_passed_as_tensors() -> None:
    @I.ir_module
    class Slice:
        @R.function
        def main(x: R.Tensor((4,), "float32"), t: R.Tuple(R.Prim("int64"), R.Prim("bool"))):
            begin = t[0]
            return R.strided_slice(x, (R.prim_value(0),), (begin,), (R.prim_value(4),)), t

    x = np.arange(4, dtype="float32")
    part, (begin, flag) = from_relax(Slice)(x, np.array(-1), np.array(True))
    np.testing.assert_array_equal(part, x[-1:])
    assert (begin, flag) == (-1, True)


def test_a_tensor_of_a_tuple_is_cut_at_a_number_of_it() -> None:
    @I.ir_module
    class Slice:
        @R.function
        def main(t: R.Tuple(R.Tensor((4,), "float32"), R.Prim("int64"))):
            x, begin = t[0], t[1]
            return R.strided_slice(x, (R.prim_value(0),), (begin,), (R.prim_value(4),))

    x = np.arange(4, dtype="float32")
    for begin in (-5, -1, 2, 7):
        np.testing.assert_array_equal(from_relax(Slice)(x, np.array(begin)), x[begin:])


def test_a_shape_says_where_a_slice_begins() -> None:
    @I.ir_module
    class Slice:
        @R.function
        def main(x: R.Tensor((4,), "float32"), begin: R.Shape(["k"])):
            k = T.int64()
            return R.strided_slice(x, axes=[0], begin=[k - 4], end=[4])

    x = np.arange(4, dtype="float32")
    for begin in (1, 7):
        np.testing.assert_array_equal(from_relax(Slice)(x, np.array([begin])), x[begin - 4 :])


def test_only_sizes_that_other_inputs_say_are_left_open() -> None:
    params = from_relax(Numbers).main.params
    assert [str(param.ty.dtype) for param in params] == ["int64", "float32", "int32", "bool", *["int64"] * 3]
    assert [str(size) for size in params[1].ty.shape.values] == ["x_0", "m", "T.int64(1)"]


def test_a_function_that_calls_main_calls_what_it_was() -> None:
    @I.ir_module
    class Loop:
        @R.function
        def main(
            state: R.Tuple(R.Tensor((), "int64"), R.Tensor((2,), "float32")),
        ) -> R.Tuple(R.Tensor((), "int64"), R.Tensor((2,), "float32")):
            cls = Loop
            count = state[0]
            x = state[1]
            more = R.greater(count, R.const(0, "int64"))
            if more:
                result = cls.main((R.subtract(count, R.const(1, "int64")), R.add(x, x)))
            else:
                result = state
            return result

    model = from_relax(Loop)
    assert model.input_names == ("state_0", "state_1")
    count, x = model(np.array(3), _X)
    assert count == 0
    np.testing.assert_array_equal(x, 8 * _X)


@pytest.mark.parametrize(
    ("type", "advice"),
    [(tvm.ir.PrimType("float32"), r"R.Tensor\(\(\), 'float32'\), or give it a value"), (relax.AnyType(), "Compute it")],
    ids=["a number that is not whole", "an object"],
)
def test_what_no_tensor_stands_for_is_an_error_that_says_what_to_write(type: tvm.ir.Type, advice: str) -> None:
    x = relax.Var("x", tvm.ir.TupleType([type]))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        builder.emit_func_output(builder.emit(x))
    with pytest.raises(ImportModelError, match=rf"the input 'x_0' is a .*, expected tensors, or .*{advice}"):
        from_relax(builder.get())


def test_a_number_that_is_not_whole_may_be_bound_as_the_error_says() -> None:
    x, low = relax.Var("x", relax.TensorType([2], "float32")), relax.Var("low", tvm.ir.PrimType("float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x, low]):
        builder.emit_func_output(builder.emit(relax.op.clip(x, low, tirx.const(9.0, "float32"))))
    main = builder.get()["main"]
    with pytest.raises(ImportModelError) as error:
        from_relax(main)
    (advice,) = re.findall(r"main\.bind_params\(.*\)", str(error.value))
    bound = from_relax(eval(advice, {"main": main, "tvm": tvm}))
    np.testing.assert_array_equal(vm.compile(bound)(np.array([-1, 2], "float32")), [0.5, 2])
