"""The interpreter agrees with torch in float64, with bounds that are not wider than roundings make them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import type_hints
from tests.fuzz.expressions import module_of
from tests.fuzz.generator import parse
from tests.fuzz.interpreter import Interpreter, Unknown
from tests.fuzz.operators import OPERATORS
from tests.fuzz.torch_rows import ROWS
from tests.fuzz.values import Tensor
from type_hints.names import DERIVED_TENSORS


def evaluated(expression: str, shapes: dict[str, tuple[int, ...]]) -> tuple[Any, list[torch.Tensor]]:
    """What the interpreter says of an expression of float64 tensors, and the operands."""
    mod, operands = module_of(expression, shapes)
    tensors = [Tensor.exact(x.numpy(), str(x.dtype).removeprefix("torch.")) for x in operands]
    return Interpreter(mod).main(tensors), operands


@pytest.mark.parametrize(("expression", "shapes", "reference"), ROWS, ids=[row[0] for row in ROWS])
def test_the_interpreter_agrees_with_torch(
    expression: str, shapes: dict[str, tuple[int, ...]], reference: Callable[..., Any]
) -> None:
    got, operands = evaluated(expression, shapes)
    expected = reference(*operands)
    pairs = zip(got, expected, strict=True) if isinstance(got, tuple) else [(got, expected)]
    for tensor, value in pairs:
        assert tensor.shape == tuple(value.shape)
        np.testing.assert_allclose(tensor.value, value.numpy(), rtol=1e-12, atol=1e-12)
        assert (tensor.error <= 1e-5 * (1 + tensor.value.astype(float) ** 2)).all()


def test_what_rounding_decides_is_not_compared() -> None:
    mod = parse(
        "@I.ir_module\nclass Module:\n    @R.function\n"
        '    def main(x: R.Tensor((3,), "float32"), y: R.Tensor((3,), "float32")):\n'
        "        a = R.floor(R.divide(x, y))\n        return (a, R.less(R.divide(x, y), R.const(1.0)))\n"
    )
    x, y = np.array([3.0, 1.0, 2.0]), np.array([3.0, 3.0, 1.0])
    whole, less = Interpreter(mod).main([Tensor.exact(v, "float32") for v in (x, y)])
    np.testing.assert_array_equal(whole.error, [1, 0, 1])
    np.testing.assert_array_equal(less.error, [1, 0, 0])


def test_a_condition_that_rounding_decides_has_no_result() -> None:
    mod = parse(
        "@I.ir_module\nclass Module:\n    @R.function\n"
        '    def main(x: R.Tensor((), "float32")):\n'
        "        c = R.less(R.exp(x), R.const(1.0))\n"
        "        if c:\n            y = R.tanh(x)\n        else:\n            y = R.exp(x)\n        return y\n"
    )
    assert Interpreter(mod).main([Tensor.exact(1.0, "float32")]).shape == ()
    with pytest.raises(Unknown, match="rounding"):
        Interpreter(mod).main([Tensor.exact(0.0, "float32")])


#: Operators that the interpreter leaves out, and why.
LEFT_OUT = {
    "random": "nn.seeded_dropout nn.seeded_normal nn.seeded_uniform nn.stochastic_round multinomial_from_uniform",
    "boxes and regions, whose order TVM leaves open; the last has tests of its own": """
        vision.all_class_non_max_suppression vision.get_valid_counts
        vision.multibox_transform_loc vision.non_max_suppression vision.roi_align vision.roi_pool vision.suppress""",
    "it has tests of its own": "nn.attention_var_len",
}
_NO_OPERATORS = tuple(
    f"relax.{kind}" for kind in ("builtin", "call_", "ccl", "collective", "dist", "inspect", "invoke", "memory", "vm.")
)


def test_every_operator_is_interpreted_or_left_out_for_a_reason() -> None:
    named = {f"relax.{name}" for names in LEFT_OUT.values() for name in names.split()}
    rest = {"relax.assert_op", "relax.make_closure", "relax.null_value", "relax.print"}
    known = {row.name for row in type_hints.list_rules() if row.family != "custom"} - set(DERIVED_TENSORS)
    missing = {name for name in known - set(OPERATORS) - named - rest if not name.startswith(_NO_OPERATORS)}
    assert not missing
    assert not named & set(OPERATORS)
