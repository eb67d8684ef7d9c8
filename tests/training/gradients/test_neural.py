"""Activations, normalizations, softmax, attention and losses: their gradients against central differences and torch."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache, reduce
from itertools import chain, islice
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import tvm
from tvm import relax
from tvm.relax.op import nn

from autocast import amp, from_relax, vm
from autocast.errors import GradientError
from autocast.operators import own
from autocast.training.differentiate import differentiate
from tests.kernels.modules import module, random, run
from tests.training.gradients.checking import Run, arguments, check_gradients, programs_of

LABELS = np.array([2, -100, 0, 5])


class Case(NamedTuple):
    """A call of an operator on arrays of `shapes`, and the same in torch."""

    build: Callable[..., relax.Expr]
    torch: Callable[..., torch.Tensor]
    shapes: tuple[tuple[int, ...], ...]
    labels: tuple[np.ndarray, ...] = ()


def _attention(**options: Any) -> Callable[..., relax.Expr]:
    return lambda q, k, v, *bias: nn.attention(q, k, v, bias[0] if bias else None, **options)


def _torch_attention(**options: Any) -> Callable[..., torch.Tensor]:
    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *bias: torch.Tensor) -> torch.Tensor:
        heads_first = (x.transpose(1, 2) for x in (q, k, v))
        return F.scaled_dot_product_attention(*heads_first, *bias, **options).transpose(1, 2)

    return attend


def _cross_entropy(**options: Any) -> Callable[..., relax.Expr]:
    defaults = {"ignore_index": -100, "label_smoothing": 0.0, "reduction": "mean"}
    return lambda logits, labels: own.cross_entropy(logits, labels, **{**defaults, **options})


def _torch_cross_entropy(**options: Any) -> Callable[..., torch.Tensor]:
    def loss(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        rows = F.cross_entropy(logits.reshape(-1, logits.shape[-1]), labels.reshape(-1), **options)
        return rows.reshape(labels.shape) if options.get("reduction") == "none" else rows

    return loss


def _linear_loss(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return -(logits * labels).sum() / len(logits)


QUERIES, KEYS, IMAGES = (2, 5, 3, 4), (2, 6, 3, 4), (2, 6, 3, 2)

CASES = {
    "relu": Case(nn.relu, F.relu, ((3, 5),)),
    "gelu": Case(nn.gelu, F.gelu, ((3, 5),)),
    "gelu_tanh": Case(nn.gelu_tanh, lambda x: F.gelu(x, approximate="tanh"), ((3, 5),)),
    "silu": Case(nn.silu, F.silu, ((3, 5),)),
    "selu": Case(nn.selu, F.selu, ((3, 5),)),
    "leakyrelu": Case(lambda x: nn.leakyrelu(x, 0.1), lambda x: F.leaky_relu(x, 0.1), ((3, 5),)),
    "softplus": Case(lambda x: nn.softplus(x, 2.0, 1.5), lambda x: F.softplus(x, 2.0, 1.5), ((3, 5),)),
    "prelu": Case(nn.prelu, F.prelu, ((2, 4, 3), (4,))),
    "sigmoid": Case(relax.op.sigmoid, torch.sigmoid, ((3, 5),)),
    "tanh": Case(relax.op.tanh, torch.tanh, ((3, 5),)),
    "softmax": Case(lambda x: nn.softmax(x, -1), lambda x: F.softmax(x, -1), ((3, 5),)),
    "softmax over columns": Case(lambda x: nn.softmax(x, 1), lambda x: F.softmax(x, 1), ((2, 3, 4),)),
    "log_softmax": Case(lambda x: nn.log_softmax(x, -1), lambda x: F.log_softmax(x, -1), ((3, 5),)),
    "layer_norm": Case(
        lambda x, gamma, beta: nn.layer_norm(x, gamma, beta, -1),
        lambda x, gamma, beta: F.layer_norm(x, (6,), gamma, beta),
        ((2, 3, 6), (6,), (6,)),
    ),
    "layer_norm over two axes": Case(
        lambda x, gamma, beta: nn.layer_norm(x, gamma, beta, [-2, -1]),
        lambda x, gamma, beta: F.layer_norm(x, (3, 4), gamma, beta),
        ((2, 3, 4), (3, 4), (3, 4)),
    ),
    "rms_norm": Case(
        lambda x, gamma: nn.rms_norm(x, gamma, -1),
        lambda x, gamma: F.rms_norm(x, (6,), gamma, 1e-5),
        ((2, 3, 6), (6,)),
    ),
    "group_norm": Case(
        lambda x, gamma, beta: nn.group_norm(x, gamma, beta, 3, 1, [2, 3]),
        lambda x, gamma, beta: F.group_norm(x, 3, gamma, beta),
        (IMAGES, (6,), (6,)),
    ),
    "instance_norm": Case(
        lambda x, gamma, beta: nn.instance_norm(x, gamma, beta, 1, [2, 3]),
        lambda x, gamma, beta: F.instance_norm(x, weight=gamma, bias=beta),
        (IMAGES, (6,), (6,)),
    ),
    "attention": Case(_attention(), _torch_attention(), (QUERIES, KEYS, KEYS)),
    "attention with a scale": Case(_attention(scale=0.3), _torch_attention(scale=0.3), (QUERIES, KEYS, KEYS)),
    "attention, causal": Case(
        _attention(causal_mask="TopLeft"), _torch_attention(is_causal=True), (QUERIES, KEYS, KEYS)
    ),
    "attention_bias": Case(_attention(), _torch_attention(), (QUERIES, KEYS, KEYS, (2, 3, 5, 6))),
    "attention_bias of keys": Case(_attention(), _torch_attention(), (QUERIES, KEYS, KEYS, (2, 1, 1, 6))),
    "cross_entropy": Case(_cross_entropy(), _torch_cross_entropy(), ((4, 6),), (LABELS,)),
    "cross_entropy of sequences": Case(
        _cross_entropy(), _torch_cross_entropy(), ((2, 2, 6),), (LABELS.reshape(2, 2).astype("int32"),)
    ),
    "cross_entropy, smoothed": Case(
        _cross_entropy(label_smoothing=0.1), _torch_cross_entropy(label_smoothing=0.1), ((4, 6),), (LABELS,)
    ),
    "cross_entropy, summed": Case(
        _cross_entropy(reduction="sum", ignore_index=2),
        _torch_cross_entropy(reduction="sum", ignore_index=2),
        ((4, 6),),
        (np.array([2, 1, 0, 5]),),
    ),
    "cross_entropy of each": Case(
        _cross_entropy(reduction="none"), _torch_cross_entropy(reduction="none"), ((4, 6),), (LABELS,)
    ),
    "cross_entropy_with_logits": Case(nn.cross_entropy_with_logits, _linear_loss, ((4, 6), (4, 6))),
    "nll_loss": Case(
        lambda x, t: nn.nll_loss(x, t, reduction="mean", ignore_index=-100), F.nll_loss, ((4, 6),), (LABELS,)
    ),
    "nll_loss of each": Case(
        lambda x, t: nn.nll_loss(x, t, reduction="none", ignore_index=-100),
        lambda x, t: F.nll_loss(x, t, reduction="none"),
        ((4, 6),),
        (LABELS,),
    ),
}

#: TVM compiles no normalization in float64; torch, below, does.
IN_FLOAT64 = [name for name in CASES if "norm" not in name]
LOW = ("relu", "gelu", "gelu_tanh", "silu", "softplus", "attention", "attention_bias of keys")


def _data(name: str) -> list[np.ndarray]:
    return [*arguments(3, *CASES[name].shapes), *CASES[name].labels]


@pytest.fixture(scope="module")
def programs() -> dict[str, Run]:
    return programs_of({name: (CASES[name].build, _data(name)) for name in IN_FLOAT64})


@pytest.mark.parametrize("name", IN_FLOAT64)
def test_gradients_are_what_central_differences_measure(programs: dict[str, Run], name: str) -> None:
    check_gradients(programs[name], *_data(name))


#: A case, its arrays, and the weights of its result.
Call = tuple[Case, list[np.ndarray], np.ndarray]


def _gradients(calls: list[Call]) -> list[list[np.ndarray]]:
    """The gradients of the sums of results * weights, computed by our kernels in one program."""
    operands = [[*arrays, *case.labels, weights] for case, arrays, weights in calls]

    def body(*args: relax.Var) -> relax.Expr:
        rest = iter(args)
        given = [[*islice(rest, len(each))] for each in operands]
        results = [case.build(*each[:-1]) for (case, *_), each in zip(calls, given, strict=True)]
        sums = [relax.op.sum(relax.op.astype(y, "float32") * each[-1]) for y, each in zip(results, given, strict=True)]
        return reduce(relax.op.add, sums)

    function = module(body, *[(array.shape, str(array.dtype)) for each in operands for array in each])["main"]
    params = iter(function.params)
    given = [[*islice(params, len(each))][: len(arrays)] for each, (_, arrays, _) in zip(operands, calls, strict=True)]
    joint = differentiate(function, [*chain(*given)])
    results = iter(run(tvm.IRModule({"main": joint.with_attr("global_symbol", "main")}), *chain(*operands))[1:])
    return [[*islice(results, len(arrays))] for _, arrays, _ in calls]


def _torch_gradients(case: Case, arrays: list[np.ndarray], weights: np.ndarray | None) -> tuple[Any, list[np.ndarray]]:
    """The same by torch in float64; without weights, the shape of the result."""
    leaves = [torch.tensor(array.astype("float64"), requires_grad=True) for array in arrays]
    result = case.torch(*leaves, *(torch.tensor(labels).long() for labels in case.labels))
    if weights is not None:
        (result * torch.tensor(weights)).sum().backward()
    return tuple(result.shape), [
        leaf.grad.numpy() if leaf.grad is not None else np.zeros(leaf.shape) for leaf in leaves
    ]


def _call(name: str, shapes: Iterable[tuple[int, ...]], dtype: str) -> Call:
    """A case on random arrays, a fourth of which, a bias, is in float32."""
    arrays = [random(shape, dtype if at < 3 else "float32", at) for at, shape in enumerate(shapes)]
    return CASES[name], arrays, random(_torch_gradients(CASES[name], arrays, None)[0], "float32", 99)


@cache
def _in_float32() -> dict[str, tuple[Call, list[np.ndarray]]]:
    """The calls of all cases, and their gradients."""
    calls = [_call(name, case.shapes, "float32") for name, case in CASES.items()]
    return dict(zip(CASES, zip(calls, _gradients(calls), strict=True), strict=True))


@cache
def _stored_low(dtype: str) -> dict[str, tuple[Call, list[np.ndarray]]]:
    """The same of some cases whose operands are of this dtype, and larger."""
    calls = []
    for name in LOW:
        shapes = CASES[name].shapes
        larger = [(*shape[:1], 32, *shape[2:]) for shape in shapes[:3]] + [(*s[:-1], 32) for s in shapes[3:]]
        calls.append(_call(name, larger, dtype))
    return dict(zip(LOW, zip(calls, _gradients(calls), strict=True), strict=True))


@pytest.mark.parametrize("name", CASES)
def test_kernels_of_gradients_agree_with_torch(name):
    call, gradients = _in_float32()[name]
    _, expected = _torch_gradients(*call)
    for got, exact in zip(gradients, expected, strict=True):
        np.testing.assert_allclose(got, exact, rtol=2e-5, atol=2e-5 * max(1.0, np.abs(exact).max()))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("name", LOW)
def test_gradients_of_what_is_stored_low_lose_roundings_only(name, dtype):
    call, gradients = _stored_low(dtype)[name]
    _, expected = _torch_gradients(*call)
    epsilon = {"bfloat16": 2.0**-8, "float16": 2.0**-11}[dtype]
    for array, got, exact in zip(call[1], gradients, expected, strict=True):
        assert got.dtype == array.dtype
        # The adjoint, the result, and inside attention probabilities and scores are rounded: a few roundings each.
        assert np.linalg.norm(got.astype("float64") - exact) <= 4 * epsilon * np.linalg.norm(exact)


def test_a_row_of_attention_that_sees_nothing_leaves_the_other_gradients_alone():
    bias = np.zeros((1, 1, 4, 4), "float32")
    bias[..., 2, :] = -np.inf
    seen = (np.arange(4) != 2).astype("float32").reshape(1, 4, 1, 1)

    def body(q: relax.Var, k: relax.Var, v: relax.Var, mask: relax.Var, rows: relax.Var) -> relax.Expr:
        result = relax.op.where(relax.op.astype(rows, "bool"), nn.attention(q, k, v, mask), relax.const(0.0))
        return relax.op.sum(result * result)

    arrays = [random((1, 4, 2, 8), "float32", seed) for seed in range(3)]
    every = [*arrays, bias, seen]
    function = module(body, *[(array.shape, "float32") for array in every])["main"]
    joint = differentiate(function, function.params[:3])
    gradients = run(tvm.IRModule({"main": joint.with_attr("global_symbol", "main")}), *every)[1:]

    q, k, v = (torch.tensor(array, dtype=torch.float64, requires_grad=True) for array in arrays)
    rows = [0, 1, 3]
    result = _torch_attention()(q[:, rows], k, v)
    (result * result).sum().backward()
    for got, leaf in zip(gradients, (q, k, v), strict=True):
        np.testing.assert_allclose(got, leaf.grad.numpy(), rtol=1e-4, atol=1e-5)


def test_the_gradient_of_cross_entropy_is_right_for_logits_that_float32_exponentials_overflow_on():
    case = CASES["cross_entropy"]
    logits = random((4, 6), "float32", 0, scale=200.0)
    weights = np.float32(1.0).reshape(())
    _, (expected,) = _torch_gradients(case, [logits], weights)
    ((got,),) = _gradients([(case, [logits], weights)])
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-7)


def test_weights_of_nll_loss_have_no_gradient_and_the_error_says_what_to_do():
    def body(x: relax.Var, t: relax.Var, w: relax.Var) -> relax.Expr:
        return nn.nll_loss(x, t, w, reduction="mean")

    function = module(body, ((4, 6), "float32"), ((4,), "int64"), ((6,), "float32"))["main"]
    assert differentiate(function, function.params[:1]) is not None
    with pytest.raises(GradientError, match=r"relax\.nn\.nll_loss.*train with constant weights"):
        differentiate(function, function.params[2:])


@pytest.mark.parametrize("low", [False, True], ids=["float32", "mixed"])
def test_a_bias_may_have_names_of_its_own_for_the_sizes_of_scores(low: bool) -> None:
    n, m = (tvm.tirx.Var(name, "int64") for name in "nm")
    shapes = [(1, n, 2, 8)] * 3 + [(1, 2, n, m)]
    params = [relax.Var(name, relax.TensorType(shape, "float32")) for name, shape in zip("qkvb", shapes, strict=True)]
    builder = relax.BlockBuilder()
    with builder.function("main", params):
        with builder.dataflow():
            attended = builder.emit(nn.attention(*params))
            loss = builder.emit_output(relax.op.sum(relax.op.multiply(attended, attended)))
        builder.emit_func_output(loss)
    model = from_relax(tvm.IRModule({"main": differentiate(builder.get()["main"], params)}))
    torch.manual_seed(0)
    operands = [torch.randn(1, 5, 2, 8) for _ in range(3)] + [torch.randn(1, 2, 5, 5)]
    _, *got = vm.compile(amp.autocast(model) if low else model)(*operands)

    wanted = [operand.clone().requires_grad_() for operand in operands]
    _torch_attention()(*wanted).square().sum().backward()
    for one, other in zip(got, wanted, strict=True):
        torch.testing.assert_close(torch.as_tensor(one), other.grad, rtol=0, atol=5e-2 if low else 1e-5)
