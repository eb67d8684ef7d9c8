"""Copies of state in low precision: who keeps one, what the module becomes, and that steps are the same as without."""

from __future__ import annotations

from collections import OrderedDict
from functools import cache

import numpy as np
import pytest
import torch
import tvm
from torch import nn
from tvm import relax
from tvm.script import ir as I
from tvm.script import relax as R

import autocast
from autocast import amp, vm
from autocast.kernels import pipeline
from autocast.kernels.state.carry import carry_casts
from autocast.model import Model
from autocast.runtime.program import CARRY
from autocast.training.loss_scaling import DynamicLossScaling
from autocast.training.losses import MSE
from autocast.training.optimizers import SGD, AdamW
from autocast.training.step import training_step
from autocast.vm.memory import MIB
from tests.kernels.modules import operators, planned_main

SHAPE = (32, 32)


@I.ir_module
class Before:
    @R.function(private=True)
    def sgd(p: R.Tensor(SHAPE, "float32"), g: R.Tensor(SHAPE, "float32")):
        with R.dataflow():
            q = R.subtract(p, g)
            R.output(q)
        return q

    @R.function
    def main(x: R.Tensor(SHAPE, "bfloat16"), p: R.Tensor(SHAPE, "float32"), w: R.Tensor(SHAPE, "float32")):
        R.func_attr({"num_input": 2, "num_state": 1})
        cls = Before
        with R.dataflow():
            a = R.astype(p, "bfloat16")
            y = R.matmul(x, a)
            b = R.astype(p, "bfloat16")
            g = R.matmul(y, R.permute_dims(b), out_dtype="float32")
            h = R.matmul(g, w)
            q = cls.sgd(p, h)
            R.output(y, q)
        return (y, q)


@I.ir_module
class After:
    @R.function
    def autocast_carry(p: R.Tensor(SHAPE, "float32")):
        with R.dataflow():
            c = R.astype(p, "bfloat16")
            copies = (c,)
            R.output(copies)
        return copies

    @R.function(private=True)
    def sgd(p: R.Tensor(SHAPE, "float32"), g: R.Tensor(SHAPE, "float32")):
        with R.dataflow():
            q = R.subtract(p, g)
            R.output(q)
        return q

    @R.function
    def main(
        x: R.Tensor(SHAPE, "bfloat16"),
        p: R.Tensor(SHAPE, "float32"),
        c: R.Tensor(SHAPE, "bfloat16"),
        w: R.Tensor(SHAPE, "float32"),
    ):
        R.func_attr({"num_input": 3, "num_state": 2})
        cls = After
        with R.dataflow():
            y = R.matmul(x, c)
            g = R.matmul(y, R.permute_dims(c), out_dtype="float32")
            h = R.matmul(g, w)
            q = cls.sgd(p, h)
            d = R.astype(q, "bfloat16")
            R.output(y, q, d)
        return (y, q, d)


def test_the_copy_is_state_that_the_step_reads_and_replaces():
    carried = carry_casts(Before)
    relax.analysis.well_formed(carried)
    tvm.ir.assert_structural_equal(carried, After)


def module(build, *, inputs: int = 2, state: int = 1) -> tvm.IRModule:
    """A main of the input x, the state p, and the parameter w, whose outputs are `build(x, p, w)`."""
    variables = [relax.Var(name, relax.TensorType(SHAPE, "float32")) for name in "xpw"]
    builder = relax.BlockBuilder()
    with builder.function("main", variables, attrs={"num_input": inputs, "num_state": state} if state else {}):
        with builder.dataflow():
            outputs = [builder.emit_output(builder.normalize(value)) for value in build(*variables)]
        builder.emit_func_output(relax.Tuple(outputs))
    return builder.get()


def low(value: relax.Expr, dtype: str = "bfloat16") -> relax.Expr:
    return relax.op.astype(value, dtype)


LEFT_ALONE = {
    "no state": (lambda x, p, w: (relax.op.matmul(low(x), low(p)),), 0),
    "a cast that is only added": (lambda x, p, w: (low(x) + low(p), p + x), 1),
    "a cast of a parameter that stays": (lambda x, p, w: (relax.op.matmul(low(x), low(w)), p + x), 1),
    "a product in float32": (lambda x, p, w: (relax.op.matmul(x, p), p + x), 1),
    "a cast to a wider dtype": (lambda x, p, w: (relax.op.matmul(low(x, "float64"), low(p, "float64")), p + x), 1),
}


