"""Private functions are written out where a model's `main` calls them, so that it reads its weights itself."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.script import ir as I
from tvm.script import relax as R
from tvm.script import tirx as T

from autocast import amp, from_relax, vm
from autocast.ir import private
from tests.ir.ways import check
from tests.kernels.targets.cpu.products.cases import has_pairs


@I.ir_module
class Layers:
    """Two layers of the same kind, the second of which a branch has, too."""

    @R.function(private=True)
    def layer(x: R.Tensor(("n", 256), "float32"), w: R.Tensor((256, 256), "float32")):
        with R.dataflow():
            y = R.matmul(x, w)
            z = R.nn.relu(y)
            R.output(z)
        return z

    @R.function(private=True)
    def choose(x: R.Tensor(("n", 256), "float32"), w: R.Tensor((256, 256), "float32"), flag: R.Tensor((), "bool")):
        cls = Layers
        if flag:
            r = cls.layer(x, w)
        else:
            r = R.add(x, x)
        return r

    @R.function
    def main(
        x: R.Tensor((64, 256), "float32"),
        flag: R.Tensor((), "bool"),
        v: R.Tensor((256, 256), "float32"),
        w: R.Tensor((256, 256), "float32"),
    ):
        cls = Layers
        with R.dataflow():
            a = cls.layer(x, v)
            b = cls.layer(a, w)
            R.output(b)
        return cls.choose(b, w, flag)


def _weights() -> list[np.ndarray]:
    generator = np.random.default_rng(0)
    return [generator.standard_normal((256, 256)).astype("float32") / 16 for _ in range(2)]


def _names(mod: tvm.IRModule) -> list[str]:
    return sorted(var.name_hint for var in mod.get_global_vars())


@has_pairs
@pytest.mark.parametrize("flag", [True, False])
def test_weights_that_functions_take_are_cast_and_packed_ahead_of_time(flag: bool) -> None:
    v, w = _weights()
    model = from_relax(Layers, [v, w])
    assert _names(model.mod) == ["main"]
    x = np.random.default_rng(1).standard_normal((64, 256)).astype("float32")
    twice = np.maximum(np.maximum(x @ v, 0) @ w, 0)
    expected = np.maximum(twice @ w, 0) if flag else 2 * twice
    executable = vm.compile(model)
    np.testing.assert_allclose(executable(x, np.array(flag)), expected, rtol=1e-4, atol=1e-4)
    low = vm.compile(amp.autocast(model))
    assert {str(param.dtype) for param in low.params} == {"bfloat16"}
    assert any(len(param.shape) == 3 for param in low.params), "none is packed into panels"
    assert amp.autocast(model, policy="parameters=offline").report.parameters.stored == ("v", "w")


def test_a_function_that_calls_itself_or_is_seen_from_outside_stays() -> None:
    @I.ir_module
    class Module:
        @R.function(private=True)
        def loop(x: R.Tensor((4, 4), "float32")) -> R.Tensor((4, 4), "float32"):
            cls = Module
            if R.less(R.max(x), R.const(10.0)):
                y = cls.step(x)
            else:
                y = x
            return y

        @R.function(private=True)
        def step(x: R.Tensor((4, 4), "float32")) -> R.Tensor((4, 4), "float32"):
            cls = Module
            y = cls.loop(R.add(x, x))
            return y

        @R.function
        def seen(x: R.Tensor((4, 4), "float32")) -> R.Tensor((4, 4), "float32"):
            y = R.negative(x)
            return y

        @R.function
        def main(x: R.Tensor((4, 4), "float32")) -> R.Tensor((4, 4), "float32"):
            cls = Module
            y = cls.loop(cls.seen(x))
            return y

    assert _names(from_relax(Module).mod) == ["loop", "main", "seen", "step"]
    x = -np.ones((4, 4), "float32")
    check(Module, 16 * np.ones((4, 4), "float32"), x)


def test_a_call_that_checks_a_size_or_finds_one_out_stays() -> None:
    @I.ir_module
    class Module:
        @R.function(private=True)
        def square(x: R.Tensor(("n", "n"), "float32")):
            y = R.add(x, x)
            return y

        @R.function(private=True)
        def distinct(x: R.Tensor((4,), "float32")):
            k = T.int64()
            y = R.unique(x)
            z = R.match_cast(y, R.Tensor((k,), "float32"))
            s = R.sum(z)
            return s

        @R.function
        def main(x: R.Tensor(("n", "m"), "float32"), y: R.Tensor((4,), "float32"), z: R.Tensor((4,), "float32")):
            cls = Module
            a = cls.square(x)
            b = R.add(cls.distinct(y), cls.distinct(z))
            return (a, b)

    model = from_relax(Module)
    assert _names(model.mod) == ["distinct", "main", "square"]
    a, b = vm.compile(model)(np.ones((3, 3), "float32"), np.float32([1, 1, 2, 2]), np.float32([1, 1, 1, 5]))
    assert a.tolist() == [[2.0] * 3] * 3
    assert b.tolist() == 3 + 6


def test_functions_that_would_double_at_every_step_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    builder = relax.BlockBuilder()
    callee = None
    for name in ("a", "b", "c", "main"):
        x = relax.Var("x", relax.TensorType([4, 4], "float32"))
        with builder.function(name, [x], private=name != "main"):
            first = builder.emit(relax.op.add(x, x) if callee is None else relax.Call(callee, [x]))
            second = builder.emit(relax.op.add(first, x) if callee is None else relax.Call(callee, [first]))
            callee = builder.emit_func_output(second)
    mod = builder.get()
    assert _names(from_relax(mod).mod) == ["main"]
    monkeypatch.setattr(private, "_LIMIT", 2 + 2 * (2 + 2 * (2 + 2 * 2)))
    assert _names(from_relax(mod).mod) == ["a", "b", "c", "main"]


def test_a_size_may_be_computed_where_it_is_called() -> None:
    @I.ir_module
    class Module:
        @R.function(private=True)
        def layer(x: R.Tensor(("rows", 8), "float32"), w: R.Tensor((8, 8), "float32")):
            return R.nn.relu(R.matmul(x, w))

        @R.function
        def main(x: R.Tensor(("n", "m", 8), "float32"), flag: R.Tensor((), "bool"), w: R.Tensor((8, 8), "float32")):
            n, m = T.int64(), T.int64()
            cls = Module
            y = cls.layer(R.reshape(x, R.shape([n * m, 8])), w)
            if flag:
                z = cls.layer(y, w)
            else:
                z = y
            return R.reshape(z, R.shape([n, m, 8]))

    generator = np.random.default_rng(0)
    x, w = generator.standard_normal((2, 3, 8), "float32"), generator.standard_normal((8, 8), "float32")
    model = from_relax(Module, [w])
    assert _names(model.mod) == ["main"]
    once = np.maximum(x @ w, 0)
    for flag, expected in ((False, once), (True, np.maximum(once @ w, 0))):
        np.testing.assert_allclose(vm.compile(model)(x, np.array(flag)), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("flag", [True, False])
def test_what_branches_of_a_function_give_has_the_sizes_of_the_call(flag: bool) -> None:
    @I.ir_module
    class Module:
        @R.function(private=True)
        def choose(c: R.Tensor((), "bool"), x: R.Tensor(("rows", 8), "float32"), w: R.Tensor((8, 8), "float32")):
            rows = T.int64()
            if c:
                r = (R.matmul(x, w), R.shape([rows]))
            else:
                r = (x, R.shape([rows]))
            return r

        @R.function
        def main(c: R.Tensor((), "bool"), x: R.Tensor(("n", 8), "float32"), w: R.Tensor((8, 8), "float32")):
            cls = Module
            first = cls.choose(c, x, w)
            second = cls.choose(c, R.concat([first[0], x], axis=0), w)
            return R.exp(second[0]), second[1]

    generator = np.random.default_rng(0)
    x, w = generator.standard_normal((3, 8), "float32"), generator.standard_normal((8, 8), "float32") / 8

    def choose(x: np.ndarray) -> np.ndarray:
        return x @ w if flag else x

    model = from_relax(Module, [w])
    assert _names(model.mod) == ["main"]
    powers, rows = vm.compile(model)(np.array(flag), x)
    np.testing.assert_allclose(powers, np.exp(choose(np.concatenate([choose(x), x]))), rtol=1e-4)
    assert tuple(rows) == (6,)
