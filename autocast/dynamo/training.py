"""Graphs that are trained: AOTAutograd makes a forward and a backward graph of each, and our kernels run both.

torch says what gradients are (of `detach`, `no_grad`, functions with a backward of their own), and carries them from
graph to graph; its partitioner says what the forward graph keeps for the backward one. What of that is read in low
precision alone is kept in low precision:

    forward(x, w): y, h: float32        backward(h: float32, dy): dw           backward(h: bfloat16, dy): dw
                                            h1 = astype(h, "bfloat16")    ->       dw = matmul(permute_dims(h), ...)
                                            dw = matmul(permute_dims(h1), ...)
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any
from unittest import mock

import torch
from torch import fx
from torch._dynamo.backends.common import aot_autograd
from torch._functorch import config as functorch
from torch._functorch._aot_autograd import graph_compile
from torch._functorch.aot_autograd import make_boxed_func
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch._guards import tracing
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.export import Dim
from torch.nn.attention import SDPBackend, sdpa_kernel

from autocast.dynamo.attention import with_attention
from autocast.dynamo.converters import BACKWARD
from autocast.dynamo.graphs import Graph, Inputs, Ready, real, value_of
from autocast.dynamo.layouts import keep_layouts
from autocast.dynamo.sharing import Sharing
from autocast.dynamo.sizes import OF_SIZES, follows, interpreted
from autocast.dynamo.sparse import Rest
from autocast.dynamo.statistics import without_running_ones, without_statistics
from autocast.dynamo.traceable import write_data
from autocast.errors import UnsupportedError
from autocast.frontend.exporting.dynamic import DynamicAxis
from autocast.frontend.importing.randomness import RANDOM_STATE, random_state
from autocast.frontend.splitting.splits import split_rightly
from autocast.frontend.translate import translate
from autocast.model.value import Model
from autocast.passes.store_parameters import store_signature
from autocast.policy import as_policy
from autocast.torch_target.asked import torch_dtype

aten = torch.ops.aten


def training_backend(
    graph: fx.GraphModule, example_inputs: Sequence[Any], options: Mapping[str, Any]
) -> Callable[..., Any]:
    """Compile a graph of Dynamo's, forward and backward."""
    step = _Step(options)
    compiler = aot_autograd(
        fw_compiler=step.forward,
        bw_compiler=step.backward,
        inference_compiler=step.inference,
        partition_fn=step.partition,
        decompositions={aten.native_dropout.default: _native_dropout},
    )
    with_attention(graph)
    write_data(graph.graph)
    # Our kernels write into none of what is saved, and a graph may be read twice. Where the configuration says so,
    # torch refuses that all the same after a backward pass that was the only one.
    none: Any = mock.patch.object(graph_compile, "collect_bw_donated_buffer_idxs", lambda *_: [], create=True)
    math = sdpa_kernel(SDPBackend.MATH)  # of what is left; others' backward is one operator, computed by nothing
    # Gradients of windows that overlap, as those of `unfold`, do not fit into the windows' own memory.
    dense = functorch.patch(guess_tangent_strides_as_outputs=False)
    with none, math, dense, split_rightly():
        compiled: Callable[..., Any] = compiler(graph, example_inputs)
    return compiled


def _native_dropout(x: torch.Tensor, rate: float, train: bool | None) -> tuple[torch.Tensor, torch.Tensor]:
    """Dropout by a mask that is drawn, which the backward graph reads, too."""
    if rate == 0 or train is False:
        return x.clone(), torch.ones_like(x, dtype=torch.bool)
    if rate == 1:
        return torch.zeros_like(x), torch.zeros_like(x, dtype=torch.bool)
    kept = aten.bernoulli.p(x, 1 - rate).to(torch.bool)
    return x * kept * (1 / (1 - rate)), kept


def _keep_drawn(joint: fx.GraphModule) -> None:
    """What is random in a checkpointed part is drawn once and kept, the bits that say what is dropped at best."""
    for node in joint.graph.nodes:
        if torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ()):
            for drawn in (node, *node.users):
                if drawn is node or getattr(value_of(drawn), "dtype", None) is torch.bool:
                    drawn.meta.pop("recompute", None)


