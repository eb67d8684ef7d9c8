"""Where gradients stop in a module: at `detach`, after blocks of `no_grad`; and where they are what an author wrote.

torch.export keeps values alone. While it runs inside of `marking_stops`, and by `mark_detached` afterwards, nodes are
marked, and marks survive decompositions. What leaves such a place is imported as `relax.grad.no_grad(x)`, which is `x`
to whoever infers. A backward of an `autograd.Function` cannot be kept: its name is, for who differentiates.
"""

from __future__ import annotations

import contextlib
import inspect
import operator
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch
from torch import fx
from torch.autograd import Function, grad_mode
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind
from torch.fx import traceback

from autocast.frontend.marks import annotate

aten = torch.ops.aten

_NO_GRADIENT = "autocast_no_gradient"
_FUNCTION = "autocast_function"

#: Whether a context stops gradients.
_CONTEXTS: dict[type, Callable[[Any], bool]] = {
    torch.no_grad: lambda context: True,
    torch.enable_grad: lambda context: False,
    grad_mode.set_grad_enabled: lambda context: not context.mode,
}


@contextlib.contextmanager
def marking_stops() -> Iterator[None]:
    """While torch.export traces inside of this, it marks the nodes in which no gradient is wanted, and those of
    functions with a backward of their own."""
    with contextlib.ExitStack() as changed:
        for kind, stops in _CONTEXTS.items():
            for name, method in zip(("__enter__", "__exit__"), _marked(kind, stops), strict=True):
                changed.enter_context(mock.patch.object(kind, name, method))
        apply = inspect.getattr_static(Function, "apply")  # a class method in Python, of newer torch's in C
        changed.enter_context(mock.patch.object(Function, "apply", classmethod(_marked_apply(apply))))
        yield


def _marked(kind: Any, stops: Callable[[Any], bool]) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """The methods of a context that mark nodes, too."""
    enter, exit_ = kind.__enter__, kind.__exit__
    entered: dict[int, list[contextlib.ExitStack]] = {}

    def marked_enter(self: Any) -> Any:
        entered.setdefault(id(self), []).append(_annotated({_NO_GRADIENT: stops(self)}))
        return enter(self)

    def marked_exit(self: Any, *exception: Any) -> Any:
        result = exit_(self, *exception)
        if entered.get(id(self)):
            entered[id(self)].pop().close()
        return result

    return marked_enter, marked_exit


def _marked_apply(apply: Any) -> Callable[..., Any]:
    """`Function.apply`, whose nodes have the name of their function; torch's own differentiate what they compute."""

    def marked_apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
        bound = apply.__get__(None, cls)
        if cls.__module__.partition(".")[0] == "torch":
            return bound(*args, **kwargs)
        with _annotated({_FUNCTION: cls.__name__}):
            return bound(*args, **kwargs)

    return marked_apply


def _annotated(mark: dict[str, Any]) -> contextlib.ExitStack:
    """Nodes that this thread traces have a mark until what is returned is closed."""
    stack = contextlib.ExitStack()
    if torch.compiler.is_exporting() and torch._C._len_torch_function_stack() > 0:
        stack.enter_context(annotate(mark))
        stack.enter_context(traceback.preserve_node_meta())
    return stack


def mark_detached(program: ExportedProgram) -> None:
    """Mark the nodes that detach a tensor, and those of blocks of `no_grad` that torch.export found by itself."""
    for node in program.graph.nodes:
        if node.target is aten.detach.default:
            _mark(node, True)
        elif getattr(node.target, "__name__", "") == "wrap_with_set_grad_enabled":
            _mark(node, not node.args[0])


def mark_replayed(program: ExportedProgram) -> None:
    """Mark what detaches in a program without writes: torch makes views anew after a write, and forgets their marks."""
    for node in program.graph.find_nodes(op="call_function", target=aten.alias.default):
        origin = str(node.meta.get("original_aten"))  # a copy of the operator
        if node.meta.get("is_functional_regenerated") and origin == "aten.detach.default":
            _mark(node, True)


