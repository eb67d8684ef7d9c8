"""Detection of this machine, and of what the CPU of a target offers."""

from __future__ import annotations

import pytest
import tvm

from autocast.errors import UnsupportedError
from autocast.kernels.target import cores, detect_target, instruction_set, usable_cores
from tests.kernels.products.cases import target_of


def test_the_detected_target_is_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AUTOCAST_TARGET", raising=False)
    target = detect_target()
    assert str(target.attrs["mcpu"]) == tvm.target.codegen.llvm_get_system_cpu()
    assert cores(target) == usable_cores() >= 1


def test_a_setting_names_another_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AUTOCAST_TARGET", "x86-64-v3")
    assert instruction_set(detect_target()).name == "avx2"


def test_a_setting_limits_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AUTOCAST_NUM_THREADS", "1")
    assert cores(detect_target()) == 1


@pytest.mark.parametrize(
    ("cpu", "name", "lanes", "bf16_dot"),
    [
        ("znver5", "avx512bf16", 16, True),
        ("sapphirerapids", "avx512bf16", 16, True),
        ("skylake-avx512", "avx512", 16, False),
        ("haswell", "avx2", 8, False),
        ("x86-64", "generic", 4, False),
    ],
)
def test_instruction_sets_by_cpu(cpu: str, name: str, lanes: int, bf16_dot: bool) -> None:
    isa = instruction_set(target_of(cpu))
    assert (isa.name, isa.lanes, isa.bf16_dot) == (name, lanes, bf16_dot)


def test_a_setting_that_names_no_cpu_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AUTOCAST_TARGET", "pentium9")
    with pytest.raises(UnsupportedError, match="AUTOCAST_TARGET='pentium9'"):
        detect_target()
