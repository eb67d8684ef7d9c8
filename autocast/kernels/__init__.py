"""How operators become fast code on a target."""

from autocast.kernels.generate import load
from autocast.kernels.pipeline import Plan, build, finish, lower, plan
from autocast.kernels.targets.cpu.instruction_sets import detect_target

__all__ = ["Plan", "build", "detect_target", "finish", "load", "lower", "plan"]
