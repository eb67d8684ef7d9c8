"""Which torch operators stay whole on import, and which are split into simpler ones."""

from __future__ import annotations

import contextlib
import functools
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeAlias

import torch
from torch import fx
from torch._decomp import core_aten_decompositions, decomposition_table
from torch._export import utils
from torch._ops import OpOverload
from torch.export import ExportedProgram, exported_program
from torch.utils import _pytree as pytree

from autocast.errors import ImportModelError
from autocast.frontend.exporting.conditions import is_other
from autocast.frontend.exporting.decisions import noted_decisions
from autocast.frontend.nodes import has_complex, is_random
from autocast.frontend.splitting import single_calls
from autocast.frontend.splitting.complex_calls import COMPLEX
from autocast.frontend.splitting.flex_attention import written_flex_attention
from autocast.frontend.splitting.in_place import select_what_is_written
from autocast.frontend.splitting.reserved import rename, written_names
from autocast.frontend.splitting.splits import SPLITS, split_rightly

aten = torch.ops.aten

#: How torch asks its dispatcher which operators are composite: a part of torch that it may do without some day.
_ask: Callable[[], None] | None = getattr(utils, "_materialize_cpp_cia_ops", None)

#: How torch asks which operators it lets others split in their own way; as `_ask`.
_composites: Callable[[], set[Any]] | None = getattr(exported_program, "_collect_all_valid_cia_ops", None)

#: Operators that torch would split, and that Relax has as one operator (see the converters of the same names).
KEEP_WHOLE = (
    aten.linear.default,
    aten.matmul.default,
    aten.scaled_dot_product_attention.default,
    aten.layer_norm.default,
    aten.group_norm.default,
    aten.softmax.int,
    aten.log_softmax.int,
    aten.silu.default,
    aten.celu.default,
    aten.softplus.default,
    aten.mish.default,
    aten.logaddexp.default,
    aten.baddbmm.default,
    aten.hardsigmoid.default,
    aten.hardswish.default,
    aten.relu6.default,
    aten.stack.default,
    aten.std.correction,
    aten.std_mean.correction,
    aten.eye.default,
    aten.eye.m,
    aten.tril.default,
    aten.triu.default,
    aten.special_log_ndtr.default,
    aten.square.default,
    aten.adaptive_avg_pool1d.default,
    aten.adaptive_avg_pool2d.default,
    aten.adaptive_avg_pool3d.default,
    aten.adaptive_max_pool2d.default,
    aten.adaptive_max_pool3d.default,
    aten.upsample_nearest2d.vec,
    aten.upsample_bicubic2d.vec,
    aten.upsample_bilinear2d.vec,
    # In backward graphs of AOTAutograd's (autocast.dynamo.converters):
    aten._log_softmax_backward_data.default,
    aten._softmax_backward_data.default,
    aten.embedding_dense_backward.default,
    aten.gelu_backward.default,
    aten.leaky_relu_backward.default,
    aten.silu_backward.default,
    aten.threshold_backward.default,
)


#: Of torch's reference implementations these are made of operators of torch; the others are of its `prims`, one by one.
_REFERENCES = {
    aten.any.dims,
    aten.as_strided_scatter.default,
    aten.diagonal.default,
    aten.diagonal_scatter.default,
    aten.linalg_vector_norm.default,
    aten.native_group_norm.default,
    aten.native_layer_norm.default,
    aten.tril_indices.default,
    aten.triu_indices.default,
    aten.var_mean.correction,
}

#: Operators that torch's tables split into others that compute something else, or have other gradients: an embedding's
#: padding and frequencies are lost, labels after the last one count as 0 (`SPLITS` knows better).
_SPLIT_WRONGLY = {aten.embedding.default, aten.multilabel_margin_loss_forward.default}

