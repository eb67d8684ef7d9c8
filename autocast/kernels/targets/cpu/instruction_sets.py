"""The machine that code is generated for: its LLVM target, and what its vector and matrix units offer."""

from __future__ import annotations

import functools
from collections.abc import Collection
from dataclasses import dataclass

import tvm
from tvm.target import codegen

from autocast import settings
from autocast.errors import UnsupportedError
from autocast.runtime.processors import architecture_of, corrections, needed
from autocast.runtime.threads import wanted_threads


@dataclass(frozen=True)
class InstructionSet:
    """What the generators of kernels need to know of a processor's vector unit, and of its matrix unit.

    Attributes
    ----------
    name
        `amx`, `avx512bf16`, `avx512`, `avx2` or `generic`.
    lanes
        float32 numbers in one vector register.
    registers
        Vector registers.
    bf16_dot
        Whether one instruction multiplies pairs of bfloat16 and accumulates them in float32.
    float16_convert
        Whether float16 is converted to and from float32 by one instruction.
    tiles
        Whether a matrix unit multiplies tiles of pairs of bfloat16: see `vector.llvm_tiles`.
    """

    name: str
    lanes: int
    registers: int
    bf16_dot: bool = False
    float16_convert: bool = False
    tiles: bool = False


#: Best first: an instruction set and the LLVM features that it takes.
_INSTRUCTION_SETS = (
    (
        InstructionSet("amx", lanes=16, registers=32, bf16_dot=True, float16_convert=True, tiles=True),
        ("avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512bf16", "amx-tile", "amx-bf16"),
    ),
    (
        InstructionSet("avx512bf16", lanes=16, registers=32, bf16_dot=True, float16_convert=True),
        ("avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512bf16"),
    ),
    (
        InstructionSet("avx512", lanes=16, registers=32, float16_convert=True),
        ("avx512f", "avx512bw", "avx512vl", "avx512dq"),
    ),
    (InstructionSet("avx2", lanes=8, registers=16, float16_convert=True), ("avx2", "fma", "f16c")),
)
_GENERIC = InstructionSet("generic", lanes=4, registers=16)


def detect_target() -> tvm.target.Target:
    """The LLVM target of this machine; the setting AUTOCAST_TARGET names another CPU.

    Returns
    -------
    tvm.target.Target
        An `llvm` target with `mcpu` (from LLVM's host detection), `mattr` where the processor has other instructions
        than that name stands for, and `num-cores` (the threads that will run kernels).

    Raises
    ------
    UnsupportedError
        AUTOCAST_TARGET names a CPU that LLVM does not know.
    """
    named = settings.text("AUTOCAST_TARGET")
    return target_of(named, "AUTOCAST_TARGET") if named else _host(wanted_threads())


def target_of(cpu: str, where: str) -> tvm.target.Target:
    """The LLVM target of a processor by its name in LLVM, with as many threads as here; `where` begins the error.

    Raises
    ------
    UnsupportedError
        LLVM does not know it.
    """
    if not _is_known(cpu):
        raise UnsupportedError(
            f"{where}={cpu!r} is no CPU that LLVM knows; expected a name such as x86-64-v3, skylake-avx512 or znver4"
        )
    return _target(cpu, wanted_threads())


# Every compilation, and every AutoCast, asks for the target: LLVM makes and checks it anew.
@functools.cache
def _host(threads: int) -> tvm.target.Target:
    named = _target(codegen.llvm_get_system_cpu(), threads)
    attributes = corrections([str(feature) for feature in codegen.llvm_get_cpu_features(named)])
    return _target(codegen.llvm_get_system_cpu(), threads, attributes)


@functools.cache
def _is_known(cpu: str) -> bool:
    return codegen.llvm_is_valid_cpu(cpu, codegen.llvm_get_system_triple())


@functools.cache
def _target(cpu: str, threads: int, attributes: tuple[str, ...] = ()) -> tvm.target.Target:
    described = {"kind": "llvm", "mcpu": cpu, "num-cores": threads}
    return tvm.target.Target({**described, "mattr": list(attributes)} if attributes else described)


def instruction_set(target: tvm.target.Target) -> InstructionSet:
    """The best instruction set that `target` has; `generic` (any LLVM CPU) where it has none of the known ones."""
    return _instruction_set(str(target))


@functools.cache
def _instruction_set(target: str) -> InstructionSet:
    """The same; every kernel asks, and LLVM takes a millisecond to answer."""
    for candidate, features in _INSTRUCTION_SETS:
        if all(codegen.llvm_cpu_has_features(feature, tvm.target.Target(target)) for feature in features):
            return candidate
    return _GENERIC


def cores(target: tvm.target.Target) -> int:
    """The number of cores that `target` names; the threads wanted here where it names none."""
    return int(target.attrs.get("num-cores", 0)) or wanted_threads()


def slow_dtype(dtype: str, target: tvm.target.Target) -> str | None:
    """One line that says why `dtype` is not faster than float32 on `target`; None where it is, or is float32."""
    features = instruction_set(target)
    if dtype not in ("bfloat16", "float16") or (dtype == "bfloat16" and features.bf16_dot):
        return None
    instead = "; bfloat16 is multiplied faster here" if features.bf16_dot else ""
    return (
        f"{dtype} is only a storage format on {target.attrs.get('mcpu', 'this CPU')} ({features.name}): kernels "
        f"multiply it in float32, which saves memory traffic but no arithmetic{instead}"
    )


def machine_of(target: tvm.target.Target, ignored: Collection[str] = ()) -> tuple[object, ...]:
    """What matters of a target: its instructions, not the processor's name, and the rest but for `ignored`."""
    skipped = ("mcpu", "mattr", *ignored)
    others = sorted((str(name), str(value)) for name, value in target.attrs.items() if name not in skipped)
    features = needed(codegen.llvm_get_cpu_features(target))
    return (architecture_of(target.attrs.get("mtriple")), features, sorted(map(str, target.keys)), others)
