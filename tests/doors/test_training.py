"""What a Trainer and the functions of `autocast.training` do not take.

One table, a row for each bad call, so it has more than 300 lines.
"""

from __future__ import annotations

import math
import tempfile

import pytest
import torch
import tvm
from torch import nn

import autocast
from autocast import amp, from_torch
from autocast.errors import (
    CastingRuleError,
    CheckpointError,
    DivergedError,
    GradientError,
    InputError,
    PolicyError,
    TrainingError,
)
from autocast.training import (
    MSE,
    SGD,
    Adam,
    Cosine,
    CrossEntropy,
    Loss,
    Optimizer,
    TensorBoard,
    Trainer,
    append_loss,
    differentiate,
    seed_dropout,
    training_step,
)
from tests.doors.rows import Row, Rows, rows_of
from tests.doors.trainers import NET, C, M, X, Y, tr

torch.manual_seed(0)


class Intout(nn.Module):
    def forward(self, x):
        return x.argmax(-1)


class Labelled(nn.Module):
    def __init__(self):
        super().__init__()
        self.l = nn.Linear(5, 3)

    def forward(self, x, labels):
        return self.l(x) + labels


FROZEN = nn.Linear(5, 3).requires_grad_(False)


ok = tr()
okc = tr(CrossEntropy())
B = (X, Y)
okp = tr(CrossEntropy(kind="probabilities"))


def fit(*args, **options):
    return tr().fit(*args, **{"progress": False, **options})


def trained():
    trainer = tr()
    trainer.step(B)
    return trainer


FOLDER = tempfile.mkdtemp()


