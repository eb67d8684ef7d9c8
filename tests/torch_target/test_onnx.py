"""ONNX files that models are written to: what onnxruntime computes of them, and what is kept and refused."""

# ruff: noqa: E402 (what the imports need may not be installed)

from __future__ import annotations

import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

onnx = pytest.importorskip("onnx", reason="the extra `onnx` is not installed; make test installs it")
pytest.importorskip("onnxscript", reason="torch's exporter needs it; make test installs it")
ort = pytest.importorskip("onnxruntime", reason="make test installs it")

from torch.onnx._internal.exporter._registration import onnxscript_apis

import autocast
from autocast import amp
from autocast.errors import ArtifactError, UnsupportedError
from autocast.torch_target import onnx_file
from autocast.torch_target.onnx_file import _rename
from autocast.training import SGD, CrossEntropy, training_step
from tests.architectures import ARCHITECTURES, imported


def run(path: Path, *inputs: torch.Tensor) -> list[torch.Tensor]:
    """What onnxruntime computes of a file."""
    session = ort.InferenceSession(path, providers=["CPUExecutionProvider"])
    feed = {spec.name: value.numpy() for spec, value in zip(session.get_inputs(), inputs, strict=True)}
    return [torch.from_numpy(value) for value in session.run(None, feed)]


def error(got: Any, expected: Any) -> float:
    """The largest relative error of several outputs, by their norms."""
    expected = expected if isinstance(expected, tuple) else (expected,)
    return max(float((a - b).norm() / b.norm()) for a, b in zip(got, expected, strict=True))


def axes(values: Any) -> list[Any]:
    """The names and the shapes of inputs or outputs of a graph."""
    return [
        (value.name, [dim.dim_param or dim.dim_value for dim in value.type.tensor_type.shape.dim]) for value in values
    ]


def casts(file: Any, dtype: int) -> int:
    """How many Cast nodes convert to a dtype of ONNX's."""
    return sum(node.op_type == "Cast" and node.attribute[0].i == dtype for node in file.graph.node)


def network() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 8)).eval()


@cache
def small(dtype: str = "float16") -> autocast.Model:
    """Two layers with casts, of any number of rows."""
    return amp.autocast(
        autocast.from_torch(network(), (torch.randn(4, 16),), dynamic={"rows": ("input", 0)}), dtype=dtype
    )


@cache
def written(**options: Any) -> onnx.ModelProto:
    """The file of the small model."""
    with tempfile.TemporaryDirectory() as folder:
        return onnx.load(autocast.to_onnx(small(), Path(folder) / "model.onnx", **options))


@pytest.mark.parametrize("name", ["bert", "llama", "resnet"])
def test_onnxruntime_computes_of_a_file_what_our_kernels_compute_of_the_model(name: str, tmp_path: Path) -> None:
    architecture = ARCHITECTURES[name]()
    model = amp.autocast(imported(name, True), dtype="float16")
    path = autocast.to_onnx(model, tmp_path / "model.onnx")
    for batch in (1, 3):
        args, _ = architecture.inputs(batch)
        assert error(run(path, *args), model(*args)) < 1e-3
    file = onnx.load(path)
    assert axes(file.graph.input)[0][1][0] == "batch"
    assert axes(file.graph.output)[0][1][0] == "batch"
    assert [value.name for value in file.graph.output] == ["logits"]
    assert model.params.keys() <= {tensor.name for tensor in file.graph.initializer}


def test_a_bfloat16_file_is_legal_and_computes_the_same_when_it_comes_back(tmp_path: Path) -> None:
    architecture = ARCHITECTURES["resnet"]()
    model = amp.autocast(imported("resnet", True))
    path = autocast.to_onnx(model, tmp_path / "model.onnx")
    onnx.checker.check_model(path, full_check=True)
    args, _ = architecture.inputs(3)
    assert error([autocast.from_onnx(path)(*args)], model(*args)) < 1e-2


def test_an_opset_without_bfloat16_for_an_operator_is_refused(tmp_path: Path) -> None:
    model = autocast.from_torch(nn.Conv2d(3, 4, 3), (torch.randn(1, 3, 8, 8),))
    with pytest.raises(
        UnsupportedError, match=r"opset 20 has no Conv of bfloat16, expected one that has. Try opset=22"
    ):
        autocast.to_onnx(amp.autocast(model), tmp_path / "model.onnx", opset=20)
    path = autocast.to_onnx(amp.autocast(model, dtype="float16"), tmp_path / "model.onnx", opset=20)
    onnx.checker.check_model(path, full_check=True)


def test_each_cast_of_a_model_is_a_cast_node(tmp_path: Path) -> None:
    model = small("bfloat16")
    file = onnx.load(autocast.to_onnx(model, tmp_path / "model.onnx"))
    assert casts(file, onnx.TensorProto.BFLOAT16) == model.script().count("R.astype(") > 0