def _is_real(node: Any) -> bool:
    """Whether a result is computed, and may be kept in low precision: complex numbers have no such dtype."""
    value = value_of(node) if getattr(node, "op", "") == "call_function" else None
    return isinstance(value, torch.Tensor) and not value.is_complex()


class _Step:
    """The compilers that AOTAutograd calls: of the forward graph, then of the backward one."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        self.options = options
        self._results = 0
        self._backward: _Backward | None = None

    def partition(self, joint: fx.GraphModule, inputs: Any, *, num_fwd_outputs: int, **options: Any) -> Any:
        """The forward and the backward graph: what costs little is computed again, not kept."""
        without_statistics(joint)
        without_running_ones(joint)
        _keep_drawn(joint)
        forward, backward = min_cut_rematerialization_partition(
            joint, inputs, num_fwd_outputs=num_fwd_outputs, **options
        )
        self._results = num_fwd_outputs
        results = forward.graph.output_node().args[0]
        computed = {node.name for node in results[num_fwd_outputs:] if _is_real(node)}
        returned = {node.name for node in results[:num_fwd_outputs] if isinstance(node, fx.Node)}
        self._backward = _Backward(backward, self.options, computed - returned)
        return forward, backward

    def forward(self, graph: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        """Compiles both: what the backward graph reads in low precision decides what this one keeps in it."""
        if self._backward is None:
            return self.inference(graph, inputs)
        if out_dtype := as_policy(**{"policy": None, **self.options}).out_dtype:
            raise UnsupportedError(
                f"torch.compile: got out_dtype={out_dtype!r} for a graph of which gradients are wanted, whose results "
                "have the dtypes that torch differentiates; expected none. Convert the result, result.to(...)"
            )
        with tracing(None), unset_fake_temporarily():
            self._backward.compile()
            low = self._backward.low
            results = graph.graph.output_node().args[0]
            kept = {i: low[node.name] for i, node in enumerate(results) if i >= self._results and node.name in low}
            return _Traced(graph, self.options, inputs, kept, results=self._results).compile()

    def backward(self, graph: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        """The graph that was compiled with the forward one."""
        compiled = self._backward
        if compiled is None or compiled.names != [node.name for node in graph.graph.find_nodes(op="placeholder")]:
            raise UnsupportedError(
                "torch.compile: backend='autocast' was given another backward graph than torch's partitioner made, "
                "expected the same: an option or hook of torch changes it. Compile without it"
            )
        return make_boxed_func(compiled)

    def inference(self, graph: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        """A graph of which no gradients are wanted after all."""
        with tracing(None), unset_fake_temporarily():
            return _Traced(graph, self.options, inputs).compile()


class _Traced(Graph):
    """A graph of AOTAutograd's: all that it takes are inputs, and it changes none.

    Parameters
    ----------
    low : mapping of int to torch.dtype, optional
        Which results are kept in low precision.
    results : int, optional
        How many of them the program sees, which have torch's strides; all if omitted.
    """

    def __init__(
        self,
        body: fx.GraphModule,
        options: Mapping[str, Any],
        examples: Sequence[Any],
        low: Mapping[int, torch.dtype] | None = None,
        results: int | None = None,
    ) -> None:
        self.low = low or {}
        self.examples = examples
        prepared = _prepared(body)
        self.rest = Rest(prepared)
        super().__init__(prepared, options, examples)
        returned = body.graph.output_node().args[0]
        count = self.rest.count if results is None else results
        shown = [position for position in self.results if position < count]
        #: Of results that are laid out otherwise: the order of their axes in memory, or where their elements lie.
        self.orders: dict[int, tuple[int, ...]] = {}
        self.places: dict[int, tuple[Any, ...]] = {}
        for position in shown:
            value = value_of(returned[position])
            if not _is_dense(value):
                self.places[position] = (*value.stride(), value.storage_offset())
            elif (order := _order(value)) is not None:
                self.orders[position] = order

    def compile(self) -> Callable[..., Any]:
        """This, ready for its examples, as AOTAutograd calls it."""
        self.prepare(self.examples)
        return make_boxed_func(self)

    def __call__(self, *inputs: Any) -> tuple[Any, ...]:
        results = super().__call__(*inputs)
        return self.rest.results(results) if self.rest.positions else results

    def shared(self, inputs: Mapping[int, torch.Tensor], results: Mapping[int, torch.Tensor]) -> Sharing:
        """No results do: AOTAutograd makes views of them."""
        return Sharing({}, {})

    def kept(self, position: int, result: torch.Tensor) -> torch.Tensor:
        """A result in the precision in which it is kept."""
        return result.to(self.low[position]) if position in self.low else result

    def by_torch(self, inputs: Sequence[Any]) -> tuple[Any, ...]:
        """As torch's operators compute it, kept as our kernels keep it."""
        return tuple(self.kept(position, result) for position, result in enumerate(super().by_torch(inputs)))

    def is_weight(self, value: torch.Tensor) -> bool:
        """Whether it seldom changes: weights do in each step."""
        return False

    def imported(self, inputs: Sequence[Any]) -> Model:
        """The graph as a model; its sizes may be computed of one another, and torch finds out which are."""
        axes, order = [], {position: i for i, position in enumerate(self.tensors)}
        if not self.is_static:
            for size, places in self.axes.items():
                axes += [DynamicAxis(order[i], axis, Dim.AUTO, self.name_of(size)) for i, axis in places]
            names = {i: name for name, (i, axis) in self.symbols.items() if axis is None}
            axes += [DynamicAxis(len(order) + i, 0, Dim.AUTO, names[at]) for i, at in enumerate(self.carried)]
        given: Any = tuple(self.tensors_of(inputs)), {}, tuple(axes)
        return translate(Inputs(self, inputs), given, random_state(0), "torch", BACKWARD)

    def is_carried(self, value: Any) -> bool:
        """Whether a number that is the size of no tensor may differ from call to call: one that varies."""
        return isinstance(value, torch.SymInt) and value.node.expr.is_symbol

    def related(self, given: Mapping[int, Any], known: Mapping[str, Any]) -> dict[int, torch.Tensor]:
        """Sizes that had one name are equal; tensors with sizes that were computed of others have these again."""
        computed: dict[int, list[Any]] = {}
        for name, places in self.axes.items():
            size = interpreted(self.varying[name].node.expr, known) if follows(self.varying[name], known) else None
            for tensor, axis in places:
                if size is None:
                    torch._check(given[tensor].shape[axis] == known[name])
                else:
                    computed.setdefault(tensor, list(given[tensor].shape))[axis] = size
        return {tensor: OF_SIZES(given[tensor], sizes) for tensor, sizes in computed.items()}

    def ready(self, inputs: Sequence[Any]) -> Ready:
        """What runs these inputs. torch's generator seeds what it draws: `torch.utils.checkpoint` sets that back, and
        has the same drawn again."""
        ready = super().ready(inputs)
        if RANDOM_STATE in ready.executable.state:
            seed = torch.randint(-(2**31), 2**31, (2,), dtype=torch.int32, device="cpu")
            ready.executable.load_state({RANDOM_STATE: seed})
        return ready

    def computed(self, inputs: Sequence[Any]) -> tuple[torch.Tensor, ...]:
        """The results that are computed, with the strides that torch traced with."""
        computed = super().computed(inputs)
        if not (self.orders or self.places):
            return computed
        results = dict(zip(self.results, computed, strict=True))
        results |= {position: _laid_out(results[position], order) for position, order in self.orders.items()}
        for position, numbers in self.places.items():
            *strides, start = (self.number(inputs, {}, number) for number in numbers)
            results[position] = _placed(results[position], strides, start)
        return tuple(results.values())


