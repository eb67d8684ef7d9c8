"""The lowering pipeline: a flat list of named phases, each a pure function from module to module.

It has more than 300 lines because every phase stands in the list by name, and is imported for it.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import tvm
from tvm import relax
from tvm.relax.vm_build import VMExecutable

from autocast import settings
from autocast.errors import UnsupportedError
from autocast.ir import first_order, is_op, write_out_literals
from autocast.ir.dataflow import to_dataflow
from autocast.ir.failures import in_phase
from autocast.ir.matched import bind_matched_calls, with_equal_sizes
from autocast.ir.places import places_of_kernels
from autocast.kernels.backend import Backend, without_overwriting
from autocast.kernels.contexts import changed_context
from autocast.kernels.explain import credit, summarize
from autocast.kernels.fallback.define import define
from autocast.kernels.fallback.divisions import keep_divisions
from autocast.kernels.fallback.legalized import check_legalized, check_operands
from autocast.kernels.fallback.nested_fields import keep_fields_apart
from autocast.kernels.fallback.places import keep_within_tensors
from autocast.kernels.fallback.recurrent import write_recurrences
from autocast.kernels.fallback.schedule import EXISTING, mark_existing, schedule
from autocast.kernels.fallback.tvm_passes import fuse, fuse_existing, legalize, sequence
from autocast.kernels.generate import Code, generate
from autocast.kernels.kernel_cache import Makers
from autocast.kernels.matching.attention.decompose import decompose_attention
from autocast.kernels.matching.convolutions.declined import has_kernel
from autocast.kernels.matching.convolutions.pooling_rule import move_channels_of_pooling
from autocast.kernels.matching.layout.row_writes_rule import ROW_WRITES
from autocast.kernels.matching.products.grouped import has_grouped_kernel
from autocast.kernels.matching.products.transposed import transpose_products
from autocast.kernels.matching.recurrent.calls import has_recurrent_kernel
from autocast.kernels.matching.rows.losses import decompose_losses
from autocast.kernels.matching.rules import RULES
from autocast.kernels.matching.translate import VECTOR_OPERATORS
from autocast.kernels.objects import Describe
from autocast.kernels.phases.agreement import check_agreement
from autocast.kernels.phases.canonicalize import canonicalize
from autocast.kernels.phases.channels_last.phase import channels_last
from autocast.kernels.phases.checkpoints import remove_checkpoints
from autocast.kernels.phases.empty import remove_empty
from autocast.kernels.phases.expand import expand_operators
from autocast.kernels.phases.fold_scales import fold_scales
from autocast.kernels.phases.fold_signs import fold_signs
from autocast.kernels.phases.integers import multiply_integers
from autocast.kernels.phases.leftovers import remove_leftovers
from autocast.kernels.phases.order_floats import order_floats
from autocast.kernels.phases.outline import outline_branches
from autocast.kernels.phases.packed import match_packed
from autocast.kernels.phases.prepare import prepare_parameters
from autocast.kernels.phases.quantized import quantized_in_float32
from autocast.kernels.phases.recursion import check_recursion
from autocast.kernels.phases.repeat import repeat_cheap
from autocast.kernels.phases.slices import keep_sizes_of_slices
from autocast.kernels.phases.widen import accumulate_wide, compute_in_float32
from autocast.kernels.poison import PoisonMemory
from autocast.kernels.results import Results, check_types
from autocast.kernels.specs.convolutions import Convolution, WeightGradient
from autocast.kernels.specs.layout import RowWrites
from autocast.kernels.specs.products import GroupedProduct
from autocast.kernels.specs.recurrent import Recurrence
from autocast.kernels.state.accumulate import accumulate_gradients
from autocast.kernels.state.buckets import ComputeIntoBuckets
from autocast.kernels.state.carry import carry_casts
from autocast.kernels.state.in_place import SUFFIX, WriteInPlace
from autocast.kernels.state.order import OrderForMemory
from autocast.kernels.state.output_views import ViewOutputs
from autocast.kernels.state.planning import PlanMemory
from autocast.kernels.state.reshapes import ViewReshapes, mark_reshapes
from autocast.kernels.state.state import inline_functions, separate_state
from autocast.kernels.targets import backend_of


class Phase(NamedTuple):
    """One step of the pipeline: the name that debugging output shows, and what it does to a module for a target."""

    name: str
    run: Callable[[tvm.IRModule, Backend], tvm.IRModule]


def _phase(function: Callable[[tvm.IRModule], tvm.IRModule], name: str = "") -> Phase:
    """A phase that is the same for all targets, named after its function."""
    return Phase(name or function.__name__, lambda mod, _: function(mod))


#: Operators of our own that rules look for, by the spec that they make of them.
_MATCHED: tuple[tuple[type, Callable[[relax.Call], bool]], ...] = (
    (WeightGradient, has_kernel),
    (GroupedProduct, has_grouped_kernel),
    (RowWrites, lambda call: is_op(call, *ROW_WRITES)),
)


def _expand_operators(mod: tvm.IRModule, backend: Backend) -> tvm.IRModule:
    matched = [has for spec, has in _MATCHED if backend.has(spec)]
    return expand_operators(mod, lambda call: is_op(call, *VECTOR_OPERATORS) or any(has(call) for has in matched))


def _write_recurrences(mod: tvm.IRModule, backend: Backend) -> tvm.IRModule:
    return write_recurrences(mod, has_recurrent_kernel if backend.has(Recurrence) else lambda _: False)


def _multiply_integers(mod: tvm.IRModule, backend: Backend) -> tvm.IRModule:
    return multiply_integers(mod, (*backend.multiplies, "float32"))


def _channels_last(mod: tvm.IRModule, backend: Backend) -> tvm.IRModule:
    return channels_last(mod) if backend.has(Convolution) else mod


def _by_rule(name: str) -> Phase:
    """The rule of this name, on targets that have its kernels."""
    rule = next(rule for rule in RULES if rule.name == name)

    def run(mod: tvm.IRModule, backend: Backend) -> tvm.IRModule:
        return credit(mod, rule.lower(mod, backend), name) if backend.has(*rule.specs) else mod

    return Phase(name, run)


#: In this order, because: what has no elements is settled before anything divides by their number; channels are
#: scaled, and moved to be last, while operators are those of the model; kernels
#: look for patterns of whole operators, so they come before legalization; fusion needs the patterns of all PrimFuncs;
#: schedules see fused groups. Casts of state become state before rules make them part of what reads them, and before
#: updates are inlined; the kernels of products and of lookups' gradients take the additions to state of those updates.
#: What is cheap is repeated when only reductions and elementwise kernels are left to read it.
#: What depends on parameters alone leaves main twice: small factors before a rule can make them part of a kernel, the
#: rest, with the packing that rules add, before fusion could.
LOWERING = (
    _phase(bind_matched_calls),
    _phase(write_out_literals),
    _phase(with_equal_sizes),
    _phase(first_order),
    _phase(check_recursion),
    _phase(remove_leftovers),
    _phase(match_packed),
    _phase(check_operands),
    Phase("fuse_existing", fuse_existing),
    _phase(keep_sizes_of_slices),
    _phase(check_agreement),
    _phase(separate_state),
    _phase(mark_existing),
    _phase(outline_branches),
    _phase(to_dataflow),
    _phase(remove_empty),
    Phase("multiply_integers", _multiply_integers),
    _phase(quantized_in_float32),
    Phase("expand_operators", _expand_operators),
    _phase(canonicalize),
    _phase(fold_scales),
    _phase(fold_signs),
    Phase("channels_last", _channels_last),
    _phase(canonicalize, "canonicalize_channels_last"),
    Phase("write_recurrences", _write_recurrences),
    _phase(compute_in_float32),
    _phase(partial(prepare_parameters, only_small=True), "prepare_small_parameters"),
    _phase(carry_casts),
    _phase(inline_functions),
    _phase(accumulate_gradients),
    _by_rule("attention"),
    _phase(decompose_attention),
    _phase(move_channels_of_pooling),
    _by_rule("pooling"),
    _by_rule("convolutions"),
    _by_rule("recurrences"),
    _by_rule("scatter"),
    _by_rule("row_writes"),
    _by_rule("weight_gradients"),
    _phase(transpose_products),
    _by_rule("products"),
    _by_rule("grouped_products"),
    _phase(decompose_losses),
    _by_rule("rows"),
    _by_rule("layout"),
    _phase(repeat_cheap),
    _by_rule("reductions"),
    _phase(accumulate_wide),
    _by_rule("elementwise"),
    _phase(prepare_parameters),
    _phase(remove_checkpoints),
    _phase(expand_operators, "expand_what_is_left"),
    _phase(define),
    _phase(keep_within_tensors),
    _phase(order_floats),
    _phase(mark_reshapes),
    Phase("dispatch", sequence(relax.backend.DispatchSampling(), relax.backend.DispatchSortScan())),
    Phase("legalize", legalize),
    _phase(bind_matched_calls, "bind_matched_kernels"),
    _phase(keep_fields_apart),
    _phase(check_legalized),
    Phase("fuse", fuse),
    Phase("remove_dead_code", sequence(relax.transform.DeadCodeElimination())),
    _phase(schedule),
    _phase(keep_divisions),
)

#: What TVM's own build pipeline does after fusion, up to and including the memory plan; outputs may be views, and
#: state is replaced in place. Kernels whose every call became a view, or a call of their copy that writes in place, go:
#: they are a third of a training step's.
PLANNING = (
    ViewOutputs(),
    ViewReshapes(),
    OrderForMemory(),
    relax.transform.ToNonDataflow(),
    relax.transform.RemovePurityChecking(),
    relax.transform.CallTIRRewrite(),
    WriteInPlace(),
    ComputeIntoBuckets(),
    relax.transform.DeadCodeElimination(),
    PlanMemory(),
)

#: Every allocation and every release becomes a binding of its own.
RELEASING = (
    relax.transform.LowerAllocTensor(),
    relax.transform.KillAfterLastUse(),
)

#: The rest of TVM's build pipeline, and what watches memory: allocations and releases are hidden in calls of the
#: virtual machine.
FINISHING = (
    PoisonMemory(),
    relax.transform.LowerRuntimeBuiltin(),
    relax.transform.ComputePrimValue(),
    relax.transform.VMShapeLower(),
    relax.transform.AttachGlobalSymbol(),
)


class Plan(NamedTuple):
    """A module on its way to an executable.

    `lowered` holds calls of scheduled PrimFuncs in dataflow form; `planned` is the same program with explicit
    `relax.memory.alloc_storage` and `alloc_tensor`: what the virtual machine really allocates.
    """

    lowered: tvm.IRModule
    planned: tvm.IRModule

    @property
    def places(self) -> dict[str, tuple[str, ...]]:
        """The submodules that the calls of each kernel come from, and so of its copy that writes in place."""
        places = places_of_kernels(self.lowered)
        return places | {f"{name}{SUFFIX}": modules for name, modules in places.items()}


class Finished(NamedTuple):
    """A compiled module: `released` has every allocation and every release, as `code` does them."""

    released: tvm.IRModule
    code: Code


def lower(mod: tvm.IRModule, target: tvm.target.Target) -> tvm.IRModule:
    """Turn operators into scheduled PrimFuncs for `target`.

    Parameters
    ----------
    mod : IRModule
        Any well-formed module: static or symbolic shapes, float32, bfloat16 and float16 storage, tuples, If, several
        functions, PrimFuncs and packed calls of its own. If `main` has the attribute `num_input`, its other arguments
        are parameters: what depends on them alone moves to a function of its own (see `prepare_parameters`).
    target : Target
        An LLVM target, such as `detect_target()` answers.

    Returns
    -------
    IRModule
        Fit for `tvm.compile(lowered, target)`; `build` also skips the passes that have nothing left to do.
    """
    backend = backend_of(target)
    results = Results(mod)
    for phase in LOWERING:
        started = time.perf_counter()
        with in_phase(phase.name, mod, partial(_run, phase.run, backend)):
            mod = phase.run(mod, backend)
        results.check(phase.name, mod)
        _report(phase.name, mod, time.perf_counter() - started)
    check_types(mod)
    summarize(mod)
    return mod


def plan(mod: tvm.IRModule, target: tvm.target.Target) -> Plan:
    """Lower `mod` and plan its memory."""
    lowered = lower(mod, target)
    planned = _one_by_one(PLANNING, lowered, target)
    Results(mod).check("plan", planned, without_state=True)
    return Plan(lowered, planned)


def finish(
    planned: tvm.IRModule,
    target: tvm.target.Target,
    threads: int = 1,
    describe: Describe = lambda kernel: None,
    makers: Makers | None = None,
) -> Finished:
    """Compile a planned module (`Plan.planned`) for the virtual machine, by this many threads.

    `describe` is asked of each kernel when its loops are final, as the buffers that it allocates are. With `makers`
    kernels are looked for in the cache: see `generate`.
    """
    with _as_allocated(planned):
        released = _one_by_one(RELEASING, planned, target)
        return Finished(released, generate(_one_by_one(FINISHING, released, target), target, threads, describe, makers))


def _run(run: Callable[[tvm.IRModule, Backend], tvm.IRModule], backend: Backend, mod: tvm.IRModule) -> tvm.IRModule:
    return run(mod, backend)


def _one_by_one(passes: Iterable[tvm.transform.Pass], mod: tvm.IRModule, target: tvm.target.Target) -> tvm.IRModule:
    """What a sequence of the passes makes of `mod`; one that fails is named."""
    backend = backend_of(target)
    for each in passes:
        run = sequence(each)
        with in_phase(each.info.name, mod, partial(_run, run, backend)):
            mod = run(mod, backend)
    return mod


def _as_allocated(planned: tvm.IRModule) -> tvm.transform.PassContext:
    """The caller's context, in which buffers keep their sizes unless the module came with PrimFuncs of its own.

    TIR would shrink each to the part that is accessed: of ours that is all of it, but finding it out takes seconds for
    a convolution, more than the rest of its compilation.
    """
    owned = any(function.attrs and EXISTING in function.attrs for function in planned.functions.values())
    return changed_context(disabled=() if owned else ("s_tir.CompactBufferAllocation",))


def build(mod: tvm.IRModule, target: tvm.target.Target) -> tvm.runtime.Executable:
    """Lower, plan and compile `mod` for `target`: an executable for `relax.VirtualMachine`."""
    return VMExecutable(finish(plan(mod, target).planned, target).code.library.module)


def _report(name: str, mod: tvm.IRModule, seconds: float) -> None:
    if settings.debug().level >= 1:
        print(f"kernels: {name} {seconds * 1e3:.1f} ms", file=sys.stderr)
    directory = settings.text("AUTOCAST_DUMP")
    if directory:
        order = [phase.name for phase in LOWERING].index(name)
        path = Path(directory) / f"kernels_{order:02}_{name}.py"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(without_overwriting(mod).script())
        except OSError as error:
            raise UnsupportedError(
                f"AUTOCAST_DUMP={directory}: {path.name} cannot be written: {error.strerror or error}. Expected a "
                "folder of yours, which is made if there is none"
            ) from error
