"""What is not compiled, measured or called."""

from __future__ import annotations

import pathlib
import tempfile

import numpy as np
import pytest
import torch
import tvm
from torch import nn
from tvm import relax

import autocast
from autocast import from_torch, vm
from autocast.errors import IllFormedModuleError, InputError, UnsupportedError
from autocast.model import Model
from tests.doors.rows import Row, Rows, rows_of

NET = nn.Linear(3, 2).eval()
X = torch.ones(2, 3)
M = from_torch(NET, (X,))
D = from_torch(NET, (X,), dynamic={"n": ("input", 0, 1, 8)})
E = autocast.compile(M)
ED = autocast.compile(D)


class Two(nn.Module):
    def forward(self, a, b):
        return a + b


M2 = from_torch(Two(), (X, X), dynamic={"n": [("a", 0), ("b", 0)]})
E2 = autocast.compile(M2)


class Lookup(nn.Module):
    def __init__(self):
        super().__init__()
        self.e = nn.Embedding(5, 4)

    def forward(self, i):
        return self.e(i)


EE = autocast.compile(from_torch(Lookup().eval(), (torch.zeros(2, 3, dtype=torch.int64),)))


def fmod(*types):
    vs = [relax.Var(f"x{i}", ty) for i, ty in enumerate(types)]
    bb = relax.BlockBuilder()
    with bb.function("main", vs):
        bb.emit_func_output(vs[0])
    return bb.get()


def profiled(args=(X,), **options):
    return vm.profile_vm_model(M, "cpu", args, **{"number": 1, "repeat": 1, **options})


def fake():
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        return torch.ones(2, 3)


FOLDER = tempfile.mkdtemp()