#: How operators are split that nothing here translates: by formulas of ours, and as torch knows.
_TABLE: dict[OpOverload, Callable[..., Any]] = {
    operator: function
    for operator, function in {**core_aten_decompositions(), **decomposition_table}.items()
    if operator not in _SPLIT_WRONGLY and (not function.__module__.startswith("torch._refs") or operator in _REFERENCES)
} | SPLITS

#: What to try where torch cannot split a program, by words of what it says; the last fits all.
_REMEDIES = {
    ("FunctionalTensor", "_tensor_constant"): "A function that torch.cond, a loop or flex_attention calls may make a "
    "tensor by torch.tensor(...): make it by torch.zeros or torch.full, or before.",
    ("as_strided",): "A view of a view is written by way of as_strided(), as fill_diagonal_ does: write into its "
    "diagonal(), or into a clone.",
    ("num_mutated_inp",): "An input's axes may be changed in place (transpose_, t_, squeeze_, unsqueeze_): call what "
    "returns another tensor.",
    ("",): "A size or an index may depend on the values of a tensor: keep such numbers tensors, or pass them as plain "
    "Python numbers.",
}

#: An operator, and what it is given, in words.
Call: TypeAlias = tuple[OpOverload, str]


@contextlib.contextmanager
def _asked_once() -> Iterator[None]:
    """Let torch ask its dispatcher once which operators are composite.

    It asks for each of its some thirty namespaces, several times: half of the time that a small model takes.
    """
    if _ask is None:
        yield
        return
    _ask()
    utils._materialize_cpp_cia_ops = lambda: None
    try:
        yield
    finally:
        utils._materialize_cpp_cia_ops = _ask


@_asked_once()
def decompose(program: ExportedProgram) -> ExportedProgram:
    """The program in functional form, split as torch's core operators ask, but for `KEEP_WHOLE` and `_SPLIT_WRONGLY`.

    Raises
    ------
    ImportModelError
        torch cannot split it.
    """
    table = torch.export.default_decompositions()
    for operator in (*KEEP_WHOLE, *_SPLIT_WRONGLY):
        if operator in table:
            del table[operator]
    table = {**table, **{operator: SPLITS[operator] for operator in SPLITS if operator in table}}
    select_what_is_written(program.graph)
    with _split_by_dispatcher(table) as others:
        return single_calls.decomposed(program, others) or _run(program, others)


@contextlib.contextmanager
def _split_by_dispatcher(table: dict[Any, Callable[..., Any]]) -> Iterator[dict[Any, Callable[..., Any]]]:
    """The table without the operators that torch's dispatcher splits as it says.

    torch would write some ten functions for each of these 470 operators, and take them back after: a third of what a
    small model takes.
    """
    if _composites is None:
        yield table
        return
    known = {operator for operator, split in table.items() if _is_dispatchers(split)}
    exported_program._collect_all_valid_cia_ops = lambda: _composites() - known
    try:
        yield {operator: split for operator, split in table.items() if operator not in known}
    finally:
        exported_program._collect_all_valid_cia_ops = _composites


def _is_dispatchers(split: Callable[..., Any]) -> bool:
    return isinstance(split, functools.partial) and split.func.__qualname__.startswith("_get_decomp_for_cia.")


def split(program: ExportedProgram, calls: Iterable[fx.Node], tried: set[Call]) -> ExportedProgram | None:
    """The program with calls like `calls` split by torch's tables; None where these split none of them.

    Calls of complex numbers are split as `COMPLEX` says, and those of random ones stay: torch splits them into others
    of its own generator. Calls are alike where operators, shapes, dtypes and numbers are the same: others of the
    operator stay whole. Those that were `tried` before are not split again, and new ones are added to these. Those
    that torch fails to split stay whole.
    """
    known = [
        node for node in calls if node.target in (COMPLEX if has_complex(node) else _TABLE) and not is_random(node)
    ]
    wanted = set(map(_call, known)) - tried
    if not wanted:
        return None
    tried |= wanted
    splitters = {operator: _splitter(operator, wanted) for operator, _ in wanted}
    try:
        return _undecided(program, splitters, wanted)
    except ImportModelError:  # a table of torch's may write in place, or decide: such operators stay whole
        result = None
        for operator, splitter in splitters.items():
            with contextlib.suppress(ImportModelError):
                result = _undecided(result or program, {operator: splitter}, wanted)
        return result


