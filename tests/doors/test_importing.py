"""What `from_torch` and `from_relax` do not take.

One table, a row for each bad call, so it has more than 300 lines.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
import tvm
from torch import nn
from tvm import relax

from autocast import from_relax, from_torch
from autocast.errors import ImportModelError, InputError
from tests.doors.odd_modules import (
    Branches,
    Fixed,
    Item,
    Mod,
    Numpy,
    Raises,
    Returns,
    Sparse,
    SparseP,
    Two,
    TwoF,
    illformed,
    module,
)
from tests.doors.rows import Row, Rows, rows_of

NET = nn.Linear(3, 2).eval()
X = torch.ones(2, 3)
M = Two()
W = np.ones((4, 2), "float32")

ROWS: Rows = {
    ("from_torch", ImportModelError): {
        "cached": (lambda: from_torch(NET, (X,), cached="yes"), "cached is 'yes'; expected True or False"),
        "module None": (lambda: from_torch(None, (X,)), "got a NoneType"),
        "module a number": (lambda: from_torch(3, (X,)), "got a int"),
        "module a text": (lambda: from_torch("bert", (X,)), "got a str"),
        "module a class": (lambda: from_torch(nn.Linear, (X,)), "got the class Linear"),
        "module a function": (lambda: from_torch(torch.relu, (X,)), "got a builtin_function_or_method"),
        "module a lambda": (lambda: from_torch(lambda x: x, (X,)), "got a function"),
        "module a state dict": (lambda: from_torch(NET.state_dict(), (X,)), "got a OrderedDict"),
        "module torchscript": (
            lambda: from_torch(torch.jit.trace(NET, X), (X,)),
            "got a TopLevelTracedModule, which is",
        ),
        "module a tensor": (lambda: from_torch(X, (X,)), "got a Tensor"),
        "module a Model": (lambda: from_torch(from_torch(NET, (X,)), (X,)), "got a Model"),
        "module an IRModule": (lambda: from_torch(tvm.IRModule(), (X,)), "got a IRModule"),
        "module a parameter": (lambda: from_torch(nn.Parameter(X), (X,)), "got a Parameter"),
        "module a list of modules": (lambda: from_torch([NET, NET], (X,)), "got a list"),
        "a ModuleList": (lambda: from_torch(nn.ModuleList([NET]), (X,)), "ModuleList has no forward of its own"),
        "no example": (lambda: from_torch(NET), "example_args is a NoneType"),
        "example None": (lambda: from_torch(NET, None), "example_args is a NoneType"),
        "example a number": (lambda: from_torch(NET, 3), "example_args is a int"),
        "example a text": (lambda: from_torch(NET, "x"), "example_args is a str"),
        "example a set": (lambda: from_torch(NET, {1}), "example_args is a set"),
        "example dict": (lambda: from_torch(NET, {"input": X}), "example_args is a dict"),
        "example array": (lambda: from_torch(NET, np.ones((2, 3), "float32")), "example_args is a ndarray"),
        "example array in tuple": (
            lambda: from_torch(NET, (np.ones((2, 3), "float32"),)),
            "the example input 'input' is a numpy array",
        ),
        "example generator": (lambda: from_torch(NET, (x for x in [X])), "example_args is a generator"),
        "example empty": (lambda: from_torch(NET, ()), r"Linear\.forward\(input\) cannot be called with"),
        "too many": (lambda: from_torch(NET, (X, X)), "got 2 positional example inputs"),
        "example None inside": (lambda: from_torch(NET, (None,)), r"torch\.export cannot export Linear: linear\(\):"),
        "example text inside": (lambda: from_torch(NET, ("x",)), r"torch\.export cannot export Linear: linear\(\):"),
        "example object inside": (lambda: from_torch(NET, (object(),)), r"torch\.export cannot export Linear:"),
        "example wrong size": (
            lambda: from_torch(NET, (torch.ones(2, 4),)),
            r"torch\.export cannot export Linear: a and b",
        ),
        "example complex": (
            lambda: from_torch(M, (torch.ones(2, 3, dtype=torch.complex64),)),
            "the example input 'a' is a complex tensor",
        ),
        "example sparse": (lambda: from_torch(M, (X.to_sparse(),)), "the example input 'a' is a sparse tensor"),
        "example csr": (lambda: from_torch(M, (X.to_sparse_csr(),)), "the example input 'a' is a sparse tensor"),
        "example quantized": (
            lambda: from_torch(M, (torch.quantize_per_tensor(X, 0.1, 0, torch.qint8),)),
            "the example input 'a' is a quantized tensor",
        ),
        "example nested tensor": (
            lambda: from_torch(M, (torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),)),
            "the example input 'a' is a nested tensor",
        ),
        "parameters complex": (
            lambda: from_torch(nn.Linear(3, 2, dtype=torch.complex64), (X.to(torch.complex64),)),
            "the example input 'input' is a complex tensor",
        ),
        "buffer sparse": (lambda: from_torch(SparseP(), (X,)), "the parameter w is a sparse tensor"),
        "lazy module": (lambda: from_torch(nn.LazyLinear(2), (X,)), "the parameter weight is a lazy tensor"),
        "kwargs list": (lambda: from_torch(M, (X,), example_kwargs=[X]), "example_kwargs is a list"),
        "kwargs tensor": (lambda: from_torch(M, (X,), example_kwargs=X), "example_kwargs is a Tensor"),
        "kwargs unknown": (
            lambda: from_torch(M, (X,), example_kwargs={"c": X}),
            r"Two\.forward\(a, b\) cannot be called with the",
        ),
        "kwargs int key": (
            lambda: from_torch(M, (X,), example_kwargs={1: X}),
            r"Two\.forward\(a, b\) cannot be called with the",
        ),
        "kwargs twice": (
            lambda: from_torch(M, (X,), example_kwargs={"a": X}),
            r"Two\.forward\(a, b\) cannot be called with the",
        ),
        "kwargs array": (
            lambda: from_torch(M, (X,), example_kwargs={"b": np.ones((2, 3))}),
            "the example input 'b' is a numpy array",
        ),
        "kwargs sparse": (
            lambda: from_torch(M, (X,), example_kwargs={"b": X.to_sparse()}),
            "the example input 'b' is a sparse tensor",
        ),
        "dynamic a text": (lambda: from_torch(NET, (X,), dynamic="batch"), "dynamic is a str"),
        "dynamic True": (lambda: from_torch(NET, (X,), dynamic=True), "dynamic is a bool"),
        "dynamic a list": (
            lambda: from_torch(NET, (X,), dynamic=["batch"]),
            "dynamic has 'batch' for the input 'input'",
        ),
        "dynamic unknown input": (
            lambda: from_torch(NET, (X,), dynamic={"n": ("x", 0)}),
            "dynamic names the input 'x'",
        ),
        "dynamic axis 5": (
            lambda: from_torch(NET, (X,), dynamic={"n": ("input", 5)}),
            "dynamic makes axis 5 of 'input' the dimension",
        ),
        "dynamic axis negative": (
            lambda: from_torch(NET, (X,), dynamic={"n": ("input", -1)}),
            "dynamic makes axis -1 of 'input' the",
        ),
        "dynamic axis text": (
            lambda: from_torch(NET, (X,), dynamic={"n": ("input", "0")}),
            r"dynamic\['n'\] is \('input', '0'\)",
        ),
        "dynamic axis bool": (
            lambda: from_torch(NET, (X,), dynamic={"n": ("input", True)}),
            r"dynamic\['n'\] is \('input', True\)",
        ),
        "dynamic axis float": (
            lambda: from_torch(NET, (X,), dynamic={"n": ("input", 0.0)}),
            r"dynamic\['n'\] is \('input', 0\.0\)",
        ),
        "dynamic no axis": (lambda: from_torch(NET, (X,), dynamic={"n": "input"}), r"dynamic\['n'\] is 'input'"),
        "dynamic None value": (lambda: from_torch(NET, (X,), dynamic={"n": None}), r"dynamic\['n'\] is None"),
        "dynamic empty list": (
            lambda: from_torch(NET, (X,), dynamic={"n": []}),
            r"dynamic\['n'\] = \[\] says no dynamic dimension",
        ),
        "dynamic name with blank": (
            lambda: from_torch(NET, (X,), dynamic={"a b": ("input", 0)}),
            r"dynamic\['a b'\] = \('input', 0\) says no dynamic",
        ),
        "dynamic name keyword": (
            lambda: from_torch(NET, (X,), dynamic={"for": ("input", 0)}),
            r"dynamic\['for'\] = \('input', 0\) says no dynamic",
        ),
        "dynamic name int": (
            lambda: from_torch(NET, (X,), dynamic={0: ("input", 0)}),
            r"dynamic\[0\] = \('input', 0\) says no dynamic",
        ),
        "dynamic bounds swapped": (
            lambda: from_torch(NET, (X,), dynamic={"n": ("input", 0, 9, 3)}),
            "dimension 'n' has the bounds 9 to 3",
        ),
        "dynamic bounds text": (
            lambda: from_torch(NET, (X,), dynamic={"n": ("input", 0, "1", 3)}),
            r"dynamic\['n'\] is \('input', 0, '1', 3\)",
        ),
        "dynamic bounds negative": (
            lambda: from_torch(NET, (X,), dynamic={"n": ("input", 0, -1, 3)}),
            "dimension 'n' has the bounds -1 to 3",
        ),
        "dynamic bounds float": (
            lambda: from_torch(NET, (X,), dynamic={"n": ("input", 0, 1.5, 3)}),
            r"dynamic\['n'\] is \('input', 0, 1\.5, 3\)",
        ),
        "dynamic bounds many": (
            lambda: from_torch(NET, (X,), dynamic={"n": ("input", 0, 1, 3, 4)}),
            r"dynamic\['n'\] is \('input', 0, 1, 3, 4\)",
        ),
        "dynamic bounds bool": (
            lambda: from_torch(NET, (X,), dynamic={"n": ("input", 0, True, 3)}),
            r"dynamic\['n'\] is \('input', 0, True, 3\)",
        ),
        "dynamic bounds exclude": (
            lambda: from_torch(NET, (X,), dynamic={"n": ("input", 0, 3, 9)}),
            "the example of 'input' has size 2 along axis",
        ),
        "dynamic bounds huge": (
            lambda: from_torch(NET, (X,), dynamic={"n": ("input", 0, 1, 2**70)}),
            r"dynamic\['n'\] is \('input', 0, 1,",
        ),
        "dynamic several bounds": (
            lambda: from_torch(M, (X, X), dynamic={"n": [("a", 0, 1, 9), ("b", 0, 1, 8)]}),
            r"dimension 'n' has several bounds: \[\(1, 8\),",
        ),
        "dynamic twice same axis": (
            lambda: from_torch(NET, (X,), dynamic={"n": ("input", 0), "m": ("input", 0)}),
            "dynamic calls axis 0 of 'input' both 'n' and",
        ),
        "dynamic position": (lambda: from_torch(NET, (X,), dynamic={"n": (3, 0)}), "dynamic names the input 3"),
        "dynamic position list": (
            lambda: from_torch(NET, (X,), dynamic={"n": ([0], 0)}),
            r"dynamic names the input \[0\]",
        ),
        "dynamic torch's dim axis": (
            lambda: from_torch(NET, (X,), dynamic={"input": {"0": torch.export.Dim("b")}}),
            r"dynamic\['input'\] maps '0' to Dim\('b', min=0\)",
        ),
        "dynamic torch's text": (
            lambda: from_torch(NET, (X,), dynamic={"input": {0: "b"}}),
            r"dynamic\['input'\] maps 0 to 'b'",
        ),
        "dynamic unlike auto": (lambda: from_torch(NET, (X,), dynamic="always"), "dynamic is a str; expected dynamic="),
        "dynamic that the module fixes": (
            lambda: from_torch(Fixed(), (X,), dynamic={"n": ("x", 0)}),
            r"torch\.export cannot export Fixed: Constraints",
        ),
        "dynamic of one size": (
            lambda: from_torch(M, (torch.ones(2, 3), torch.ones(4, 3)[:2]), dynamic={"n": ("a", 0)}),
            r"torch\.export cannot export Two: Constraints",
        ),
        "dynamic name equals input?": (
            lambda: from_torch(M, (X, torch.ones(3, 3)[:2]), dynamic={"a": ("a", 0)}),
            r"torch\.export cannot export Two: Constraints",
        ),
        "returns an object": (
            lambda: from_torch(Returns(object()), (X,)),
            r"torch\.export cannot export Returns: Found",
        ),
        "returns nothing": (
            lambda: from_torch(type("N", (nn.Module,), {"forward": lambda s, x: None})(), (X,)),
            "the model returns nothing",
        ),
        "branches": (lambda: from_torch(Branches(), (X,)), r"torch\.export cannot export Branches"),
        "raises": (lambda: from_torch(Raises(), (X,)), r"torch\.export cannot export Raises"),
        "numpy inside": (lambda: from_torch(Numpy(), (X,)), r"torch\.export cannot export Numpy"),
        "item": (lambda: from_torch(Item(), (X,)), r"torch\.export cannot export Item"),
        "sparse inside": (lambda: from_torch(Sparse(), (X,)), "expected dense tensors"),
        "no forward": (lambda: from_torch(nn.Module(), (X,)), "Module has no forward of its own"),
    },
    ("random numbers", InputError): {
        "seed str": (lambda: from_torch(NET, (X,), seed="x"), "seed is 'x'"),
        "seed float": (lambda: from_torch(NET, (X,), seed=1.5), r"seed is 1\.5"),
        "seed None": (lambda: from_torch(NET, (X,), seed=None), "seed is None"),
        "seed huge": (lambda: from_torch(NET, (X,), seed=2**70), "seed is 1180591620717411303424"),
        "seed bool": (lambda: from_torch(NET, (X,), seed=True), "seed is True"),
    },
    ("from_relax", ImportModelError): {
        "relax None": (lambda: from_relax(None), "got a NoneType"),
        "relax torch module": (lambda: from_relax(NET), "got a Linear"),
        "relax text": (lambda: from_relax("x"), "got a str"),
        "relax Model": (lambda: from_relax(from_relax(Mod)), "got a Model"),
        "relax class": (lambda: from_relax(tvm.IRModule), "got a _ObjectSlotsMeta"),
        "relax var": (lambda: from_relax(relax.Var("x", relax.TensorType((2,), "float32"))), "got a Var"),
        "relax primfunc": (lambda: from_relax(tvm.tirx.PrimFunc([], tvm.tirx.Evaluate(0))), "got a PrimFunc"),
        "relax empty": (lambda: from_relax(tvm.IRModule()), r"the module has the Relax functions \[\]"),
        "relax two": (lambda: from_relax(TwoF), r"the module has the Relax functions \['a', 'b'\]"),
        "relax no such function": (
            lambda: from_relax(TwoF, function="c"),
            r"the module has the Relax functions \['a', 'b'\]",
        ),
        "relax function 3": (lambda: from_relax(TwoF, function=3), "function is a int"),
        "relax params 3": (lambda: from_relax(Mod, params=3), "params is a int"),
        "relax params text": (lambda: from_relax(Mod, params="w"), "params is a str"),
        "relax params array bare": (lambda: from_relax(Mod, params=W), "params is a ndarray"),
        "relax params tensor bare": (lambda: from_relax(Mod, params=torch.ones(4, 2)), "params is a Tensor"),
        "relax params names": (lambda: from_relax(Mod, params={"v": W}), r"main has no parameters \['v'\]"),
        "relax params not last": (lambda: from_relax(Mod, params={"x": W}), r"values were given for \['x'\]"),
        "relax params too many": (lambda: from_relax(Mod, params=[W, W, W]), "got 3 values"),
        "relax params shape": (
            lambda: from_relax(Mod, params=[np.ones((4, 3), "float32")]),
            r"the parameter 'w' is a R\.Tensor\(\(4, 2\),",
        ),
        "relax params dtype": (
            lambda: from_relax(Mod, params=[np.ones((4, 2))]),
            r"the parameter 'w' is a R\.Tensor\(\(4, 2\),",
        ),
        "relax params object": (
            lambda: from_relax(Mod, params=[object()]),
            "the value of the parameter 'w' is <object",
        ),
        "relax params text in list": (lambda: from_relax(Mod, params=["x"]), "the value of the parameter 'w' is 'x'"),
        "relax params None in list": (lambda: from_relax(Mod, params=[None]), "the value of the parameter 'w' is None"),
        "relax params ragged": (lambda: from_relax(Mod, params=[[[1, 2], [3]]]), "got 3 values"),
        "relax params complex": (
            lambda: from_relax(Mod, params=[W.astype("complex64")]),
            "the value of the parameter 'w' is",
        ),
        "relax params meta": (
            lambda: from_relax(Mod, params=[torch.ones(4, 2, device="meta")]),
            "the value of the parameter 'w' is a meta",
        ),
        "relax params int keys": (lambda: from_relax(Mod, params={1: W}), "params has the key 1"),
        "relax params dict of text": (
            lambda: from_relax(Mod, params={"w": "x"}),
            "the value of the parameter 'w' is 'x'",
        ),
        "relax no dtype": (
            lambda: from_relax(module(relax.TensorType((2,), None))),
            r"the argument 'x0' of main is a R\.Tensor\(\(2,\)\)",
        ),
        "relax no rank": (
            lambda: from_relax(module(relax.TensorType(None, "float32"))),
            "the argument 'x0' of main is a",
        ),
        "relax object": (lambda: from_relax(module(relax.AnyType())), r"the input 'x0' is a R\.Any"),
        "relax float prim": (lambda: from_relax(module(tvm.ir.PrimType("float32"))), "the input 'x0' is a float32"),
        "relax function type": (
            lambda: from_relax(module(relax.FuncType([], relax.TensorType((2,), "float32")))),
            r"the input 'x0' is a R\.Callable\(\(\),",
        ),
        "relax num_input 9": (lambda: from_relax(Mod["main"].with_attr("num_input", 9)), "main declares num_input=9"),
        "relax num_input text": (
            lambda: from_relax(Mod["main"].with_attr("num_input", "x")),
            "main declares num_input=x",
        ),
        "relax num_input -1": (
            lambda: from_relax(Mod["main"].with_attr("num_input", -1)),
            "main declares num_input=-1",
        ),
        "relax num_input 1 no params": (
            lambda: from_relax(Mod["main"].with_attr("num_input", 1), params={}),
            "main declares num_input=1 of 2 parameters",
        ),
        "relax ill formed": (lambda: from_relax(illformed()), "the module is not well formed: Var y is not"),
    },
}


@pytest.mark.parametrize("row", rows_of(ROWS), ids=str)
def test_a_bad_call_is_answered_at_the_door(row: Row) -> None:
    row.check()
