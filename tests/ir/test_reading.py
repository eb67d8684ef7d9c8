"""A reading has every binding of a module, with what its fields hold."""

from __future__ import annotations

from tvm import relax
from tvm.script import ir as I
from tvm.script import relax as R

from autocast.ir import Reading, all_bindings, identity


@I.ir_module
class Branches:
    @R.function
    def main(x: R.Tensor((4,), "float32"), flag: R.Tensor((), "bool")) -> R.Tensor((4,), "float32"):
        y = R.add(x, x)
        if flag:
            inner = R.exp(y)
            z = R.negative(inner)
        else:
            z = R.tanh(y)
        pair = (y, z)
        out = pair[1]
        return out


def test_bindings_come_in_the_order_of_all_bindings_with_the_identities_of_what_they_hold() -> None:
    body = Branches["main"].body
    read, walked = list(Reading(Branches).all_bindings(body)), list(all_bindings(body))
    assert [bound.var.name for bound in read] == [binding.var.name for binding in walked]
    for bound, binding in zip(read, walked, strict=True):
        assert bound.binding.same_as(binding) and bound.value.same_as(binding.value)
        assert bound.key == identity(binding.var)
        args = list(binding.value.args) if isinstance(binding.value, relax.Call) else []
        assert bound.keys == [identity(arg) for arg in args] == [identity(arg) for arg in bound.args]


def test_a_sequence_is_read_once() -> None:
    reading, body = Reading(Branches), Branches["main"].body
    assert reading.blocks(body) is reading.blocks(Branches["main"].body)
