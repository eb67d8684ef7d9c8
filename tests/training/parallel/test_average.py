"""Before and after: the means over ranks stand between the backward pass and what reads it."""

from __future__ import annotations

import pytest
import tvm
from tvm.relax import ExternFunc
from tvm.script import ir as I
from tvm.script import relax as R

from autocast.ir import op_name
from autocast.kernels.pipeline import plan
from autocast.kernels.state.order import packed_function
from autocast.operators import own  # noqa: F401  (R.collective)
from autocast.runtime.collectives import DONE, START
from autocast.training.losses import MSE
from autocast.training.optimizers import SGD
from autocast.training.parallel.average import average_over_ranks
from autocast.training.parallel.options import DataParallel
from autocast.training.step import training_step
from tests.training.parallel.scenarios import model


@I.ir_module
class Before:
    @R.function
    def main(x: R.Tensor((4, 2), "float32"), w: R.Tensor((2, 3), "float32")):
        with R.dataflow():
            y = R.matmul(x, w)
            loss = R.mean(y)
            g = R.multiply(y, y)
            b_grad = R.sum(g, axis=[0])
            t = R.permute_dims(x)
            v = R.matmul(t, g)
            named = v
            count = R.astype(loss, "int32")
            R.output(loss, count, b_grad, named)
        return (loss, count, b_grad, named)


@I.ir_module
class InOneBucket:
    @R.function
    def main(x: R.Tensor((4, 2), "float32"), w: R.Tensor((2, 3), "float32")):
        with R.dataflow():
            y = R.matmul(x, w)
            loss = R.mean(y)
            sums = R.collective.all_reduce_start((loss,))
            g = R.multiply(y, y)
            b_grad = R.sum(g, axis=[0])
            t = R.permute_dims(x)
            v = R.matmul(t, g)
            sums_1 = R.collective.all_reduce_start((b_grad, v))
            count = R.astype(loss, "int32")
            means = R.collective.all_reduce_done(sums, shapes=[[]], dtype="float32")
            means_1 = R.collective.all_reduce_done(sums_1, shapes=[[3], [2, 3]], dtype="float32")
            loss_1 = means[0]
            b_grad_1 = means_1[0]
            named_1 = means_1[1]
            R.output(loss_1, count, b_grad_1, named_1)
        return (loss_1, count, b_grad_1, named_1)


@I.ir_module
class InTwoBuckets:
    @R.function
    def main(x: R.Tensor((4, 2), "float32"), w: R.Tensor((2, 3), "float32")):
        with R.dataflow():
            y = R.matmul(x, w)
            loss = R.mean(y)
            sums = R.collective.all_reduce_start((loss,))
            g = R.multiply(y, y)
            b_grad = R.sum(g, axis=[0])
            sums_1 = R.collective.all_reduce_start((b_grad,))
            t = R.permute_dims(x)
            v = R.matmul(t, g)
            sums_2 = R.collective.all_reduce_start((v,))
            count = R.astype(loss, "int32")
            means = R.collective.all_reduce_done(sums, shapes=[[]], dtype="float32")
            means_1 = R.collective.all_reduce_done(sums_1, shapes=[[3]], dtype="float32")
            means_2 = R.collective.all_reduce_done(sums_2, shapes=[[2, 3]], dtype="float32")
            loss_1 = means[0]
            b_grad_1 = means_1[0]
            named_1 = means_2[0]
            R.output(loss_1, count, b_grad_1, named_1)
        return (loss_1, count, b_grad_1, named_1)


@I.ir_module
class Tied:
    """A table that is looked up in, and multiplied by: of 9 rows."""

    @R.function
    def main(g: R.Tensor((3, 2), "float32"), ids: R.Tensor((3,), "int64"), w: R.Tensor((9, 2), "float32")):
        with R.dataflow():
            v = R.matmul(w, R.const([[1.0, 2.0], [3.0, 4.0]], "float32"))
            h = R.multiply(g, g)
            rows = R.grad.take_backward(h, w, ids, axis=0)
            w_grad = R.add(v, rows)
            R.output(w_grad)
        return (w_grad,)


@I.ir_module
class ByRows:
    @R.function
    def main(g: R.Tensor((3, 2), "float32"), ids: R.Tensor((3,), "int64"), w: R.Tensor((9, 2), "float32")):
        with R.dataflow():
            v = R.matmul(w, R.const([[1.0, 2.0], [3.0, 4.0]], "float32"))
            sums = R.collective.all_reduce_start((v,))
            h = R.multiply(g, g)
            buffer = R.collective.all_gather_start((h,), count=2)
            buffer_1 = R.collective.all_gather_start((ids,), count=2)
            means = R.collective.all_reduce_done(sums, shapes=[[9, 2]], dtype="float32")
            whole = R.collective.all_gather_done(buffer, shapes=[[6, 2]], dtype="float32")
            all_rows = whole[0]
            whole_1 = R.collective.all_gather_done(buffer_1, shapes=[[6]], dtype="int64")
            all_ids = whole_1[0]
            scaled = R.multiply(all_rows, R.const(0.5, "float32"))
            mean = R.grad.take_backward(scaled, w, all_ids, axis=0)
            dense = means[0]
            w_grad = R.add(dense, mean)
            R.output(w_grad)
        return (w_grad,)


