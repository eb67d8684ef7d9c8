"""What losses, optimizers, schedules and loss scaling are not made of."""

from __future__ import annotations

import math

import pytest
import torch

from autocast.errors import TrainingError
from autocast.training import (
    MSE,
    NLL,
    SGD,
    Adam,
    AdamW,
    BCEWithLogits,
    Constant,
    Cosine,
    CrossEntropy,
    DynamicLossScaling,
    Group,
    InverseSquareRoot,
    Linear,
    SmoothL1,
)
from tests.doors.rows import Row, Rows, rows_of
from tests.doors.trainers import NET, X, Y, tr

ROWS: Rows = {
    ("StaticLossScaling", TrainingError): {
        "loss_scaling 0": (lambda: tr(loss_scaling=0), r"scale is 0\.0"),
        "loss_scaling -1": (lambda: tr(loss_scaling=-1), r"scale is -1\.0"),
        "loss_scaling inf": (lambda: tr(loss_scaling=math.inf), "scale is inf"),
        "loss_scaling nan": (lambda: tr(loss_scaling=math.nan), "scale is nan"),
    },
    ("MSE", TrainingError): {
        "MSE positional": (lambda: MSE(0), "got a int without a name"),
        "MSE called torch's way": (lambda: MSE(X, Y), "got a Tensor without a name"),
        "MSE reduction": (lambda: MSE(reduction="none"), "reduction is 'none'"),
        "MSE reduction None": (lambda: MSE(reduction=None), "reduction is None"),
        "MSE reduction list": (lambda: MSE(reduction=["mean"]), r"reduction is \['mean'\]"),
        "MSE unknown": (lambda: MSE(size_average=True), "got the option 'size_average'"),
        "MSE weight": (lambda: MSE(weight="x"), "got the option 'weight'"),
    },
    ("CrossEntropy", TrainingError): {
        "CrossEntropy positional": (lambda: CrossEntropy(0), "got a int without a name"),
        "CrossEntropy called torch's way": (lambda: CrossEntropy(X, Y), "got a Tensor without a name"),
        "CrossEntropy reduction": (lambda: CrossEntropy(reduction="none"), "reduction is 'none'"),
        "CrossEntropy reduction None": (lambda: CrossEntropy(reduction=None), "reduction is None"),
        "CrossEntropy reduction list": (lambda: CrossEntropy(reduction=["mean"]), r"reduction is \['mean'\]"),
        "CrossEntropy unknown": (lambda: CrossEntropy(size_average=True), "got the option 'size_average'"),
        "CrossEntropy weight": (lambda: CrossEntropy(weight="x"), r"weight is \(\)"),
        "CrossEntropy kind='onehot'": (lambda: CrossEntropy(kind="onehot"), "kind is 'onehot'"),
        "CrossEntropy kind=3": (lambda: CrossEntropy(kind=3), "kind is 3"),
        "CrossEntropy kind=[]": (lambda: CrossEntropy(kind=[]), r"kind is \[\]"),
        "CrossEntropy ignore_index='x'": (lambda: CrossEntropy(ignore_index="x"), "ignore_index is 'x'"),
        "CrossEntropy ignore_index=1.5": (lambda: CrossEntropy(ignore_index=1.5), r"ignore_index is 1\.5"),
        "CrossEntropy ignore_index=None": (lambda: CrossEntropy(ignore_index=None), "ignore_index is None"),
        "CrossEntropy ignore_index=True": (lambda: CrossEntropy(ignore_index=True), "ignore_index is True"),
        "CrossEntropy label_smoothing=1": (lambda: CrossEntropy(label_smoothing=1), "label_smoothing is 1"),
        "CrossEntropy label_smoothing=-0.1": (lambda: CrossEntropy(label_smoothing=-0.1), r"label_smoothing is -0\.1"),
        "CrossEntropy label_smoothing='0'": (lambda: CrossEntropy(label_smoothing="0"), "label_smoothing is '0'"),
        "CrossEntropy label_smoothing=nan": (lambda: CrossEntropy(label_smoothing=math.nan), "label_smoothing is nan"),
        "CrossEntropy label_smoothing=True": (lambda: CrossEntropy(label_smoothing=True), "label_smoothing is True"),
        "CrossEntropy weight=3": (lambda: CrossEntropy(weight=3), r"weight is \(\)"),
        "CrossEntropy weight=()": (lambda: CrossEntropy(weight=()), r"weight is \(\)"),
        "CrossEntropy weight=(-1,)": (lambda: CrossEntropy(weight=(-1,)), r"weight is \(-1\.0,\)"),
        "CrossEntropy weight=(nan,)": (lambda: CrossEntropy(weight=(math.nan,)), r"weight is \(nan,\)"),
        "CrossEntropy weight='12'": (lambda: CrossEntropy(weight="12"), r"weight is \(\)"),
        "CrossEntropy weight=(inf,)": (lambda: CrossEntropy(weight=(math.inf,)), r"weight is \(inf,\)"),
        "CrossEntropy weight=((1,),)": (lambda: CrossEntropy(weight=((1,),)), r"weight is \(\)"),
        "CrossEntropy weight count": (
            lambda: tr(CrossEntropy(weight=(1, 2))),
            r"got 2 weights for a prediction R\.Tensor\(\(4,",
        ),
    },
    ("NLL", TrainingError): {
        "NLL ignore_index": (lambda: NLL(ignore_index="x"), "ignore_index is 'x'"),
    },
    ("SmoothL1", TrainingError): {
        "SmoothL1 beta -1": (lambda: SmoothL1(beta=-1), "beta is -1"),
        "SmoothL1 beta text": (lambda: SmoothL1(beta="1"), "beta is '1'"),
        "SmoothL1 beta inf": (lambda: SmoothL1(beta=math.inf), "beta is inf"),
        "SmoothL1 beta nan": (lambda: SmoothL1(beta=math.nan), "beta is nan"),
        "SmoothL1 beta True": (lambda: SmoothL1(beta=True), "beta is True"),
    },
    ("BCEWithLogits", TrainingError): {
        "BCE pos_weight": (lambda: BCEWithLogits(pos_weight=3), r"pos_weight is \(\)"),
        "BCE pos_weight count": (
            lambda: tr(BCEWithLogits(pos_weight=(1,))),
            r"got 1 weights for a prediction R\.Tensor\(\(4,",
        ),
    },
    ("SGD", TrainingError): {
        "SGD torch's way": (lambda: SGD(NET.parameters(), lr=0.1), "got a generator without a name"),
        "SGD lr": (lambda: SGD(lr=0.1), "got the option 'lr'"),
        "SGD params": (lambda: SGD(params=[]), "got the option 'params'"),
        "SGD unknown": (lambda: SGD(foreach=True), "got the option 'foreach'"),
        "SGD momentum -1": (lambda: SGD(momentum=-1), "momentum is -1"),
        "SGD momentum 1": (lambda: SGD(momentum=1), "momentum is 1"),
        "SGD momentum 'x'": (lambda: SGD(momentum="x"), "momentum is 'x'"),
        "SGD momentum None": (lambda: SGD(momentum=None), "momentum is None"),
        "SGD momentum nan": (lambda: SGD(momentum=math.nan), "momentum is nan"),
        "SGD momentum True": (lambda: SGD(momentum=True), "momentum is True"),
        "SGD nesterov 'x'": (lambda: SGD(momentum=0.9, nesterov="x"), "nesterov is 'x'"),
        "SGD nesterov None": (lambda: SGD(momentum=0.9, nesterov=None), "nesterov is None"),
        "SGD nesterov 3": (lambda: SGD(momentum=0.9, nesterov=3), "nesterov is 3"),
        "SGD nesterov without momentum": (lambda: SGD(nesterov=True), "nesterov is True"),
    },
    ("AdamW", TrainingError): {
        "AdamW torch's way": (lambda: AdamW(NET.parameters(), lr=0.1), "got a generator without a name"),
        "AdamW lr": (lambda: AdamW(lr=0.1), "got the option 'lr'"),
        "AdamW params": (lambda: AdamW(params=[]), "got the option 'params'"),
        "AdamW unknown": (lambda: AdamW(foreach=True), "got the option 'foreach'"),
        "AdamW weight_decay 'x'": (lambda: AdamW(weight_decay="x"), "weight_decay is 'x'"),
        "AdamW weight_decay None": (lambda: AdamW(weight_decay=None), "weight_decay is None"),
        "AdamW weight_decay -1": (lambda: AdamW(weight_decay=-1), "weight_decay is -1"),
        "AdamW weight_decay inf": (lambda: AdamW(weight_decay=math.inf), "weight_decay is inf"),
        "AdamW weight_decay nan": (lambda: AdamW(weight_decay=math.nan), "weight_decay is nan"),
        "AdamW weight_decay []": (lambda: AdamW(weight_decay=[]), r"weight_decay is \[\]"),
        "AdamW weight_decay True": (lambda: AdamW(weight_decay=True), "weight_decay is True"),
        "AdamW weight_decay 1j": (lambda: AdamW(weight_decay=1j), "weight_decay is 1j"),
        "AdamW learning_rate_factor 'x'": (lambda: AdamW(learning_rate_factor="x"), "learning_rate_factor is 'x'"),
        "AdamW learning_rate_factor None": (lambda: AdamW(learning_rate_factor=None), "learning_rate_factor is None"),
        "AdamW learning_rate_factor nan": (lambda: AdamW(learning_rate_factor=math.nan), "learning_rate_factor is nan"),
        "AdamW learning_rate_factor inf": (lambda: AdamW(learning_rate_factor=math.inf), "learning_rate_factor is inf"),
        "AdamW learning_rate_factor []": (lambda: AdamW(learning_rate_factor=[]), r"learning_rate_factor is \[\]"),
        "AdamW learning_rate_factor -1": (lambda: AdamW(learning_rate_factor=-1), "learning_rate_factor is -1"),
        "groups dict": (lambda: AdamW(groups={"*.bias": 0}), r"groups is \{'\*\.bias': 0\}"),
        "groups torch's": (lambda: AdamW(groups=[{"params": []}]), r"groups is \[\{'params': \[\]\}\]"),
        "groups bare": (
            lambda: AdamW(groups=Group("*.bias", weight_decay=0.0)),
            r"groups is Group\('\*\.bias', weight_decay=0\.0\)",
        ),
        "groups text": (lambda: AdamW(groups="*.bias"), r"groups is '\*\.bias'"),
        "groups 3": (lambda: AdamW(groups=3), "groups is 3"),
        "Group no pattern": (
            lambda: AdamW(groups=(Group(weight_decay=0.0),)),
            r"Group\(weight_decay=0\.0\) changes no parameters",
        ),
        "Group unknown": (
            lambda: AdamW(groups=(Group("*.bias", decay=0.0),)),
            r"Group\('\*\.bias', decay=0\.0\) changes \['decay'\]",
        ),
        "Group pattern 3": (
            lambda: AdamW(groups=(Group(3, weight_decay=0.0),)),
            r"Group\(3, weight_decay=0\.0\) changes no",
        ),
        "Group value": (lambda: AdamW(groups=(Group("*.bias", weight_decay="x"),)), "weight_decay is 'x'"),
        "Group value inf": (lambda: AdamW(groups=(Group("*.bias", weight_decay=math.inf),)), "weight_decay is inf"),
        "Group unmatched": (
            lambda: tr(opt=AdamW(groups=(Group("*.gamma", weight_decay=0.0),))),
            r"the pattern '\*\.gamma' of Group\('\*\.gamma',",
        ),
    },
    ("Adam", TrainingError): {
        "Adam betas (1, 0.9)": (lambda: Adam(betas=(1, 0.9)), r"betas is \(1, 0\.9\)"),
        "Adam betas (0.9,)": (lambda: Adam(betas=(0.9,)), r"betas is \(0\.9,\)"),
        "Adam betas (0.9, 0.9, 0.9)": (lambda: Adam(betas=(0.9, 0.9, 0.9)), r"betas is \(0\.9, 0\.9, 0\.9\)"),
        "Adam betas 0.9": (lambda: Adam(betas=0.9), r"betas is 0\.9"),
        "Adam betas 'ab'": (lambda: Adam(betas="ab"), "betas is 'ab'"),
        "Adam betas None": (lambda: Adam(betas=None), "betas is None"),
        "Adam betas ('x', 'y')": (lambda: Adam(betas=("x", "y")), r"betas is \('x', 'y'\)"),
        "Adam betas (nan, 0.9)": (lambda: Adam(betas=(math.nan, 0.9)), r"betas is \(nan, 0\.9\)"),
        "Adam betas (-0.1, 0.9)": (lambda: Adam(betas=(-0.1, 0.9)), r"betas is \(-0\.1, 0\.9\)"),
        "Adam eps -1": (lambda: Adam(eps=-1), "eps is -1"),
        "Adam eps 'x'": (lambda: Adam(eps="x"), "eps is 'x'"),
        "Adam eps None": (lambda: Adam(eps=None), "eps is None"),
        "Adam eps nan": (lambda: Adam(eps=math.nan), "eps is nan"),
        "Adam eps inf": (lambda: Adam(eps=math.inf), "eps is inf"),
    },
    ("Constant", TrainingError): {
        "Constant text": (lambda: Constant("x"), "peak is 'x'"),
        "Constant negative": (lambda: Constant(-1), "peak is -1"),
        "Constant nan": (lambda: Constant(math.nan), "peak is nan"),
        "Constant None": (lambda: Constant(None), "peak is None"),
        "warmup text": (lambda: Constant(0.1, warmup="x"), "warmup is 'x'"),
        "warmup -1": (lambda: Constant(0.1, warmup=-1), "warmup is -1"),
        "warmup 1.5": (lambda: Constant(0.1, warmup=1.5), r"warmup is 1\.5"),
    },
    ("", TrainingError): {
        "Linear no steps": (lambda: Linear(0.1), r"Linear\(peak=0\.1, warmup=0, steps=0,"),
        "Linear steps 0": (lambda: Linear(0.1, steps=0), r"Linear\(peak=0\.1, warmup=0, steps=0,"),
        "Linear floor above": (lambda: Linear(0.1, steps=10, floor=1), r"Linear\(peak=0\.1, warmup=0, steps=10,"),
        "Linear peak 0": (lambda: Linear(0, steps=10)(3), r"Linear\(peak=0, warmup=0, steps=10,"),
        "Cosine warmup over": (lambda: Cosine(0.1, warmup=20, steps=10), r"Cosine\(peak=0\.1, warmup=20, steps=10,"),
    },
    ("Linear", TrainingError): {
        "Linear steps text": (lambda: Linear(0.1, steps="x"), "steps is 'x'"),
        "Linear peak text": (lambda: Linear("x", steps=10), "peak is 'x'"),
        "Linear floor text": (lambda: Linear(0.1, steps=10, floor="x"), "floor is 'x'"),
    },
    ("Cosine", TrainingError): {
        "Cosine peak None": (lambda: Cosine(None, steps=10), "peak is None"),
        "Cosine torch's": (
            lambda: Cosine(torch.optim.SGD(NET.parameters(), lr=0.1), 10),
            r"peak is SGD \( Parameter Group 0 dampening: 0",
        ),
    },
    ("InverseSquareRoot", TrainingError): {
        "InverseSquareRoot": (lambda: InverseSquareRoot("x"), "peak is 'x'"),
    },
    ("DynamicLossScaling", TrainingError): {
        "DynamicLossScaling init_scale=1": (lambda: DynamicLossScaling(init_scale=1), "got the option 'init_scale'"),
        "DynamicLossScaling init_loss_scaling=0": (
            lambda: DynamicLossScaling(init_loss_scaling=0),
            "init_loss_scaling is 0",
        ),
        "DynamicLossScaling init_loss_scaling='x'": (
            lambda: DynamicLossScaling(init_loss_scaling="x"),
            "init_loss_scaling is 'x'",
        ),
        "DynamicLossScaling init_loss_scaling=inf": (
            lambda: DynamicLossScaling(init_loss_scaling=math.inf),
            "init_loss_scaling is inf",
        ),
        "DynamicLossScaling init_loss_scaling=nan": (
            lambda: DynamicLossScaling(init_loss_scaling=math.nan),
            "init_loss_scaling is nan",
        ),
        "DynamicLossScaling init_loss_scaling=1e+40": (
            lambda: DynamicLossScaling(init_loss_scaling=1e40),
            r"init_loss_scaling is 1e\+40",
        ),
        "DynamicLossScaling incr_ratio=1": (lambda: DynamicLossScaling(incr_ratio=1), "incr_ratio is 1"),
        "DynamicLossScaling incr_ratio=inf": (lambda: DynamicLossScaling(incr_ratio=math.inf), "incr_ratio is inf"),
        "DynamicLossScaling decr_ratio=1": (lambda: DynamicLossScaling(decr_ratio=1), "decr_ratio is 1"),
        "DynamicLossScaling decr_ratio=nan": (lambda: DynamicLossScaling(decr_ratio=math.nan), "decr_ratio is nan"),
        "DynamicLossScaling incr_every_n_steps=0": (
            lambda: DynamicLossScaling(incr_every_n_steps=0),
            "incr_every_n_steps is 0",
        ),
        "DynamicLossScaling incr_every_n_steps=1.5": (
            lambda: DynamicLossScaling(incr_every_n_steps=1.5),
            r"incr_every_n_steps is 1\.5",
        ),
        "DynamicLossScaling incr_every_n_steps=True": (
            lambda: DynamicLossScaling(incr_every_n_steps=True),
            "incr_every_n_steps is True",
        ),
        "DynamicLossScaling decr_every_n_nan_or_inf='x'": (
            lambda: DynamicLossScaling(decr_every_n_nan_or_inf="x"),
            "decr_every_n_nan_or_inf is 'x'",
        ),
        "DynamicLossScaling positional": (lambda: DynamicLossScaling(1024), "got a int without a name"),
    },
}


@pytest.mark.parametrize("row", rows_of(ROWS), ids=str)
def test_a_bad_call_is_answered_at_the_door(row: Row) -> None:
    row.check()
