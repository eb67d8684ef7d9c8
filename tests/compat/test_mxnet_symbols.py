"""MXNet's interface: symbols, which are modules here, with the types and the values of their parameters."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tvm.script import ir as I
from tvm.script import relax as R

import autocast
from autocast.compat.mxnet import amp
from autocast.errors import ImportModelError
from tests.compat.test_mxnet import modes


@I.ir_module
class Symbol:
    @R.function
    def main(data: R.Tensor((2, 4)), weight: R.Tensor((3, 4)), bias: R.Tensor((3,)), mean: R.Tensor((2, 3))):
        with R.dataflow():
            turned = R.permute_dims(weight)
            fc = R.add(R.matmul(data, turned), bias)
            centered = R.subtract(fc, mean)
            out = R.nn.softmax(centered)
            R.output(out)
        return out


DTYPES = {"weight": "float32", "bias": "float32", "mean": "float32"}


def test_a_symbol_needs_the_types_of_inputs_and_parameters_and_no_others():
    converted = amp.convert_symbol(Symbol, {"data": "float32"}, DTYPES)
    assert modes(converted) == {
        "permute_dims": "float16",
        "matmul": "float16",
        "bias_add": "float32",
        "subtract": "float32",
        "nn.softmax": "float32",
    }
    with pytest.raises(ImportModelError, match="no dtype is given for weight, bias, mean"):
        amp.convert_symbol(Symbol, {"data": "float32"}, {})


def test_a_symbol_takes_parameters_in_the_target_dtype_where_nothing_else_is_read():
    converted = amp.convert_symbol(Symbol, {"data": "float32"}, DTYPES, cast_params_offline=True)
    assert [str(param.ty.dtype) for param in converted["main"].params] == ["float32", "float16", "float32", "float32"]


@pytest.mark.parametrize("excluded", [[], ["low"]])
def test_a_parameter_that_is_shared_is_cast_offline_only_where_all_its_readers_are_low(excluded):
    @I.ir_module
    class Shared:
        @R.function
        def main(data: R.Tensor((2, 4)), weight: R.Tensor((4, 4))):
            with R.dataflow():
                low = R.matmul(data, weight)
                out = R.matmul(low, weight)
                R.output(out)
            return out

    _, args, _ = amp.convert_model(
        Shared,
        {"weight": torch.eye(4)},
        {},
        {"data": "float32"},
        excluded_sym_names=excluded,
        cast_params_offline=True,
    )
    assert str(args["weight"].dtype) == ("float32" if excluded else "float16")


def test_parameters_in_two_dtypes_are_cast_to_the_widest_of_them():
    @I.ir_module
    class Sum:
        @R.function
        def main(data: R.Tensor((4,)), narrow: R.Tensor((4,)), wide: R.Tensor((4,))):
            with R.dataflow():
                one = R.add(data, narrow)
                out = R.add(one, wide)
                R.output(out)
            return out

    params = {"narrow": torch.ones(4, dtype=torch.float16), "wide": np.ones(4, "float32")}
    sym, args, _ = amp.convert_model(Sum, params, {}, {"data": "float16"}, cast_params_offline=True)
    assert {name: str(value.dtype) for name, value in args.items()} == {"narrow": "float16", "wide": "float32"}
    assert sym.script().count("R.astype(") == 1
    np.testing.assert_array_equal(autocast.from_relax(sym, args)(np.ones(4, "float16")), np.full(4, 3, "float32"))


@pytest.mark.parametrize(("a", "b", "casts"), [("float16", "float16", 0), ("float32", "float16", 1)])
def test_operators_of_several_inputs_cast_only_what_needs_it(a, b, casts):
    @I.ir_module
    class Sum:
        @R.function
        def main(a: R.Tensor((4,)), b: R.Tensor((4,))):
            with R.dataflow():
                c = R.add(a, b)
                R.output(c)
            return c

    converted = amp.convert_symbol(Sum, {"a": a, "b": b}, {})
    assert converted.script().count("R.astype(") == casts
    assert str(converted["main"].ret_ty.dtype) == a


def test_a_model_comes_back_as_symbol_arguments_and_statistics():
    rng = np.random.default_rng(0)
    args = {"weight": rng.normal(size=(3, 4)).astype("float32"), "bias": np.zeros(3, "float32")}
    aux = {"mean": np.ones((2, 3), "float32")}
    sym, arg_params, aux_params = amp.convert_model(
        Symbol, args, aux, {"data": "float32"}, target_dtype="bfloat16", cast_params_offline=True
    )
    assert {name: str(value.dtype) for name, value in arg_params.items()} == {"weight": "bfloat16", "bias": "float32"}
    assert list(aux_params) == ["mean"]
    x = rng.normal(size=(2, 4)).astype("float32")
    logits = x @ args["weight"].T - 1
    expected = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    found = autocast.from_relax(sym, {**arg_params, **aux_params})(x)
    np.testing.assert_allclose(found, expected, rtol=2e-2)