ROWS: Rows = {
    ("training_step", TrainingError): {
        "Trainer nothing": (lambda: Trainer(None, MSE(), SGD(), learning_rate=0.1), "got a NoneType"),
        "Trainer torch module": (
            lambda: Trainer(NET, MSE(), SGD(), learning_rate=0.1),
            r"got a torch\.nn\.modules\.container\.Sequential",
        ),
        "Trainer IRModule": (
            lambda: Trainer(M.mod, MSE(), SGD(), learning_rate=0.1),
            r"got a tvm\.ir\.module\.IRModule",
        ),
        "Trainer executable": (
            lambda: Trainer(autocast.compile(M), MSE(), SGD(), learning_rate=0.1),
            r"got a autocast\.runtime\.executable\.Executable",
        ),
        "Trainer torch loss": (lambda: tr(nn.MSELoss()), r"got a torch\.nn\.modules\.loss\.MSELoss"),
        "Trainer loss class": (lambda: tr(MSE), r"got the class autocast\.training\.losses\.MSE"),
        "Trainer loss text": (lambda: tr("mse"), "got a str"),
        "Trainer loss function": (lambda: tr(nn.functional.mse_loss), "got a function"),
        "Trainer loss base": (lambda: tr(Loss()), r"got a autocast\.training\.losses\.Loss"),
        "Trainer torch optimizer": (
            lambda: tr(opt=torch.optim.AdamW(NET.parameters())),
            r"got a torch\.optim\.adamw\.AdamW",
        ),
        "Trainer torch optimizer class": (
            lambda: tr(opt=torch.optim.AdamW),
            r"got the class torch\.optim\.adamw\.AdamW",
        ),
        "Trainer optimizer text": (lambda: tr(opt="adam"), "got a str"),
        "Trainer optimizer base": (lambda: tr(opt=Optimizer()).step((X, Y)), "got a"),
        "Trainer swapped": (
            lambda: Trainer(M, SGD(), MSE(), learning_rate=0.1),
            r"got a autocast\.training\.optimizers\.sgd\.SGD",
        ),
        "clip_norm 0": (lambda: tr(clip_norm=0), "clip_norm is 0"),
        "clip_norm -1": (lambda: tr(clip_norm=-1), "clip_norm is -1"),
        "clip_norm '1'": (lambda: tr(clip_norm="1"), "clip_norm is '1'"),
        "clip_norm nan": (lambda: tr(clip_norm=math.nan), "clip_norm is nan"),
        "clip_norm inf": (lambda: tr(clip_norm=math.inf), "clip_norm is inf"),
        "clip_norm []": (lambda: tr(clip_norm=[]), r"clip_norm is \[\]"),
        "clip_norm True": (lambda: tr(clip_norm=True), "clip_norm is True"),
        "clip_norm 1j": (lambda: tr(clip_norm=1j), "clip_norm is 1j"),
        "loss_scaling 'dynamic'": (lambda: tr(loss_scaling="dynamic"), "loss_scaling is 'dynamic'"),
        "loss_scaling True": (lambda: tr(loss_scaling=True), "loss_scaling is True"),
        "loss_scaling []": (lambda: tr(loss_scaling=[]), r"loss_scaling is \[\]"),
        "recompute '0'": (lambda: tr(recompute="0"), "recompute is '0'"),
        "recompute 3": (lambda: tr(recompute=3), "recompute is 3"),
        "recompute [3]": (lambda: tr(recompute=[3]), r"recompute is \[3\]"),
        "recompute [None]": (lambda: tr(recompute=[None]), r"recompute is \[None\]"),
        "recompute None": (lambda: tr(recompute=None), "recompute is None"),
        "a model without parameters": (
            lambda: Trainer(from_torch(nn.ReLU(), (X,)), MSE(), SGD(), learning_rate=0.1),
            "none of the model's 0 parameters can be",
        ),
        "a frozen model": (
            lambda: Trainer(from_torch(FROZEN, (X,)), MSE(), SGD(), learning_rate=0.1),
            "none of the model's 2 parameters can be",
        ),
        "training_step None": (lambda: training_step(None, None, None), "got a NoneType"),
    },
    ("Trainer", InputError): {
        "learning_rate 'x'": (lambda: tr(learning_rate="x"), "the learning rate of step 0 is 'x'"),
        "learning_rate '0.1'": (lambda: tr(learning_rate="0.1"), r"the learning rate of step 0 is '0\.1'"),
        "learning_rate None": (lambda: tr(learning_rate=None), "the learning rate of step 0 is None"),
        "learning_rate -1": (lambda: tr(learning_rate=-1), "the learning rate of step 0 is -1"),
        "learning_rate nan": (lambda: tr(learning_rate=math.nan), "the learning rate of step 0 is nan"),
        "learning_rate inf": (lambda: tr(learning_rate=math.inf), "the learning rate of step 0 is inf"),
        "learning_rate []": (lambda: tr(learning_rate=[]), r"the learning rate of step 0 is \[\]"),
        "learning_rate [0.1]": (lambda: tr(learning_rate=[0.1]), r"the learning rate of step 0 is \[0\.1\]"),
        "learning_rate 1j": (lambda: tr(learning_rate=1j), "the learning rate of step 0 is 1j"),
        "learning_rate True": (lambda: tr(learning_rate=True), "the learning rate of step 0 is True"),
        "learning_rate tensor([1., 2.])": (
            lambda: tr(learning_rate=torch.tensor([1.0, 2.0])),
            r"the learning rate of step 0 is tensor\(\[1\.,",
        ),
        "learning_rate b'1'": (lambda: tr(learning_rate=b"1"), "the learning rate of step 0 is b'1'"),
        "learning_rate schedule class": (lambda: tr(learning_rate=Cosine), "the learning rate of step 0 is <class"),
        "learning_rate torch scheduler": (
            lambda: tr(learning_rate=torch.optim.lr_scheduler.LRScheduler),
            "the learning rate of step 0 is <class",
        ),
        "learning_rate lambda none": (
            lambda: tr(learning_rate=lambda s: None).step((X, Y)),
            "the learning rate of step 0 is None",
        ),
        "learning_rate lambda text": (
            lambda: tr(learning_rate=lambda s: "x").step((X, Y)),
            "the learning rate of step 0 is 'x'",
        ),
        "step None": (lambda: ok.step(None), "got a batch of type NoneType"),
        "step tensor": (lambda: ok.step(X), "got a batch of type Tensor"),
        "step 3": (lambda: ok.step(3), "got a batch of type int"),
        "step one": (lambda: ok.step((X,)), "got a batch of 1 tensor"),
        "step three": (lambda: ok.step((X, Y, Y)), "got a batch of 3 tensors"),
        "step dict": (lambda: ok.step({"x": X, "y": Y}), r"got a batch of \['x', 'y'\]"),
        "step dict int": (lambda: ok.step({0: X, 1: Y}), r"got a batch of \['0', '1'\]"),
        "step set": (lambda: ok.step({1, 2}), "got a batch of type set"),
        "step generator": (lambda: ok.step(t for t in B), "got a batch of type generator"),
        "fit text": (lambda: fit("xy"), "got a batch of 1 tensor"),
        "fit a tensor": (lambda: fit(X), "got a batch of type Tensor"),
        "fit one batch": (lambda: fit((X, Y)), "got a batch of type Tensor"),
        "fit function None": (lambda: fit(lambda s: None, 2), "got a batch of type NoneType"),
        "evaluate one batch": (lambda: ok.evaluate(B), "got a batch of type Tensor"),
    },
    ("Trainer", TrainingError): {
        "Trainer lr": (lambda: tr(lr=0.1), "got the option 'lr'"),
        "Trainer policy": (lambda: tr(policy="mp1"), "got the option 'policy'"),
        "Trainer unknown": (lambda: tr(epochs=3), "got the option 'epochs'"),
        "set_amp unknown": (lambda: tr().set_amp("mp1", speed=3), "got the option 'speed'"),
    },
    ("", PolicyError): {
        "Trainer amp 3": (lambda: tr(amp=3), "policy=3: expected a Policy or a text such as"),
        "Trainer amp True": (lambda: tr(amp=True), "policy=True: expected a Policy or a text such"),
        "Trainer amp dtype": (lambda: tr(amp=torch.bfloat16), r"policy=torch\.bfloat16: expected a Policy or a"),
        "set_amp 3": (lambda: tr().set_amp(3), "policy=3: expected a Policy or a text such as"),
    },
    ("Policy.parse", PolicyError): {
        "Trainer amp O2": (lambda: tr(amp="O2"), "'O2': 'O2' is neither a preset nor a dtype"),
    },
    ("recompute", TrainingError): {
        "recompute unmatched": (lambda: tr(recompute=["encoder.*"]), r"'encoder\.\*' matches no submodule"),
    },
    ("append_loss", TrainingError): {
        "a model of integers": (
            lambda: Trainer(from_torch(Intout(), (X,)), MSE(), SGD(), learning_rate=0.1),
            r"output 0 of the model is R\.Tensor\(\(4,\),",
        ),
        "a model with labels": (
            lambda: Trainer(from_torch(Labelled(), (X, Y)), MSE(), SGD(), learning_rate=0.1),
            r"the model has an input 'labels' already \(x,",
        ),
        "a training step": (
            lambda: Trainer(training_step(M, MSE(), SGD()), MSE(), SGD(), learning_rate=0.1),
            "the model has an input 'labels' already",
        ),
        "CrossEntropy output -1": (lambda: tr(CrossEntropy(output=-1)), "the model has no output -1"),
        "CrossEntropy output 5": (lambda: tr(CrossEntropy(output=5)), "the model has no output 5"),
        "CrossEntropy output text": (lambda: tr(CrossEntropy(output="logits")), "the model has no output 'logits'"),
        "CrossEntropy output 0.0": (lambda: tr(CrossEntropy(output=0.0)), r"the model has no output 0\.0"),
        "CrossEntropy output True": (lambda: tr(CrossEntropy(output=True)), "the model has no output True"),
        "CrossEntropy output None": (lambda: tr(CrossEntropy(output=None)), "the model has no output None"),
        "CrossEntropy output list": (lambda: tr(CrossEntropy(output=[0])), r"the model has no output \[0\]"),
        "append_loss None": (lambda: append_loss(None, MSE()), "got a NoneType"),
        "append_loss torch loss": (lambda: append_loss(M, nn.MSELoss()), "got a MSELoss"),
        "append_loss module": (lambda: append_loss(NET, MSE()), "got a Sequential"),
        "append_loss labels": (lambda: append_loss(M, MSE(), labels="x"), "got a str"),
        "append_loss labels shape": (
            lambda: append_loss(M, MSE(), labels=tvm.relax.TensorType((7,), "float32")),
            r"the labels are R\.Tensor\(\(7,\),",
        ),
    },
    ("AutoCast", CastingRuleError): {
        "a compiled half model": (
            lambda: Trainer(amp.autocast(M), MSE(), SGD(), learning_rate=0.1, amp="float16"),
            "the module was autocast with dtype='bfloat16'",
        ),
    },
    ("main", InputError): {
        "step text": (lambda: ok.step("xy"), "input input is a str"),
        "step None inside": (lambda: ok.step((X, None)), "input labels is a NoneType"),
        "step array double": (lambda: ok.step((X.numpy().astype("float64"), Y)), r"input input is float64\[4, 5\]"),
        "step labels shape": (lambda: ok.step((X, Y[:, :2])), r"input labels is float32\[4, 2\]"),
        "step labels int": (lambda: ok.step((X, Y.long())), r"input labels is int64\[4, 3\]"),
        "step labels classes": (lambda: ok.step((X, C)), r"input labels is int64\[4\]"),
        "step batch size": (lambda: ok.step((X[:2], Y[:2])), r"input input is float32\[2, 5\]"),
        "step labels sparse": (lambda: ok.step((X, Y.to_sparse())), "input labels is a sparse torch tensor"),
        "step labels complex": (lambda: ok.step((X, Y.to(torch.complex64))), r"input labels is complex64\[4, 3\]"),
        "step labels lists": (lambda: ok.step((X, [[0.0] * 3] * 4)), "input labels is a list"),
        "classes int32": (lambda: okc.step((X, C.int())), r"input labels is int32\[4\]"),
        "classes float": (lambda: okc.step((X, C.float())), r"input labels is float32\[4\]"),
        "classes column": (lambda: okc.step((X, C[:, None])), r"input labels is int64\[4, 1\]"),
        "classes bool": (lambda: okc.step((X, C.bool())), r"input labels is bool\[4\]"),
    },
    ("CrossEntropy", InputError): {
        "classes one-hot float": (
            lambda: okc.step((X, nn.functional.one_hot(C, 3).float())),
            r"the labels are float32\[4, 3\]",
        ),
        "classes one-hot int": (lambda: okc.step((X, nn.functional.one_hot(C, 3))), r"the labels are int64\[4, 3\]"),
        "classes beyond": (lambda: okc.step((X, C + 7)), "4 of 4 labels are no class, 7 the first"),
        "classes below": (lambda: okc.step((X, C - 1)), "4 of 4 labels are no class, -1 the first"),
        "classes all ignored": (lambda: okc.step((X, C - 100)), "all 4 labels are -100, which counts for"),
        "probabilities of indices": (lambda: okp.step((X, C)), r"the labels are int64\[4\]"),
    },
    ("Trainer.fit", InputError): {
        "fit None": (lambda: fit(None), "got a NoneType"),
        "fit 3": (lambda: fit(3), "got a int"),
        "fit empty": (lambda: fit([]), "got no batches"),
        "fit steps 0": (lambda: fit([B], 0), "steps is 0, which counts all steps, and 0 are"),
        "fit steps -1": (lambda: fit([B], -1), "steps is -1, which counts all steps, and 0"),
        "fit steps text": (lambda: fit([B], "x"), "steps is 'x'"),
        "fit steps 1.5": (lambda: fit([B] * 3, 1.5), r"steps is 1\.5"),
        "fit steps True": (lambda: fit([B], True), "steps is True"),
        "fit steps nan": (lambda: fit([B], math.nan), "steps is nan"),
        "fit epochs 0": (lambda: fit([B], epochs=0), "epochs is 0, which counts all passes over the"),
        "fit epochs text": (lambda: fit([B], epochs="x"), "epochs is 'x'"),
        "fit epochs 1.5": (lambda: fit([B], epochs=1.5), r"epochs is 1\.5"),
        "fit epochs of iterator": (lambda: fit(iter([B]), epochs=2), "got an iterator and epochs=2"),
        "fit function no steps": (lambda: fit(lambda s: B), "batches come from a function, which never"),
        "fit save_every 0": (lambda: fit([B], save_every=0), "save_every is 0"),
        "fit save_every text": (lambda: fit([B], save_every="x"), "save_every is 'x'"),
        "fit save_every 1.5": (lambda: fit([B], save_every=1.5), r"save_every is 1\.5"),
        "fit save_to 3": (lambda: fit([B], save_to=3), "save_to: got a int for the path"),
        "fit callbacks one": (lambda: fit([B], callbacks=print), "callbacks is <built-in function print>"),
        "fit callbacks 3": (lambda: fit([B], callbacks=3), "callbacks is 3"),
        "fit callbacks [3]": (lambda: fit([B], callbacks=[3]), r"callbacks is \[3\]"),
        "fit progress text": (lambda: fit([B], progress="no"), "progress is 'no'"),
    },
    ("checkpoint", CheckpointError): {
        "fit save_to folder": (lambda: fit([B], save_to="/tmp"), "cannot be read"),
        "load_state_dict None": (lambda: ok.load_state_dict(None), "got a NoneType"),
        "load_state_dict {}": (lambda: ok.load_state_dict({}), "got the keys with facts=None"),
        "load_state_dict torch's": (
            lambda: ok.load_state_dict(NET.state_dict()),
            r"got the keys 0\.weight, 0\.bias, 2\.weight and 1",
        ),
        "load_state_dict list": (lambda: ok.load_state_dict([1]), "got a list"),
        "load_state_dict steps": (
            lambda: ok.load_state_dict({**ok.state_dict(), "facts": {"steps": "x", "optimizer": "SGD()"}}),
            "got the keys tensors, facts with",
        ),
        "load_state_dict steps -1": (
            lambda: ok.load_state_dict({**ok.state_dict(), "facts": {**ok.state_dict()["facts"], "steps": -1}}),
            "got the keys tensors, facts with",
        ),
        "load_state_dict tensors 3": (
            lambda: ok.load_state_dict({**ok.state_dict(), "tensors": 3}),
            "got the keys tensors, facts with",
        ),
        "load_state_dict values": (
            lambda: ok.load_state_dict({**ok.state_dict(), "tensors": dict.fromkeys(ok.state_dict()["tensors"], "x")}),
            r"0\.weight is <U1\[\] and not float32\[7, 5\]",
        ),
        "load missing": (lambda: ok.load("/tmp/nope"), "there is no file "),
        "load None": (lambda: ok.load(None), "got a NoneType for the path"),
        "load text file": (lambda: ok.load(__file__), "cannot be read|is damaged, or no such file"),
    },
    ("Trainer.save", CheckpointError): {
        "save None": (lambda: ok.save(None), "got a NoneType for the path"),
        "save folder": (lambda: ok.save("/tmp"), "cannot be written: Is a directory"),
    },
    ("Trainer.fit", DivergedError): {
        "fit diverges": (lambda: fit([(X * math.inf, Y)]), "the loss of step 1 is nan at a learning rate"),
    },
    ("Trainer.evaluate", InputError): {
        "evaluate None": (lambda: ok.evaluate(None), "got a NoneType"),
        "evaluate 3": (lambda: ok.evaluate(3), "got a int"),
        "evaluate []": (lambda: ok.evaluate([]), "got no batches"),
        "evaluate function": (lambda: ok.evaluate(lambda s: B), "got a function"),
        "evaluate metrics list": (lambda: ok.evaluate([B], [len]), r"metrics is \[<built-in function len>\]"),
        "evaluate metrics 3": (lambda: ok.evaluate([B], 3), "metrics is 3"),
        "evaluate metrics not functions": (lambda: ok.evaluate([B], {"a": 3}), r"metrics is \{'a': 3\}"),
        "evaluate metric called loss": (
            lambda: ok.evaluate([B], {"loss": lambda o, y: 1.0}),
            r"metrics is \{'loss': <function",
        ),
        "evaluate metric returns text": (
            lambda: ok.evaluate([B], {"a": lambda o, y: "x"}),
            "the metric 'a' returned 'x'",
        ),
        "evaluate metric returns None": (
            lambda: ok.evaluate([B], {"a": lambda o, y: None}),
            "the metric 'a' returned None",
        ),
        "evaluate metric returns tensor": (
            lambda: ok.evaluate([B], {"a": lambda o, y: o}),
            r"the metric 'a' returned tensor\(\[\[0\.3236,",
        ),
    },
    ("Trainer.to_torch", InputError): {
        "to_torch None": (lambda: ok.to_torch(None), "got a NoneType"),
        "to_torch other": (lambda: ok.to_torch(nn.Linear(2, 2)), r"Linear has no parameters \['0\.weight',"),
        "to_torch Model": (lambda: ok.to_torch(M), "got a Model"),
        "to_torch state dict": (lambda: ok.to_torch(NET.state_dict()), "got a OrderedDict"),
    },
    ("Trainer", CheckpointError): {
        "load_state_dict optimizer": (
            lambda: ok.load_state_dict(tr(opt=Adam()).state_dict()),
            "the checkpoint was written with",
        ),
    },
    ("Trainer.set_amp", TrainingError): {
        "set_amp trained": (lambda: trained().set_amp("mp1"), "the step is compiled, and 1 steps are done"),
    },
    ("TensorBoard", TrainingError): {
        "TensorBoard 3": (lambda: TensorBoard(3), "got a int for the path"),
        "TensorBoard None": (lambda: TensorBoard(None), "got a NoneType for the path"),
        "TensorBoard every 0": (lambda: TensorBoard(FOLDER + "/tb", every=0), "every is 0"),
        "TensorBoard every text": (lambda: TensorBoard(FOLDER + "/tb", every="x"), "every is 'x'"),
    },
    ("seed_dropout", TrainingError): {
        "seed_dropout None": (lambda: seed_dropout(None), "got a NoneType"),
        "seed_dropout module": (lambda: seed_dropout(NET), "got a Sequential"),
    },
    ("random numbers", InputError): {
        "seed_dropout seed": (lambda: seed_dropout(M, "x"), "seed is 'x'"),
    },
    ("differentiate", GradientError): {
        "differentiate names": (lambda: differentiate(M.main, ["w"]), r"the target is a R\.Tensor\(\(4, 3\),"),
        "differentiate 3": (lambda: differentiate(M.main, 3), r"the target is a R\.Tensor\(\(4, 3\),"),
        "differentiate foreign": (
            lambda: differentiate(M.main, [tvm.relax.Var("x", tvm.relax.TensorType((2,), "float32"))]),
            r"the target is a R\.Tensor\(\(4, 3\),",
        ),
        "differentiate not a loss": (
            lambda: differentiate(M.main, list(M.main.params)),
            r"the target is a R\.Tensor\(\(4, 3\),",
        ),
    },
}


@pytest.mark.parametrize("row", rows_of(ROWS), ids=str)
def test_a_bad_call_is_answered_at_the_door(row: Row) -> None:
    row.check()
