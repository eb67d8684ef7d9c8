"""Normalizations: one backward operator each, which computes the statistics again.

`relax.nn.batch_norm`, whose statistics may be running ones, has a file of its own.
"""

from __future__ import annotations

from autocast.operators import own
from autocast.operators.own import Operator
from autocast.training.gradients.registry import Adjoint, Backward, GradientRule, gradient

_DATA = "(h - mean(h) - n mean(h n)) / deviation, where n is the normalized data and h = gamma g"
_SCALE = "for gamma the sum of g n, for beta that of g"


def _fields(backward: Operator) -> GradientRule:
    """The rule of (data, gamma, beta, if any), whose backward operator answers one adjoint for each."""

    def rule(b: Backward) -> list[Adjoint]:
        adjoints = b.emit(backward(*b.call.args[:2], b.adjoint, attrs=b.call.attrs))
        return [adjoints[index] if needed else None for index, needed in enumerate(b.needs)]

    return rule


RULES = (
    gradient("relax.nn.layer_norm", _fields(own.layer_norm_backward), why=f"{_DATA}; {_SCALE}"),
    gradient("relax.nn.group_norm", _fields(own.group_norm_backward), why=f"{_DATA}, in groups; {_SCALE}"),
    gradient("relax.nn.instance_norm", _fields(own.instance_norm_backward), why=f"{_DATA}; {_SCALE}"),
    gradient("relax.nn.rms_norm", _fields(own.rms_norm_backward), why="as layer_norm, without the means"),
)
