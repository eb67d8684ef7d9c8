"""Graphs of torch that are imported, cast and compiled, with what of their inputs and results is no tensor."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import torch
from torch import fx
from torch._higher_order_ops.effects import with_effects
from torch._subclasses.fake_tensor import FakeTensor

from autocast import amp
from autocast.dynamo.sharing import Sharing
from autocast.dynamo.sizes import bounds_of, follows, interpreted
from autocast.dynamo.traceable import make_traceable
from autocast.errors import ImportModelError, UnsupportedError
from autocast.frontend import from_torch
from autocast.frontend.exporting.conditions import ASSUMED, Assumed, Condition, guarded
from autocast.frontend.watching import is_watched_when_compiled
from autocast.frontend.writes import Samples
from autocast.kernels import detect_target
from autocast.model.value import Model
from autocast.runtime.executable import Executable
from autocast.runtime.tensors import from_tensor, memory_of, to_tensor
from autocast.runtime.variant import Variant
from autocast.runtime.writing import SharedInputsError
from autocast.torch_target.asked import torch_dtype
from autocast.vm.compile import variant_of


class LeftToAutograd(UnsupportedError):
    """A graph that infers does what AOTAutograd writes in other words: it changes tensors besides its results, or
    returns a part of an input whose size values decide."""


#: How many sets of weights and plain numbers a graph is kept ready for: layers of a network may share its graph.
_KEPT = 64

#: Numbers that torch has not computed: of sizes, and of plain numbers that differ from call to call.
_SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)


def plain(value: Any) -> Any:
    """A number that may be in a tensor."""
    return value.item() if isinstance(value, torch.Tensor) else value


def real(value: Any) -> Any:
    """An example: sizes as numbers, and tensors that have no values with zeros."""
    if isinstance(value, torch.SymInt):
        return value.node.hint
    if isinstance(value, FakeTensor):
        return torch.zeros([real(size) for size in value.shape], dtype=value.dtype)
    return value


def _complex(pairs: torch.Tensor) -> torch.Tensor:
    """The complex numbers of pairs, in their memory: to autograd no view, so that the program may write into them."""
    numbers = torch.view_as_complex(pairs)
    return torch.ops.aten._unsafe_view(numbers, numbers.shape)


class Inputs(torch.nn.Module):
    """The graph as a module that holds its weights, takes its tensors and returns tensors alone."""

    def __init__(self, graph: Graph, inputs: Sequence[Any]) -> None:
        super().__init__()
        self.body, self.graph, self.numbers = graph.body, graph, graph.numbers_of(inputs)
        self.__dict__[ASSUMED] = graph.assumed
        for position in graph.weights:
            value = inputs[position].detach()
            if value.is_complex():  # of buffers an import makes constants of them
                self.register_parameter(_name(position), torch.nn.Parameter(value, requires_grad=False))
            else:
                self.register_buffer(_name(position), value)
        self.eval()

    def forward(self, *tensors: torch.Tensor) -> Any:
        graph, values = self.graph, iter(tensors)
        given: dict[int, Any] = {position: next(values) for position in graph.tensors}
        given |= {position: torch.view_as_complex(given[position]) for position in graph.pairs}
        given |= {position: next(values).shape[0] for position in graph.carried}
        given |= {position: getattr(self, _name(position)) for position in graph.weights}
        given |= {i: graph.number_at(i, number) for i, number in zip(graph.numbers, self.numbers, strict=True)}
        known = {at: given[i] if axis is None else given[i].shape[axis] for at, (i, axis) in graph.symbols.items()}
        given |= graph.related(given, known)
        given |= {position: given[tensor].shape[axis] for position, (tensor, axis) in graph.sizes.items()}
        given |= {position: interpreted(size, known) for position, size in graph.followed.items()}
        results = self.body(*(given[position] for position in range(len(given))))
        return tuple(graph.kept(position, results[position]) for position in graph.results)


def _strided(tensors: Mapping[int, torch.Tensor]) -> dict[int, torch.Tensor]:
    """Those that lie in memory as plain tensors do."""
    kinds = (torch.Tensor, torch.nn.Parameter, FakeTensor)
    return {i: x for i, x in tensors.items() if type(x) in kinds and x.layout == torch.strided}


def _name(position: int) -> str:
    return f"weight_{position}"


@dataclass(frozen=True)
class _Code:
    """What one graph was compiled to: its parameters are read where the torch tensors in `weights` are."""

    model: Model
    variant: Variant

    def ready(self, weights: Mapping[str, torch.Tensor]) -> Executable:
        """An executable with these weights."""
        if not weights:
            return Executable(self.variant)
        params = []
        for name, value in self.model.params.items():
            if name in weights:
                given = weights[name]
                given = torch.view_as_real(given.resolve_conj()) if given.is_complex() else given
                value = to_tensor(given.to(torch_dtype(str(value.dtype))))
            params.append(to_tensor(value))
        return Executable(replace(self.variant, params=params))


class Ready:
    """An executable, and the weights that it was made with."""

    def __init__(self, weights: Mapping[str, torch.Tensor], make: Callable[[Mapping[str, torch.Tensor]], Executable]):
        self.weights = weights
        self._versions, self._samples = _versions(weights), Samples(list(weights.values()))
        self._sampled = self._samples()
        self.executable = make(weights)

    def is_current(self) -> bool:
        """Whether the weights have the values that it was made with."""
        return self._versions == _versions(self.weights) and self._sampled == self._samples()

    @cached_property
    def memories(self) -> frozenset[int]:
        """The memory of the weights."""
        return frozenset(map(memory_of, self.weights.values()))


def _versions(weights: Mapping[str, torch.Tensor]) -> list[tuple[int, int]]:
    """What differs once a weight is written in place, or its memory is exchanged."""
    return [(0 if w.is_inference() else w._version, w.data_ptr()) for w in weights.values()]


class Graph:
    """A graph of Dynamo's with the code for it.

    Its inputs, by position: `weights` are parameters and buffers, `tensors` the other tensors, `sizes` those numbers
    that are a tensor's size (its position and axis), `numbers` the rest, of which each value has code of its own, but
    for sizes that are `carried`, by a tensor without elements, and those that are `followed` from others.
    """

    def __init__(self, body: fx.GraphModule, options: Mapping[str, Any], examples: Sequence[Any]) -> None:
        self.body, self.options = body, options
        make_traceable(body)
        placeholders = [node for node in body.graph.nodes if node.op == "placeholder"]
        values = list(map(value_of, placeholders))
        tensors = [i for i, value in enumerate(examples) if isinstance(value, torch.Tensor)]
        self.weights = [i for i in tensors if self.is_weight(examples[i])]
        self.tensors = [i for i in tensors if i not in self.weights]
        #: Of these, those that are complex: the model has real and imaginary parts along a last axis.
        self.pairs = [i for i in self.tensors if examples[i].is_complex()]
        #: Of these, tokens, by which checks that may raise are ordered: None when the graph runs.
        self.tokens = {i for i in self.tensors if any(user.target is with_effects for user in placeholders[i].users)}
        #: Of each size that varies, by name: where the tensors are that have it, and its axis.
        self.axes: dict[str, list[tuple[int, int]]] = {}
        self.bounds: dict[str, tuple[int | None, ...]] = {}
        self.varying: dict[str, torch.SymInt] = {}
        for i in self.tensors:
            for axis, size in enumerate(values[i].shape):
                if isinstance(size, torch.SymInt):
                    self.axes.setdefault(str(size), []).append((i, axis))
                    self.bounds[str(size)], self.varying[str(size)] = bounds_of(size), size
        rest = [i for i in range(len(examples)) if i not in tensors]
        self.sizes = {i: self.axes[str(values[i])][0] for i in rest if str(values[i]) in self.axes}
        self.carried = [i for i in rest if i not in self.sizes and self.is_carried(values[i])]
        rest = [i for i in rest if i not in self.sizes and i not in self.carried]
        told = {*self.axes, *(str(values[i]) for i in self.carried)}
        #: Numbers that are computed of the sizes that tensors tell, and how.
        self.followed = {i: values[i].node.expr for i in rest if follows(values[i], told)}
        self.numbers = [i for i in rest if i not in self.followed]
        #: Of the tensors, those that Dynamo makes of floating-point numbers: no more tensors where torch wants values.
        self.floats = [i for i in self.tensors if _is_float(placeholders[i], values[i])]
        self.wrapped = frozenset(self.floats)
        #: Of each number that varies: the input that says it, and its axis.
        self.symbols: dict[str, tuple[int, int | None]] = {name: places[0] for name, places in self.axes.items()}
        self.symbols |= {str(values[i]): (i, None) for i in (*self.carried, *self.numbers)}
        self.symbols |= {str(value_of(item)): (i, None) for i in self.floats for item in placeholders[i].users}
        self.results, self.passed, self.others = self._outputs(placeholders)
        returned = body.graph.output_node().args[0]
        given, made = {i: values[i] for i in tensors}, {i: value_of(returned[i]) for i in self.results}
        self.sharing = self.shared(_strided(given), _strided(made))
        self.results = [i for i in self.results if i not in self.sharing.owners]
        if not self.sharing.symbols <= self.symbols.keys():
            raise LeftToAutograd("torch.compile: values decide the size of a result that is a part of an input")
        #: Results that are complex.
        self.complex = {i for i in self.results if value_of(returned[i]).is_complex()}
        #: Whether there is code for each size: torch knows of sizes that vary what holds for some alone.
        self.is_static = False
        self._codes: dict[tuple[Any, ...], _Code] = {}
        self._ready: dict[tuple[Any, ...], Ready] = {}

    def _outputs(self, placeholders: Sequence[fx.Node]) -> tuple[list[int], dict[int, int], dict[int, Any]]:
        """The positions of the results that are computed tensors; of those that are inputs, and which; the others:
        constants and numbers that sizes and plain numbers say."""
        inputs = {node: i for i, node in enumerate(placeholders)}
        tensors, passed, others = [], {}, {}
        for position, result in enumerate(self.body.graph.output_node().args[0]):
            value = value_of(result) if isinstance(result, fx.Node) else result
            symbols = set(map(str, value.node.expr.free_symbols)) if isinstance(value, _SYMBOLIC) else None
            if isinstance(value, torch.Tensor):
                if result in inputs:
                    passed[position] = inputs[result]
                else:
                    tensors.append(position)
            elif not isinstance(result, fx.Node) or (symbols is not None and symbols <= self.symbols.keys()):
                others[position] = value
            else:
                raise UnsupportedError(
                    f"torch.compile: backend='autocast' was given a graph that returns {result.name}, which is a "
                    f"{type(value).__name__}; expected tensors and their sizes. Compute it outside of the graph"
                )
        return tensors, passed, others

    @property
    def assumed(self) -> Assumed:
        """What torch checks of sizes before it calls the graph, and which are computed of others."""
        sizes = {self.name_of(name): size.node for name, size in self.varying.items()}
        environment = next((node.shape_env for node in sizes.values()), None)
        conditions = [] if environment is None else list(map(Condition, guarded(environment)))
        return Assumed(
            conditions, {name: Condition(node.expr) for name, node in sizes.items() if not node.expr.is_symbol}
        )

    def name_of(self, size: str) -> str:
        """The name of a dimension: torch's symbol; of sizes that are computed of others one by their order."""
        return size if size.isidentifier() else f"size_{list(self.axes).index(size)}"

    def numbers_of(self, inputs: Sequence[Any]) -> tuple[Any, ...]:
        """The plain numbers among the inputs."""
        return tuple(plain(inputs[i]) for i in self.numbers)

    def number_at(self, position: int, number: float) -> Any:
        """A plain number as the graph takes it."""
        return torch.tensor(number, dtype=torch.float64) if position in self.wrapped else number

    def key_of(self, inputs: Sequence[Any]) -> tuple[Any, ...]:
        """What there is code of its own for: each value of plain numbers, and each size where sizes do not vary."""
        shapes = (tensor.shape for tensor in self.tensors_of(inputs)) if self.is_static else ()
        return *self.numbers_of(inputs), *shapes

    def tensors_of(self, inputs: Sequence[Any]) -> list[torch.Tensor]:
        """What the model takes."""
        tensors = [inputs[i] for i in self.tensors]
        if self.tokens:
            tensors = [torch.empty(0) if i in self.tokens else x for i, x in zip(self.tensors, tensors, strict=True)]
        if self.pairs:
            tensors = [torch.view_as_real(x.resolve_conj()) if x.is_complex() else x for x in tensors]
        return [*tensors, *(torch.empty(inputs[i], 0) for i in self.carried)]

    def __call__(self, *inputs: Any) -> tuple[Any, ...]:
        if not self.results or is_watched_when_compiled():  # it may write into inputs all the same, or seed a generator
            return self.by_torch(inputs)
        try:
            computed = self.computed(inputs)
        except SharedInputsError:  # nor has torch asked whether one that is written into is a part of another
            return self.by_torch(inputs)
        if not self.passed and not self.others and not self.sharing:
            return computed
        results = dict(zip(self.results, computed, strict=True))
        number = partial(self.number, inputs, results)
        self.sharing.share(results, number)
        results |= {i: inputs[position] for i, position in self.passed.items()}
        results |= {i: self.sharing.view(i, inputs[owner], number) for i, owner in self.sharing.owners.items()}
        results |= {i: number(other) for i, other in self.others.items()}
        return tuple(results[i] for i in range(len(results)))

    def by_torch(self, inputs: Sequence[Any]) -> tuple[Any, ...]:
        """What torch's own operators return and do."""
        return tuple(self.body(*inputs))

    def computed(self, inputs: Sequence[Any]) -> tuple[torch.Tensor, ...]:
        """The results that are computed, in the order of `results`."""
        ready = self.ready(inputs)
        tensors, executable = self.tensors_of(inputs), ready.executable
        if not ready.memories.isdisjoint(memory_of(tensors[i]) for i in executable.signature.written):
            raise SharedInputsError("a weight is a view of an input that the model writes into")
        results = executable(*tensors) if tensors else from_tensor(executable.run(executable.arguments(())), "torch")
        results = results if isinstance(results, tuple) else (results,)
        if self.complex:
            pairs = zip(self.results, results, strict=True)
            results = tuple(_complex(result) if i in self.complex else result for i, result in pairs)
        return results

    def number(self, inputs: Sequence[Any], results: Mapping[int, torch.Tensor], value: Any) -> Any:
        """What is no tensor: a constant, or a number that plain ones and sizes say, of the inputs or of the `results`
        so far."""
        if not isinstance(value, _SYMBOLIC):
            return value
        expression, known = value.node.expr, {}
        if not self.symbols.keys() >= set(map(str, expression.free_symbols)):  # values decide it
            expression = expression.subs(self.sharing.sizes(results))
        for name in map(str, expression.free_symbols):
            place, axis = self.symbols[name]
            known[name] = plain(inputs[place]) if axis is None else inputs[place].shape[axis]
        return value.node.pytype(interpreted(expression, known))

    def ready(self, inputs: Sequence[Any]) -> Ready:
        """What runs these inputs: with their numbers, and their weights as they are now."""
        key = (self.key_of(inputs), *(id(inputs[i]) for i in self.weights))
        ready = self._ready.get(key)
        if ready is None or not ready.is_current():
            weights = {_name(i): inputs[i] for i in self.weights}
            ready = Ready(weights, self.code(inputs).ready)
            self._ready.pop(key, None)
            self._ready[key] = ready
            if len(self._ready) > _KEPT:
                del self._ready[next(iter(self._ready))]
        return ready

    def prepare(self, inputs: Sequence[Any]) -> None:
        """Compile it for the numbers among these inputs, unless nothing of it is computed."""
        if self.results:
            self.code(tuple(map(real, inputs)))

    def code(self, inputs: Sequence[Any]) -> _Code:
        """The graph, compiled for the numbers among these inputs."""
        key = self.key_of(inputs)
        if key not in self._codes:
            try:
                self._codes[key] = self._compiled(inputs)
            except ImportModelError:
                if self.floats:
                    self.numbers, self.floats = self.numbers + self.floats, []
                    self.tensors = [i for i in self.tensors if i not in self.numbers]
                elif self.is_static or not (self.axes or self.carried):
                    raise
                else:
                    self.is_static = True
                return self.code(inputs)
        return self._codes[key]

    def _compiled(self, inputs: Sequence[Any]) -> _Code:
        model = self.cast(self.imported(inputs))
        variant, _ = variant_of(model.mod, model.params, detect_target(), opt_level=3)
        return _Code(model, variant)

    def imported(self, inputs: Sequence[Any]) -> Model:
        """The graph as a model of its tensors, for the numbers and weights among these inputs."""
        order = {position: i for i, position in enumerate(self.tensors)}
        dynamic = {
            self.name_of(name): [(order[i], axis, *self.bounds[name]) for i, axis in places]
            for name, places in self.axes.items()
            if not self.is_static and self.bounds[name][0] != self.bounds[name][1]  # else torch found it later
        }
        model = from_torch(Inputs(self, inputs), tuple(self.tensors_of(inputs)), dynamic=dynamic)
        if model.updated:
            raise LeftToAutograd(f"torch.compile: a call of this graph changes {', '.join(model.updated)}")
        return model

    def cast(self, model: Model) -> Model:
        """The model with its casts."""
        return amp.autocast(model, **self.options)

    def is_carried(self, value: Any) -> bool:
        """Whether a number that is the size of no tensor may differ from call to call."""
        return False

    def related(self, given: Mapping[int, Any], known: Mapping[str, Any]) -> dict[int, torch.Tensor]:
        """Tell torch, which traces the graph anew, how sizes depend on the known ones; returns tensors that do."""
        return {}

    def shared(self, inputs: Mapping[int, torch.Tensor], results: Mapping[int, torch.Tensor]) -> Sharing:
        """Which results share memory."""
        return Sharing(inputs, results)

    def kept(self, position: int, result: torch.Tensor) -> torch.Tensor:
        """A result as it is returned."""
        return result

    def is_weight(self, value: torch.Tensor) -> bool:
        """Whether it is a parameter or buffer of a module, which seldom changes: Dynamo marks them."""
        return isinstance(value, torch.nn.Parameter) or hasattr(value, "_dynamo_static_input_type")


def value_of(node: fx.Node) -> Any:
    """The example of a node's value, as Dynamo or AOTAutograd notes it."""
    return node.meta.get("example_value", node.meta.get("val"))


def _is_float(node: fx.Node, value: torch.Tensor) -> bool:
    """Whether an input is a number, in a tensor that only its value is asked of."""
    return value.dtype == torch.float64 and value.ndim == 0 and all(user.target == "item" for user in node.users)