@pytest.mark.parametrize("case", LEFT_ALONE)
def test_only_casts_of_state_that_products_read_are_kept(case):
    build, state = LEFT_ALONE[case]
    mod = module(build, state=state)
    assert carry_casts(mod).same_as(mod)


def test_the_copy_of_state_that_only_another_program_changes_is_left_as_it_is():
    mod = module(lambda x, p, w: (relax.op.matmul(low(x), low(p)), p), state=1)
    main = mod["main"]
    body = relax.SeqExpr(main.body.blocks, relax.Tuple([main.body.body.fields[0], main.params[1]]))
    mod["main"] = relax.Function(main.params, body, main.ret_ty, main.is_pure, main.attrs)
    carried = carry_casts(mod)["main"]
    _, state, copy, _ = carried.params
    assert [result.name for result in carried.body.body.fields[1:]] == [state.name, copy.name]
    assert carried.body.body.fields[2].same_as(copy)


def test_a_copy_for_each_dtype_that_is_read():
    def build(x, p, w):
        both = [relax.op.matmul(low(x, dtype), low(p, dtype)) for dtype in ("bfloat16", "float16")]
        return (*both, p + x)

    carried = carry_casts(module(build))
    dtypes = [str(var.ty.dtype) for var in carried["main"].params]
    assert dtypes == ["float32", "float32", "bfloat16", "float16", "float32"]
    assert operators(carried, CARRY) == ["relax.astype", "relax.astype"]


def test_all_that_reads_the_cast_reads_the_copy():
    carried = carry_casts(module(lambda x, p, w: (relax.op.matmul(low(x), c := low(p)), relax.op.exp(c), p + x)))
    assert operators(carried).count("relax.astype") == 2  # of x, and of the new state


def network(kind: str) -> tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    if kind == "linear":
        return nn.Sequential(nn.Linear(48, 64), nn.Tanh(), nn.Linear(64, 16)).eval(), torch.randn(32, 48)
    layers = nn.Conv2d(8, 16, 3), nn.ReLU(), nn.Flatten(), nn.Linear(576, 16)
    return nn.Sequential(*layers).eval(), torch.randn(32, 8, 8, 8)


STEPS = {
    "SGD": ("linear", SGD(), "bfloat16", {}),
    "AdamW": ("linear", AdamW(), "bfloat16", {}),
    "AdamW, clipped": ("linear", AdamW(), "bfloat16", {"clip_norm": 0.1}),
    "AdamW in float16, scaled": ("linear", AdamW(), "float16", {"loss_scaling": DynamicLossScaling()}),
    "convolutions": ("convolutions", SGD(momentum=0.9), "bfloat16", {}),
}


@cache
def step(case: str) -> tuple[Model, tuple[torch.Tensor, ...]]:
    """A mixed-precision step, and what it takes."""
    kind, optimizer, dtype, options = STEPS[case]
    net, x = network(kind)
    model = amp.autocast(training_step(autocast.from_torch(net, (x,)), MSE(), optimizer, **options), dtype=dtype)
    return model, (x, torch.randn(32, 16), torch.tensor(0.05))


def copies(executable: vm.Executable, inputs: tuple[torch.Tensor, ...]) -> dict[str, tvm.runtime.Tensor]:
    """The copies in low precision that the next call reads, by name."""
    names = [copy.name for copy in executable.program.copies]
    first = len(inputs) + len(executable.state)
    return dict(zip(names, executable.arguments(inputs)[first:], strict=False))


def assert_copies_are_of_the_state(executable: vm.Executable, inputs: tuple[torch.Tensor, ...]) -> None:
    state = [value.numpy() for name, value in executable.state.items() if name.endswith("weight") and value.shape]
    held = [copy.numpy() for copy in copies(executable, inputs).values()]
    assert held
    for copy in held:
        assert any(np.array_equal(copy, value.astype(copy.dtype)) for value in state if value.shape == copy.shape)


