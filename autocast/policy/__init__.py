"""What a user may say about casts, as one value: `Policy`; and who decides a call when several things are said."""

from autocast.policy.policy import Policy, as_policy
from autocast.policy.precedence import LEVELS, Decisions, Ruling, operator_rules
from autocast.policy.presets import PRESETS, UNSUPPORTED
from autocast.policy.regions import Region, disable_autocast, fp16_guard
from autocast.policy.unused import Unused, warn_of_unused

__all__ = [
    "LEVELS",
    "PRESETS",
    "UNSUPPORTED",
    "Decisions",
    "Policy",
    "Region",
    "Ruling",
    "Unused",
    "as_policy",
    "disable_autocast",
    "fp16_guard",
    "operator_rules",
    "warn_of_unused",
]
