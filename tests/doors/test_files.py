"""What files of models are not called, signed with or read from."""

from __future__ import annotations

import io
import tempfile

import numpy as np
import pytest
import torch
import tvm
from torch import nn

import autocast
from autocast import from_torch, runtime, vm
from autocast.errors import ArtifactError, CheckpointError, UnsupportedError
from tests.doors.rows import Row, Rows, rows_of

NET = nn.Linear(3, 2).eval()
X = torch.ones(2, 3)
M = from_torch(NET, (X,))
E = autocast.compile(M)
OTHER = from_torch(nn.Linear(3, 7).eval(), (X,))
FOLDER = tempfile.mkdtemp()


ROWS: Rows = {
    ("autocast.vm.export", UnsupportedError): {
        "vm.export None": (lambda: vm.export(None, FOLDER + "/x"), "got a NoneType"),
        "vm.export module": (lambda: vm.export(NET, FOLDER + "/x"), "got a Linear"),
        "vm.export text": (lambda: vm.export("x", FOLDER + "/x"), "got a str"),
        "vm.export function": (lambda: vm.export(M.main, FOLDER + "/x"), "got a Function"),
        "vm.export 3": (lambda: vm.export(3, FOLDER + "/x"), "got a int"),
        "vm.export empty module": (lambda: vm.export(tvm.IRModule(), FOLDER + "/x"), "got a IRModule"),
        "vm.export targets text": (
            lambda: vm.export(M, FOLDER + "/z.art", targets="x86-64-v3"),
            "targets is 'x86-64-v3'",
        ),
        "vm.export targets unknown": (
            lambda: vm.export(M, FOLDER + "/z.art", targets=["pentium9"]),
            "targets='pentium9' is no CPU that LLVM knows",
        ),
        "vm.export targets 3": (lambda: vm.export(M, FOLDER + "/z.art", targets=3), "targets is 3"),
        "vm.export targets [3]": (lambda: vm.export(M, FOLDER + "/z.art", targets=[3]), r"targets is \[3\]"),
        "vm.export executable": (lambda: vm.export(E, FOLDER + "/z.art"), "got a Executable"),
        "vm.export IRModule": (lambda: vm.export(M.mod, FOLDER + "/z.art"), "got a IRModule"),
    },
    ("checkpoint", CheckpointError): {
        "Model load_params missing": (lambda: M.load_params("/tmp/nope.safetensors"), "there is no file "),
        "Model load_params None": (lambda: M.load_params(None), "got a NoneType for the path"),
        "Model load_params 3": (lambda: M.load_params(3), "got a int for the path"),
        "Model load_params dict": (lambda: M.load_params({}), "got a dict for the path"),
        "Model load_params other": (
            lambda: (OTHER.save_params(FOLDER + "/o.st"), M.load_params(FOLDER + "/o.st")),
            "weight is float32",
        ),
        "Model load_params text file": (lambda: M.load_params(__file__), "cannot be read"),
        "Model load_params folder": (lambda: M.load_params("/tmp"), "cannot be read"),
    },
    ("Model.save_params", CheckpointError): {
        "Model save_params None": (lambda: M.save_params(None), "got a NoneType for the path"),
        "Model save_params folder": (lambda: M.save_params("/tmp"), "cannot be written: Is a directory"),
        "Model save_params in file": (lambda: M.save_params(__file__ + "/x"), "cannot be written: File exists"),
    },
    ("Model.save", ArtifactError): {
        "save None": (lambda: M.save(None), "got a NoneType for the path"),
        "save 3": (lambda: M.save(3), "got a int for the path"),
        "save True": (lambda: M.save(True), "got a bool for the path"),
        "save empty": (lambda: M.save(""), "got '' for the path"),
        "save folder": (lambda: M.save("/tmp"), "cannot be written: Is a directory"),
        "save in a file": (lambda: M.save(__file__ + "/x"), "cannot be written: File exists"),
        "save nul": (lambda: M.save("/tmp/a\x00b"), "got '"),
        "save key text": (lambda: M.save(FOLDER + "/a.model", key="secret"), "key is 'secret'"),
        "save key 3": (lambda: M.save(FOLDER + "/a.model", key=3), "key is 3"),
        "save key empty": (lambda: M.save(FOLDER + "/a.model", key=b""), "key is b''"),
        "save file object": (lambda: M.save(io.BytesIO()), "got a BytesIO for the path"),
    },
    ("autocast.load", ArtifactError): {
        "load None": (lambda: autocast.load(None), "got a NoneType for the path"),
        "load 3": (lambda: autocast.load(3), "got a int for the path"),
        "load missing": (lambda: autocast.load("/tmp/nope"), "cannot be read: No such file"),
        "load folder": (lambda: autocast.load("/tmp"), "cannot be read: Is a directory"),
        "load text file": (lambda: autocast.load(__file__), "cannot be read|is damaged, or no such file"),
        "load empty file": (lambda: (open(FOLDER + "/e", "w").close(), autocast.load(FOLDER + "/e")), "it has 0 bytes"),
        "load empty bytes": (lambda: autocast.load(b""), "the bytes is damaged, or no such file: it has"),
        "load bytes": (lambda: autocast.load(b"nonsense" * 100), "the bytes is damaged, or no such file: the"),
        "load array": (lambda: autocast.load(np.zeros(3)), "got a ndarray for the path"),
        "load torch checkpoint": (
            lambda: (torch.save(NET, FOLDER + "/t.pt"), autocast.load(FOLDER + "/t.pt")),
            "is damaged, or no such file",
        ),
        "load artifact": (
            lambda: (E.export(FOLDER + "/x.art"), autocast.load(FOLDER + "/x.art")),
            "is marked 'autocast.artifact/1'.*; autocast.runtime.load reads this one",
        ),
        "load unsigned with key": (
            lambda: (M.save(FOLDER + "/a.model"), autocast.load(FOLDER + "/a.model", key=b"k")),
            "is not signed, expected a signature",
        ),
        "load wrong key": (
            lambda: (M.save(FOLDER + "/a.model", key=b"a"), autocast.load(FOLDER + "/a.model", key=b"k")),
            "not by the given key",
        ),
        "load key text": (lambda: autocast.load(FOLDER + "/a.model", key="k"), "key is 'k'"),
        "load file object": (lambda: autocast.load(io.BytesIO()), "got a BytesIO for the path"),
    },
    ("autocast.runtime.load", ArtifactError): {
        "runtime.load None": (lambda: runtime.load(None), "got a NoneType for the path"),
        "runtime.load 3": (lambda: runtime.load(3), "got a int for the path"),
        "runtime.load missing": (lambda: runtime.load("/tmp/nope"), "cannot be read: No such file"),
        "runtime.load model": (
            lambda: (M.save(FOLDER + "/b.model"), runtime.load(FOLDER + "/b.model")),
            "is marked 'autocast.model/1'.*; autocast.load reads this one",
        ),
        "runtime.load text": (lambda: runtime.load(__file__), "is damaged, or no such file"),
        "runtime.load key text": (
            lambda: (E.export(FOLDER + "/x.art"), runtime.load(FOLDER + "/x.art", key="k")),
            "key is 'k'",
        ),
        "runtime.load Model": (lambda: runtime.load(M), "got a Model for the path"),
    },
    ("Executable.export", ArtifactError): {
        "export None": (lambda: E.export(None), "got a NoneType for the path"),
        "export 3": (lambda: E.export(3), "got a int for the path"),
        "export folder": (lambda: E.export("/tmp"), "cannot be written: Is a directory"),
        "export key text": (lambda: E.export(FOLDER + "/y.art", key="k"), "key is 'k'"),
        "vm.export path None": (lambda: vm.export(M, None), "got a NoneType for the path"),
        "vm.export key": (lambda: vm.export(M, FOLDER + "/z.art", key=3), "key is 3"),
    },
}


@pytest.mark.parametrize("row", rows_of(ROWS), ids=str)
def test_a_bad_call_is_answered_at_the_door(row: Row) -> None:
    row.check()