class _Backward(_Traced):
    """A backward graph, which takes in low precision what it reads in that alone.

    Attributes
    ----------
    low : dict of str to torch.dtype
        The inputs that it takes so, once it is compiled: some of those that may be kept so.
    """

    def __init__(self, body: fx.GraphModule, options: Mapping[str, Any], may: Collection[str]) -> None:
        placeholders = body.graph.find_nodes(op="placeholder")
        self.names = [node.name for node in placeholders]
        self.may = may
        super().__init__(body, options, list(map(value_of, placeholders)))
        self.low = {}

    def imported(self, inputs: Sequence[Any]) -> Model:
        """The graph as a model, of inputs as torch traced them."""
        return super().imported(self.wide(inputs))

    def wide(self, inputs: Sequence[Any]) -> list[Any]:
        """Inputs as torch traced them: the forward graph keeps some in low precision."""
        pairs = zip(inputs, map(value_of, self.body.graph.find_nodes(op="placeholder")), strict=True)
        return [x.to(traced.dtype) if isinstance(x, torch.Tensor) else x for x, traced in pairs]

    def by_torch(self, inputs: Sequence[Any]) -> tuple[Any, ...]:
        """As torch's operators compute it, of inputs as torch traced them."""
        return super().by_torch(self.wide(inputs))

    def computed(self, inputs: Sequence[Any]) -> tuple[torch.Tensor, ...]:
        """The results that are computed; by torch's operators, where several gradients are wanted at a time."""
        if any(torch._C._functorch.is_legacy_batchedtensor(x) for x in inputs if isinstance(x, torch.Tensor)):
            results = self.by_torch(inputs)
            return tuple(results[position] for position in self.results)
        return super().computed(inputs)

    def cast(self, model: Model) -> Model:
        """The model with its casts, but for those of inputs of which low precision alone is read."""
        model = super().cast(model)
        names = {model.main.params[i].name: self.names[at] for i, at in enumerate(self.tensors)}
        may = [name for name, traced in names.items() if traced in self.may]
        dtype = str(model.report.dtype)
        mod, stored = store_signature(model.mod, dtype, may)
        self.low = {names[name]: torch_dtype(dtype) for name in stored}
        self.may = {names[name] for name in stored}  # the forward graph goes by that from now on, for all numbers
        return model.replace(mod=mod)


