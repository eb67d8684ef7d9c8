"""Types that are wrong are found, wherever they are, though TVM is asked once for calls that are alike."""

from __future__ import annotations

import pytest
import tvm
from tvm import relax

from autocast import amp
from autocast.errors import IllFormedModuleError
from autocast.ir.nodes import binding_of, typed_call, variable
from autocast.passes import auto_cast as pass_
from benchmarks.synthetic import layered

WIDE = relax.TensorType((4, 4), "float32")
OTHER = relax.TensorType((4, 5), "float32")


def module(*types: tuple[relax.TensorType, relax.TensorType]) -> tvm.IRModule:
    """A chain of calls of relu: `types` are those that each call and its variable are said to have."""
    value = first = relax.Var("x", WIDE)
    bindings = []
    for at, (of_call, of_variable) in enumerate(types):
        var = variable(relax.DataflowVar, f"lv{at}", of_variable)
        bindings.append(binding_of(var, typed_call(of_call, tvm.ir.Op.get("relax.nn.relu"), [value], None)))
        value = var
    result = relax.Var("gv", value.ty)
    block = relax.DataflowBlock([*bindings, relax.VarBinding(result, value)])
    body = relax.BlockBuilder().normalize(relax.SeqExpr([block], result))
    return tvm.IRModule({"main": relax.Function([first], body)})


@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_call_with_a_wrong_type_is_found_after_others_that_are_alike(number):
    types = [(WIDE, WIDE)] * (number - 1) + [(OTHER, OTHER)]
    with pytest.raises(IllFormedModuleError, match=r"AutoCast: the module is not well formed: .*, in @main"):
        amp.autocast(module(*types))


def test_a_variable_whose_type_does_not_hold_its_value_is_found():
    with pytest.raises(IllFormedModuleError, match="not well formed"):
        amp.autocast(module((WIDE, WIDE), (WIDE, OTHER)))


def test_wrong_types_are_said_before_a_rule_that_misbehaves():
    rules = {"nn.relu": lambda *_: None}
    with amp.CustomTypeHint(rules), pytest.raises(IllFormedModuleError, match="not well formed"):
        amp.autocast(module((OTHER, OTHER)))


def test_what_says_less_than_is_known_is_well_typed():
    assert amp.autocast(module((WIDE, relax.TensorType(ndim=2, dtype="float32")))).report.casts == 0


def test_the_types_of_a_plain_module_are_not_all_checked_by_tvm(monkeypatch):
    asked = []
    monkeypatch.setattr(pass_, "check_well_formed", lambda *arguments, types=True: asked.append(types))
    monkeypatch.setattr(
        "autocast.passes.casting.well_typed.check_well_formed", lambda *arguments, types=True: asked.append(types)
    )
    amp.autocast(layered(30))
    assert asked == [False]
    size = tvm.tirx.Var("n", "int64")
    x = relax.Var("x", relax.TensorType((size, 4), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        builder.emit_func_output(builder.emit(relax.op.nn.relu(x)))
    amp.autocast(builder.get())
    assert asked == [False, False, True]