ROWS: Rows = {
    ("compile", IllFormedModuleError): {
        "compile None": (lambda: autocast.compile(None), "got a NoneType"),
        "compile module": (lambda: autocast.compile(NET), "got a Linear"),
        "compile text": (lambda: autocast.compile("x"), "got a str"),
        "compile function": (lambda: autocast.compile(M.main), "got a Function"),
        "compile executable": (lambda: autocast.compile(E), "got a Executable"),
        "compile empty": (lambda: autocast.compile(tvm.IRModule()), r"the module has functions \[\]"),
        "compile class": (lambda: autocast.compile(Model), "got a type"),
        "compile a path": (lambda: autocast.compile(pathlib.Path("m.so")), "got a PosixPath"),
        "profile None": (lambda: vm.profile_vm_model(None, "cpu", [X], number=1, repeat=1), "got a NoneType"),
        "peak None": (lambda: vm.get_peak_memory(None, "cpu", [X]), "got a NoneType"),
        "profile module": (lambda: vm.profile_vm_model(NET, "cpu", [X], number=1, repeat=1), "got a Linear"),
        "peak module": (lambda: vm.get_peak_memory(NET, "cpu", [X]), "got a Linear"),
        "profile text": (lambda: vm.profile_vm_model("x", "cpu", [X], number=1, repeat=1), "got a str"),
        "peak text": (lambda: vm.get_peak_memory("x", "cpu", [X]), "got a str"),
        "profile function": (lambda: vm.profile_vm_model(M.main, "cpu", [X], number=1, repeat=1), "got a Function"),
        "peak function": (lambda: vm.get_peak_memory(M.main, "cpu", [X]), "got a Function"),
        "profile 3": (lambda: vm.profile_vm_model(3, "cpu", [X], number=1, repeat=1), "got a int"),
        "peak 3": (lambda: vm.get_peak_memory(3, "cpu", [X]), "got a int"),
        "profile empty module": (
            lambda: vm.profile_vm_model(tvm.IRModule(), "cpu", [X], number=1, repeat=1),
            r"the module has functions \[\]",
        ),
        "peak empty module": (lambda: vm.get_peak_memory(tvm.IRModule(), "cpu", [X]), r"the module has functions \[\]"),
    },
    ("compile", UnsupportedError): {
        "compile device cuda": (lambda: autocast.compile(M, "cuda"), "device 'cuda' is not supported"),
        "compile device None": (lambda: autocast.compile(M, None), "device 'None' is not supported"),
        "compile device tvm": (lambda: autocast.compile(M, tvm.cuda()), "device 'cuda:0' is not supported"),
        "compile device 0": (lambda: autocast.compile(M, 0), "device '0' is not supported"),
        "compile device []": (lambda: autocast.compile(M, []), r"device \[\] is not supported"),
        "compile opt_level 4": (lambda: autocast.compile(M, opt_level=4), "opt_level is 4"),
        "compile opt_level text": (lambda: autocast.compile(M, opt_level="3"), "opt_level is '3'"),
        "compile opt_level True": (lambda: autocast.compile(M, opt_level=True), "opt_level is True"),
        "compile opt_level list": (lambda: autocast.compile(M, opt_level=[]), r"opt_level is \[\]"),
        "compile target text": (lambda: autocast.compile(M, target="llvm"), "target: got a str"),
        "compile target 3": (lambda: autocast.compile(M, target=3), "target: got a int"),
        "compile target cuda": (lambda: autocast.compile(M, target=tvm.target.Target("cuda")), "target is cuda"),
        "compile target dict": (lambda: autocast.compile(M, target={"kind": "llvm"}), "target: got a dict"),
        "compile args": (lambda: autocast.compile(M, [X]), r"device \[tensor\(.* passed as args="),
        "compile no dtype": (
            lambda: autocast.compile(fmod(relax.TensorType((2,), None))),
            r"%x0 in @main is a R\.Tensor\(\(2,\)\)",
        ),
        "compile no rank": (
            lambda: autocast.compile(fmod(relax.TensorType(None, "float32")))(X),
            "input x0 of main has type",
        ),
        "compile object": (lambda: autocast.compile(fmod(relax.AnyType())), r"input x0 of main has type R\.Any"),
        "compile prim": (
            lambda: autocast.compile(fmod(tvm.ir.PrimType("float32"))),
            "input x0 of main has type float32",
        ),
        "profile device": (lambda: vm.profile_vm_model(M, "gpu", [X]), "device 'gpu' is not supported"),
        "profile opt_level": (lambda: profiled([X], opt_level="x"), "opt_level is 'x'"),
        "peak device": (lambda: vm.get_peak_memory(M, "cuda", [X]), "device 'cuda' is not supported"),
        "vm.export opt_level": (lambda: vm.export(M, FOLDER + "/z.art", opt_level=9), "opt_level is 9"),
    },
    ("calc_model_gflops", InputError): {
        "gflops None": (lambda: vm.calc_model_gflops(None, "cpu", [X]), "got a NoneType"),
        "gflops module": (lambda: vm.calc_model_gflops(NET, "cpu", [X]), "got a Linear"),
        "gflops text": (lambda: vm.calc_model_gflops("x", "cpu", [X]), "got a str"),
        "gflops function": (lambda: vm.calc_model_gflops(M.main, "cpu", [X]), "got a Function"),
        "gflops 3": (lambda: vm.calc_model_gflops(3, "cpu", [X]), "got a int"),
        "gflops empty module": (
            lambda: vm.calc_model_gflops(tvm.IRModule(), "cpu", [X]),
            "the module has no Relax function 'main'",
        ),
        "gflops executable": (lambda: vm.calc_model_gflops(E, "cpu", [X]), "got a Executable"),
    },
    ("get_param_size", InputError): {
        "param size None": (lambda: vm.get_param_size(None), "got a NoneType"),
        "param size module": (lambda: vm.get_param_size(NET), "got a Linear"),
        "param size text": (lambda: vm.get_param_size("x"), "got a str"),
        "param size function": (lambda: vm.get_param_size(M.main), "got a Function"),
        "param size 3": (lambda: vm.get_param_size(3), "got a int"),
        "param size empty module": (lambda: vm.get_param_size(tvm.IRModule()), "got a IRModule"),
    },
    ("main", InputError): {
        "profile args none": (lambda: vm.profile_vm_model(M, "cpu"), "got 0 inputs"),
        "profile args None": (lambda: profiled(None), "got a NoneType for the inputs"),
        "profile args tensor": (lambda: profiled(X), "got one tensor for the inputs"),
        "profile args text": (lambda: profiled("x"), "input input is a str"),
        "profile args 3": (lambda: profiled(3), "got a int for the inputs"),
        "profile args too many": (lambda: profiled([X, X]), "got 2 inputs"),
        "profile args name": (lambda: profiled({"x": X}), r"got inputs by the names \['x'\]"),
        "profile args sparse": (
            lambda: profiled([X.to_sparse()], number=1, repeat=1),
            "input input is a sparse torch tensor",
        ),
        "profile args meta": (lambda: profiled([X.to("meta")], number=1, repeat=1), "an input is on meta"),
        "peak args none": (lambda: vm.get_peak_memory(M, "cpu"), "got 0 inputs"),
        "peak args tensor": (lambda: vm.get_peak_memory(M, "cpu", X), "got one tensor for the inputs"),
        "gflops args": (lambda: vm.calc_model_gflops(M, "cpu"), "got 0 inputs"),
        "run args": (lambda: vm.run_vm_model(M, "cpu", 3), "got a int for the inputs"),
        "model keyword": (lambda: M(input=3), "input input is a int"),
        "executable none": (lambda: E(), "got 0 inputs"),
        "executable too many": (lambda: E(X, X), "got 2 inputs"),
        "executable None": (lambda: E(None), "input input is a NoneType"),
        "executable 3": (lambda: E(3), "input input is a int"),
        "executable text": (lambda: E("x"), "input input is a str"),
        "executable list": (lambda: E([[1.0, 2.0, 3.0]]), "input input is a list"),
        "executable list of tensor": (lambda: E([X]), "input input is a list"),
        "executable dict": (lambda: E({"input": X}), "input input is a dict"),
        "executable float64": (lambda: E(X.double()), r"input input is float64\[2, 3\]"),
        "executable numpy float64": (lambda: E(np.ones((2, 3))), r"input input is float64\[2, 3\]"),
        "executable int": (lambda: E(X.long()), r"input input is int64\[2, 3\]"),
        "executable half": (lambda: E(X.half()), r"input input is float16\[2, 3\]"),
        "executable complex": (lambda: E(X.to(torch.complex64)), r"input input is complex64\[2, 3\]"),
        "executable bool": (lambda: E(X.bool()), r"input input is bool\[2, 3\]"),
        "executable rank": (lambda: E(torch.ones(3)), r"input input is float32\[3\]"),
        "executable size": (lambda: E(torch.ones(5, 3)), r"input input is float32\[5, 3\]"),
        "executable sparse": (lambda: E(X.to_sparse()), "input input is a sparse torch tensor"),
        "executable csr": (lambda: E(X.to_sparse_csr()), "input input is a sparse torch tensor"),
        "executable masked": (
            lambda: E(np.ma.masked_array(X.numpy(), X.numpy() > 0)),
            r"input input is a masked array, .* Try input\.filled\(0\)",
        ),
        "executable quantized": (
            lambda: E(torch.quantize_per_tensor(X, 0.1, 0, torch.qint8)),
            "input input is a quantized torch tensor",
        ),
        "executable nested": (
            lambda: E(torch.nested.nested_tensor([torch.ones(3), torch.ones(3)])),
            "input input is a nested torch tensor",
        ),
        "executable nested jagged": (
            lambda: E(torch.nested.nested_tensor([torch.ones(3), torch.ones(3)], layout=torch.jagged)),
            "input input is a nested torch tensor",
        ),
        "executable meta": (lambda: E(X.to("meta")), "an input is on meta"),
        "executable object array": (lambda: E(np.empty((2, 3), object)), r"input input is object\[2, 3\]"),
        "executable structured": (
            lambda: E(np.zeros((2, 3), dtype=[("a", "f4")])),
            r"input input is \[\('a', '<f4'\)\]\[2, 3\]",
        ),
        "executable big endian": (lambda: E(np.ones((2, 3), ">f4")), r"input input is >f4\[2, 3\]"),
        "executable text array": (lambda: E(np.array([["a"] * 3] * 2)), r"input input is <U1\[2, 3\]"),
        "executable dataframe-like": (
            lambda: E(type("T", (), {"shape": (2, 3), "dtype": "float32"})()),
            "input input is a T",
        ),
        "executable liar": (
            lambda: E(type("T", (), {"shape": (2, 3), "dtype": "float32", "__dlpack__": None})()),
            "input input is a T",
        ),
        "executable module": (lambda: E(NET), "input input is a Linear"),
        "executable fake tensor": (lambda: E(fake()), "an input is a torch tensor without data"),
        "dynamic 9 beyond 8": (lambda: ED(torch.ones(9, 3)), "input input has size 9 along axis 0"),
        "dynamic 0": (lambda: ED(torch.ones(0, 3)), "input input has size 0 along axis 0"),
        "dynamic float64": (lambda: ED(torch.ones(3, 3).double()), r"input input is float64\[3, 3\]"),
        "dynamic sparse": (lambda: ED(torch.ones(3, 3).to_sparse()), "input input is a sparse torch tensor"),
        "dynamic other axis": (lambda: ED(torch.ones(3, 4)), r"input input is float32\[3, 4\]"),
        "two sizes": (lambda: E2(torch.ones(3, 3), torch.ones(4, 3)), r"input b is float32\[4, 3\]"),
        "embedding int32": (lambda: EE(torch.zeros(2, 3, dtype=torch.int32)), r"input i is int32\[2, 3\]"),
    },
    ("profile_vm_model", InputError): {
        "profile warmup=-1": (lambda: profiled(warmup=-1), "warmup is -1"),
        "profile warmup=1.5": (lambda: profiled(warmup=1.5), r"warmup is 1\.5"),
        "profile warmup='3'": (lambda: profiled(warmup="3"), "warmup is '3'"),
        "profile warmup=None": (lambda: profiled(warmup=None), "warmup is None"),
        "profile warmup=True": (lambda: profiled(warmup=True), "warmup is True"),
        "profile warmup=[]": (lambda: profiled(warmup=[]), r"warmup is \[\]"),
        "profile warmup=1180591620717411303424": (lambda: profiled(warmup=2**70), "warmup is 1180591620717411303424"),
        "profile number=-1": (lambda: profiled(number=-1), "number is -1"),
        "profile number=1.5": (lambda: profiled(number=1.5), r"number is 1\.5"),
        "profile number='3'": (lambda: profiled(number="3"), "number is '3'"),
        "profile number=None": (lambda: profiled(number=None), "number is None"),
        "profile number=True": (lambda: profiled(number=True), "number is True"),
        "profile number=[]": (lambda: profiled(number=[]), r"number is \[\]"),
        "profile number=1180591620717411303424": (lambda: profiled(number=2**70), "number is 1180591620717411303424"),
        "profile repeat=-1": (lambda: profiled(repeat=-1), "repeat is -1"),
        "profile repeat=1.5": (lambda: profiled(repeat=1.5), r"repeat is 1\.5"),
        "profile repeat='3'": (lambda: profiled(repeat="3"), "repeat is '3'"),
        "profile repeat=None": (lambda: profiled(repeat=None), "repeat is None"),
        "profile repeat=True": (lambda: profiled(repeat=True), "repeat is True"),
        "profile repeat=[]": (lambda: profiled(repeat=[]), r"repeat is \[\]"),
        "profile repeat=1180591620717411303424": (lambda: profiled(repeat=2**70), "repeat is 1180591620717411303424"),
        "profile number=0": (lambda: profiled([X], number=0), "number is 0"),
    },
    ("Model", InputError): {
        "model unknown keyword": (lambda: M(x=X), r"got 0 inputs by their places and \['x'\] by"),
        "model twice": (lambda: M(X, input=X), r"got 1 inputs by their places and \['input'\] by"),
        "two names": (lambda: M2(torch.ones(3, 3), c=torch.ones(4, 3)), r"got 1 inputs by their places and \['c'\] by"),
    },
    ("load_state", InputError): {
        "load_state 3": (lambda: E.load_state(3), "got a int"),
        "load_state unknown": (lambda: E.load_state({"x": X}), "'x' is not part of the state, which has 0"),
    },
    ("Model", IllFormedModuleError): {
        "Model None": (lambda: Model(None), "got a NoneType and parameters in a dict"),
        "Model params list": (lambda: Model(M.mod, [1]), "got a IRModule and parameters in a list"),
        "Model params missing": (lambda: Model(M.mod, {}), "got 0 parameters"),
        "Model params None": (lambda: Model(M.mod, None), "got a IRModule and parameters in a NoneType"),
        "Model no num_input": (
            lambda: Model(tvm.IRModule({"main": M.main.without_attr("num_input")}), {}),
            "main has no attribute 'num_input'",
        ),
        "Model no main": (lambda: Model(tvm.IRModule()), r"the module has no function 'main', only \[\]\."),
        "Model params values": (lambda: Model(M.mod, dict.fromkeys(M.params, "x")), "params has 'weight': a str"),
        "Model params keys": (lambda: Model(M.mod, dict(enumerate(M.params.values()))), "params has 0: a Tensor"),
        "Model frozen unknown": (
            lambda: M.replace(frozen=frozenset({"x"})),
            r"frozen names \['x'\], which are no parameters",
        ),
        "Model frozen text": (lambda: M.replace(frozen="x"), "frozen is 'x'"),
        "Model frozen 3": (lambda: M.replace(frozen=3), "frozen is 3"),
        "Model frozen list": (lambda: M.replace(frozen=["x"]), r"frozen is \['x'\]"),
        "Model output_names text": (lambda: M.replace(output_names="logits"), "output_names is 'logits'"),
        "Model output_names 3": (lambda: M.replace(output_names=3), "output_names is 3"),
        "Model replace mod": (lambda: M.replace(mod=NET), "got a Linear and parameters in a dict"),
        "Model primfunc main": (
            lambda: Model(tvm.IRModule({"main": tvm.tirx.PrimFunc([], tvm.tirx.Evaluate(0))})),
            "main has no attribute 'num_input'",
        ),
    },
}


@pytest.mark.parametrize("row", rows_of(ROWS), ids=str)
def test_a_bad_call_is_answered_at_the_door(row: Row) -> None:
    row.check()