@pytest.mark.parametrize("case", STEPS)
def test_steps_are_the_same_as_steps_that_cast_and_copies_follow_the_state(case, monkeypatch):
    model, inputs = step(case)
    carrying = vm.compile(model)
    monkeypatch.setattr("autocast.vm.program._programs", OrderedDict())
    monkeypatch.setattr(pipeline, "LOWERING", [phase for phase in pipeline.LOWERING if phase.name != "carry_casts"])
    casting = vm.compile(model)
    assert copies(carrying, inputs)
    assert not copies(casting, inputs)
    for _ in range(4):
        assert_copies_are_of_the_state(carrying, inputs)
        np.testing.assert_allclose(carrying(*inputs), casting(*inputs), rtol=1e-5)
    assert_copies_are_of_the_state(carrying, inputs)
    for name, value in casting.state.items():
        np.testing.assert_allclose(carrying.state[name].numpy(), value.numpy(), rtol=1e-4, atol=1e-6, err_msg=name)


def test_a_step_that_overflows_changes_neither_state_nor_copies():
    model, (x, y, rate) = step("AdamW in float16, scaled")
    executable = vm.compile(model)
    before = [copy.numpy() for copy in copies(executable, (x, y, rate)).values()]
    executable(x, y * 1e30, rate)
    for copy, value in zip(copies(executable, (x, y, rate)).values(), before, strict=True):
        np.testing.assert_array_equal(copy.numpy(), value)


@pytest.mark.parametrize("after", [0, 2])
def test_a_loaded_state_has_its_copies_computed_again(after):
    model, inputs = step("AdamW")
    straight, resumed = vm.compile(model), vm.compile(model)
    for _ in range(3):
        straight(*inputs)
    for _ in range(after):
        resumed(*inputs)
    resumed.load_state({name: value.numpy() for name, value in straight.state.items()})
    assert_copies_are_of_the_state(resumed, inputs)
    torch.testing.assert_close(resumed(*inputs), straight(*inputs), rtol=0, atol=0)


def test_a_part_of_a_state_may_be_loaded():
    model, inputs = step("SGD")
    executable = vm.compile(model)
    executable(*inputs)
    executable.load_state({"0.weight": np.zeros((64, 48), "float32")})
    assert_copies_are_of_the_state(executable, inputs)
    assert any(not copy.numpy().any() for copy in copies(executable, inputs).values())


def test_no_step_casts_a_weight_and_each_update_is_one_kernel():
    """Weights in float32 are read by the kernels that write them, in place, with their copies; by nothing else."""
    model, inputs = step("AdamW")
    executable = vm.compile(model)
    main = planned_main(model)
    calls = [
        binding.value
        for block in main.body.blocks
        for binding in block.bindings
        if isinstance(binding.value, relax.Call) and isinstance(binding.value.op, tvm.ir.GlobalVar)
    ]
    params = {param.name: param for param in main.params}
    for copy in copies(executable, inputs):
        weight = params[copy.removesuffix("_bfloat16")]
        (update,) = [call for call in calls if any(arg.same_as(weight) for arg in call.args)]
        assert update.op.name_hint.startswith("elementwise")
        assert update.op.name_hint.endswith("_in_place")
        assert any(arg.same_as(params[copy]) for arg in update.args)


def test_copies_are_no_part_of_the_model_or_its_state_yet_count_as_memory_that_is_held():
    model, inputs = step("SGD")
    executable = vm.compile(model)
    assert tuple(executable.state) == model.updated
    trace = vm.trace_memory(executable, "cpu", inputs)
    state = sum(value.numpy().nbytes for value in executable.state.values())
    narrow = sum(int(np.prod(copy.shape)) * 2 for copy in copies(executable, inputs).values())
    assert narrow == 2 * (48 * 64 + 64 * 16)
    others = sum(value.numpy().nbytes for value in executable.params)
    assert trace.params == pytest.approx((state + narrow + others) / MIB)


def test_executables_of_one_model_have_copies_of_their_own():
    model, inputs = step("SGD")
    one, other = vm.compile(model), vm.compile(model)
    first = other(*inputs)
    one(*inputs)
    one(*inputs)
    fresh = vm.compile(model)
    assert fresh(*inputs) == first
    assert other(*inputs) == fresh(*inputs)
