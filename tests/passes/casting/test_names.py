"""Variables keep their names, and casts get names that no other variable has."""

from __future__ import annotations

from tvm.script import ir as I
from tvm.script import relax as R

from autocast import amp
from autocast.ir import all_bindings


@I.ir_module
class Numbered:
    @R.function
    def main(lv: R.Tensor((4, 4), "float32"), w: R.Tensor((4, 4), "float32")) -> R.Tensor((4, 4), "float32"):
        with R.dataflow():
            lv1 = R.matmul(lv, w)
            lv2 = R.nn.relu(lv1)
            lv3 = R.matmul(lv2, w)
            gv = R.nn.softmax(lv3)
            R.output(gv)
        return gv


def test_variables_keep_their_names_and_casts_get_unused_ones() -> None:
    after = amp.autocast(Numbered)
    names = [binding.var.name for binding in all_bindings(after["main"].body)]
    names += [param.name for param in after["main"].params]
    assert len(names) == len(set(names))
    assert {"lv", "lv1", "lv2", "lv3", "gv"} <= set(names)