@_asked_once()
def _undecided(
    program: ExportedProgram, table: dict[OpOverload, Callable[..., Any]], wanted: set[Call]
) -> ExportedProgram:
    """As `_run`, where tables do not decide by sizes that vary: what they make is for those of the example."""
    calls = [node for node in program.graph.nodes if node.target in table and _call(node) in wanted]
    with noted_decisions() as decisions:
        splits = single_calls.traced(calls, table)
        result = program if splits is not None else _run(program, table)
    for condition, held, place, _ in decisions:
        if is_other(condition, held, program):
            raise ImportModelError(f"from_torch: torch splits an operator by a condition on sizes ({place})")
    if splits is not None:
        single_calls.replace(program, splits)
    return result


def _splitter(operator: OpOverload, wanted: set[Call]) -> Callable[..., Any]:
    """torch's decomposition of `operator` for the calls that are wanted; the others stay.

    Of operators that are composite to autograd, torch takes its own decompositions alone, for all calls.
    """
    function = _TABLE.get(operator)
    if isinstance(function, functools.partial):
        return function

    def splitter(*args: Any, **kwargs: Any) -> Any:
        is_complex = any(isinstance(x, torch.Tensor) and x.is_complex() for x in pytree.tree_leaves((args, kwargs)))
        known = COMPLEX.get(operator) if is_complex else function
        return known(*args, **kwargs) if known and (operator, _signature(args, kwargs)) in wanted else NotImplemented

    return splitter


def _call(node: fx.Node) -> Call:
    return node.target, _signature(node.args, node.kwargs)


def _signature(args: Any, kwargs: Any) -> str:
    """What a call is given, in words, from the nodes of a program or from what torch traces with."""
    return f"{_word(list(args))} {_word(dict(kwargs))}"


def _word(value: Any) -> str:
    if isinstance(value, fx.Node):
        value = value.meta.get("val")
    if isinstance(value, torch.Tensor):
        return f"{value.dtype} {tuple(map(str, value.shape))}"
    if isinstance(value, list | tuple):
        return str([_word(part) for part in value])
    if isinstance(value, dict):
        return str({name: _word(part) for name, part in value.items()})
    return str(value)


@_asked_once()
def _run(program: ExportedProgram, table: dict[OpOverload, Callable[..., Any]]) -> ExportedProgram:
    with torch.no_grad(), warnings.catch_warnings():
        # torch 2.13 copies its own pytrees through a deprecated test.
        warnings.filterwarnings("ignore", message=".*isinstance\\(treespec, LeafSpec\\).*", category=FutureWarning)
        try:
            with split_rightly(), _unguarded(program), written_flex_attention(program), written_names(program) as names:
                result = program.run_decompositions(table)
                rename(result, names)
                return result
        except Exception as error:
            cause = str(error).strip().partition("\n")[0]
            remedy = next(remedy for words, remedy in _REMEDIES.items() if any(word in cause for word in words))
            raise ImportModelError(
                f"from_torch: torch cannot split the model into its core operators: {cause}. {remedy}"
            ) from error


@contextlib.contextmanager
def _unguarded(program: ExportedProgram) -> Iterator[None]:
    """Without the conditions on sizes that torch found as it exported: it asks them again of what it splits.

    They hold, and torch cannot always write them: of `*args` in 2.9, in 2.13 of the tensor that an input is a view of.
    """
    guards, program._guards_code = getattr(program, "_guards_code", []), []
    try:
        yield
    finally:
        program._guards_code = guards
