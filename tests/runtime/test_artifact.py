"""Compiled models in files: the same bits where they are loaded, by processors that can run them, or an error."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import autocast
from autocast import amp, runtime, vm
from autocast.errors import ArtifactError, UnsupportedError
from autocast.model import Model
from autocast.runtime import processors, variant
from autocast.runtime.library import Library
from autocast.training import MSE, SGD, training_step

X = torch.randn(4, 64)


@pytest.fixture(scope="module")
def model() -> Model:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(64, 96), nn.GELU(), nn.LayerNorm(96), nn.Linear(96, 8)).eval()
    return amp.autocast(autocast.from_torch(net, (X,), dynamic={"n": ("input", 0, 1, 64)}))


@pytest.fixture(scope="module")
def artifact(model: Model, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return vm.compile(model).export(tmp_path_factory.mktemp("artifact") / "model.autocast")


def step() -> Model:
    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 8))
    return amp.autocast(training_step(autocast.from_torch(net, (X,)), MSE(), SGD(momentum=0.9)))


BATCH = (X, torch.randn(4, 8), torch.tensor(0.05))


def test_a_loaded_model_gives_the_same_bits(model: Model, artifact: Path) -> None:
    loaded, compiled = runtime.load(artifact), vm.compile(model)
    for size in (1, 4, 7):
        x = torch.randn(size, 64)
        assert torch.equal(loaded(x), compiled(x))
    assert repr(loaded) == repr(compiled)


def test_it_runs_where_neither_the_compiler_nor_torch_is_imported(model: Model, artifact: Path) -> None:
    code = f"""
        import sys
        import numpy as np
        from autocast import runtime
        executable = runtime.load({str(artifact)!r})
        x = np.random.default_rng(0).standard_normal((4, 64)).astype("float32")
        assert runtime.profile(executable, [x], number=1, repeat=1).operators
        assert runtime.trace(executable, [x]).peak > 0
        assert not {{"tvm", "torch", "scipy"}} & sys.modules.keys()
        sys.stdout.buffer.write(executable(x).tobytes())
    """
    found = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, check=True)
    x = np.random.default_rng(0).standard_normal((4, 64)).astype("float32")
    assert found.stdout == vm.compile(model)(x).tobytes()
    assert found.stderr == b""


def test_profiles_and_memory_are_those_of_the_compiled_model(model: Model, artifact: Path) -> None:
    loaded, compiled = runtime.load(artifact), vm.compile(model)
    assert vm.trace_memory(loaded, "cpu", [X]) == vm.trace_memory(compiled, "cpu", [X])
    reports = [vm.profile_vm_model(one, "cpu", [X], number=1, repeat=1) for one in (loaded, compiled)]
    rows = [
        {(row.name, row.calls, row.flops, row.bytes, row.modules) for row in report.operators} for report in reports
    ]
    assert rows[0] == rows[1]


def test_training_goes_on_where_it_was_when_it_was_written(tmp_path: Path) -> None:
    executable = vm.compile(step())
    executable(*BATCH)
    loaded = runtime.load(executable.export(tmp_path / "step.autocast"))
    losses = [(executable(*BATCH), loaded(*BATCH)) for _ in range(3)]
    assert all(torch.equal(ours, theirs) for ours, theirs in losses)
    for name, value in executable.state.items():
        assert np.array_equal(value.numpy(), loaded.state[name].numpy()), name


def test_loading_twice_gives_states_of_their_own_and_the_file_stays(tmp_path: Path) -> None:
    path = vm.compile(step()).export(tmp_path / "step.autocast")
    before = path.read_bytes()
    first = runtime.load(path)
    expected = first(*BATCH)
    first(*BATCH)
    assert torch.equal(runtime.load(path)(*BATCH), expected)
    assert path.read_bytes() == before


@pytest.mark.parametrize("again", [lambda e: pickle.loads(pickle.dumps(e)), copy.deepcopy], ids=["pickle", "deepcopy"])
def test_executables_pickle_and_copy_with_their_state(again) -> None:
    executable = vm.compile(step())
    executable(*BATCH)
    other = again(executable)
    assert torch.equal(executable(*BATCH), other(*BATCH))
    executable(*BATCH)  # has no effect on the other
    assert not torch.equal(executable(*BATCH), other(*BATCH))


def test_other_processes_take_pickled_executables(model: Model) -> None:
    from multiprocessing import get_context

    with get_context("spawn").Pool(1) as pool:
        found = pool.apply(vm.compile(model), (X.numpy(),))
    assert np.array_equal(found, vm.compile(model)(X.numpy()))


def test_several_threads_may_call_it(artifact: Path) -> None:
    loaded = runtime.load(artifact)
    inputs = [torch.randn(n, 64) for n in range(1, 17)]
    expected = [loaded(x) for x in inputs]
    with ThreadPoolExecutor(4) as pool:
        assert all(map(torch.equal, pool.map(loaded, inputs), expected))


def test_the_first_kind_of_processor_that_fits_is_loaded(model: Model, tmp_path: Path, monkeypatch) -> None:
    path = vm.export(model, tmp_path / "model.autocast", targets=["x86-64-v4", "x86-64-v3"])
    wanted = vm.compile(model)(X)
    flags = processors.own_flags()
    if "avx512f" in flags:
        assert "x86-64-v4" in runtime.load(path).program.target
    monkeypatch.setattr(processors, "own_flags", lambda: flags - {"avx512f"})
    loaded = runtime.load(path)
    assert "x86-64-v3" in loaded.program.target
    torch.testing.assert_close(loaded(X), wanted, rtol=2e-2, atol=2e-2)


def test_parameters_are_prepared_at_loading_where_the_compiling_machine_could_not(model, tmp_path, monkeypatch) -> None:
    flags = processors.own_flags()
    monkeypatch.setattr(processors, "own_flags", lambda: frozenset())
    path = vm.export(model, tmp_path / "model.autocast")
    with pytest.raises(ArtifactError, match=r"has code for .*lacking.*expected one for this processor.*targets="):
        runtime.load(path)
    monkeypatch.setattr(processors, "own_flags", lambda: flags)
    assert torch.equal(runtime.load(path)(X), vm.compile(model)(X))


def test_where_no_kind_fits_the_model_in_the_file_is_compiled(model: Model, tmp_path: Path, monkeypatch) -> None:
    path = vm.export(model, tmp_path / "model.autocast", with_model=True)
    assert runtime.load(path).origin == "a file"
    monkeypatch.setattr(processors, "own_flags", lambda: frozenset())
    loaded = runtime.load(path)
    assert loaded.origin != "a file"
    assert torch.equal(loaded(X), vm.compile(model)(X))


def test_another_architecture_is_refused(artifact: Path, monkeypatch) -> None:
    monkeypatch.setattr(processors.platform, "machine", lambda: "riscv64")
    with pytest.raises(ArtifactError, match=r"lacking x86_64|lacking aarch64"):
        runtime.load(artifact)


def test_parameters_that_two_kinds_read_alike_are_stored_once(tmp_path: Path) -> None:
    net = nn.Sequential(nn.Embedding(4096, 64))
    model = autocast.from_torch(net.eval(), (torch.zeros(3, dtype=torch.int64),))
    one = vm.export(model, tmp_path / "one", targets=["x86-64-v3"]).stat().st_size
    two = vm.export(model, tmp_path / "two", targets=["x86-64-v3", "x86-64-v2"]).stat().st_size
    assert one > 2**20
    assert two < one + 2**18


def test_a_processor_that_llvm_does_not_know_is_refused(model: Model, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match=r"targets='pentium9' is no CPU that LLVM knows"):
        vm.export(model, tmp_path / "model.autocast", targets=["pentium9"])
    assert not list(tmp_path.iterdir())


def test_nothing_is_executed_of_a_file_that_was_changed(artifact: Path, tmp_path: Path, monkeypatch) -> None:
    def executed(code: object) -> None:
        raise AssertionError("code of a damaged file was loaded")

    monkeypatch.setattr(variant, "load_library", executed)
    data = bytearray(artifact.read_bytes())
    generator = np.random.default_rng(0)
    for place in generator.integers(0, len(data), 100):
        changed = bytearray(data)
        changed[place] ^= 1 << int(generator.integers(8))
        with pytest.raises(ArtifactError):
            runtime.load(bytes(changed))


def test_a_file_is_signed_by_a_key_that_the_user_holds(model: Model, tmp_path: Path) -> None:
    path = vm.compile(model).export(tmp_path / "model.autocast", key=b"secret")
    assert torch.equal(runtime.load(path, key=b"secret")(X), vm.compile(model)(X))
    with pytest.raises(ArtifactError, match="signature that is not by the given key"):
        runtime.load(path, key=b"another")


def test_code_that_is_in_this_process_alone_cannot_be_written(model: Model, tmp_path: Path) -> None:
    executable = copy.copy(vm.compile(model))
    executable.library = Library(None, executable.library.module)
    with pytest.raises(ArtifactError, match="no linker"):
        executable.export(tmp_path / "model.autocast")
