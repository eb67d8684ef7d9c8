"""What the planner hands to the solver, the rewriter and the report: a cut problem, and a plan for every binding."""

from __future__ import annotations

from dataclasses import dataclass, field

import tvm
from tvm import relax

from autocast.passes.casting.costs import CastCost
from autocast.passes.casting.leaves import Leaf, Tree
from autocast.passes.casting.signatures import Signature
from autocast.passes.casting.solver import FULL, CastProblem, CastTensor
from autocast.policy import Ruling

#: The block number of what a sequence returns.
END = -1


@dataclass(slots=True)
class CallPlan:
    """One bound call. `demands[i]` lists (leaf, node) for argument i: the leaf is wanted low where the node is.

    `result_node` decides the dtype of the result where `free_result` says that the operator can store either; `ruling`
    has the casting rule that was asked. `stored` is the leaf as the operator stores it, where its rule asks for a cast
    after it. `alike` is what is known of the call.
    """

    demands: list[list[tuple[Leaf, int]]]
    node: int
    alike: Signature
    result_node: int = FULL
    ruling: Ruling | None = None
    free_result: bool = False
    stored: Leaf | None = None


@dataclass(slots=True)
class CastPlan:
    """An existing cast between float32 and the AMP dtype, or a name that stands for one: see `Place.converted`.

    `target` shares the tensor of `source` where it widens. `block` is the block that holds it; None where `source`
    belongs to a sequence around.
    """

    source: Leaf
    target: Leaf
    block: int | None


@dataclass(slots=True)
class NoPlan:
    """A cast to the dtype that its argument has already, which is none that AutoCast chooses: another name for it."""


@dataclass(slots=True)
class MatchPlan:
    """A `match_cast`: its value's leaves are wanted in the dtypes that its own leaves have."""

    demands: list[tuple[Leaf, int]]


@dataclass(slots=True)
class ClosurePlan:
    """A nested function: what it captures, each with (leaf, node) of its leaves, in the dtypes that the body reads."""

    captured: list[tuple[relax.Var, list[tuple[Leaf, int]]]]


@dataclass(slots=True)
class IfPlan:
    """A conditional: its result and both branches' results are in `node`'s dtype; `hoisted` are wanted from outside."""

    nodes: list[int]
    hoisted: list[tuple[Leaf, int]] = field(default_factory=list)


@dataclass(slots=True)
class ModulePlan:
    """The cut problem of a module and what to do with each binding; dictionaries are keyed by `identity`.

    `names` are those of the variables that hold something to cast, `signatures` those of the calls. For casts of a
    tensor to a dtype, `surcharges` has what they cost more where they are kernels of their own, and `stored` those that
    are free where the tensor is stored.
    """

    amp: str
    problem: CastProblem = field(default_factory=CastProblem)
    trees: dict[int, Tree] = field(default_factory=dict)
    constants: dict[int, Tree] = field(default_factory=dict)
    bindings: dict[int, CallPlan | CastPlan | NoPlan | MatchPlan | ClosurePlan | IfPlan] = field(default_factory=dict)
    results: dict[int, list[tuple[Leaf, int]]] = field(default_factory=dict)
    scopes: dict[int, int] = field(default_factory=dict)
    names: set[str] = field(default_factory=set)
    tensors: list[Leaf] = field(default_factory=list)
    functions: list[tuple[tvm.ir.GlobalVar, relax.Function]] = field(default_factory=list)
    signatures: list[Signature] = field(default_factory=list)
    calls: list[tuple[str, relax.Var, CallPlan]] = field(default_factory=list)
    surcharges: dict[tuple[CastTensor, str], CastTensor] = field(default_factory=dict)
    stored: set[tuple[CastTensor, str]] = field(default_factory=set)

    def cost(self, tensor: CastTensor, dtype: str, low: list[bool]) -> CastCost:
        """What the cast of `tensor` to `dtype` costs where the nodes are on the sides that `low` says."""
        surcharge = self.surcharges.get((tensor, dtype))
        if surcharge is not None and any(low[node] == (dtype == self.amp) for node in surcharge.consumers):
            return CastCost.KERNEL
        return CastCost.STORE if (tensor, dtype) in self.stored else CastCost.LOAD
