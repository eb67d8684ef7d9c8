"""A model in a file, in a pickle or copied is the same model: numbers to the bit, text, report and names."""

from __future__ import annotations

import copy
import io
import json
import multiprocessing
import pickle
import zipfile

import numpy as np
import pytest
import safetensors
import torch
import tvm
from tvm import relax

import autocast
from autocast import Model, amp, from_relax, training, vm
from autocast.container import to_bytes
from autocast.errors import ArtifactError
from autocast.model import saving, value
from autocast.runtime.tensors import array_over
from tests.architectures import ARCHITECTURES, imported


@pytest.fixture(scope="module")
def bert():
    return amp.autocast(imported("bert"), policy="mp4,parameters=offline")


def by_file(model, folder):
    return autocast.load(model.save(folder / "model.autocast"))


def assert_same(model, again):
    assert again.script() == model.script()
    assert repr(again) == repr(model)
    assert (again.output_names, again.frozen) == (model.output_names, model.frozen)
    assert list(again.params) == list(model.params)
    for name, tensor in model.params.items():
        one, other = array_over(tensor), array_over(again.params[name])
        assert (one.dtype, one.shape, one.tobytes()) == (other.dtype, other.shape, other.tobytes())


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_loaded_model_is_the_one_that_was_saved(name, tmp_path):
    model = amp.autocast(imported(name))
    assert_same(model, by_file(model, tmp_path))


def test_a_loaded_model_computes_the_same_to_the_bit(bert, tmp_path):
    again = by_file(bert, tmp_path)
    ids = ARCHITECTURES["bert"]().args[0]
    assert torch.equal(again(ids), bert(ids))
    assert torch.equal(vm.compile(again)(ids), bert(ids))


def test_a_report_says_the_same(bert, tmp_path):
    again = by_file(bert, tmp_path).report
    assert str(again) == str(bert.report)
    assert again.decisions == bert.report.decisions
    assert (again.inserted, again.unused, again.parameters) == (
        bert.report.inserted,
        bert.report.unused,
        bert.report.parameters,
    )
    assert again.policy == bert.report.policy == str(amp.Policy.parse("mp4,parameters=offline"))


def test_what_is_unused_and_out_of_range_comes_back(tmp_path):
    x, w = (relax.Var(name, relax.TensorType([4, 4], "float32")) for name in "xw")
    builder = relax.BlockBuilder()
    with builder.function("main", [x, w]):
        builder.emit_func_output(builder.emit(relax.op.matmul(x, w)))
    model = from_relax(builder.get(), [np.full((4, 4), 1e6, "float32")])
    with pytest.warns(autocast.errors.PolicyWarning):
        model = amp.autocast(model, dtype="float16", low_names="absent.*")
    report = by_file(model, tmp_path).report
    assert report.out_of_range == model.report.out_of_range != {}
    assert report.unused == model.report.unused != ()


def test_a_training_step_goes_on_from_a_file(tmp_path):
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
    model = autocast.from_torch(module.train(), (torch.randn(5, 4),))
    step = amp.autocast(training.training_step(model, training.CrossEntropy(), training.AdamW()))
    again = by_file(step, tmp_path)
    assert_same(step, again)
    assert again.updated == step.updated != ()
    inputs = [np.zeros([int(size) for size in var.ty.shape], str(var.ty.dtype.dtype)) for var in step.main.params]
    inputs = inputs[: step.num_input]
    runs = [vm.compile(one) for one in (step, again)]
    for _ in range(3):
        results = [run(*inputs) for run in runs]
    np.testing.assert_array_equal(*results)


def test_a_loaded_model_can_be_autocast_and_differentiated(tmp_path):
    model = imported("bert")
    again = by_file(model, tmp_path)
    assert amp.autocast(again).script() == amp.autocast(model).script()
    steps = [
        training.training_step(one.replace(frozen=frozenset()), training.CrossEntropy(), training.SGD())
        for one in (model, again)
    ]
    assert steps[0].script() == steps[1].script()


def test_a_dynamic_model_comes_back(tmp_path):
    model = imported("bert", True)
    again = by_file(model, tmp_path)
    ids = ARCHITECTURES["bert"]().inputs(5)[0][0]
    assert torch.equal(again(ids), model(ids))


def test_parameters_are_the_mapped_file(bert, tmp_path):
    path = bert.save(tmp_path / "model.autocast")
    again = autocast.load(path)
    with open("/proc/self/maps") as maps:
        spans = [line.split()[0].split("-") for line in maps if line.rstrip().endswith(str(path))]
    large = [tensor for tensor in again.params.values() if array_over(tensor).nbytes % 64 == 0]
    assert large
    for tensor in large:
        assert any(int(begin, 16) <= tensor.data_ptr() < int(end, 16) for begin, end in spans)


def test_what_is_written_to_a_parameter_stays_out_of_the_file(bert, tmp_path):
    path = bert.save(tmp_path / "model.autocast")
    before = path.read_bytes()
    for tensor in autocast.load(path).params.values():
        array_over(tensor)[...] = 0
    assert path.read_bytes() == before
    assert_same(bert, autocast.load(path))