def test_exact_products_multiply_in_float32() -> None:
    assert casts(written(opset=20), onnx.TensorProto.FLOAT) == 1  # the result
    assert casts(written(opset=23, exact=True), onnx.TensorProto.FLOAT) == 2  # both operands


def test_the_opset_is_the_one_that_is_asked_for() -> None:
    for opset, file in ((20, written(opset=20)), (23, written(opset=23, exact=True))):
        assert [(one.domain, one.version) for one in file.opset_import] == [("", opset)]


@pytest.mark.parametrize("opset", [22, 23])  # of which the latter has an operator for attention
def test_a_mask_of_keys_is_that_of_all_queries(opset: int, tmp_path: Path) -> None:
    class Attends(nn.Module):
        def forward(self, q: torch.Tensor, k: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return tuple(nn.functional.scaled_dot_product_attention(q, k, k, by) for by in (mask, mask == 0))

    q, k, mask = torch.randn(2, 2, 3, 8), torch.randn(2, 2, 5, 8), torch.zeros(2, 1, 1, 5)
    mask[1, ..., 3:] = -1e9
    model = autocast.from_torch(Attends(), (q, k, mask), dynamic={"n": ("q", 2), "length": [("k", 2), ("mask", 3)]})
    path = autocast.to_onnx(model, tmp_path / "model.onnx", opset=opset)
    for got, expected in zip(run(path, q[:, :, :2], k, mask), Attends()(q[:, :, :2], k, mask), strict=True):
        torch.testing.assert_close(got, expected)


def test_outputs_without_names_are_numbered(tmp_path: Path) -> None:
    class Halves(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.chunk(2)[0] * 2

    model = autocast.from_torch(Halves(), (torch.ones(4),)).replace(output_names=())
    file = onnx.load(autocast.to_onnx(model, tmp_path / "model.onnx"))
    assert axes(file.graph.input) == [("x", [4])]
    assert axes(file.graph.output) == [("output", [2])]


def test_weights_beyond_what_one_file_can_have_are_beside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnx_file, "LARGEST", 1000)
    reshaping = nn.Sequential(nn.Linear(16, 32), nn.Unflatten(1, (4, 8)), nn.Linear(8, 64)).eval()
    model, x = autocast.from_torch(reshaping, (torch.randn(4, 16),), dynamic={"rows": ("input", 0)}), torch.randn(3, 16)
    for _ in range(2):  # the second replaces the first
        path = autocast.to_onnx(model, tmp_path / "model.onnx")
        assert error(run(path, x), model(x)) < 1e-3
        assert sorted(file.name for file in tmp_path.iterdir()) == [
            "model.onnx",
            *(file.name for file in tmp_path.glob("model.onnx.*.data")),
        ]
        assert len(list(tmp_path.iterdir())) == 2


def test_a_file_that_cannot_be_written_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnx_file, "LARGEST", 1000)
    path = autocast.to_onnx(small(), tmp_path / "model.onnx")
    before = {file: file.read_bytes() for file in tmp_path.iterdir()}

    def full(path: Path) -> Any:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(onnx_file, "whole_file", full)
    with pytest.raises(ArtifactError, match=r"cannot be written: No space left.*nothing was changed"):
        autocast.to_onnx(small(), path)
    assert {file: file.read_bytes() for file in tmp_path.iterdir()} == before


