"""Forms that torch's kernels for CPUs compute faster: the same numbers, and only where they are the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import fx, nn

import autocast
from autocast import amp, vm
from autocast.frontend.converters.recurrent import Recurrence
from autocast.runtime.tensors import to_tensor
from autocast.torch_target.convert import to_graph
from autocast.torch_target.eager import use_fast_forms
from autocast.torch_target.folding import fold
from autocast.torch_target.library_forms import PackedConvolution, use_library_forms, with_channels_last
from autocast.torch_target.library_lstm import PackedLSTM
from autocast.training import SGD, CrossEntropy, training_step
from autocast.vm.generic import Generic

_THRESHOLD = torch.ops.aten.threshold_backward


def _fast(model: autocast.Model) -> fx.Graph:
    root, graph = to_graph(model, widened=())
    use_fast_forms(root, graph)
    return graph


def _count(graph: fx.Graph, target: Any) -> int:
    return len(graph.find_nodes(op="call_function", target=target))


def _model(function: Callable[..., torch.Tensor], *inputs: torch.Tensor, **options: Any) -> autocast.Model:
    class Module(nn.Module):
        def forward(self, *given: torch.Tensor) -> torch.Tensor:
            return function(*given)

    return autocast.from_torch(Module(), inputs, **options)


def test_a_step_of_batch_norm_and_relu_is_what_it_was() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(288, 4)).train()
    images, labels = 3 + torch.randn(5, 3, 8, 8), torch.randint(0, 4, (5,))
    step = training_step(autocast.from_torch(module, (images,)), CrossEntropy(), SGD(momentum=0.9))
    graph = _fast(step)
    assert (_count(graph, torch.var), _count(graph, _THRESHOLD)) == (0, 1)

    generic, compiled = Generic(step), vm.compile(step)
    inputs = (images, labels, torch.tensor(0.1))
    for _ in range(2):
        losses = [torch.from_dlpack(run(*inputs)) for run in (generic, compiled)]
        torch.testing.assert_close(*losses, rtol=1e-5, atol=1e-6)
    for name, value in generic.state.items():
        torch.testing.assert_close(
            torch.from_dlpack(value), torch.from_dlpack(compiled.state[name]), rtol=1e-4, atol=1e-5
        )


@pytest.mark.parametrize("keepdim", [False, True])
def test_a_variance_is_a_mean_of_squares(keepdim: bool) -> None:
    x = 100 + torch.randn(4, 7, 5)
    model = _model(lambda x: x.var((0, 2), correction=0, keepdim=keepdim), x)
    assert _count(_fast(model), torch.var) == 0
    torch.testing.assert_close(torch.from_dlpack(Generic(model)(x)), x.var((0, 2), correction=0, keepdim=keepdim))


def _chosen(x: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
    return torch.where(x <= 0, 0.0, g)


def test_zero_where_something_is_below_zero_is_a_threshold() -> None:
    special = torch.tensor([torch.nan, torch.inf, -torch.inf, -0.0, 0.0, 1e-45, -1.0, 1.0])
    x, g = special.repeat(8), special.repeat_interleave(8)
    model = _model(_chosen, x, g)
    assert _count(_fast(model), _THRESHOLD) == 1
    torch.testing.assert_close(torch.from_dlpack(Generic(model)(x, g)), _chosen(x, g), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize(
    ("function", "shape", "options"),
    [
        (lambda x, g: torch.where(x <= 0, 0.0, g.sum(0)), (3, 4), {}),  # of another shape
        (lambda x, g: torch.where(x <= 0, 0.0, g.double()), (3, 4), {}),  # of another dtype
        (lambda x, g: torch.where(x <= 0, 0.5, g), (3, 4), {}),
        (lambda x, g: torch.where(x <= 0.5, 0.0, g), (3, 4), {}),
        (lambda x, g: torch.where(x < 0, 0.0, g), (3, 4), {}),
        (lambda x, g: torch.where(x <= 0, g, 0.0), (3, 4), {}),
        (_chosen, (3, 4), {"dynamic": {"rows": ("*", 0, 1, 8)}}),  # equal, but not known to be
    ],
)
def test_other_choices_stay(function: Any, shape: tuple[int, ...], options: dict[str, Any]) -> None:
    x, g = torch.randn(shape), torch.randn(shape)
    model = _model(function, x, g, **options)
    graph = _fast(model)
    assert (_count(graph, _THRESHOLD), _count(graph, torch.where)) == (0, 1)
    torch.testing.assert_close(torch.from_dlpack(Generic(model)(x, g)), function(x, g))


def test_convolutions_are_what_they_were_with_channels_last_and_packed_weights() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(3, 16, 3, 2, 1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(3, 2, 1), nn.Conv2d(16, 8, 3, groups=2)
    ).eval()
    net[1].running_mean.normal_(), net[1].running_var.uniform_(0.5, 2)
    imported = autocast.from_torch(net, (torch.randn(2, 3, 33, 32),), dynamic={"n": ("input", 0, 0), "h": ("input", 2)})
    for model, tolerance in ((imported, 1e-5), (amp.autocast(imported), 2e-2)):
        generic = Generic(model)
        for shape in ((2, 3, 33, 32), (2, 3, 33, 32), (0, 3, 33, 32), (1, 3, 40, 32)):
            images = torch.randn(shape)
            got = torch.from_dlpack(generic(to_tensor(images)))
            assert got.is_contiguous() and got.dtype == torch.float32
            torch.testing.assert_close(got, net(images), rtol=tolerance, atol=tolerance)


def test_a_norm_of_16_bits_reads_and_writes_them_and_channels_are_moved() -> None:
    net = nn.Sequential(nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 1)).eval()
    root, graph = to_graph(amp.autocast(autocast.from_torch(net, (torch.randn(2, 3, 9, 9),))), widened=())
    fold(root, graph)
    casts = len(graph.find_nodes(op="call_method", target="to"))
    use_library_forms(root, graph, constant=True)
    assert len(graph.find_nodes(op="call_method", target="to")) == casts - 2
    (norm,) = graph.find_nodes(op="call_function", target=nn.functional.batch_norm)
    packs = torch.ops.mkldnn._is_mkldnn_bf16_supported()  # where AVX-512 is
    assert isinstance(norm.args[0].target, PackedConvolution) == packs
    assert len(graph.find_nodes(op="call_function", target=with_channels_last)) == 2


def test_the_channels_of_one_image_come_last_for_torch_too() -> None:
    rows = torch.randn(1, 12, 5)
    view = rows.permute(0, 2, 1).reshape(1, 5, 3, 4)  # the stride of its batch of one is 5
    for images in (view, torch.randn(1, 5, 3, 4), torch.randn(2, 5, 3, 4), torch.randn(1, 5, 0, 4)):
        got = with_channels_last(images)
        assert torch.equal(got, images) and got.stride() == (images[0].numel(), 1, 5 * images.shape[3], 5)
    assert with_channels_last(view).data_ptr() == view.data_ptr()


def test_resizing_has_channels_last() -> None:
    net = nn.Upsample(scale_factor=2, mode="bilinear")
    images = torch.randn(1, 5, 3, 4)
    model = autocast.from_torch(net, (images,))
    root, graph = to_graph(model, widened=())
    use_library_forms(root, graph, constant=True)
    (resized,) = graph.find_nodes(op="call_function", target=nn.functional.interpolate)
    assert resized.args[0].target is with_channels_last
    torch.testing.assert_close(torch.from_dlpack(Generic(model)(to_tensor(images))), net(images))


def test_rows_of_a_turned_view_are_multiplied_at_once_by_a_weight_that_is_widened() -> None:
    class Turned(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x.permute(1, 0, 2)).exp()

    net, x = Turned(6, 4), torch.randn(3, 5, 6)
    model = amp.autocast(autocast.from_torch(net, (x,)))
    root, graph = to_graph(model, widened=())
    use_fast_forms(root, graph)
    (product,) = graph.find_nodes(op="call_function", target=nn.functional.linear)
    assert product.args[0].target == "contiguous" and not graph.find_nodes(op="call_function", target=torch.matmul)
    torch.testing.assert_close(torch.from_dlpack(Generic(model)(to_tensor(x))), net(x).detach(), rtol=2e-2, atol=2e-2)


def test_inputs_may_have_the_names_of_methods() -> None:
    class Named(nn.Linear):
        def forward(self, to: torch.Tensor, permute: torch.Tensor) -> torch.Tensor:
            return super().forward(to) @ permute + to @ permute

    net, inputs = Named(4, 4), (torch.randn(4, 4), torch.randn(4, 4))
    model = autocast.from_torch(net, inputs)
    for call in (autocast.to_torch(model), lambda *given: torch.from_dlpack(Generic(model)(*map(to_tensor, given)))):
        torch.testing.assert_close(call(*inputs), net(*inputs))


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize("width", [8, 300])
def test_recurrences_keep_their_packed_weights(kind: type[nn.Module], width: int) -> None:
    torch.manual_seed(0)
    net, sequence = kind(5, width, 2).eval(), torch.randn(7, 3, 5)
    model = autocast.from_torch(net, (sequence,))
    root, graph = to_graph(model, widened=())
    fold(root, graph)
    use_library_forms(root, graph, constant=True)
    packed = PackedLSTM if kind is nn.LSTM else Recurrence
    assert sum(isinstance(node.target, packed) for node in graph.nodes) == 2
    generic = Generic(model)
    for inputs in (sequence, sequence * 3):
        wanted, _ = net(inputs)
        got = torch.from_dlpack(generic(to_tensor(inputs))[0])
        torch.testing.assert_close(got, wanted.detach(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "options", [{}, {"bias": False, "batch_first": True}, {"num_layers": 2, "bidirectional": True}]
)
def test_the_library_computes_lstms_of_all_sizes_and_keeps_last_states_wide(options: dict[str, Any]) -> None:
    torch.manual_seed(0)
    net = nn.LSTM(5, 40, **options).eval()
    sizes = {"n": ("input", 0, 1), "m": ("input", 1, 1)}
    imported = autocast.from_torch(net, (torch.randn(7, 3, 5),), dynamic=sizes)
    for model, tolerance in ((imported, 1e-5), (amp.autocast(imported), 1e-2)):
        generic = Generic(model)
        for shape in ((7, 3, 5), (4, 1, 5), (1, 2, 5)):
            sequence = torch.randn(shape)
            wanted, last = net(sequence)
            for one, other in zip(generic(to_tensor(sequence)), (wanted, *last), strict=True):
                torch.testing.assert_close(torch.from_dlpack(one), other.detach(), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("reads_last", [False, True])
def test_the_library_computes_an_lstm_of_16_bits_whose_last_hidden_state_nobody_reads(reads_last: bool) -> None:
    class Encoder(nn.LSTM):
        def forward(self, sequence: torch.Tensor) -> Any:
            hiddens, (last, _) = super().forward(sequence)
            return (hiddens, last) if reads_last else hiddens

    torch.manual_seed(0)
    net, sequence = Encoder(6, 33).eval(), torch.randn(5, 2, 6)
    model = amp.autocast(autocast.from_torch(net, (sequence,)))
    root, graph = to_graph(model, widened=())
    use_fast_forms(root, graph)
    fold(root, graph)
    use_library_forms(root, graph, constant=True)
    lstm = PackedLSTM()
    is_supported = torch.ops.mkldnn._is_mkldnn_bf16_supported()
    assert any(isinstance(node.target, PackedLSTM) for node in graph.nodes) == (is_supported and not reads_last)
    generic = Generic(model)
    for _ in range(2):
        got = generic(to_tensor(sequence))
        got = torch.from_dlpack(got[0] if reads_last else got)
        wanted = net(sequence)[0] if reads_last else net(sequence)
        torch.testing.assert_close(got, wanted.detach(), rtol=1e-2, atol=1e-2)
    nothing = [torch.randn(*shape) for shape in ((0, 2, 6), (132, 6), (132, 33), (132,), (2, 33), (2, 33))]
    hiddens, last, cells = lstm(*nothing, False)
    assert hiddens.shape == (0, 2, 33) and torch.equal(last, nothing[4]) and torch.equal(cells, nothing[5])


def test_a_weight_is_packed_in_the_second_call() -> None:
    x, weight, options = torch.randn(2, 3, 9, 9), torch.randn(4, 3, 3, 3), ((2, 1), (1, 0), (1, 1), 1)
    convolution = PackedConvolution()
    for packed in (False, True, True):
        got = convolution(x, weight, None, *options)
        torch.testing.assert_close(got, torch.conv2d(x, weight, None, *options), rtol=1e-5, atol=1e-5)
        assert (convolution._packed is not None) is packed