def _prepared(body: fx.GraphModule) -> fx.GraphModule:
    """A copy of the graph for inputs that are dense: AOTAutograd's may be views of others, with other strides.

    What it keeps for the backward is detached, which is for torch, that differentiates.
    """
    graph = fx.Graph()
    graph.output(graph.graph_copy(body.graph, {}))
    for node in graph.find_nodes(op="call_function", target=aten.detach.default):
        node.replace_all_uses_with(node.args[0])
        graph.erase_node(node)
    for target in (aten.view.default, aten._unsafe_view.default):
        for node in graph.find_nodes(op="call_function", target=target):
            node.target = aten.reshape.default
    keep_layouts(graph)
    return fx.GraphModule(body, graph)


def _is_dense(value: torch.Tensor) -> bool:
    """Whether a tensor is all of its memory, in the sizes that torch traced with, if it did: a view may be a part."""
    sizes, strides, start = list(map(real, value.shape)), list(map(real, value.stride())), real(value.storage_offset())
    if None in (*sizes, *strides, start):  # values decide
        return True
    count = 1
    for stride, size in sorted(zip(strides, sizes, strict=True)):
        if size != 1 and stride != count:
            return False
        count *= size
    return start == 0 or not count


def _order(value: torch.Tensor) -> tuple[int, ...] | None:
    """The axes of a tensor from the outermost in memory to the innermost; None where that is their own order."""
    order = tuple(sorted(range(value.ndim), key=lambda axis: -value.stride(axis)))
    return None if value.is_contiguous() or order == tuple(range(value.ndim)) else order


def _laid_out(value: torch.Tensor, order: tuple[int, ...]) -> torch.Tensor:
    """The tensor with its axes in this order in memory."""
    inverse = sorted(range(value.ndim), key=order.__getitem__)
    return value.permute(order).contiguous().permute(inverse)


def _placed(value: torch.Tensor, strides: Sequence[int], start: int) -> torch.Tensor:
    """The tensor with its elements that far from one another in memory: torch makes views like it of other memory."""
    if not value.numel():
        return value.new_empty(0).as_strided(value.shape, strides, start)
    count = start + 1 + sum((size - 1) * stride for size, stride in zip(value.shape, strides, strict=True))
    placed = value.new_empty(count).as_strided(value.shape, strides, start)
    if torch._debug_has_internal_overlap(placed) == 0:
        return placed.copy_(value)
    places = torch.arange(count).as_strided(value.shape, strides, start).reshape(-1)  # some are the same
    memory = value.new_empty(count).index_copy_(0, places, value.reshape(-1))
    return memory.as_strided(value.shape, strides, start)
