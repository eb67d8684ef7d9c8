"""Numbers of rows that a table does not have are refused before anything runs."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from onnx import TensorProto, helper, numpy_helper
from torch import nn
from tvm.script import ir as I
from tvm.script import relax as R

import autocast
from autocast.errors import InputError
from autocast.training import SGD, CrossEntropy, Trainer
from tests.frontend.helpers import Calls

WORDS = 50

MODES = {"cpu": {}, "torch:cpu": {"mode": "eager"}}


class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.out = nn.Embedding(WORDS, 16), nn.Linear(16, 4)

    def forward(self, ids):
        return self.out(self.words(ids.flatten(1).int()))


MODULE, IDS = Words().eval(), torch.randint(0, WORDS, (3, 7))


def _with(number: int) -> torch.Tensor:
    ids = IDS.clone()
    ids[1, 2] = number
    return ids


@pytest.fixture(scope="module", params=["cpu", "loaded", "torch:cpu"])
def run(request, tmp_path_factory):
    model = autocast.amp.autocast(autocast.from_torch(MODULE, (IDS,), dynamic={"batch": ("ids", 0, 1, 8)}))
    if request.param != "loaded":
        return autocast.vm.compile(model, device=request.param, **MODES[request.param])
    path = tmp_path_factory.mktemp("artifact") / "words"
    return autocast.runtime.load(autocast.vm.compile(model).export(path))


@pytest.mark.parametrize("number", [WORDS, -1, 10**12])
@pytest.mark.parametrize("convert", [lambda ids: ids, lambda ids: ids.numpy()])
def test_an_embedding_refuses_what_it_has_no_row_for(run, number, convert):
    run(convert(IDS))
    with pytest.raises(InputError, match=rf"input ids has {number} at \[1, 2\], expected 0 to 49: .* words.weight"):
        run(convert(_with(number)))
    torch.testing.assert_close(torch.as_tensor(run(_with(49))).float(), MODULE(_with(49)), rtol=0, atol=0.03)


def test_no_numbers_are_no_wrong_ones(run):
    assert tuple(run(IDS[:1]).shape) == (1, 7, 4)


class Rows(nn.Module):
    def forward(self, table, ids):
        return table[ids], table.index_select(0, ids)


def test_the_rows_of_an_input_are_as_many_as_it_has():
    """Indices count from the end, too; those of `index_select` do not."""
    table = torch.randn(6, 3)
    model = autocast.from_torch(Rows(), (table, torch.tensor([0, 5])), dynamic={"rows": ("table", 0, 0, 8)})
    for rows, number, expected in ((6, 6, "-6 to 5"), (6, -1, "0 to 5"), (4, 5, "-4 to 3"), (0, 0, "none")):
        with pytest.raises(InputError, match=f"input ids has {number} at .*expected {expected}"):
            model(table[:rows], torch.tensor([0, number]))
    torch.testing.assert_close(model(table[:4], torch.tensor([3, 1]))[0], table[[3, 1]])


TABLE = torch.arange(12.0).reshape(4, 3)

#: What is asked for, at which places, and which there are.
PLACES = {
    "two indices": (lambda t, i: t[i, i], [0, 2], "-4 to 3"),
    "gather": (lambda t, i: t.gather(1, i[:, None]), [0, 2, 1, 1], "0 to 2"),
    "scatter": (lambda t, i: t.scatter(0, i[None], 9.0), [0, 3, 1], "0 to 3"),
    "scatter_add": (lambda t, i: t.scatter_add(0, i[None], torch.ones(1, 3)), [0, 3, 1], "0 to 3"),
    "index_put": (lambda t, i: t.index_put((i,), torch.ones(())), [0, 2], "-4 to 3"),
    "index_add": (lambda t, i: t.index_add(0, i, torch.ones(2, 3)), [0, 2], "-4 to 3"),
    "index_copy": (lambda t, i: t.index_copy(0, i, torch.ones(2, 3)), [0, 2], "-4 to 3"),
    "take": (lambda t, i: torch.take(t, i), [0, 11], "-12 to 11"),
    "embedding_bag": (lambda t, i: F.embedding_bag(i[None], t), [0, 3], "0 to 3"),
    "cross_entropy": (lambda t, i: F.cross_entropy(t, i), [0, 2, 1, -100], "0 to 2"),
}


@pytest.mark.parametrize("name", PLACES)
def test_other_lookups_and_writes_refuse_what_is_beyond_a_tensor(name):
    function, given, expected = PLACES[name]
    places = torch.tensor(given)
    model = autocast.from_torch(Calls(function), (TABLE, places), fallback="error")
    torch.testing.assert_close(model(TABLE, places), function(TABLE, places))
    places[1] = 12
    with pytest.raises((IndexError, RuntimeError)):
        function(TABLE, places)
    with pytest.raises(InputError, match=rf"args_1 has 12 at \[1\], expected {expected}: it numbers the"):
        model(TABLE, places)


def test_a_model_of_onnx_counts_from_the_end():
    """As `Gather` does."""
    weights = np.random.default_rng(0).standard_normal((5, 4)).astype("float32")
    graph = helper.make_graph(
        [helper.make_node("Gather", ["weights", "ids"], ["y"])],
        "gather",
        [helper.make_tensor_value_info("ids", TensorProto.INT64, [2])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 4])],
        [numpy_helper.from_array(weights, "weights")],
    )
    onnx_model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    model = autocast.from_onnx(onnx_model)
    np.testing.assert_array_equal(model(np.array([-5, 4])), weights[[-5, 4]])
    with pytest.raises(InputError, match=r"input ids has -6 at .*expected -5 to 4"):
        model(np.array([0, -6]))


def test_what_a_mode_defines_is_no_error():
    @I.ir_module
    class Modes:
        @R.function
        def main(x: R.Tensor((4, 2), "float32"), ids: R.Tensor((3,), "int64")):
            with R.dataflow():
                clipped = R.take(x, ids, axis=0, mode="clip")
                wrapped = R.take(x, ids, axis=0, mode="wrap")
                R.output(clipped, wrapped)
            return clipped, wrapped

    x = np.arange(8, dtype="float32").reshape(4, 2)
    clipped, wrapped = autocast.from_relax(Modes)(x, np.array([-1, 1, 9]))
    np.testing.assert_array_equal(clipped, x[[0, 1, 3]])
    np.testing.assert_array_equal(wrapped, x[[3, 1, 1]])


def test_numbers_that_wrap_around_are_left_alone():
    """As torch looks them up: 257 is 1 of 8 bits."""
    module = Calls(lambda t, i: t[i.to(torch.int8).long()])
    places = torch.tensor([257, 3])
    assert torch.equal(autocast.from_torch(module, (TABLE, places))(TABLE, places), TABLE[[1, 3]])


class Masked(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(WORDS, 4)

    def forward(self, ids):
        return self.words(ids.clamp(0, WORDS - 1)), self.words(ids[1:])


def test_numbers_that_are_computed_or_chosen_are_left_alone():
    """Only what is certain to be looked up is checked."""
    module = Masked().eval()
    model = autocast.from_torch(module, (torch.tensor([0, 1, 2]),))
    ids = torch.tensor([WORDS, 1, 2])
    for got, expected in zip(model(ids), module(ids), strict=True):
        torch.testing.assert_close(got, expected)


def test_all_batches_of_a_step_are_checked_before_it_changes_anything():
    module = nn.Sequential(nn.Embedding(WORDS, 4), nn.Flatten(), nn.Linear(28, 3)).train()
    model = autocast.from_torch(module, (IDS,))
    divided, alike = (Trainer(model, CrossEntropy(), SGD(), learning_rate=1.0, accumulate=2) for _ in range(2))
    labels = torch.tensor([0, 1, 2])
    with pytest.raises(InputError, match="has 50 at"):
        divided.step((IDS, labels), (_with(WORDS), labels))
    assert divided.step((IDS, labels), (IDS, labels)) == alike.step((IDS, labels), (IDS, labels))