def test_parameters_that_are_one_in_memory_are_stored_once_and_stay_one(tmp_path):
    weight = tvm.runtime.tensor(np.arange(2**14, dtype="float32"))
    model = Model(_sum_of_two(), {"a": weight, "b": weight})
    path = model.save(tmp_path / "model.autocast")
    assert path.stat().st_size < 2 * 2**16
    again = autocast.load(path).params
    assert again["a"].data_ptr() == again["b"].data_ptr()


def _sum_of_two():
    a, b = (relax.Var(name, relax.TensorType([2**14], "float32")) for name in "ab")
    builder = relax.BlockBuilder()
    with builder.function("main", [a, b], attrs={"num_input": 0}):
        builder.emit_func_output(builder.emit(relax.op.add(a, b)))
    return builder.get()


def test_the_parameters_in_the_archive_are_a_safetensors_file(bert, tmp_path):
    with zipfile.ZipFile(bert.save(tmp_path / "model.autocast")) as archive:
        found = dict(safetensors.deserialize(archive.read("parameters.safetensors")))
    name = next(iter(bert.params))
    assert bytes(found[name]["data"]) == array_over(bert.params[name]).tobytes()


@pytest.mark.parametrize("again", [lambda m: pickle.loads(pickle.dumps(m)), copy.deepcopy], ids=["pickle", "deepcopy"])
def test_models_pickle_and_copy_deeply(bert, again):
    found = again(bert)
    assert_same(bert, found)
    assert str(found.report) == str(bert.report)
    assert not {one.data_ptr() for one in found.params.values()} & {one.data_ptr() for one in bert.params.values()}


def test_a_copy_that_is_not_deep_shares_its_parameters(bert):
    assert copy.copy(bert).params is bert.params


def _numbers(model, ids):
    return model(ids)


def test_another_process_takes_a_model(bert):
    ids = ARCHITECTURES["bert"]().args[0].numpy()
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        np.testing.assert_array_equal(pool.apply(_numbers, (bert, ids)), bert(ids))


def test_a_signed_model_is_loaded_by_its_key_alone(bert, tmp_path):
    path = bert.save(tmp_path / "model.autocast", key=b"mine")
    assert_same(bert, autocast.load(path, key=b"mine"))
    with pytest.raises(ArtifactError, match=r"autocast\.load: .* not by the given key"):
        autocast.load(path, key=b"another")


def test_a_module_with_python_in_it_is_not_saved(bert, tmp_path):
    model = bert.replace(mod=bert.mod.with_attr("callback", tvm.get_global_func("ffi.Array")))
    with pytest.raises(ArtifactError, match=r"Model\.save: a Function is no data"):
        model.save(tmp_path / "model.autocast")


def test_an_unknown_report_is_not_saved(bert, tmp_path):
    with pytest.raises(ArtifactError, match=r"report is a dict.*model\.replace\(report=None\)"):
        bert.replace(report={}).save(tmp_path / "model.autocast")


def changed(model, entry=None, **facts):
    """The bytes of a file that is whole, by somebody who changed an entry or the metadata on purpose."""
    entries, metadata = saving.parts_of(model)
    data = {name: b"".join(map(bytes, one)) if isinstance(one, list) else one for name, one in entries.items()}
    return to_bytes(saving.FORMAT, {**data, **(entry or {})}, {**metadata, **facts})


@pytest.mark.parametrize(
    ("entry", "facts", "message"),
    [
        ({"module.json": b"{}"}, {}, "its module"),
        ({"module.json": b"["}, {}, "no JSON"),
        ({"constants.safetensors": b""}, {}, "constants.safetensors"),
        ({"report.json": b"{}"}, {}, "report"),
        ({"report.json": b'{"kind": "Path", "data": []}'}, {}, "report"),
        ({"report.json": b'{"kind": "CastReport", "data": {"dtype": 1}}'}, {}, "report"),
        ({}, {"parameters": []}, "its model"),
        ({}, {"parameters": [["a", "absent"]]}, "parameters"),
        ({}, {"parameters": 3}, "parameters"),
        ({}, {"frozen": ["absent"]}, "its model"),
    ],
)
def test_a_file_that_is_whole_and_no_model_is_an_error(bert, entry, facts, message):
    with pytest.raises(ArtifactError, match=rf"autocast\.load: the bytes: .*{message}"):
        value._from_bytes(changed(bert, entry, **facts))


def test_a_parameter_of_another_shape_than_main_takes_is_an_error(bert):
    names = list(bert.params)
    stored = [[name, names[0]] for name in names]
    with pytest.raises(ArtifactError, match=r"the parameter .* and main takes"):
        value._from_bytes(changed(bert, parameters=stored))


def test_a_file_says_its_format_and_versions(bert, tmp_path):
    with zipfile.ZipFile(io.BytesIO(bert.save(tmp_path / "model.autocast").read_bytes())) as archive:
        manifest = json.loads(archive.read("manifest.json"))
    assert manifest["format"] == "autocast.model/1"
    assert manifest["versions"]["apache-tvm"] == tvm.__version__
