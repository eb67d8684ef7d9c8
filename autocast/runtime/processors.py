"""Whether this processor has the instructions that code was generated with."""

from __future__ import annotations

import ctypes
import functools
import platform
from collections.abc import Collection
from pathlib import Path

from autocast.errors import UnsupportedError

#: The features of LLVM with whose instructions it makes code of its own accord, by what Linux calls them. Others, for
#: pages, keys or clocks, do not matter to a kernel.
FEATURES = {
    "sse3": "pni",
    "ssse3": "ssse3",
    "sse4.1": "sse4_1",
    "sse4.2": "sse4_2",
    "sse4a": "sse4a",
    "popcnt": "popcnt",
    "movbe": "movbe",
    "lzcnt": "abm",
    "bmi": "bmi1",
    "bmi2": "bmi2",
    "avx": "avx",
    "avx2": "avx2",
    "avxvnni": "avx_vnni",
    "fma": "fma",
    "fma4": "fma4",
    "xop": "xop",
    "tbm": "tbm",
    "f16c": "f16c",
    "gfni": "gfni",
    "avx512f": "avx512f",
    "avx512bw": "avx512bw",
    "avx512cd": "avx512cd",
    "avx512dq": "avx512dq",
    "avx512vl": "avx512vl",
    "avx512ifma": "avx512ifma",
    "avx512vbmi": "avx512vbmi",
    "avx512vbmi2": "avx512_vbmi2",
    "avx512vnni": "avx512_vnni",
    "avx512bitalg": "avx512_bitalg",
    "avx512vpopcntdq": "avx512_vpopcntdq",
    "avx512bf16": "avx512_bf16",
    "avx512fp16": "avx512_fp16",
    "amx-tile": "amx_tile",
    "amx-bf16": "amx_bf16",
    "neon": "asimd",
    "dotprod": "asimddp",
    "fullfp16": "asimdhp",
    "bf16": "bf16",
    "sve": "sve",
    "sve2": "sve2",
}


#: The system call of x86-64 that asks for more registers, what it is asked, and the tiles' data (asm/prctl.h).
_ARCH_PRCTL, _ARCH_REQ_XCOMP_PERM, _XTILEDATA = 158, 0x1023, 18


def needed(features: Collection[str]) -> tuple[str, ...]:
    """Those of LLVM's features of a processor that code generated for it may need, in the order of `FEATURES`."""
    return tuple(feature for feature in FEATURES if feature in features)


@functools.cache
def own_flags() -> frozenset[str]:
    """What Linux says this processor has and lets this process use; nothing where it does not say."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return frozenset()
    listed = (line.partition(":")[2] for line in lines if line.startswith(("flags", "Features")))
    flags = frozenset(next(listed, "").split())
    return flags if "amx_tile" not in flags or _tiles_allowed() else frozenset(f for f in flags if "amx" not in f)


def _tiles_allowed() -> bool:
    """Whether this process may use tile registers: Linux lets those that ask, all of their threads at once."""
    return ctypes.CDLL(None, use_errno=True).syscall(_ARCH_PRCTL, _ARCH_REQ_XCOMP_PERM, _XTILEDATA) == 0


def architecture_of(triple: str | None) -> str:
    """The processors that code for a triple of LLVM's runs on, as the system names them; of this machine's if None."""
    return triple.partition("-")[0] if triple else platform.machine()


def missing(architecture: str, features: Collection[str]) -> tuple[str, ...]:
    """What this processor lacks of what code needs; its architecture, where that is another."""
    if architecture != platform.machine():
        return (architecture,)
    return tuple(feature for feature in features if FEATURES.get(feature, feature) not in own_flags())


def check_runs_here(architecture: str, features: Collection[str]) -> None:
    """UnsupportedError where the process would end at an instruction that this processor, as Linux says, lacks."""
    lacking = missing(architecture, features)
    if lacking and own_flags():
        raise UnsupportedError(
            f"the compiled code is for another processor: it needs {', '.join(lacking)}, expected what this one has. "
            "Leave out the target (and the setting AUTOCAST_TARGET) to run it here; "
            "autocast.vm.export(model, path, targets=[...]) writes a file for other processors"
        )


def corrections(features: Collection[str]) -> tuple[str, ...]:
    """What LLVM is to be told of this processor beside its name, whose `features` may be another's: `+avx512bf16`, ...

    Virtual machines hide or change the model by which LLVM tells processors apart. Nothing where Linux says nothing.
    """
    flags = own_flags()
    mine = {feature for feature, flag in FEATURES.items() if flag in flags} if flags else {*features}
    return tuple(
        ("+" if feature in mine else "-") + feature
        for feature in FEATURES
        if (feature in mine) != (feature in features)
    )
