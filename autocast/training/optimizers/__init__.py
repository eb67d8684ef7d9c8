"""Optimizers: what one step makes of a parameter and its gradient."""

from autocast.training.optimizers.adam import Adam, AdamW
from autocast.training.optimizers.lamb import LAMB
from autocast.training.optimizers.lans import LANS
from autocast.training.optimizers.optimizer import Group, Optimizer
from autocast.training.optimizers.sgd import SGD

__all__ = ["LAMB", "LANS", "SGD", "Adam", "AdamW", "Group", "Optimizer"]