def pass_over_writes(program: ExportedProgram) -> None:
    """Let gradients pass what is written into a tensor in a block of `no_grad`, or by way of what `detach` returns, as
    torch does, which sees no writing.

    Before::                                After::

        w = v.clamp_(0)                         s = v.clone(); w = v.clamp_(0); n = v.detach()
        y = v * 2                               v.copy_(where(isfinite(s), n + (s - s.detach()), n))
                                                y = v * 2  # which v is, with s's gradient
    """
    graph, call = program.graph, program.graph.call_function
    specs = program.graph_signature.input_specs
    inputs = {spec.arg.name for spec in specs if spec.kind is InputKind.USER_INPUT}
    for write in [node for node in graph.nodes if _writes_floats(node)]:
        *views, tensor = _views(write.args[0])
        is_marked = bool(_marks(write).get(_NO_GRADIENT))
        if not is_marked and not any(view.target is aten.detach.default for view in views):
            continue
        # Inputs that are written in `no_grad` are caches as a rule: of these nobody wants gradients.
        has_gradient = tensor.op == "call_function" or (tensor.name in inputs and not is_marked)
        if not has_gradient or _marks(tensor).get(_NO_GRADIENT) or not _is_read_after(write, tensor):
            continue
        with graph.inserting_before(write):
            before = call(aten.clone.default, (tensor,))
        with graph.inserting_before(write.next):
            now = call(aten.detach.default, (tensor,))
            none = call(aten.sub.Tensor, (before, call(aten.detach.default, (before,))))
            finite = call(aten.isfinite.default, (before,))
            call(aten.copy_.default, (tensor, call(aten.where.self, (finite, call(aten.add.Tensor, (now, none)), now))))
    program.graph_module.recompile()


def _is_read_after(write: fx.Node, tensor: fx.Node) -> bool:
    """Whether a tensor that is written is read afterwards, itself or a view of it."""
    later, views = _after(write), [tensor]
    for view in views:
        parts = (part for user in view.users for part in (user, *user.users))
        views += [part for part in parts if part not in views and _source(part) is view]
    return any(user in later for view in views for user in view.users)


def _writes_floats(node: fx.Node) -> bool:
    schema = getattr(node.target, "_schema", None)
    value = node.meta.get("val")
    return schema is not None and schema.is_mutable and isinstance(value, torch.Tensor) and value.is_floating_point()


def _views(view: fx.Node) -> Iterator[fx.Node]:
    """A view, what it is a view of, and so on."""
    yield view
    if (source := _source(view)) is not None:
        yield from _views(source)


def _source(view: fx.Node) -> fx.Node | None:
    """What a result is a view of, or one of several views; None where it is none."""
    call: Any = view.args[0] if view.target is operator.getitem else view
    schema = getattr(call.target, "_schema", None)
    return call.args[0] if schema is not None and schema.arguments and schema.arguments[0].alias_info else None


def _after(node: fx.Node) -> set[fx.Node]:
    found = set()
    while (node := node.next).op != "root":
        found.add(node)
    return found


def _mark(node: fx.Node, stops: bool) -> None:
    node.meta["custom"] = {**(node.meta.get("custom") or {}), _NO_GRADIENT: stops}


def _marks(node: fx.Node) -> dict[str, Any]:
    return node.meta.get("custom") or {}


def stops_of(program: ExportedProgram) -> tuple[set[fx.Node], list[str]]:
    """The nodes at whose results gradients stop, of those that any would reach; and the names of the functions with a
    backward of their own that any would."""
    signature = program.graph_signature
    sources = {
        spec.arg.name for spec in signature.input_specs if spec.kind in (InputKind.USER_INPUT, InputKind.PARAMETER)
    }
    reached: set[fx.Node] = set()
    stops: set[fx.Node] = set()
    functions: set[str] = set()
    for node in program.graph.nodes:
        if not _has_floats(node.meta.get("val")):
            continue
        if node.op == "placeholder":
            if node.name in sources:
                reached.add(node)
            continue
        stopped = bool(_marks(node).get(_NO_GRADIENT))
        if all(one not in reached or (one in stops and not stopped) for one in node.all_input_nodes):
            continue
        reached.add(node)
        if not stopped and _FUNCTION in _marks(node):
            functions.add(_marks(node)[_FUNCTION])
        if stopped and any(not _marks(user).get(_NO_GRADIENT) for user in node.users):
            stops.add(node)
    return stops, sorted(functions)


def _has_floats(value: Any) -> bool:
    parts = value if isinstance(value, list | tuple) else [value]
    return any(isinstance(part, torch.Tensor) and (part.is_floating_point() or part.is_complex()) for part in parts)
