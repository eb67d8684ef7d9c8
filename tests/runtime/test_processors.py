"""What a processor is said to have: by its instructions, not by the name that a virtual machine gives it."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from autocast import amp, from_torch, runtime, vm
from autocast.errors import UnsupportedError
from autocast.kernels.targets.cpu.instruction_sets import detect_target, instruction_set, target_of
from autocast.runtime import processors

has_tiles = pytest.mark.skipif(
    not instruction_set(detect_target()).tiles, reason="this processor has no matrix unit, or Linux does not lend it"
)


@pytest.fixture
def flags(monkeypatch: pytest.MonkeyPatch):
    """Sets what Linux says of the processor."""

    def say(*names: str) -> None:
        monkeypatch.setattr(processors, "own_flags", lambda: frozenset(names))

    return say


def test_llvm_is_told_what_its_guess_of_the_processor_lacks(flags) -> None:
    flags("avx2", "fma", "avx512f", "avx512_bf16")
    assert processors.corrections(["avx2", "fma", "avx512f"]) == ("+avx512bf16",)


def test_llvm_is_told_what_a_virtual_machine_hides(flags) -> None:
    flags("avx2", "fma")
    assert processors.corrections(["avx2", "fma", "avx512f", "sgx"]) == ("-avx512f",)


def test_llvm_is_believed_where_linux_says_nothing(flags) -> None:
    flags()
    assert processors.corrections(["avx2", "avx512f"]) == ()


def test_the_matrix_unit_is_not_used_where_linux_does_not_lend_it(monkeypatch: pytest.MonkeyPatch) -> None:
    processors.own_flags.cache_clear()
    monkeypatch.setattr(processors, "_tiles_allowed", lambda: False)
    try:
        assert not any(flag.startswith("amx") for flag in processors.own_flags())
    finally:
        processors.own_flags.cache_clear()


def test_code_for_another_processor_is_refused_before_it_ends_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    flags, target = processors.own_flags(), detect_target()
    model = from_torch(torch.nn.Linear(4, 3), (torch.randn(2, 4),))
    monkeypatch.setattr(processors, "own_flags", lambda: flags - {"avx2", "asimd"})
    with pytest.raises(UnsupportedError, match=r"needs (avx2|neon), expected .*AUTOCAST_TARGET.*targets="):
        vm.compile(model, target=target)


def test_code_of_one_maker_is_refused_by_processors_of_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """LLVM shuffles with AMD's `extrq`, which Intel's processors do not know."""
    theirs = processors.own_flags() - {"sse4a"}
    model = from_torch(torch.nn.Linear(4, 3), (torch.randn(2, 4),))
    monkeypatch.setattr(processors, "own_flags", lambda: theirs)
    with pytest.raises(UnsupportedError, match=r"needs .*sse4a"):
        vm.compile(model, target=target_of("znver4", "test"))


@has_tiles
def test_a_fresh_process_runs_a_file_that_needs_the_matrix_unit(tmp_path) -> None:
    x = torch.randn(40, 64)
    path = vm.export(amp.autocast(from_torch(torch.nn.Linear(64, 48), (x,))), tmp_path / "linear.autocast")
    torch.save(x, tmp_path / "x.pt")
    script = (
        "import sys, torch; from autocast import runtime\n"
        "print(runtime.load(sys.argv[1])(torch.load(sys.argv[2])).double().sum().item())"
    )
    found = subprocess.run(
        [sys.executable, "-c", script, path, tmp_path / "x.pt"], capture_output=True, text=True, check=True
    )
    assert float(found.stdout) == runtime.load(path)(x).double().sum().item()


def test_torch_multiplies_as_before_between_our_kernels() -> None:
    """Both may use the tile registers of one thread, each set up in its own way; oneDNN remembers that it did."""
    x = torch.randn(40, 72)
    ours = vm.compile(amp.autocast(from_torch(torch.nn.Linear(72, 48), (x,))))
    a, b = torch.randn(37, 50).bfloat16(), torch.randn(50, 29).bfloat16()
    expected, first = a @ b, ours(x)
    for _ in range(3):
        assert torch.equal(a @ b, expected)
        assert torch.equal(ours(x), first)
