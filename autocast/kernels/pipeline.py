"""The lowering pipeline: a flat list of named phases, each a pure function from module to module."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

import tvm
from tvm import relax

from autocast import settings
from autocast.ir import first_order, is_tir_group, relax_functions, write_out_literals
from autocast.ir.dataflow import to_dataflow
from autocast.ir.failures import in_phase
from autocast.ir.matched import bind_matched_calls
from autocast.kernels.contexts import changed_context
from autocast.kernels.fallback.define import define
from autocast.kernels.fallback.legalized import check_legalized
from autocast.kernels.fallback.nested_fields import keep_fields_apart
from autocast.kernels.fallback.places import keep_within_tensors
from autocast.kernels.fallback.schedule import EXISTING, mark_existing, schedule
from autocast.kernels.generate import generate
from autocast.kernels.matching.explain import credit, summarize
from autocast.kernels.matching.rules import RULES, Rule
from autocast.kernels.matching.translate import VECTOR_OPERATORS
from autocast.kernels.phases.canonicalize import canonicalize
from autocast.kernels.phases.channels_last.phase import channels_last
from autocast.kernels.phases.checkpoints import remove_checkpoints
from autocast.kernels.phases.empty import remove_empty
from autocast.kernels.phases.expand import expand_operators
from autocast.kernels.phases.fold_scales import fold_scales
from autocast.kernels.phases.leftovers import remove_leftovers
from autocast.kernels.phases.order_floats import order_floats
from autocast.kernels.phases.outline import outline_branches
from autocast.kernels.phases.prepare import prepare_parameters
from autocast.kernels.phases.repeat import repeat_cheap
from autocast.kernels.phases.widen import accumulate_wide, compute_in_float32
from autocast.kernels.poison import PoisonMemory
from autocast.kernels.state.accumulate import accumulate_gradients
from autocast.kernels.state.carry import carry_casts
from autocast.kernels.state.in_place import WriteInPlace
from autocast.kernels.state.order import OrderForMemory
from autocast.kernels.state.output_views import ViewOutputs
from autocast.kernels.state.state import inline_functions, separate_state


class Phase(NamedTuple):
    """One step of the pipeline: the name that debugging output shows, and what it does to a module for a target."""

    name: str
    run: Callable[[tvm.IRModule, tvm.target.Target], tvm.IRModule]


def _sequence(*passes: tvm.transform.Pass) -> Callable[[tvm.IRModule, tvm.target.Target], tvm.IRModule]:
    def run(mod: tvm.IRModule, target: tvm.target.Target) -> tvm.IRModule:
        with target:
            return tvm.transform.Sequential(list(passes))(mod)

    return run


#: Operators that TVM may fuse to one kernel. It writes out a value wherever it is used, so that a long chain in which
#: each value is used twice, such as a hash, would grow without bound.
_FUSED_OPERATORS = 12


def _legalize(mod: tvm.IRModule, target: tvm.target.Target) -> tvm.IRModule:
    """Operators as PrimFuncs; fusion crashes at fields of literal tuples, which legalized operators may leave."""
    tidied = relax.transform.CanonicalizeBindings()
    return _sequence(relax.transform.LegalizeOps(), tidied, relax.transform.AnnotateTIROpPattern())(mod, target)


def _fuse(mod: tvm.IRModule, target: tvm.target.Target) -> tvm.IRModule:
    with changed_context(config={"relax.FuseOps.max_depth": _FUSED_OPERATORS}):
        return _sequence(relax.transform.FuseOps(), relax.transform.FuseTIR())(mod, target)


def _fuse_existing(mod: tvm.IRModule, target: tvm.target.Target) -> tvm.IRModule:
    if not any(is_tir_group(function) for _, function in relax_functions(mod)):
        return mod
    return _sequence(relax.transform.FuseTIR())(mod, target)


def _by_rule(rule: Rule) -> Phase:
    return Phase(rule.name, lambda mod, target: credit(mod, rule.lower(mod, target), rule.name))


#: Phases that come before a rule, by its name.
_BEFORE = {
    "reductions": [Phase("repeat_cheap", lambda mod, target: repeat_cheap(mod))],
    "elementwise": [Phase("accumulate_wide", lambda mod, target: accumulate_wide(mod))],
}

#: In this order, because: what has no elements is settled before anything divides by their number; channels are
#: scaled, and moved to be last, while operators are those of the model; kernels
#: look for patterns of whole operators, so they come before legalization; fusion needs the patterns of all PrimFuncs;
#: schedules see fused groups. Casts of state become state before rules make them part of what reads them, and before
#: updates are inlined; products and lookups' gradients take of those updates what adds to state. What is cheap is
#: repeated when only reductions and elementwise kernels are left to read it.
#: What depends on parameters alone leaves main twice: small factors before a rule can make them part of a kernel, the
#: rest, with the packing that rules add, before fusion could.
LOWERING = (
    Phase("bind_matched_calls", lambda mod, target: bind_matched_calls(mod)),
    Phase("write_out_literals", lambda mod, target: write_out_literals(mod)),
    Phase("first_order", lambda mod, target: first_order(mod)),
    Phase("remove_leftovers", lambda mod, target: remove_leftovers(mod)),
    Phase("fuse_existing", _fuse_existing),
    Phase("separate_state", lambda mod, target: separate_state(mod)),
    Phase("mark_existing", lambda mod, target: mark_existing(mod)),
    Phase("outline_branches", lambda mod, target: outline_branches(mod)),
    Phase("to_dataflow", lambda mod, target: to_dataflow(mod)),
    Phase("remove_empty", lambda mod, target: remove_empty(mod)),
    Phase("expand_operators", lambda mod, target: expand_operators(mod, keep=VECTOR_OPERATORS)),
    Phase("canonicalize", lambda mod, target: canonicalize(mod)),
    Phase("fold_scales", lambda mod, target: fold_scales(mod)),
    Phase("channels_last", lambda mod, target: channels_last(mod)),
    Phase("compute_in_float32", lambda mod, target: compute_in_float32(mod)),
    Phase("prepare_small_parameters", lambda mod, target: prepare_parameters(mod, only_small=True)),
    Phase("carry_casts", lambda mod, target: carry_casts(mod)),
    Phase("inline_functions", lambda mod, target: inline_functions(mod)),
    Phase("accumulate_gradients", lambda mod, target: accumulate_gradients(mod)),
    *(phase for rule in RULES for phase in (*_BEFORE.get(rule.name, ()), _by_rule(rule))),
    Phase("prepare_parameters", lambda mod, target: prepare_parameters(mod)),
    Phase("remove_checkpoints", lambda mod, target: remove_checkpoints(mod)),
    Phase("expand_what_is_left", lambda mod, target: expand_operators(mod)),
    Phase("define", lambda mod, target: define(mod)),
    Phase("keep_within_tensors", lambda mod, target: keep_within_tensors(mod)),
    Phase("order_floats", lambda mod, target: order_floats(mod)),
    Phase("dispatch", _sequence(relax.backend.DispatchSampling(), relax.backend.DispatchSortScan())),
    Phase("legalize", _legalize),
    Phase("keep_fields_apart", lambda mod, target: keep_fields_apart(mod)),
    Phase("check_legalized", lambda mod, target: check_legalized(mod)),
    Phase("fuse", _fuse),
    Phase("remove_dead_code", _sequence(relax.transform.DeadCodeElimination())),
    Phase("schedule", lambda mod, target: schedule(mod)),
)

#: What TVM's own build pipeline does after fusion, up to and including the memory plan; outputs may be views, and
#: state is replaced in place. Kernels whose every call became a view, or a call of their copy that writes in place, go:
#: they are a third of a training step's.
PLANNING = (
    ViewOutputs(),
    relax.transform.RewriteDataflowReshape(),
    OrderForMemory(),
    relax.transform.ToNonDataflow(),
    relax.transform.RemovePurityChecking(),
    relax.transform.CallTIRRewrite(),
    WriteInPlace(),
    relax.transform.DeadCodeElimination(),
    relax.transform.StaticPlanBlockMemory(),
)

#: The rest of TVM's build pipeline: from planned storage to what the virtual machine executes.
FINISHING = (
    PoisonMemory(),
    relax.transform.LowerAllocTensor(),
    relax.transform.KillAfterLastUse(),
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
    for phase in LOWERING:
        started = time.perf_counter()
        with in_phase(phase.name, mod, _on(target, phase.run)):
            mod = phase.run(mod, target)
        _report(phase.name, mod, time.perf_counter() - started)
    summarize(mod)
    return mod


def plan(mod: tvm.IRModule, target: tvm.target.Target) -> Plan:
    """Lower `mod` and plan its memory."""
    lowered = lower(mod, target)
    return Plan(lowered, _one_by_one(PLANNING, lowered, target))


def finish(planned: tvm.IRModule, target: tvm.target.Target, threads: int = 1) -> tvm.runtime.Executable:
    """Compile a planned module (`Plan.planned`) to an executable for the virtual machine, by this many threads."""
    with _as_allocated(planned):
        return generate(_one_by_one(FINISHING, planned, target), target, threads)


def _on(
    target: tvm.target.Target, run: Callable[[tvm.IRModule, tvm.target.Target], tvm.IRModule]
) -> Callable[[tvm.IRModule], tvm.IRModule]:
    return lambda mod: run(mod, target)


def _one_by_one(passes: Iterable[tvm.transform.Pass], mod: tvm.IRModule, target: tvm.target.Target) -> tvm.IRModule:
    """What a sequence of the passes makes of `mod`; one that fails is named."""
    for each in passes:
        run = _sequence(each)
        with in_phase(each.info.name, mod, _on(target, run)):
            mod = run(mod, target)
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
    return finish(plan(mod, target).planned, target)


def _report(name: str, mod: tvm.IRModule, seconds: float) -> None:
    if settings.debug().level >= 1:
        print(f"kernels: {name} {seconds * 1e3:.1f} ms", file=sys.stderr)
    directory = settings.text("AUTOCAST_DUMP")
    if directory:
        order = [phase.name for phase in LOWERING].index(name)
        path = Path(directory) / f"kernels_{order:02}_{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(mod.script())
