"""What is computed once from a model's parameters, and what stays in main."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import tvm
from tvm import relax
from tvm.script import ir as I
from tvm.script import relax as R
from tvm.script import tirx as T

from autocast import vm
from autocast.kernels.phases.prepare import prepare_parameters
from autocast.model import Model
from autocast.runtime.program import PREPARE
from tests.kernels.modules import operators

LARGE = 1024, 256  # 1 MiB of float32


def main_of(body, *params, inputs=1, prepare=prepare_parameters, **options):
    """`prepare_parameters` of a module whose main computes `body` from x and parameters of these shapes or types."""
    types = [param if isinstance(param, relax.TensorType) else relax.TensorType(param, "float32") for param in params]
    variables = [relax.Var(f"p{index}", ty) for index, ty in enumerate([relax.TensorType((8, 256), "float32"), *types])]
    builder = relax.BlockBuilder()
    with builder.function("main", variables, attrs={} if inputs is None else {"num_input": inputs}):
        with builder.dataflow():
            result = builder.emit_output(builder.normalize(body(*variables)))
        builder.emit_func_output(result)
    mod = prepare(builder.get(), **options)
    relax.analysis.well_formed(mod)
    return mod


def prepared(mod):
    """The operators that run beforehand; None where main needs no such function."""
    return operators(mod, PREPARE) if PREPARE in [var.name_hint for var in mod.get_global_vars()] else None


def test_a_cast_and_transposed_weight_is_computed_beforehand():
    def body(x, w):
        return relax.op.matmul(relax.op.astype(x, "bfloat16"), relax.op.permute_dims(relax.op.astype(w, "bfloat16")))

    mod = main_of(body, LARGE)
    assert prepared(mod) == ["relax.astype", "relax.permute_dims"]
    assert operators(mod) == ["relax.astype", "relax.matmul"]
    weight = mod["main"].params[1]
    assert (str(weight.ty.dtype), [int(size) for size in weight.ty.shape]) == ("bfloat16", [256, 1024])
    assert int(mod["main"].attrs["num_input"]) == 1


def test_a_parameter_that_main_also_reads_as_it_is_stays_its_argument():
    def body(x, w):
        return relax.op.add(relax.op.matmul(x, relax.op.permute_dims(w)), relax.op.sum(w))

    mod = main_of(body, LARGE)
    assert prepared(mod) == ["relax.permute_dims", "relax.sum"]
    assert len(mod["main"].params) == 3

    def reads_both(x, w):
        return relax.op.matmul(relax.op.matmul(x, relax.op.permute_dims(w)), w)

    assert [param.name for param in main_of(reads_both, LARGE)["main"].params][:2] == ["p0", "p1"]


@pytest.mark.parametrize(
    ("dtype", "body", "kept"),
    [
        pytest.param("float32", lambda w: relax.op.broadcast_to(w, (4, *LARGE)), "relax.broadcast_to", id="expanded"),
        pytest.param("bfloat16", lambda w: relax.op.astype(w, "float32"), "relax.astype", id="widened"),
        pytest.param("float32", lambda w: relax.op.reshape(w, (1024, 1, 256)), "relax.reshape", id="view"),
    ],
)
def test_results_larger_than_their_sources_and_views_are_computed_at_each_call(dtype, body, kept):
    mod = main_of(lambda x, w: relax.op.add(relax.op.sum(x), body(w)), relax.TensorType(LARGE, dtype))
    assert prepared(mod) is None
    assert kept in operators(mod)


def test_of_a_weight_of_integers_the_real_numbers_are_kept():
    def body(x, w):
        return relax.op.matmul(x, relax.op.multiply(relax.op.astype(w, "float32"), relax.const(0.5)))

    mod = main_of(body, relax.TensorType((256, 1024), "int8"))
    assert prepared(mod) == ["relax.astype", "relax.multiply"]
    assert operators(mod) == ["relax.matmul"]


def test_a_large_value_on_the_way_to_a_small_one_is_computed_beforehand():
    mod = main_of(lambda x, w: relax.op.add(x, relax.op.sum(relax.op.broadcast_to(w, (4, *LARGE)))), LARGE)
    assert prepared(mod) == ["relax.broadcast_to", "relax.sum"]
    assert operators(mod) == ["relax.add"]


def test_what_main_returns_is_computed_at_each_call():
    builder = relax.BlockBuilder()
    x, w = (relax.Var(name, relax.TensorType((4,), "float32")) for name in "xw")
    with builder.function("main", [x, w], attrs={"num_input": 1}):
        with builder.dataflow():
            root = builder.emit(relax.op.sqrt(w))
            pair = builder.emit_output(relax.Tuple([builder.emit(relax.op.add(x, x)), root]))
        builder.emit_func_output(pair)
    assert prepared(prepare_parameters(builder.get())) is None


def test_equal_computations_are_done_once():
    def body(x, w):
        first, second = (relax.op.permute_dims(relax.op.astype(w, "bfloat16")) for _ in range(2))
        low = relax.op.astype(x, "bfloat16")
        return relax.op.add(relax.op.matmul(low, first), relax.op.matmul(low, second))

    mod = main_of(body, LARGE)
    assert prepared(mod) == ["relax.astype", "relax.permute_dims"]
    assert len(mod["main"].params) == 2


def test_parameters_that_nothing_reads_are_dropped():
    mod = main_of(lambda x, w, dead: relax.op.add(x, w), (256,), LARGE)
    assert [param.name for param in mod["main"].params] == ["p0", "p1"]
    assert len(mod[PREPARE].params) == 2


def test_literals_count_as_parameters():
    literal = relax.const(np.ones(LARGE, "float32"))
    mod = main_of(lambda x: relax.op.matmul(x, relax.op.permute_dims(literal)))
    assert prepared(mod) == ["relax.permute_dims"]


def test_a_function_without_declared_parameters_stays_as_it_is():
    mod = main_of(lambda x, w: relax.op.matmul(x, relax.op.permute_dims(w)), LARGE, inputs=None)
    assert prepared(mod) is None


def test_values_of_run_time_size_stay():
    rows = tvm.tirx.Var("rows", "int64")
    mod = main_of(
        lambda x, y, w: relax.op.add(y, relax.op.broadcast_to(w, (rows, 256))),
        relax.TensorType((rows, 256), "float32"),
        (256,),
        inputs=2,
    )
    assert prepared(mod) is None


def test_factors_leave_first_and_the_rest_after_them():
    def body(x, w, variance):
        factor = relax.op.rsqrt(variance)
        return relax.op.multiply(relax.op.matmul(x, relax.op.permute_dims(relax.op.multiply(w, w))), factor)

    once = main_of(body, LARGE, (1024,), only_small=True)
    assert prepared(once) == ["relax.rsqrt"]
    assert operators(once) == ["relax.multiply", "relax.permute_dims", "relax.matmul", "relax.multiply"]
    twice = prepare_parameters(once)
    relax.analysis.well_formed(twice)
    assert prepared(twice) == ["relax.rsqrt", "relax.multiply", "relax.permute_dims"]
    assert operators(twice) == ["relax.matmul", "relax.multiply"]
    assert len(twice[PREPARE].params) == 2


def test_in_place_and_unknown_functions_run_at_each_call():
    @I.ir_module
    class InPlace:
        @T.prim_func(private=True, s_tir=True)
        def count(x: T.Buffer((T.int64(4),), "float32")):
            for i in range(4):
                with T.sblock("count"):
                    v = T.axis.spatial(4, i)
                    x[v] = x[v] + T.float32(1)

        @R.function
        def main(x: R.Tensor((4,), "float32"), w: R.Tensor((4,), "float32")):
            R.func_attr({"num_input": 1})
            cls = InPlace
            with R.dataflow():
                a = R.call_tir_inplace(cls.count, (w,), [0], out_ty=R.Tensor((4,), "float32"))
                b = R.call_dps_packed("counted", (w,), out_ty=R.Tensor((4,), "float32"))
                c = R.add(R.add(a, b), x)
                R.output(c)
            return c

    assert prepared(prepare_parameters(InPlace)) is None


def test_an_executable_holds_what_main_reads_and_computes_the_same():
    @I.ir_module
    class Twice:
        @R.function
        def main(
            x: R.Tensor((8, 256), "float32"), w: R.Tensor((1024, 256), "float32"), s: R.Tensor((1024,), "float32")
        ):
            R.func_attr({"num_input": 1})
            with R.dataflow():
                turned = R.astype(R.permute_dims(R.multiply(w, w)), "bfloat16")
                low = R.astype(x, "bfloat16")
                y = R.add(R.matmul(low, turned, out_dtype="float32"), R.sqrt(s))
                R.output(y)
            return y

    rng = np.random.default_rng(0)
    weight, shift = rng.standard_normal((1024, 256)).astype("float32"), rng.random(1024).astype("float32")
    model = Model(Twice, {"w": tvm.runtime.tensor(weight), "s": tvm.runtime.tensor(shift)})
    executable = vm.compile(model)
    x = rng.integers(-64, 64, (8, 256)).astype("float32")  # as exact in bfloat16
    factor = torch.from_numpy(weight * weight).to(torch.bfloat16).double().numpy()
    exact = x.astype("float64") @ factor.T + np.sqrt(shift)
    np.testing.assert_allclose(executable(x), exact, rtol=256 * 2.0**-24, atol=256 * 2.0**-24 * np.abs(x).sum())
    assert vm.get_param_size(model) > 1.0
    assert vm.get_param_size(executable) < 0.6  # the product in bfloat16, not the weight
    trace = vm.trace_memory(executable, "cpu", [x])
    assert trace.params == vm.get_param_size(executable)
    report = vm.profile_vm_model(executable, "cpu", [x], warmup=0, number=1, repeat=1)
    assert {step.name for step in trace} < {row.name for row in report.operators}


def test_a_result_made_of_the_second_of_two_equal_computations_finds_the_first():
    def body(x, w):
        turned, again = (relax.op.permute_dims(w) for _ in range(2))
        return relax.Tuple([relax.op.matmul(x, turned), relax.op.matmul(w, again)])

    mod = main_of(body, (4, 256))
    assert not relax.analysis.free_vars(mod["main"])
    assert prepared(mod) == ["relax.permute_dims"]


def test_what_is_prepared_twice_may_be_nothing_the_first_time():
    def body(x, _):
        return relax.op.add(x, relax.op.exp(relax.const(np.ones((8, 256), "float32"))))

    first = main_of(body, LARGE, only_small=True)
    assert len(first["main"].params) == 1
    assert operators(prepare_parameters(first), PREPARE) == ["relax.exp"]
