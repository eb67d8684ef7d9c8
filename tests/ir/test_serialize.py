"""Modules become data and come back as they were: names, places, what is shared; data that lie are errors."""

from __future__ import annotations

import json
import random

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.script import ir as I
from tvm.script import relax as R
from tvm.script import tirx as T

import autocast
from autocast import amp, kernels, training
from autocast.errors import IllFormedModuleError
from autocast.ir import all_bindings, check_well_formed, place_of
from autocast.ir.deserialize import from_data
from autocast.ir.serialize import DEEPEST, SerializationError, to_data
from tests.architectures import ARCHITECTURES, imported
from tests.fuzz.generator import generate, parse


@I.ir_module
class Written:
    """One of everything that is written by hand."""

    I.module_attrs({"author": "a user", "list": [1, 2.5, "x", True]})
    I.module_global_infos({"vdevice": [I.vdevice("llvm")]})

    @T.prim_func(s_tir=True)
    def twice(a: T.Buffer((4, 4), "float32"), b: T.Buffer((4, 4), "float32")):
        for i, j in T.grid(4, 4):
            with T.sblock("twice"):
                vi, vj = T.axis.remap("SS", [i, j])
                b[vi, vj] = T.max(a[vi, vj] * T.float32(2), T.float32(-1e30))

    @R.function(private=True)
    def chosen(x: R.Tensor(("n", 4), "float32"), condition: R.Tensor((), "bool")) -> R.Tensor(("n", 4), "float32"):
        if condition:
            y = R.add(x, x)
        else:
            y = R.multiply(x, R.const(0.5, "float32"))
        return y

    @R.function(pure=False)
    def main(x: R.Tensor(("n", 4), "float32"), condition: R.Tensor((), "bool"), k: R.Shape(["m"])):
        R.func_attr({"num_input": 3, "nested": {"deep": [1, {"a": None}]}})
        n = T.int64()
        m = T.int64()
        cls = Written
        with R.dataflow():
            pair = (x, (x, R.const(-np.inf, "float32")))
            cast = R.match_cast(pair[1][0], R.Tensor((n, 4), "float32"))
            tile = R.call_tir(cls.twice, (R.zeros((4, 4), "float32"),), out_ty=R.Tensor((4, 4), "float32"))
            wide = R.zeros((n * 2 + m, T.max(n, m) // 3), "float16")
            R.output(cast, tile, wide)
        y = cls.chosen(cast, condition)
        z = R.call_packed("user.function", y, ty_args=R.Tensor((n, 4), "float32"))
        return (y, tile, z, wide)


def through_json(mod):
    data, tensors = to_data(mod)
    return from_data(json.loads(json.dumps(data, allow_nan=False)), tensors)


def check_same(mod):
    """Equal structure, equal text, and equal data: places, which text and structure leave out, are among these."""
    data, tensors = to_data(mod)
    again = from_data(json.loads(json.dumps(data, allow_nan=False)), tensors)
    tvm.ir.assert_structural_equal(again, mod, map_free_vars=False)
    assert again.script() == mod.script()
    assert to_data(again)[0] == data
    return again


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_architectures_come_back_as_imported_and_autocast(name):
    model = imported(name)
    check_same(model.mod)
    check_same(amp.autocast(model).mod)


def test_a_dynamic_model_comes_back():
    check_same(imported("bert", True).mod)


def test_a_training_step_comes_back():
    architecture = ARCHITECTURES["resnet"]()
    architecture.module.train().requires_grad_(True)
    model = autocast.from_torch(architecture.module, architecture.args)
    check_same(amp.autocast(training.training_step(model, training.CrossEntropy(), training.AdamW())).mod)


def test_lowered_modules_come_back():
    check_same(kernels.lower(amp.autocast(imported("unet")).mod, kernels.detect_target()))


def test_a_module_written_by_hand_comes_back():
    check_same(Written)


@pytest.mark.parametrize("first", range(0, 60, 10))
def test_random_modules_come_back(first):
    for seed in range(first, first + 10):
        try:
            mod = parse(generate(seed).text)
        except tvm.error.DiagnosticError:
            continue  # TVM's parser does not take every module that is generated
        check_same(mod)


def test_places_come_back():
    mod = amp.autocast(imported("bert")).mod
    places = [place_of(binding.var) for binding in all_bindings(mod["main"].body)]
    assert [place_of(binding.var) for binding in all_bindings(through_json(mod)["main"].body)] == places
    assert any(place.module for place in places)


def test_a_variable_that_is_shared_stays_one():
    main = through_json(Written)["main"]
    pair, _, _, cast, *_ = main.body.blocks[0].bindings
    assert pair.value.fields[0].same_as(main.params[0])
    assert cast.var.ty.shape[0].same_as(main.params[0].ty.shape[0])


def test_constants_keep_their_bytes_and_their_sharing():
    values = [np.array([np.nan, -0.0, np.inf], "float32"), np.arange(3, dtype="int8")]
    builder = relax.BlockBuilder()
    with builder.function("main", []):
        shared = relax.const(values[0])
        outputs = [builder.emit(relax.op.add(shared, shared)), builder.emit(relax.op.abs(relax.const(values[1])))]
        builder.emit_func_output(relax.Tuple(outputs))
    data, tensors = to_data(builder.get())
    assert [tensor.numpy().tobytes() for tensor in tensors] == [value.tobytes() for value in values]
    call = from_data(data, tensors)["main"].body.blocks[0].bindings[0].value
    assert call.args[0].same_as(call.args[1])


def test_an_operator_that_is_not_registered_here_is_named():
    data, tensors = to_data(Written)
    text = json.dumps(data).replace("relax.multiply", "users.own.operator")
    with pytest.raises(SerializationError, match=r"no operator 'users\.own\.operator' here; try to register it"):
        from_data(json.loads(text), tensors)


def test_a_class_of_another_version_of_tvm_is_named():
    data, tensors = to_data(Written)
    text = json.dumps(data).replace('["ir.Tuple", ["span", "ty", "fields"]]', '["ir.Tuple", ["span", "fields"]]')
    with pytest.raises(SerializationError, match=r"a ir\.Tuple has the fields .* another version of TVM wrote it"):
        from_data(json.loads(text), tensors)


@pytest.mark.parametrize("key", ["ffi.Function", "ffi.Module", "transform.Pass", "runtime.disco.Session", "no.such"])
def test_classes_that_are_no_data_are_refused(key):
    data = {"classes": [[key, []]], "nodes": [[0]], "functions": 0, "attrs": None, "global_infos": 0}
    with pytest.raises(SerializationError, match=key):
        from_data(data, [])


def test_functions_that_run_while_types_are_inferred_are_tvms_own():
    data = {"classes": [["ir.EnvFunc", []]], "nodes": [[0, "runtime.Module"]], "functions": 0}
    with pytest.raises(SerializationError, match=r"'runtime\.Module' is no data"):
        from_data({**data, "attrs": None, "global_infos": 0}, [])


def test_a_module_with_a_function_among_its_attributes_is_refused():
    mod = Written.with_attr("callback", tvm.get_global_func("ffi.Array"))
    with pytest.raises(SerializationError, match="a Function is no data"):
        to_data(mod)


def test_expressions_nested_too_deep_are_refused():
    deep = T.int64(1)
    size = tvm.tirx.Var("n", "int64")
    for _ in range(DEEPEST):
        deep = tvm.tirx.Add(deep, size)
    mod = tvm.IRModule({"main": tvm.tirx.PrimFunc([size], tvm.tirx.Evaluate(deep))})
    with pytest.raises(SerializationError, match="nested more than 2000 deep"):
        to_data(mod)


_STRANGE = [
    *(None, True, -1, 0, 1, 2**31, 2**63, 2**70, 1.5, "", "inf", "float32", [], {}),
    *(["int", -1], ["int", 2**62], ["dtype", "int8"], ["dtype", "bogus"], ["float", "nan"], ["x", 1]),
]


@pytest.mark.parametrize("seed", range(2))
def test_damaged_data_are_a_well_formed_module_or_an_error(seed):
    written, tensors = to_data(Written)
    choose = random.Random(seed)
    outcomes = set()
    for _ in range(250):
        data = json.loads(json.dumps(written))
        nodes = data["nodes"]
        for _ in range(choose.choice([1, 1, 3])):
            at = choose.randrange(len(nodes))
            node = nodes[at] = list(nodes[choose.choice([at, choose.randrange(len(nodes))])]) or [0]
            field = choose.randrange(len(node))
            node[field : field + choose.choice([0, 1, 1, 1])] = choose.choice(
                [[], [choose.choice(_STRANGE)], [choose.randrange(max(1, at))], [choose.randrange(len(nodes))]]
            )
        try:
            check_well_formed("test", from_data(data, tensors), IllFormedModuleError)
            outcomes.add("module")
        except (SerializationError, IllFormedModuleError) as error:
            outcomes.add(type(error))
    assert outcomes == {"module", SerializationError, IllFormedModuleError}
