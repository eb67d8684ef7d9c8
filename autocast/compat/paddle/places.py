"""Devices: the CPU, and a GPU's name for the error that says so."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class CPUPlace:
    """The device of this machine that models are compiled for."""


@dataclass(frozen=True)
class CUDAPlace:
    """A GPU: executors and optimizers refuse it, and name the devices that there are."""

    id: int = 0

    def __repr__(self) -> str:
        return f"CUDAPlace({self.id})"
