"""What a wrong compiler does is found, and shrunk to a few lines."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tvm
from tvm import relax

from autocast.model import Model
from tests.fuzz import backends
from tests.fuzz.generator import Case
from tests.fuzz.generator.writer import Dim, Var
from tests.fuzz.run import outcome, repeat, same_failure, write
from tests.fuzz.shrink import shrink

TEXT = """@I.ir_module
class Module:
    @R.function
    def main(x: R.Tensor((2, 3), "float32"), c: R.Tensor((), "bool"), w: R.Tensor((3, 3), "float32")):
        v1 = R.matmul(x, w)
        with R.dataflow():
            v2 = R.exp(R.sin(v1))
            v3 = R.tanh(v2)
            R.output(v3, v2)
        if c:
            v4 = R.add(v3, v2)
        else:
            v4 = R.tanh(v3)
        t5 = (v4, v1)
        v6 = R.concat(t5, axis=0)
        return (v1, v6, v2)
"""


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> None:
    """A compiler that takes a hyperbolic tangent for a sine."""
    compile_right = backends.vm.compile

    @relax.expr_functor.mutator
    class Break(relax.PyExprMutator):
        def visit_call_(self, call: relax.Call) -> relax.Expr:
            if call.op == tvm.ir.Op.get("relax.tanh"):
                return relax.op.sin(self.visit_expr(call.args[0]))
            return super().visit_call_(call)

    def compile_wrong(model: Model, **options: object) -> object:
        mod = model.mod.clone()
        mod["main"] = Break().visit_expr(mod["main"])
        return compile_right(model.replace(mod=mod), **options)  # type: ignore[arg-type]

    monkeypatch.setattr(backends.vm, "compile", compile_wrong)


@pytest.fixture
def case() -> Case:
    arguments = (
        Var("x", (Dim.of(2), Dim.of(3)), "float32"),
        Var("c", (), "bool"),
        Var("w", (Dim.of(3), Dim.of(3)), "float32"),
    )
    values = (np.full((2, 3), 0.7, "float32"), np.array(True), np.full((3, 3), 0.3, "float32"))
    return Case(0, TEXT, arguments, 1, "bfloat16", values)


@pytest.mark.usefixtures("broken")
def test_a_wrong_result_is_found_and_shrunk(case: Case, tmp_path: Path) -> None:
    found = outcome(case, None)
    assert found.kind == "wrong"
    small = shrink(case, same_failure(found, None))
    body = [line for line in small.text.splitlines() if " = " in line]
    assert len(body) == 1
    assert "R.tanh" in body[0]
    written = write(small, None, outcome(small, None), tmp_path)
    assert "elements are wrong" in written.read_text()


def test_what_was_written_can_be_repeated(case: Case, tmp_path: Path) -> None:
    found = outcome(case, None)
    assert found.kind == "right"
    assert found.compared == 6 + 12 + 6
    written: dict = {"__name__": "written"}
    exec(write(case, None, found, tmp_path).read_text(), written)
    again = repeat(written["MODULE"], written["ARGUMENTS"], seed=0, parameters=1, amp=None)
    assert (again.kind, again.compared) == (found.kind, found.compared)