def test_what_is_sorted_keeps_the_order_of_equals(tmp_path: Path) -> None:
    class Sorted(nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            return *torch.topk(x, 3, dim=1), *torch.sort(x, dim=0, descending=True), *torch.sort(x)

    x = torch.randint(0, 4, (5, 7), generator=torch.Generator().manual_seed(0)).float()
    model = autocast.from_torch(Sorted(), (x,))
    for got, expected in zip(run(autocast.to_onnx(model, tmp_path / "model.onnx"), x), model(x), strict=True):
        torch.testing.assert_close(got, expected, rtol=0, atol=0)


def test_convolutions_over_volumes_run_with_a_bias_and_without(tmp_path: Path) -> None:
    layers = (
        nn.Conv3d(2, 4, (1, 3, 2), stride=(1, 2, 1), padding=(1, 0, 2), groups=2, bias=False),
        nn.Conv3d(4, 2, 2, dilation=(1, 1, 2)),
    )
    module, x = nn.Sequential(*layers).eval(), torch.randn(2, 2, 3, 7, 5)
    path = autocast.to_onnx(autocast.from_torch(module, (x,)), tmp_path / "model.onnx")
    with torch.no_grad():
        assert error(run(path, x), module(x)) < 1e-6


def test_operators_without_a_form_in_onnx_are_one_error_that_counts_them(tmp_path: Path) -> None:
    class Special(nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            return torch.lgamma(x), torch.lgamma(x + 1), torch.i0(x)

    model = autocast.from_torch(Special(), (torch.ones(4),))
    with pytest.raises(
        UnsupportedError, match=r"opset 22: prims\.bessel_i0\.default \(1\), prims\.lgamma\.default \(2\)"
    ):
        autocast.to_onnx(model, tmp_path / "model.onnx")
    assert not list(tmp_path.iterdir())


def test_what_torchs_exporter_says_is_said_up_to_its_advice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any, **options: Any) -> None:
        raise RuntimeError("Constraints violated (n):\n  - n is 3 at most.\n\nUser stack: no reason") from None

    monkeypatch.setattr(torch.onnx, "export", refuse)
    with pytest.raises(
        UnsupportedError, match=r"22: Constraints violated \(n\):\n  - n is 3 at most\. Try another opset"
    ):
        autocast.to_onnx(small(), tmp_path / "model.onnx")


def test_what_the_exporter_has_forms_of_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[Any] = []

    def refuse(*args: Any, **options: Any) -> None:
        read.append(onnxscript_apis.get_torchlib_ops())
        raise RuntimeError("no reason")

    monkeypatch.setattr(torch.onnx, "export", refuse)
    with pytest.raises(UnsupportedError, match="no reason"):
        autocast.to_onnx(small(), tmp_path / "model.onnx")
    assert len(read) == 2 and read[0] is read[1]  # for small examples and for large ones
    assert onnxscript_apis.get_torchlib_ops() is not read[0]


@pytest.mark.parametrize("given", [nn.Linear(2, 2), small().mod], ids=["torch module", "IRModule"])
def test_what_is_no_model_is_an_error_that_says_how_to_make_one(given: Any, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match=r"to_onnx: got a \w+, expected a Model: autocast.from_torch"):
        autocast.to_onnx(given, tmp_path / "model.onnx")
    with pytest.raises(UnsupportedError, match=r"to_torch: got a \w+, expected a Model: autocast.from_torch"):
        autocast.to_torch(given)


def test_an_opset_that_there_is_not_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="opset is 17, expected 18 to"):
        autocast.to_onnx(small(), tmp_path / "model.onnx", opset=17)


def test_a_training_step_is_refused_as_onnx_has_no_state(tmp_path: Path) -> None:
    model = autocast.from_torch(network(), (torch.randn(4, 16),))
    with pytest.raises(UnsupportedError, match=r"replaces \d+ parameters \(0\.weight, .*and ONNX has no state"):
        autocast.to_onnx(training_step(model, CrossEntropy(), SGD(momentum=0)), tmp_path / "model.onnx")


def test_what_is_computed_under_the_name_of_a_weight_is_renamed() -> None:
    import onnx_ir as ir

    x, weight = ir.Value(name="x"), ir.Value(name="val_3", const_value=ir.tensor([1.0], name="val_3"))
    moved = ir.node("Neg", [x])
    moved.outputs[0].name = "val_3"
    total = ir.node("Add", [moved.outputs[0], weight])
    graph = ir.Graph([x], total.outputs, nodes=[moved, total], initializers=[weight], opset_imports={"": 22})
    _rename(graph, {"val_3", "val_3_0"})
    assert (moved.outputs[0].name, weight.name) == ("val_3_1", "val_3")


