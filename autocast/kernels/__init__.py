"""How operators become fast code on a target."""

from autocast.kernels.pipeline import Finished, Plan, build, finish, lower, plan
from autocast.kernels.targets.cpu.instruction_sets import detect_target

__all__ = ["Finished", "Plan", "build", "detect_target", "finish", "lower", "plan"]
