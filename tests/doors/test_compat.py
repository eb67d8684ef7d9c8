"""What the interfaces of other systems do not take."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from autocast import from_torch
from autocast.compat import raf
from autocast.compat.mxnet import amp as mxamp
from autocast.compat.paddle.static import Executor
from autocast.compat.paddle.static import amp as pdamp
from autocast.compat.raf import amp as rafamp
from autocast.compat.raf.testing import common as rc
from autocast.compat.raf.testing import run as rr
from autocast.compat.sambaflow import presets
from autocast.errors import ImportModelError, InputError, PolicyError, TrainingError, UnsupportedError
from tests.doors.rows import Row, Rows, rows_of

NET = nn.Linear(3, 2).eval()
X = torch.ones(2, 3)
M = from_torch(NET, (X,))

ROWS: Rows = {
    ("from_torch", ImportModelError): {
        "mxnet convert None": (lambda: mxamp.convert_hybrid_block(None, X), "got a NoneType"),
        "mxnet convert example": (
            lambda: mxamp.convert_hybrid_block(NET, "x"),
            r"torch\.export cannot export Linear: linear\(\):",
        ),
    },
    ("Policy", PolicyError): {
        "mxnet convert dtype": (lambda: mxamp.convert_hybrid_block(NET, X, "int8"), "dtype='int8'"),
        "mxnet convert ops": (
            lambda: mxamp.convert_hybrid_block(NET, X, target_dtype_ops=["nope"]),
            "low_ops: operator 'nope' is not known",
        ),
        "raf autocast field": (lambda: rafamp.autocast(M, speed=3), "got the option 'speed'"),
        "samba preset": (lambda: presets.graphamp_preset("nope"), "preset='nope'"),
        "samba preset 3": (lambda: presets.graphamp_preset(3), "preset=3"),
    },
    ("target_dtype_ops", PolicyError): {
        "mxnet convert ops 3": (lambda: mxamp.convert_hybrid_block(NET, X, target_dtype_ops=3), "names is 3"),
    },
    ("fp32_ops", PolicyError): {
        "mxnet convert ops text": (
            lambda: mxamp.convert_hybrid_block(NET, X, fp32_ops="softmax"),
            "names is 'softmax'",
        ),
    },
    ("Lists", PolicyError): {
        "mxnet convert conditions": (
            lambda: mxamp.convert_hybrid_block(NET, X, conditional_fp32_ops=[("softmax",)]),
            r"conditional_fp32_ops is \[\('softmax',\)\]",
        ),
        "mxnet convert conditions 3": (
            lambda: mxamp.convert_hybrid_block(NET, X, conditional_fp32_ops=3),
            "conditional_fp32_ops is 3",
        ),
    },
    ("conditional_fp32_ops", PolicyError): {
        "mxnet convert variant": (
            lambda: mxamp.convert_hybrid_block(NET, X, conditional_fp32_ops=[("Activation", "act_type", ["nope"])]),
            r"Activation with act_type \['nope'\] is no",
        ),
    },
    ("excluded_sym_names", PolicyError): {
        "mxnet convert excluded 3": (lambda: mxamp.convert_hybrid_block(NET, X, excluded_sym_names=3), "names is 3"),
    },
    ("convert_hybrid_block", InputError): {
        "mxnet convert example of a Model": (
            lambda: mxamp.convert_hybrid_block(M, X.double()),
            r"data_example has the dtypes \['float64'\]",
        ),
    },
    ("device", UnsupportedError): {
        "mxnet convert device": (lambda: mxamp.convert_hybrid_block(NET, X, device="gpu"), "got 'gpu'"),
        "raf run device": (lambda: rr.run_vm_model(M, "cuda", [X]), "got 'cuda'"),
    },
    ("with_dtypes", ImportModelError): {
        "mxnet convert_model None": (lambda: mxamp.convert_model(None, {}, {}, {}), "got a NoneType"),
        "mxnet convert_symbol None": (lambda: mxamp.convert_symbol(None, {}, {}), "got a NoneType"),
    },
    ("convert_model", ImportModelError): {
        "mxnet convert_model params": (lambda: mxamp.convert_model(M.mod, None, {}, {}), "arg_params: got a NoneType"),
        "mxnet convert_model params list": (lambda: mxamp.convert_model(M.mod, [1], {}, {}), "arg_params: got a list"),
    },
    ("init", PolicyError): {
        "mxnet init dtype": (lambda: mxamp.init("int8"), "got target_dtype='int8'"),
    },
    ("raf", InputError): {
        "raf autocast None": (lambda: rafamp.autocast(None), "got a NoneType"),
        "raf autocast module": (lambda: rafamp.autocast(NET), "got a Linear"),
        "raf profile None": (lambda: rr.profile_vm_model(None, "cpu", [X]), "got a NoneType"),
        "raf run text": (lambda: rr.run_vm_model("x", "cpu", [X]), "got a str"),
    },
    ("numpy", InputError): {
        "raf numpy": (lambda: rc.numpy(object()), "got a object"),
    },
    ("shape", InputError): {
        "raf randn shape": (lambda: rc.randn("x"), "sizes is 'x'"),
    },
    ("", InputError): {
        "raf randn dtype": (lambda: rc.randn((2,), dtype="nope"), "'nope' is no dtype of torch"),
    },
    ("Model", InputError): {
        "raf model call": (
            lambda: raf.frontend.from_pytorch(NET, {"x": ((2, 3), "float32")})(),
            r"got 0 inputs by their places and \[\] by name",
        ),
    },
    ("from_pytorch", ImportModelError): {
        "raf from_pytorch None": (
            lambda: raf.frontend.from_pytorch(None, {"x": ((2, 3), "float32")}),
            "got a NoneType",
        ),
        "raf from_pytorch shapes": (lambda: raf.frontend.from_pytorch(NET, 3), "shape_dict is 3"),
        "raf from_pytorch shapes list": (lambda: raf.frontend.from_pytorch(NET, {"x": 3}), r"shape_dict is \{'x': 3\}"),
    },
    ("decorate", TrainingError): {
        "paddle decorate None": (lambda: pdamp.decorate(None), "got a NoneType"),
        "paddle decorate torch": (lambda: pdamp.decorate(torch.optim.SGD(NET.parameters(), lr=0.1)), "got a SGD"),
    },
    ("custom_white_list", PolicyError): {
        "paddle lists 3": (lambda: pdamp.AutoMixedPrecisionLists(custom_white_list=3), "names is 3"),
    },
    ("cast_model_to_fp16", InputError): {
        "paddle cast_model None": (lambda: pdamp.cast_model_to_fp16(None), "got a NoneType"),
    },
    ("place", UnsupportedError): {
        "paddle executor place": (lambda: Executor("gpu"), "got 'gpu'"),
    },
}


@pytest.mark.parametrize("row", rows_of(ROWS), ids=str)
def test_a_bad_call_is_answered_at_the_door(row: Row) -> None:
    row.check()
