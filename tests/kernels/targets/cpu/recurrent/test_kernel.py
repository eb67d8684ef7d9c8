"""Kernels of recurrences against the interpreter in float64, and against plain loops."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import tvm
from tvm import relax, tirx

from autocast.kernels import detect_target, lower
from autocast.operators import own
from tests.fuzz.operators import OPERATORS
from tests.fuzz.values import Tensor
from tests.kernels.compiling import machine_of

PLAIN = tvm.target.Target({"kind": "llvm", "keys": ["generic", "cpu"]})

#: Shapes of the arguments, of t steps, a batch of b, and h units, times the number of gates.
FORWARD = {"lstm": "tb4 4h b b", "gru": "tb3 3h h b", "rnn": "tb1 1h b"}
BACKWARD = {"lstm": "tb4 4h b tb1 b b", "gru": "tb4 3h tb1 tb1 b", "rnn": "tb1 1h tb1 b"}

CASES: dict[str, tuple[Callable[..., relax.Call], str, dict[str, object]]] = {
    **{name: (getattr(own, name), shapes, {"reverse": False}) for name, shapes in FORWARD.items()},
    **{f"{name} back": (getattr(own, f"{name}_backward"), s, {"reverse": False}) for name, s in BACKWARD.items()},
}
for _name, (_, _, _options) in CASES.items():
    if _name.startswith("rnn"):
        _options["activation"] = "tanh"


def _shape(word: str, steps: int, batch: int, hidden: int) -> tuple[int, ...]:
    if word in ("b", "h"):
        return (batch, hidden) if word == "b" else (hidden,)
    if word.endswith("h"):
        return int(word[0]) * hidden, hidden
    return steps, batch, int(word[2]) * hidden


def _arguments(shapes: str, low: str, sizes: tuple[int, int, int], backward: bool) -> list[np.ndarray]:
    """Arguments with what AutoCast stores low in `low`: gates and weights; of a backward operator the weight."""
    rng = np.random.default_rng(0)
    words = shapes.split()
    arrays = [rng.uniform(-1, 1, _shape(word, *sizes)).astype("float32") for word in words]
    for place in (1,) if backward else (0, 1):
        arrays[place] = arrays[place].astype(low)
    arrays[1] = (arrays[1] / np.sqrt(sizes[2])).astype(low)
    return arrays


def _module(
    name: str, arrays: list[np.ndarray], reverse: bool = False, varies: bool = False
) -> tuple[tvm.IRModule, relax.Call]:
    operator, _, options = CASES[name]
    dims = (
        {size: tirx.Var(letter, "int64") for letter, size in zip("tb", arrays[0].shape, strict=False)} if varies else {}
    )
    types = [
        relax.TensorType([dims.get(n, n) if i < a.ndim - 1 else n for i, n in enumerate(a.shape)], str(a.dtype))
        for a in arrays
    ]
    params = [relax.Var(f"x{i}", type) for i, type in enumerate(types)]
    builder = relax.BlockBuilder()
    with builder.function("main", params):
        with builder.dataflow():
            result = builder.emit_output(operator(*params, **{**options, "reverse": reverse}))
        builder.emit_func_output(result)
    mod = builder.get()
    return mod, mod["main"].body.blocks[0].bindings[0].value


def _run(mod: tvm.IRModule, arrays: list[np.ndarray], target: tvm.target.Target | None = None) -> list[np.ndarray]:
    machine = machine_of(mod, target)
    return [result.numpy().astype("float64") for result in machine["main"](*map(tvm.runtime.tensor, arrays))]


def _exact(call: relax.Call, arrays: list[np.ndarray]) -> list[Tensor]:
    tensors = [Tensor.exact(a.astype("float64"), "float32") for a in arrays]
    return list(OPERATORS[call.op.name].compute(call, *tensors))


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize(("sizes", "reverse", "varies"), [((5, 3, 33), False, False), ((4, 7, 16), True, True)])
def test_all_steps_are_those_of_the_interpreter(
    name: str, sizes: tuple[int, int, int], reverse: bool, varies: bool
) -> None:
    arrays = _arguments(CASES[name][1], "float32", sizes, "back" in name)
    mod, call = _module(name, arrays, reverse, varies)
    assert any(var.name_hint.startswith(name.split()[0]) for var in lower(mod, detect_target()).functions)
    for got, want in zip(_run(mod, arrays), _exact(call, arrays), strict=True):
        assert (np.abs(got - want.value) <= want.error + 1e-6).all()


@pytest.mark.parametrize("name", CASES)
def test_low_weights_are_multiplied_by_rounded_states_that_stay_float32(name: str) -> None:
    arrays = _arguments(CASES[name][1], "bfloat16", (6, 2, 21), "back" in name)
    mod, call = _module(name, arrays)
    for got, want in zip(_run(mod, arrays), _exact(call, arrays), strict=True):
        assert np.abs(got - want.value).max() <= 2.0**-7 * np.abs(want.value).max()


@pytest.mark.parametrize("name", ["lstm", "gru back"])
def test_plain_loops_of_a_target_without_kernels_compute_the_same(name: str) -> None:
    arrays = _arguments(CASES[name][1], "float32", (4, 3, 9), "back" in name)
    mod, _ = _module(name, arrays, varies=True)
    for got, want in zip(_run(mod, arrays, PLAIN), _run(mod, arrays), strict=True):
        np.testing.assert_allclose(got, want, atol=2e-6)


@pytest.mark.parametrize("batch", [1, 24])
def test_threads_share_sequences_or_units(batch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch of 1 whose weight is large: units, which have to meet at each step."""
    monkeypatch.setenv("AUTOCAST_NUM_THREADS", "3")
    hidden = 384 if batch == 1 else 20
    arrays = _arguments(CASES["lstm"][1], "float32", (3, batch, hidden), False)
    mod, call = _module("lstm", arrays)
    for got, want in zip(_run(mod, arrays), _exact(call, arrays), strict=True):
        assert (np.abs(got - want.value) <= want.error + 1e-6).all()


def test_without_steps_the_last_states_are_the_first() -> None:
    arrays = _arguments(CASES["lstm"][1], "float32", (2, 3, 5), False)
    mod, _ = _module("lstm", arrays, varies=True)
    arrays[0] = arrays[0][:0]
    hiddens, hidden, cell = _run(mod, arrays)
    assert hiddens.shape == (0, 3, 5)
    np.testing.assert_array_equal(hidden, arrays[2])
    np.testing.assert_array_equal(cell, arrays[3])


def test_nan_of_one_sequence_stays_there_from_its_step_on() -> None:
    arrays = _arguments(CASES["gru"][1], "float32", (4, 3, 7), False)
    arrays[0][2, 1, 0] = np.nan
    mod, _ = _module("gru", arrays)
    hiddens, hidden = _run(mod, arrays)
    assert np.isfinite(hiddens[:2]).all()
    assert np.isnan(hiddens[3, 1]).all()
    assert np.isfinite(hidden[[0, 2]]).all()
