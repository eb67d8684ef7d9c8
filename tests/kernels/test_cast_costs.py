"""What the cost model says of casts, against what became of them in compiled modules; and casts that kernels absorb."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import numpy as np
import pytest
import tvm
from tvm import relax

import autocast
from autocast import Model, amp
from autocast.errors import AutocastError
from autocast.ir import all_bindings, op_name
from autocast.kernels import detect_target, lower
from autocast.kernels.cast_costs import KernelCosts
from autocast.kernels.targets.cpu.instruction_sets import instruction_set
from autocast.operators import own
from autocast.passes.casting.costs import CastCost
from autocast.training import MSE, AdamW, training_step
from tests.architectures import imported, trainable
from tests.fuzz.generator import generate
from tests.kernels.cast_kernels import own_kernels, stored_casts
from tests.kernels.modules import NUMPY, module, random, run
from tests.kernels.targets.cpu.products.cases import has_pairs

#: Random modules, and the share of their casts that are what the model says: it does not know a call's other readers.
_MODULES, _AGREEMENT = 100, 0.85

op = relax.op


def disagreements(model: Model) -> tuple[list[str], int]:
    """A line for each cast that became something else than the cost model said, and how many there are."""
    own, wrong, compared = own_kernels(model.mod, detect_target()), [], 0
    for cast in model.report.inserted:
        key = cast.function, cast.variable
        if key not in own:
            continue
        compared += 1
        if own[key] != (cast.cost is CastCost.KERNEL):
            became = "a kernel stores it that reads what is cast" if own[key] else "no kernel stores it by itself"
            wrong.append(f"{_described(model.mod, *key)}: said to be {cast.cost.value}, but {became}")
    return wrong, compared


def _described(mod: tvm.IRModule, function: str, variable: str) -> str:
    """A cast with the calls that write and read what it casts."""
    bound = {binding.var: binding.value for binding in all_bindings(mod[function].body)}
    cast = next(var for var, value in bound.items() if var.name == variable and op_name(value) == "relax.astype")
    source = bound[cast].args[0]
    readers = [
        f"%{var.name} = {op_name(value)}"
        for var, value in bound.items()
        if not isinstance(value, relax.If) and cast in relax.analysis.free_vars(value)
    ]
    written = op_name(bound.get(source)) or "no operator"
    return f"@{function} %{variable}, {source.ty} by {written} to {cast.ty.dtype} for {', '.join(readers) or 'results'}"


@has_pairs
@pytest.mark.parametrize(
    ("name", "is_training"),
    [
        *((name, False) for name in ("gpt2", "vit", "resnet", "lstm")),
        *((name, True) for name in ("bert", "llama", "t5", "resnet", "lstm", "unet")),
    ],
)
def test_casts_of_architectures_become_what_the_cost_model_says(name: str, is_training: bool) -> None:
    model = training_step(trainable(name), MSE(), AdamW()) if is_training else imported(name)
    wrong, compared = disagreements(amp.autocast(model))
    assert compared >= 5
    assert wrong == []


def test_nearly_all_casts_of_random_modules_become_what_the_cost_model_says() -> None:
    wrong, compared = [], 0
    for seed in range(_MODULES):
        case = generate(seed)
        inputs = len(case.arguments) - case.parameters
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                model = autocast.from_relax(case.module(), case.values()[inputs:] or None)
                model = amp.autocast(model, dtype=case.amp or "bfloat16")
        except (AutocastError, tvm.error.DiagnosticError):
            continue
        found, count = disagreements(model)
        wrong += [f"seed {seed}: {line}" for line in found]
        compared += count
    assert compared > 40
    assert len(wrong) <= (1 - _AGREEMENT) * compared, "\n".join(wrong)


Body = Callable[..., relax.Expr]

#: What reads a float32 argument that is narrowed to bfloat16 or float16: the argument's shape, those of others in that
#: dtype, and what is computed of all.
ABSORBED: dict[str, tuple[tuple[int, ...], list[tuple[int, ...]], Body]] = {
    "broadcast along rows": ((16,), [(8, 16)], lambda c, x: op.tanh(op.add(x, c))),
    "broadcast as a column": ((8,), [(8, 16)], lambda c, x: op.multiply(x, op.reshape(c, [8, 1]))),
    "summed, and read again": ((8, 16), [], lambda c: op.add(op.sum(c, [0]), op.max(c, [0]))),
    "the scale of rows": ((16,), [(8, 16)], lambda c, x: op.nn.rms_norm(x, c, axes=[-1])),
    "rows": ((8, 16), [], lambda c: op.add(op.nn.softmax(c), op.nn.log_softmax(c))),
    "a small permutation": ((4, 6), [], op.permute_dims),
    "two permutations": (
        (8, 16, 4),
        [],
        lambda c: op.add(op.permute_dims(c, [2, 1, 0]), op.permute_dims(c, [2, 1, 0])),
    ),
    "a small lookup": ((4, 6), [], lambda c: op.take(c, relax.const([2, 0]), axis=0)),
    "a small join": ((4, 6), [(4, 6)], lambda c, x: op.concat([op.permute_dims(c), op.permute_dims(x)], 0)),
    "the bias of a product": ((24,), [(8, 16), (16, 24)], lambda c, x, w: op.add(op.matmul(x, w), c)),
    "a reshaped bias": ((4, 6), [(8, 16), (16, 24)], lambda c, x, w: op.add(op.matmul(x, w), op.reshape(c, [24]))),
    "the residual of a product": ((8, 24), [(8, 16), (16, 24)], lambda c, x, w: op.add(op.matmul(x, w), c)),
    "a factor of two products": (
        (8, 16),
        [(16, 24), (16, 24)],
        lambda c, w, v: op.add(op.matmul(c, w), op.matmul(c, v)),
    ),
    "the bias of a convolution": (
        (1, 5, 1, 1),
        [(2, 3, 6, 6), (5, 3, 3, 3)],
        lambda c, x, w: op.nn.relu(op.add(op.nn.conv2d(x, w), c)),
    ),
}


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("name", ABSORBED)
def test_kernels_round_what_they_load(name: str, dtype: str) -> None:
    shape, others, body = ABSORBED[name]
    multiplies = dtype == "bfloat16" and instruction_set(detect_target()).bf16_dot
    if name == "a factor of two products" and not multiplies:
        pytest.skip("products narrow what they pack to the dtype that is multiplied in pairs, where there is one")
    arguments = [(other, dtype) for other in others]
    cast = module(lambda c, *rest: body(relax.op.astype(c, dtype), *rest), (shape, "float32"), *arguments)
    plain = module(body, (shape, dtype), *arguments)
    assert [*stored_casts(lower(cast, detect_target()), detect_target())] == []
    wide, rest = random(shape, "float32"), [random(other, dtype, seed) for seed, other in enumerate(others, 1)]
    (got,), (expected,) = run(cast, wide, *rest), run(plain, wide.astype(NUMPY.get(dtype, dtype)), *rest)
    np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_lookups_store_their_result_narrowed(dtype: str) -> None:
    table, rows = random((9, 40), "float32"), relax.const([3, 0, 3, 8])
    cast = module(lambda t: op.astype(op.take(t, rows, axis=0), dtype), ((9, 40), "float32"))
    assert [*stored_casts(lower(cast, detect_target()), detect_target())] == []
    (got,) = run(cast, table)
    np.testing.assert_array_equal(got, table.astype(got.dtype)[[3, 0, 3, 8]])


def _call(body: Body, *arguments: tuple[tuple[int, ...], str]) -> relax.Call:
    (block,) = module(body, *arguments)["main"].body.blocks
    return block.bindings[0].value


def test_casts_of_what_has_no_elements_cost_nothing() -> None:
    def gradient(x: relax.Expr, w: relax.Expr, g: relax.Expr) -> relax.Expr:
        return own.conv1d_weight_backward(x, w, g, attrs=op.nn.conv1d(x, w).attrs)

    mod = module(gradient, ((5, 5, 3), "float32"), ((0, 5, 3), "float32"), ((5, 0, 1), "float32"))
    (call,) = [binding.value for binding in all_bindings(mod["main"].body)]
    costs = KernelCosts(detect_target())
    answers = [costs.cast(None, call, at, operand.ty, "bfloat16") for at, operand in enumerate(call.args)]
    assert answers == [CastCost.LOAD] * 3


@pytest.mark.parametrize(
    ("body", "shape", "cost"),
    [
        (op.tanh, (4, 8), CastCost.STORE),
        (op.nn.softmax, (4, 8), CastCost.STORE),
        (lambda x: op.nn.softmax(x, 0), (4, 8), CastCost.KERNEL),
        (lambda x: op.sum(x, [0]), (4, 8), CastCost.STORE),
        (op.nonzero, (4, 8), CastCost.KERNEL),
    ],
)
def test_who_computes_a_result_decides_whether_it_is_stored_narrowed(
    body: Body, shape: tuple[int, ...], cost: CastCost
) -> None:
    call = _call(body, (shape, "float32"))
    costs = KernelCosts(detect_target())
    assert costs.cast(call, None, 0, relax.TensorType(shape, "float32"), "bfloat16") is cost
