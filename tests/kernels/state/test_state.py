"""State in compiled modules: what is written in place, what is copied, and in which order."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.script import ir as I
from tvm.script import relax as R

from autocast import vm
from autocast.kernels import detect_target, plan
from autocast.kernels.state.state import num_state, separate_state
from autocast.kernels.state.tensors import Tensors
from autocast.model import Model

SHAPE = (64, 64)


def calls(mod: tvm.IRModule) -> list[str]:
    """The names of what `main` calls, in order."""
    values = [binding.value for block in mod["main"].body.blocks for binding in block.bindings]
    operators = [value.op for value in values if isinstance(value, relax.Call)]
    return [getattr(op, "name_hint", getattr(op, "global_symbol", "")) for op in operators]


def array(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(SHAPE, "float32")


def stateful(build, updates: list[int]) -> Model:
    """A model of the input x and the parameters p and q, whose outputs `build(emit, x, p, q)` gives."""
    x, p, q = (relax.Var(name, relax.TensorType(SHAPE, "float32")) for name in "xpq")
    builder = relax.BlockBuilder()
    with builder.function("main", [x, p, q]):
        with builder.dataflow():
            outputs = [builder.emit_output(value) for value in build(builder.emit, x, p, q)]
        builder.emit_func_output(relax.Tuple(outputs))
    mod = builder.get()
    mod["main"] = mod["main"].with_attrs({"num_input": 1, "updates": updates})
    return Model(mod, {"p": tvm.runtime.tensor(array(1)), "q": tvm.runtime.tensor(array(2))})


def test_updated_parameters_become_inputs_in_the_order_of_their_updates():
    separated = separate_state(stateful(lambda emit, x, p, q: (emit(relax.op.add(x, p)), q, p), [1, 0]).mod)["main"]
    assert [param.name for param in separated.params] == ["x", "q", "p"]
    assert (num_state(separated), int(separated.attrs["num_input"])) == (2, 3)
    assert "updates" not in separated.attrs


def test_a_module_without_updates_stays_as_it_is():
    mod = stateful(lambda emit, x, p, q: (emit(relax.op.add(x, p)),), []).mod
    assert separate_state(mod).same_as(mod)


#: What replaces p and q, and whether some of it has to be copied.
CASES = {
    "both elementwise": (lambda op, x, p, q: (x * q, p + x, q * p), lambda x, p, q: (x * q, p + x, q * p), False),
    "a swap": (lambda op, x, p, q: (x + p, q, p), lambda x, p, q: (x + p, q, p), True),
    "one value twice": (lambda op, x, p, q: (x, (s := p + x), s), lambda x, p, q: (x, p + x, p + x), True),
    "the old value is a result": (lambda op, x, p, q: (p, p + x, q), lambda x, p, q: (p, p + x, q), True),
    "the new value is a result": (lambda op, x, p, q: ((s := p + x), s, q), lambda x, p, q: (p + x, p + x, q), True),
    "the input": (lambda op, x, p, q: (p + q, x, q), lambda x, p, q: (p + q, x, q), True),
    "a product": (lambda op, x, p, q: (x + q, op.matmul(x, p), q), lambda x, p, q: (x + q, x @ p, q), True),
    "a product that is added": (
        lambda op, x, p, q: (x + x, p * relax.const(0.5) + op.matmul(x, x), q),
        lambda x, p, q: (x + x, p * 0.5 + x @ x, q),
        False,
    ),
    "a product of itself that is added": (
        lambda op, x, p, q: (x, p + op.matmul(x, p), q),
        lambda x, p, q: (x, p + x @ p, q),
        True,
    ),
    "two products that are added": (
        lambda op, x, p, q: (x + x, p + op.matmul(x, x) + op.matmul(x, q), q),
        lambda x, p, q: (x + x, p + x @ x + x @ q, q),
        False,
    ),
    "one that others read too": (
        lambda op, x, p, q: ((s := p + op.matmul(x, x)) * x, s + op.matmul(x, q), q),
        lambda x, p, q: ((p + x @ x) * x, p + x @ x + x @ q, q),
        False,
    ),
    "a product of others": (lambda op, x, p, q: (x + p, op.matmul(x, q), q), lambda x, p, q: (x + p, x @ q, q), False),
}


@pytest.mark.parametrize("case", CASES)
def test_the_new_state_is_right_however_it_is_written(case):
    outputs, expected, _ = CASES[case]
    model = stateful(lambda emit, *tensors: [emit(value) for value in outputs(relax.op, *tensors)], [0, 1])
    executable, p, q = vm.compile(model), array(1), array(2)
    for seed in range(3):
        x = array(3 + seed) / 8
        want, p, q = expected(x, p, q)
        np.testing.assert_allclose(executable(x), want, rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(executable.state["p"].numpy(), p, rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(executable.state["q"].numpy(), q, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("case", CASES)
def test_state_is_copied_only_where_it_cannot_be_written_in_place(case):
    outputs, _, copies = CASES[case]
    model = stateful(lambda emit, *tensors: [emit(value) for value in outputs(relax.op, *tensors)], [0, 1])
    planned = plan(model.mod, detect_target()).planned
    assert any("CopyFromTo" in name for name in calls(planned)) == copies


@I.ir_module
class Descent:
    @R.function(private=True)
    def step(p: R.Tensor(SHAPE, "float32"), g: R.Tensor(SHAPE, "float32")):
        with R.dataflow():
            q = R.subtract(p, R.multiply(g, R.const(0.1, "float32")))
            R.output(q)
        return q

    @R.function
    def main(x: R.Tensor(SHAPE, "float32"), p: R.Tensor(SHAPE, "float32"), q: R.Tensor(SHAPE, "float32")):
        R.func_attr({"num_input": 1, "updates": [0, 1]})
        cls = Descent
        with R.dataflow():
            y = R.matmul(x, p)
            g1 = R.matmul(y, y)
            g2 = R.matmul(g1, q)
            p1 = cls.step(p, g1)
            q1 = cls.step(q, g2)
            R.output(y, p1, q1)
        return (y, p1, q1)


def test_an_update_follows_its_gradient_and_is_one_kernel_in_place():
    planned = plan(Descent, detect_target()).planned
    kernels = [name.split("_")[0] for name in calls(planned) if name.startswith(("product", "elementwise"))]
    assert kernels == ["product0", "product0", "elementwise", "product1"]  # the last product updates what it reads
    updates = [name for name in calls(planned) if name.startswith("elementwise")]
    assert all(name.endswith("_in_place") for name in updates)


def test_the_operands_of_a_kernel_of_many_results_are_read_once(monkeypatch):
    """Each result may take the place of each operand."""
    operands = [relax.Var(f"x{i}", relax.TensorType(SHAPE, "float32")) for i in range(40)]
    builder = relax.BlockBuilder()
    with builder.function("main", operands):
        with builder.dataflow():
            products = [builder.emit_output(relax.op.multiply(*operands[:2]))]
            for operand in operands[2:]:
                products.append(builder.emit_output(relax.op.multiply(products[-1], operand)))
        builder.emit_func_output(relax.Tuple(products))
    read = []
    of = Tensors.of
    monkeypatch.setattr(Tensors, "of", lambda self, value: (read.append(value), of(self, value))[1])
    planned = plan(builder.get(), detect_target()).planned
    assert sum(name.startswith("elementwise") for name in calls(planned)) == 1
    assert len(read) < 2000
