"""Detection of this machine, and of what the CPU of a target offers."""

from __future__ import annotations

import re

import pytest
import tvm

from autocast.errors import UnsupportedError
from autocast.kernels.targets.cpu.instruction_sets import (
    cores,
    detect_target,
    instruction_set,
    slow_dtype,
)
from autocast.runtime import threads
from autocast.runtime.threads import physical_cores, wanted_threads
from tests.kernels.targets.cpu.products.cases import target_of


def test_the_detected_target_is_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AUTOCAST_TARGET", raising=False)
    target = detect_target()
    assert str(target.attrs["mcpu"]) == tvm.target.codegen.llvm_get_system_cpu()
    assert cores(target) == wanted_threads() >= 1


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
        ("sapphirerapids", "amx", 16, True),
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


def test_the_own_setting_of_threads_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "_USER_THREADS", "3")
    monkeypatch.delenv("AUTOCAST_NUM_THREADS", raising=False)
    assert wanted_threads() == 3
    monkeypatch.setenv("AUTOCAST_NUM_THREADS", "1")
    assert wanted_threads() == 1
    monkeypatch.setenv("AUTOCAST_NUM_THREADS", "0")
    monkeypatch.setattr(threads, "_USER_THREADS", "")
    assert wanted_threads() == physical_cores()


@pytest.mark.parametrize("number", ["-1", "65537", "99999999999999999999"])
def test_a_number_of_threads_that_no_machine_has_is_refused(number: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AUTOCAST_NUM_THREADS", number)
    with pytest.raises(UnsupportedError, match=f"AUTOCAST_NUM_THREADS={number}: expected 1 to 65536"):
        wanted_threads()


@pytest.mark.parametrize(
    ("dtype", "cpu", "says"),
    [
        ("float32", "x86-64", None),
        ("bfloat16", "znver4", None),
        (
            "float16",
            "znver4",
            r"float16 is only a storage format on znver4 \(avx512bf16\).*bfloat16 is multiplied faster",
        ),
        ("bfloat16", "x86-64-v3", r"bfloat16 is only a storage format on x86-64-v3 \(avx2\).*no arithmetic$"),
    ],
)
def test_a_dtype_without_a_unit_of_its_own_is_said_to_be_slow(dtype: str, cpu: str, says: str | None) -> None:
    line = slow_dtype(dtype, target_of(cpu))
    assert line is None if says is None else re.search(says, line or "")
