"""A kernel that some program had before is not compiled again, and runs with the same bits."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tvm
from tvm import relax, tirx

from autocast import vm
from autocast.cache import store
from autocast.container import read, write
from autocast.kernels import detect_target, plan
from autocast.kernels.kernel_cache import KERNELS, KernelCache
from autocast.vm import program
from tests.kernels.compiling import machine_of
from tests.kernels.modules import module, random

SHAPE = ((24, 24), "float32")


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AUTOCAST_CACHE", "on")
    monkeypatch.setenv("AUTOCAST_CACHE_DIR", str(tmp_path / "cache"))


def _net(layers: int, *, last: bool = False) -> tvm.IRModule:
    """Layers of one product and one softmax; a sum behind them where it is the `last`."""

    def body(x: relax.Expr) -> relax.Expr:
        for _ in range(layers):
            x = relax.op.nn.softmax(relax.op.matmul(x, x))
        return relax.op.sum(x, axis=[0]) if last else x

    return module(body, SHAPE)


def _compiled(mod: tvm.IRModule, **options: object) -> vm.Executable:
    """As a process that has compiled nothing yet."""
    program._programs.clear()
    return vm.compile(mod, **options)


def _files() -> list[Path]:
    return [file.path for file in store().files() if file.kind == "kernels"]


def test_a_model_that_is_changed_compiles_what_is_new() -> None:
    first = _compiled(_net(2))
    assert set(first.kernel_origins) == {"compiled"}
    second = _compiled(_net(3, last=True))
    assert second.origin == "compiled"
    assert second.kernel_origins["the user's cache"] == first.kernel_origins["compiled"]
    assert second.kernel_origins["compiled"] >= 1


def test_kernels_from_the_cache_have_the_bits_of_those_that_were_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    x = random(*SHAPE)
    _compiled(_net(2))
    cached = _compiled(_net(3))
    monkeypatch.setenv("AUTOCAST_CACHE", "off")
    fresh = _compiled(_net(3))
    assert set(cached.kernel_origins) == {"the user's cache"}
    assert set(fresh.kernel_origins) == {"compiled"}
    np.testing.assert_array_equal(cached(x), fresh(x))


def test_profiles_of_cached_kernels_have_their_readable_names_and_memory() -> None:
    plain, cached = _compiled(_net(1)), _compiled(_net(2))
    assert set(plain.program.kernels) == set(cached.program.kernels)
    for name, kernel in plain.program.kernels.items():
        assert (cached.program.kernels[name].workspace, cached.program.kernels[name].flops) == (
            kernel.workspace,
            kernel.flops,
        )
    rows = vm.profile_vm_model(cached, "cpu", (random(*SHAPE),), number=1, repeat=1, warmup=0).operators
    assert set(cached.program.kernels) & {row.name for row in rows}


@pytest.mark.parametrize(
    "other", [{"opt_level": 2}, {"target": tvm.target.Target({"kind": "llvm", "mcpu": "x86-64-v2"})}]
)
def test_another_level_or_target_shares_no_kernel(other: dict[str, object]) -> None:
    _compiled(_net(1))
    assert set(_compiled(_net(2), **other).kernel_origins) == {"compiled"}


def test_a_file_whose_kernel_has_another_structure_is_not_used() -> None:
    _compiled(_net(1))
    for path in _files():
        found = read(path, KERNELS)
        entries = {name: bytes(found[name]) for name in found.names}
        write(path, KERNELS, entries, {**found.metadata, "structure": "0" * 16})
    assert set(_compiled(_net(2)).kernel_origins) == {"compiled"}


def test_a_damaged_kernel_is_compiled_again(recwarn: pytest.WarningsRecorder) -> None:
    count = _compiled(_net(1)).kernel_origins["compiled"]
    path = _files()[0]
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.warns(match="is damaged"):
        again = _compiled(_net(2))
    assert again.kernel_origins == ({"compiled": 1, "the user's cache": count - 1} if count > 1 else {"compiled": 1})


def test_instruments_see_every_kernel_compiled() -> None:
    _compiled(_net(1))
    with tvm.transform.PassContext(instruments=[tvm.ir.instrument.PassTimingInstrument()]):
        assert set(_compiled(_net(2)).kernel_origins) == {"compiled"}


def test_the_name_of_a_kernel_is_no_part_of_its_identity_and_its_loops_are() -> None:
    cache = KernelCache(store(), ())
    planned = plan(_net(1), detect_target()).planned
    one, other = (function for function in planned.functions.values() if isinstance(function, tirx.PrimFunc))
    identity = cache.identify(one)
    assert cache.identify(one.with_attr("global_symbol", "something_else")) == identity
    assert cache.identify(other).key != identity.key
    assert cache.identify(other).structure != identity.structure


def test_kernels_of_the_system_s_cache_are_used_and_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _compiled(_net(1))
    monkeypatch.setenv("AUTOCAST_SYSTEM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("AUTOCAST_CACHE_DIR", str(tmp_path / "other"))
    assert set(_compiled(_net(2)).kernel_origins) == {"the system's cache"}


def test_a_kernel_that_is_no_text_is_not_kept() -> None:
    (kernel,) = (
        f for f in plan(_net(0, last=True), detect_target()).planned.functions.values() if isinstance(f, tirx.PrimFunc)
    )
    cache = KernelCache(store(), ())
    assert cache.identify(kernel) is not None
    for note in ({"of": tvm.ir.SourceName("x")}, kernel):
        assert cache.identify(kernel.with_attr("note", note)) is None


def test_kernels_of_results_beyond_the_caches_are_kept() -> None:
    large = module(relax.op.exp, ((4096, 1024), "float32"))
    _compiled(large)
    assert len(_files()) == 1


def test_programs_find_the_kernels_that_tests_built_and_what_is_said_of_them() -> None:
    mod, x = module(lambda x: relax.op.exp(x), ((7, 11), "float32")), np.ones((7, 11), "float32")
    built = machine_of(mod)["main"](tvm.runtime.tensor(x)).numpy()
    executable = vm.compile(mod)
    assert (executable(x) == built).all()
