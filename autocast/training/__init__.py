"""Training: gradients, losses, optimizers, and the step that puts them together.

step = training.training_step(model, training.CrossEntropy(), training.AdamW())
trainer = training.Trainer(model, training.CrossEntropy(), training.AdamW(), learning_rate=1e-3, amp="bfloat16")
"""

from __future__ import annotations

from autocast.training.append_loss import append_loss
from autocast.training.callbacks import Progress, TensorBoard
from autocast.training.differentiate import differentiate
from autocast.training.loss_scaling import DynamicLossScaling
from autocast.training.losses import MSE, NLL, BCEWithLogits, CrossEntropy, Loss, SmoothL1
from autocast.training.optimizers import LAMB, LANS, SGD, Adam, AdamW, Group, Optimizer
from autocast.training.parallel.options import DataParallel
from autocast.training.randomness import seed_dropout
from autocast.training.schedules import Constant, Cosine, InverseSquareRoot, Linear
from autocast.training.step import training_step
from autocast.training.trainer import Trainer

__all__ = [
    "LAMB",
    "LANS",
    "MSE",
    "NLL",
    "SGD",
    "Adam",
    "AdamW",
    "BCEWithLogits",
    "Constant",
    "Cosine",
    "CrossEntropy",
    "DataParallel",
    "DynamicLossScaling",
    "Group",
    "InverseSquareRoot",
    "Linear",
    "Loss",
    "Optimizer",
    "Progress",
    "SmoothL1",
    "TensorBoard",
    "Trainer",
    "append_loss",
    "differentiate",
    "seed_dropout",
    "training_step",
]
