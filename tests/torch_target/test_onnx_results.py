"""Results of ONNX files that are no operator's own: inputs, parameters, a value twice, what is around a branch."""

# ruff: noqa: E402 (what the imports need may not be installed)

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._pytree import tree_leaves
from tvm.script import ir as I
from tvm.script import relax as R

onnx = pytest.importorskip("onnx", reason="the extra `onnx` is not installed; make test installs it")
pytest.importorskip("onnxscript", reason="torch's exporter needs it; make test installs it")
ort = pytest.importorskip("onnxruntime", reason="make test installs it")

import autocast
from autocast.errors import UnsupportedError
from autocast.torch_target.onnx_file import _name_outputs

X = torch.linspace(-1, 1, 12).reshape(3, 4)


def _run(path: Path, inputs: dict[str, torch.Tensor]) -> list[torch.Tensor]:
    onnx.checker.check_model(onnx.load(path), full_check=True)
    session = ort.InferenceSession(path, providers=["CPUExecutionProvider"])
    assert [spec.name for spec in session.get_inputs()] == list(inputs)
    return [torch.from_numpy(value) for value in session.run(None, {k: v.numpy() for k, v in inputs.items()})]


class _Net(nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function, self.weight = function, nn.Parameter(torch.linspace(0, 1, 4))

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(self, x)


@pytest.mark.parametrize(
    "function",
    [
        lambda net, x: x,
        lambda net, x: (x, x + net.weight, x),
        lambda net, x: (net.weight, x * net.weight, net.weight),
        lambda net, x: ((y := x.exp()), y, y * 2),
        lambda net, x: {"x": x * 2, "weight": x + net.weight, "x_out": x},
    ],
    ids=["input", "inputs", "parameters", "twice", "names of others"],
)
def test_results_have_names_of_their_own(function: Callable[..., Any], tmp_path: Path) -> None:
    net = _Net(function).eval()
    with torch.no_grad():
        expected = net(X)
    path = autocast.to_onnx(autocast.from_torch(net, (X,)), tmp_path / "net.onnx")
    got = _run(path, {"x": X})
    for a, b in zip(got, tree_leaves(expected), strict=True):
        torch.testing.assert_close(a, b)
    names = [output.name for output in onnx.load(path).graph.output]
    assert len(set(names)) == len(names) and "x" not in names and "weight" not in names


def test_lookups_searches_and_divisions_by_sizes_that_vary(tmp_path: Path) -> None:
    class Chosen(nn.Module):
        def forward(self, x: torch.Tensor, rows: torch.Tensor) -> Any:
            n, places, square = x.shape[0], torch.arange(x.shape[0]) / 8, rows.reshape(2, 2)
            found = torch.bucketize(x, places), torch.bucketize(x, places, right=True, out_int32=True)
            found = *found, torch.bucketize(x[0, 0], places)
            return x[rows], rows % n, x % 0.75, x.new_ones(-(-n // 2)), *found, square @ square.T

    rows = torch.tensor([0, -1, 2, -3])
    model = autocast.from_torch(Chosen(), (X, rows), dynamic={"n": ("x", 0, 3, 9)})
    path = autocast.to_onnx(model, tmp_path / "chosen.onnx")
    for x in (X, torch.randn(7, 4), torch.full((9, 4), float("nan"))):
        for a, b in zip(_run(path, {"x": x, "rows": rows}), Chosen()(x, rows), strict=True):
            torch.testing.assert_close(a, b, equal_nan=True)


def test_what_is_computed_under_the_name_of_a_result_is_renamed() -> None:
    import onnx_ir as ir

    x = ir.Value(name="x")
    inner = ir.node("Neg", [x])
    inner.outputs[0].name = "output"
    last = ir.node("Exp", inner.outputs)
    graph = ir.Graph([x], last.outputs, nodes=[inner, last], opset_imports={"": 22})
    _name_outputs(graph, ["output"])
    assert (inner.outputs[0].name, last.outputs[0].name) == ("output_inner", "output")


@pytest.mark.parametrize("positive", [True, False])
def test_a_branch_returns_what_is_computed_before_it(positive: bool, tmp_path: Path) -> None:
    @I.ir_module
    class Module:
        @R.function
        def main(x: R.Tensor((3, 4), "float32"), c: R.Tensor((), "bool")):
            y = R.exp(x)
            if c:
                r = (y, x)
            else:
                r = (x, x)
            return r

    model = autocast.from_relax(Module)
    inputs = {"x": X, "c": torch.tensor(positive)}
    for got, expected in zip(
        _run(autocast.to_onnx(model, tmp_path / "branch.onnx"), inputs), model(*inputs.values()), strict=True
    ):
        torch.testing.assert_close(got, expected)


@pytest.mark.parametrize("outer", [True, False])
@pytest.mark.parametrize("inner", [True, False])
def test_branches_of_branches_return_the_same_values(outer: bool, inner: bool, tmp_path: Path) -> None:
    @I.ir_module
    class Module:
        @R.function
        def main(x: R.Tensor((3, 4), "float32"), c: R.Tensor((), "bool"), d: R.Tensor((), "bool")):
            y = R.exp(x)
            if c:
                a = R.add(y, x)
                if d:
                    z = (a, y)
                else:
                    z = (y, a)
                t = z
            else:
                t = (x, x)
            return t

    model, inputs = autocast.from_relax(Module), {"x": X, "c": torch.tensor(outer), "d": torch.tensor(inner)}
    got = _run(autocast.to_onnx(model, tmp_path / "branches.onnx"), inputs)
    for a, b in zip(got, model(*inputs.values()), strict=True):
        torch.testing.assert_close(a, b)


def test_nested_results_have_a_name_each_and_empty_ones_none(tmp_path: Path) -> None:
    @I.ir_module
    class Module:
        @R.function
        def main(x: R.Tensor((3, 4), "float32")):
            y = R.exp(x)
            z = R.negative(x)
            return ((), (y, (z, x)))

    path = autocast.to_onnx(autocast.from_relax(Module), tmp_path / "nested.onnx")
    for got, expected in zip(_run(path, {"x": X}), (X.exp(), -X, X), strict=True):
        torch.testing.assert_close(got, expected)
    assert [output.name for output in onnx.load(path).graph.output] == ["output_0", "output_1", "output_2"]


def test_what_is_no_tensor_is_refused(tmp_path: Path) -> None:
    @I.ir_module
    class Shape:
        @R.function
        def main(x: R.Tensor((3, 4), "float32")):
            y = R.shape_of(x)
            return y

    @I.ir_module
    class Nothing:
        @R.function
        def main(x: R.Tensor((3, 4), "float32")):
            return ()

    with pytest.raises(UnsupportedError, match=r"returns a R\.Shape\(\[3, 4\]\), expected tensors: ONNX has no other"):
        autocast.to_onnx(autocast.from_relax(Shape), tmp_path / "shape.onnx")
    with pytest.raises(UnsupportedError, match="returns nothing, expected a tensor or several"):
        autocast.to_onnx(autocast.from_relax(Nothing), tmp_path / "nothing.onnx")
    assert autocast.to_torch(autocast.from_relax(Nothing))(X) == autocast.from_relax(Nothing)(X) == ()


def test_numbers_near_0_and_far_from_it_keep_their_digits(tmp_path: Path) -> None:
    class Near(nn.Module):
        def forward(self, x: torch.Tensor, one: torch.Tensor, i: torch.Tensor) -> Any:
            y = x.flip(0) * 10
            return (
                torch.logaddexp(x, y),
                torch.logaddexp(x, x),
                x % y,
                torch.log1p(x),
                torch.expm1(x),
                torch.copysign(torch.ones(()), x),
                torch.signbit(i),
                one.signbit(),
                i.relu(),
            )

    x = torch.tensor([-0.0, 0.0, 1e-20, -1e-8, 1e-5, 3e-4, -0.5, -1.0, 80.0, 100.0, float("inf"), float("nan")])
    inputs = {"x": x, "one": x[0], "i": torch.tensor([-1, 0, 1])}
    path = autocast.to_onnx(autocast.from_torch(Near(), tuple(inputs.values())), tmp_path / "near.onnx")
    for got, expected in zip(_run(path, inputs), Near()(*inputs.values()), strict=True):
        torch.testing.assert_close(got, expected, rtol=4e-7, atol=0, equal_nan=True)


@pytest.mark.filterwarnings("ignore::autocast.errors.FallbackWarning")
def test_middles_and_products_of_any_number_of_rows(tmp_path: Path) -> None:
    class Middles(nn.Module):
        def forward(self, x: torch.Tensor, i: torch.Tensor) -> Any:
            return *x.median(0), *i.median(1, keepdim=True), x.median(), x.cumprod(0), x.prod(1)

    x = torch.tensor([[1.0, 5.0, 2.0], [3.0, -1.0, 0.5]])
    inputs = {"x": x, "i": x.long()}
    dynamic = {"rows": [("x", 0), ("i", 0)], "columns": [("x", 1), ("i", 1)]}
    path = autocast.to_onnx(
        autocast.from_torch(Middles(), tuple(inputs.values()), dynamic=dynamic), tmp_path / "m.onnx"
    )
    for rows, columns in ((2, 3), (3, 2), (4, 5)):
        x = torch.arange(1.0, 1 + rows * columns).reshape(columns, rows).mT.contiguous()
        x[1, 1] = float("nan")
        inputs = {"x": x, "i": x.nan_to_num(7).long()}
        for got, expected in zip(_run(path, inputs), Middles()(*inputs.values()), strict=True):
            torch.testing.assert_close(got, expected, equal_nan=True)


def test_windows_that_divide_images_of_any_size(tmp_path: Path) -> None:
    class Pooled(nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            sizes = ((2, 3), (None, 3), (1, None), (5, 1))
            volumes = nn.functional.adaptive_avg_pool3d(x[:, None], (2, 3, None))
            return *(nn.functional.adaptive_avg_pool2d(x, size) for size in sizes), volumes

    model = autocast.from_torch(Pooled().eval(), (torch.ones(2, 3, 8, 10),), dynamic={"h": ("x", 2), "w": ("x", 3)})
    assert not model.fallbacks
    path = autocast.to_onnx(model, tmp_path / "pooled.onnx")
    for height, width in ((8, 10), (11, 7), (16, 33)):
        x = torch.linspace(-1, 1, 6 * height * width).reshape(2, 3, height, width)
        x[0, 0, 0, 0] = float("inf")
        for got, expected in zip(_run(path, {"x": x}), Pooled()(x), strict=True):
            torch.testing.assert_close(got, expected)