def test_rows_that_were_looked_up_are_sent_by_themselves_and_the_rest_of_a_table_before() -> None:
    after = average_over_ranks(Tied["main"], 0, count=2)
    tvm.ir.assert_structural_equal(after, ByRows["main"])


@pytest.mark.parametrize("count", [1, 3])
def test_rows_of_all_ranks_that_are_as_many_as_those_of_the_table_are_not(count: int) -> None:
    after = average_over_ranks(Tied["main"], 0, count=count)
    assert "all_gather" not in after.script()
    assert "R.collective.all_reduce_start((w_grad,))" in after.script()


def test_results_are_sent_when_the_last_of_their_bucket_is_computed() -> None:
    after = average_over_ranks(Before["main"], 2)
    tvm.ir.assert_structural_equal(after, InOneBucket["main"])


def test_a_bucket_that_is_full_is_sent_before_the_rest_is_computed() -> None:
    after = average_over_ranks(Before["main"], 2, bucket_mib=12 / 2**20)
    tvm.ir.assert_structural_equal(after, InTwoBuckets["main"])


def _calls(options: DataParallel, *, norm: bool = False) -> list[str]:
    """What the compiled step calls, in order: `send`, `wait`, and `kernel` for all else that is computed."""
    step = training_step(model(6, norm=norm), MSE(), SGD(momentum=0.9), parallel=options)
    planned = plan(step.mod, tvm.target.Target("llvm")).lowered
    from autocast.kernels.state.order import OrderForMemory

    (block,) = OrderForMemory()(planned)["main"].body.blocks
    words = {START: "send", DONE: "wait"}
    values = [binding.value for binding in block.bindings]
    return [
        words.get(packed_function(value), "kernel")
        for value in values
        if op_name(value) in ("relax.call_tir", "relax.call_dps_packed")
    ]


def test_what_is_sent_is_waited_for_when_nothing_else_is_left_to_compute() -> None:
    calls = _calls(DataParallel(bucket_mib=1e-6))
    assert calls.count("send") == calls.count("wait") == 5
    assert calls.index("wait") > len(calls) - 1 - calls[::-1].index("send"), "all is sent before anything is awaited"
    sends = [place for place, call in enumerate(calls) if call == "send"]
    assert "kernel" in calls[sends[0] : sends[-1]], "the backward pass goes on while the first bucket is sent"
    assert set(calls[calls.index("wait") :]) == {"wait", "kernel"}


def test_statistics_of_all_ranks_are_waited_for_where_they_are_used_and_gradients_at_the_end() -> None:
    calls = _calls(DataParallel(bucket_mib=1e-6, sync_batch_norm=True), norm=True)
    messages = [call for call in calls if call != "kernel"]
    gradients_and_others = len(messages) // 2 - 2
    at_once, late = messages[:-gradients_and_others], messages[-gradients_and_others:]
    assert at_once.count("wait") == 2 and set(late) == {"wait"}
    last_send = len(calls) - 1 - calls[::-1].index("send")
    assert "kernel" in calls[calls.index("wait") : last_send]


def test_the_first_operators_of_a_step_do_not_know_of_other_ranks() -> None:
    plain = training_step(model(6), MSE(), SGD()).main
    parallel = training_step(model(6), MSE(), SGD(), parallel="data").main
    before, after = ([str(one.value) for one in main.body.blocks[0].bindings] for main in (plain, parallel))
    first = next(place for place, line in enumerate(after) if "all_reduce_start" in line)
    assert before[:first] == after[:first]


def _planned(accumulate: int) -> list[str]:
    """What allocates, makes views and sends in a planned step, in order."""
    step = training_step(model(6), MSE(), SGD(momentum=0.9), parallel="data", accumulate=accumulate)
    planned = plan(step.mod, tvm.target.Target("llvm")).planned["main"]
    values = [binding.value for block in planned.body.blocks for binding in block.bindings]
    words = {"relax.memory.view": "view"}
    sent = [str(value.op.global_symbol) for value in values if isinstance(getattr(value, "op", None), ExternFunc)]
    assert sent.count(START) == sent.count(DONE) == 2
    begun = [
        "send" if getattr(getattr(value, "op", None), "global_symbol", "") == START else words.get(op_name(value) or "")
        for value in values
    ]
    return [word for word in begun if word]


def test_gradients_are_computed_in_their_bucket_and_read_there() -> None:
    words = _planned(accumulate=1)
    last = len(words) - 1 - words[::-1].index("send")
    assert words[:last].count("view") == 5, "the loss and four gradients"
    assert words.count("view") == 10, "and where their means are read"


def test_sums_of_gradients_that_stay_are_copied_to_their_bucket() -> None:
    words = _planned(accumulate=2)
    last = len(words) - 1 - words[::-1].index("send")
    assert words[last:].count("view") >= 4 and words.count("view") < 10
