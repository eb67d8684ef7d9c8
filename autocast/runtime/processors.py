"""Whether this processor has the instructions that code was generated with."""

from __future__ import annotations

import functools
import platform
from collections.abc import Collection
from pathlib import Path

#: The features of LLVM with whose instructions it makes code of its own accord, by what Linux calls them. Others, for
#: pages, keys or clocks, do not matter to a kernel.
FEATURES = {
    "sse3": "pni",
    "ssse3": "ssse3",
    "sse4.1": "sse4_1",
    "sse4.2": "sse4_2",
    "popcnt": "popcnt",
    "movbe": "movbe",
    "lzcnt": "abm",
    "bmi": "bmi1",
    "bmi2": "bmi2",
    "avx": "avx",
    "avx2": "avx2",
    "fma": "fma",
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
    "neon": "asimd",
    "dotprod": "asimddp",
    "fullfp16": "asimdhp",
    "bf16": "bf16",
    "sve": "sve",
    "sve2": "sve2",
}


def needed(features: Collection[str]) -> tuple[str, ...]:
    """Those of LLVM's features of a processor that code generated for it may need, in the order of `FEATURES`."""
    return tuple(feature for feature in FEATURES if feature in features)


@functools.cache
def own_flags() -> frozenset[str]:
    """What Linux says this processor has; nothing where it does not say."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return frozenset()
    listed = (line.partition(":")[2] for line in lines if line.startswith(("flags", "Features")))
    return frozenset(next(listed, "").split())


def architecture_of(triple: str | None) -> str:
    """The processors that code for a triple of LLVM's runs on, as the system names them; of this machine's if None."""
    return triple.partition("-")[0] if triple else platform.machine()


def missing(architecture: str, features: Collection[str]) -> tuple[str, ...]:
    """What this processor lacks of what code needs; its architecture, where that is another."""
    if architecture != platform.machine():
        return (architecture,)
    return tuple(feature for feature in features if FEATURES.get(feature, feature) not in own_flags())
