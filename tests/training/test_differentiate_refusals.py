"""What differentiation refuses, and how it says so."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import tvm
from tvm import relax
from tvm.relax import op
from tvm.script import ir as I
from tvm.script import relax as R

from autocast.errors import GradientError
from autocast.training import differentiate
from tests.training.test_differentiate import function_of, tensor


def test_every_operator_that_stands_in_the_way_is_named_with_its_reason() -> None:
    x = tensor("x", 2, 3)

    def build(builder: relax.BlockBuilder) -> relax.Expr:
        y = builder.emit(op.cumprod(builder.emit(op.cumprod(x, 0)), 1))
        z = builder.emit(
            op.call_inplace_packed("mine", y, inplace_indices=0, ty_args=relax.TensorType((2, 3), "float32"))
        )
        return builder.emit(op.sum(z))

    with pytest.raises(GradientError) as raised:
        differentiate(function_of([x], build), [x])
    message = str(raised.value)
    assert "relax.cumprod: it divides by elements" in message
    assert "(2 calls)" in message
    assert "relax.call_inplace_packed: foreign code" in message


@pytest.mark.parametrize(
    ("build", "arguments", "message"),
    [
        (lambda b, x: b.emit(op.exp(x)), {}, "the target is a .*expected a 0-d floating-point tensor"),
        (
            lambda b, x: b.emit(op.sum(x)),
            {"target": 2},
            "target is 2, expected the position of one",
        ),
        (lambda b, x: b.emit(op.sum(x)), {"wrt": []}, "got wrt=an empty list; expected one floating-point tensor"),
        (lambda b, x: b.emit(op.sum(op.floor(x))), {}, r"depends on none of \['x'\]"),
        (lambda b, x: b.emit(op.sum(x)), {"seed": relax.const(1.0, "float16")}, "the seed is a .*expected a"),
    ],
)
def test_what_cannot_be_differentiated_is_refused(build: Callable, arguments: dict, message: str) -> None:
    x = tensor("x", 2, 3)
    function = function_of([x], lambda builder: build(builder, x))
    with pytest.raises(GradientError, match=message):
        differentiate(function, **{"wrt": [x], **arguments})


def test_a_module_that_writes_into_its_own_memory_is_told_when_to_differentiate() -> None:
    x = tensor("x", 2, 3)
    module = tvm.IRModule({"main": function_of([x], lambda builder: builder.emit(op.sum(op.exp(x))))})
    passes = (relax.transform.LegalizeOps(), relax.transform.ToNonDataflow(), relax.transform.RemovePurityChecking())
    module = tvm.transform.Sequential([*passes, relax.transform.CallTIRRewrite()])(module)
    with pytest.raises(GradientError, match=r"alloc_tensor.*before relax\.transform\.CallTIRRewrite"):
        differentiate(module["main"], [module["main"].params[0]], mod=module)


def test_a_function_that_calls_itself_is_named() -> None:
    @I.ir_module
    class Loop:
        @R.function
        def loop(x: R.Tensor((3,), "float32")) -> R.Tensor((3,), "float32"):
            cls = Loop
            c = R.less(R.max(x), R.const(10.0))
            if c:
                y = cls.loop(R.add(x, x))
            else:
                y = x
            return y

        @R.function
        def main(x: R.Tensor((3,), "float32")):
            cls = Loop
            return R.sum(cls.loop(x))

    with pytest.raises(GradientError, match=r"a call of .*loop.*none may call itself"):
        differentiate(Loop["main"], Loop["main"].params, mod=Loop)