def test_recurrent_layers_are_those_of_onnx_for_any_number_of_steps(tmp_path: Path) -> None:
    class Layers(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm = nn.LSTM(3, 4, bidirectional=True)
            self.others = nn.ModuleList([nn.GRU(3, 5), nn.RNN(3, 4, nonlinearity="relu")])

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            hiddens, (last, cell) = self.lstm(x)
            return hiddens, last, cell, *(result for layer in self.others for result in layer(x))

    layers, x = Layers().eval(), torch.randn(7, 2, 3)
    model = autocast.from_torch(layers, (torch.randn(5, 2, 3),), dynamic={"steps": ("*", 0, 1, 64)})
    path = autocast.to_onnx(model, tmp_path / "layers.onnx")
    with torch.no_grad():
        assert error(run(path, x), layers(x)) < 1e-6
    assert {node.op_type for node in onnx.load(path).graph.node} >= {"LSTM", "GRU", "RNN"}


def test_a_model_that_halves_an_image_is_exported_with_images_that_are_large_enough(tmp_path: Path) -> None:
    """Of a file whose sizes have no bounds: the smallest ones have no pixel left after the fourth pooling."""
    nodes = " ".join(f"x{at + 1} = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (x{at})" for at in range(4))
    text = f"main (float[1, 2, H, W] x0) => (float[1, 2, K, L] y) {{ {nodes} y = Relu (x4) }}"
    model = autocast.from_onnx(onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 20]> {text}'))
    session = ort.InferenceSession(autocast.to_onnx(model, tmp_path / "halved.onnx"))
    for height, width in ((16, 16), (33, 70)):
        x = torch.randn(1, 2, height, width)
        (got,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
        torch.testing.assert_close(torch.from_numpy(got), torch.from_numpy(model(x.numpy())))


def test_sizes_that_the_smallest_example_would_make_1_stay_open(tmp_path: Path) -> None:
    """torch takes a size of 1 on the way for what it always is, and the file then says so to onnxruntime."""
    text = (
        "main (float[1, W, 4] x, float[4, 3] w, float[4] b) => (float[1, N, 3] y) {"
        "s = Constant <value = int64[1] {0}> () e = Constant <value = int64[1] {10000}> ()"
        "a = Constant <value = int64[1] {1}> () t = Constant <value = int64[1] {8}> ()"
        "k = Slice (x, s, e, a, t) r = Constant <value = int64[2] {-1, 4}> () f = Reshape (k, r)"
        "g = Add (f, b) m = MatMul (g, w) q = Constant <value = int64[3] {1, -1, 3}> () y = Reshape (m, q) }"
    )
    model = autocast.from_onnx(onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 20]> {text}'))
    path = autocast.to_onnx(model, tmp_path / "sliced.onnx")
    shapes = dict(axes(onnx.load(path).graph.value_info))
    assert not any(shape[:1] == [1] and len(shape) == 2 for shape in shapes.values())
    for length in (2, 41):
        inputs = [torch.randn(1, length, 4), torch.randn(4, 3), torch.randn(4)]
        torch.testing.assert_close(run(path, *inputs)[0], torch.from_numpy(model(*(x.numpy() for x in inputs))))


def test_integers_are_multiplied_in_float32_that_onnxruntime_convolves(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(0)
    x = 255 * torch.randint(2, (2, 70, 6, 5), generator=generator, dtype=torch.uint8)
    places = torch.randint(2, (4, 70, 3, 3), generator=generator)
    weights = [torch.tensor([-128, 127], dtype=torch.int8)[places], torch.tensor([0, 255], dtype=torch.uint8)[places]]
    text = (
        "main (uint8[N, 70, 6, 5] x, int8[4, 70, 3, 3] v, uint8[4, 70, 3, 3] w) "
        "=> (int32[N, 4, 4, 3] y, int32[N, 4, 4, 3] u) "
        "{ z = Constant <value = uint8 {3}> () y = ConvInteger (x, v, z) u = ConvInteger (x, w, z) }"
    )
    model = autocast.from_onnx(onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 20]> {text}'))
    files = run(autocast.to_onnx(model, tmp_path / "conv.onnx"), x, *weights)
    modules, ours = autocast.to_torch(model)(x, *weights), model(x.numpy(), *(w.numpy() for w in weights))
    for at, w in enumerate(weights):
        expected = nn.functional.conv2d(x.double() - 3, w.double()).to(torch.int32)
        assert torch.equal(files[at], expected)
        assert torch.equal(modules[at], expected)
        assert torch.equal(torch.from_numpy(ours[at]), expected)


class _Transposed(nn.Module):
    """A linear layer over rows whose first two axes change places; the last one stays."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x.transpose(0, 1)) + 1


@pytest.mark.parametrize("dynamic", [None, {"n": ("x", 0)}])
def test_what_a_low_product_reads_is_transposed_before_it_is_cast(dynamic: Any, tmp_path: Path) -> None:
    x = torch.randn(2, 5, 4)
    model = amp.autocast(autocast.from_torch(_Transposed().eval(), (x,), dynamic=dynamic), dtype="float16")
    path = autocast.to_onnx(model, tmp_path / "transposed.onnx")
    nodes = {value: node for node in onnx.load(path).graph.node for value in node.output}
    (product,) = [node for node in nodes.values() if node.op_type == "MatMul"]
    read = nodes[product.input[0]]
    # onnxruntime 1.32 ends the process that loads the other order.
    assert (read.op_type, nodes[read.input[0]].op_type) == ("Cast", "Transpose")
    assert error(run(path, x), model(x)) < 2e-3


@pytest.mark.parametrize("dynamic", [None, {"h": ("x", 2, 16, 128), "w": ("x", 3, 16, 128)}])
def test_numbers_of_float64_keep_their_digits(dynamic: Any, tmp_path: Path) -> None:
    """A tenth of the places at which the image is read would be others, were 1.7 a number of float32."""

    class Enlarged(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return nn.functional.interpolate(x, scale_factor=1.7, mode="nearest")

    x = torch.randn(1, 2, 33, 47)
    path = autocast.to_onnx(autocast.from_torch(Enlarged(), (x,), dynamic=dynamic), tmp_path / "enlarged.onnx")
    (got,) = ort.InferenceSession(path).run(None, {"x": x.numpy()})
    assert torch.equal(torch.from_numpy(got), Enlarged()(x))
