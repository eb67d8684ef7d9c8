"""What AutoCast did and why, with the proof that it could not have done it with less."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, astuple, dataclass, field
from functools import cached_property
from typing import Any

from rich.table import Table

from autocast.ir.places import place_of
from autocast.passes.casting.costs import CastCost, cast_bytes
from autocast.passes.casting.forms import InsertedCast
from autocast.passes.casting.plan import ModulePlan
from autocast.passes.casting.solver import solve_greedily
from autocast.passes.store_parameters import StoredParameters
from autocast.policy import Unused
from autocast.runtime.torch_calls import PREFIX, operator_of
from autocast.terminal import to_text

_MEBIBYTE = 2**20

#: The fields of a report that are plain values, and their types.
_PLAIN: dict[str, type] = {
    **dict.fromkeys(("dtype", "objective", "solver", "policy"), str),
    **dict.fromkeys(("cost", "lower_bound", "bindings"), int),
    "milliseconds": float,
}
_GREEDY = ("greedy_casts", "greedy_cast_bytes", "greedy_cost")
_CAST = ("function", "tensor", "variable", "source", "target", "elements")


@dataclass(frozen=True)
class Decision:
    """One call: where it is, the precision of its arguments and result, and the rule that said so, with its reason.

    The result is what others read: an operator without an `out_dtype` stores another dtype where its rule asks for one,
    and a cast follows it.

    `level` names who chose the rule: one of `autocast.policy.LEVELS`. `module` is the torch submodule that the call
    comes from, of a backward operator that of the forward one; empty where nobody said. `forward` names the forward
    operator whose gradient the call is part of; empty where it is none.
    """

    function: str
    binding: str
    operator: str
    mode: str
    result: str
    rule: str
    level: str
    why: str
    module: str = ""
    forward: str = ""

    @property
    def what(self) -> str:
        """The operator, and of what it is the gradient: `relax.matmul, gradient of relax.nn.conv2d`."""
        return f"{self.operator}, gradient of {self.forward}" if self.forward else self.operator

    def __str__(self) -> str:
        place = f" in {self.module}" if self.module else ""
        call = f"@{self.function} %{self.binding}{place} = {self.what}"
        return f"{call}: {self.mode} -> {self.result} ({self.rule} by {self.level}: {self.why})"


@dataclass(frozen=True)
class GreedyFigures:
    """What one forward pass over the same module and rules needs: casts, the bytes they move, and what they cost."""

    casts: int
    cast_bytes: int
    cost: int


class GreedyChoice:
    """The choice of one forward pass over a module's plan, made when somebody asks for it."""

    def __init__(self, plan: ModulePlan) -> None:
        self._plan = plan

    @cached_property
    def low(self) -> list[bool]:
        """Which nodes are in low precision."""
        return solve_greedily(self._plan.problem)

    @cached_property
    def _indices(self) -> list[int]:
        return self._plan.problem.casts(self.low)

    @property
    def casts(self) -> int:
        """How many casts it needs."""
        return len(self._indices)

    @property
    def cast_bytes(self) -> int:
        """The bytes that these read and write."""
        return sum(cast_bytes(self._plan.tensors[index].elements) for index in self._indices)

    @cached_property
    def cost(self) -> int:
        """What they cost in the objective's unit."""
        return self._plan.problem.cost(self.low, self._indices)


@dataclass(frozen=True)
class CastReport:
    """The result of one AutoCast.

    `cost` and `lower_bound` are in the objective's unit, casts or bytes: no valid choice of precisions costs less than
    `lower_bound`. `cast_bytes` counts what every cast would read and write if none were absorbed by a kernel. The
    `greedy` figures are those of one forward pass over the same module and rules, which is made when they are asked
    for. `unused` are the policy's entries that concern nothing in the module. `out_of_range` are the parameters that
    the dtype cannot hold, and why: what reads them is float32, unless the policy explicitly says otherwise.
    `parameters` tells which are stored in low precision since, where any may be. `policy` is the text of the policy,
    without its hints that are Python.
    """

    dtype: str
    objective: str
    solver: str
    inserted: tuple[InsertedCast, ...]
    cost: int
    lower_bound: int
    greedy: GreedyChoice | GreedyFigures = field(repr=False, compare=False)
    milliseconds: float
    bindings: int
    unused: tuple[Unused, ...]
    _plan: ModulePlan | None = field(repr=False)
    _low: list[bool] = field(repr=False)
    out_of_range: Mapping[str, str] = field(default_factory=dict)
    parameters: StoredParameters | None = None
    policy: str = ""
    #: The decisions where there is no plan any more: in a report that was read from a file.
    _told: tuple[Decision, ...] = field(default=(), repr=False)

    @property
    def casts(self) -> int:
        """How many casts AutoCast left in the module, its author's included, those of parameters stored low, too."""
        return len(self.inserted)

    @property
    def cast_bytes(self) -> int:
        """Bytes that these casts read and write if each is a tensor of its own."""
        return sum(cast_bytes(cast.elements) for cast in self.inserted)

    @property
    def greedy_casts(self) -> int:
        """How many casts one forward pass needs."""
        return self.greedy.casts

    @property
    def greedy_cast_bytes(self) -> int:
        """Bytes that these read and write."""
        return self.greedy.cast_bytes

    @property
    def greedy_cost(self) -> int:
        """What they cost, in the objective's unit."""
        return self.greedy.cost

    @property
    def is_optimal(self) -> bool:
        """Whether the cost equals its lower bound."""
        return self.cost == self.lower_bound

    @property
    def decisions(self) -> tuple[Decision, ...]:
        """Every call of an operator, in program order."""
        if self._plan is None:
            return self._told
        rows = []
        for function, var, plan in self._plan.calls:
            ruling = plan.ruling
            demanded = {self._dtype(node) for demands in plan.demands for _, node in demands}
            mode = " and ".join(sorted(demanded)) or "as is"
            result = self._dtype(plan.result_node) if demanded else "as is"
            name, rule, level, why = "call", "opaque", "rule", "not an operator: do not touch"
            if ruling is not None:
                (name, rule, why), level = (ruling.row.name, ruling.row.label, ruling.row.why), ruling.level
            if plan.alike.torch:
                name, why = f"{PREFIX}{plan.alike.torch}", "torch computes it, in the dtypes of the torch module"
            place = place_of(var)
            rows.append(Decision(function, var.name, name, mode, result, rule, level, why, place.module, place.forward))
        return tuple(rows)

    @property
    def fallbacks(self) -> dict[str, int]:
        """The operators of torch that torch computes when the model runs, and how many calls of each there are."""
        names = [decision.operator for decision in self.decisions]
        return dict(Counter(operator_of(name) for name in names if name.startswith(PREFIX)))

    def _dtype(self, node: int) -> str:
        return self.dtype if self._low[node] else "float32"

    def to_data(self) -> dict[str, Any]:
        """All that the report says, as JSON can say it; `from_data` makes a report of it that says the same."""
        plain = {name: getattr(self, name) for name in (*_PLAIN, *_GREEDY)}
        casts = [[*(getattr(cast, name) for name in _CAST), cast.cost.name] for cast in self.inserted]
        return plain | {
            "inserted": casts,
            "unused": [list(unused) for unused in self.unused],
            "out_of_range": dict(self.out_of_range),
            "parameters": None if self.parameters is None else asdict(self.parameters),
            "decisions": [list(astuple(decision)) for decision in self.decisions],
        }

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> CastReport:
        """The report that `to_data` wrote; LookupError, TypeError or ValueError where it did not write this."""
        types = _PLAIN | dict.fromkeys(_GREEDY, int)
        wrong = [name for name, type_ in types.items() if not isinstance(data[name], type_)]
        if wrong:
            raise TypeError(f"{', '.join(wrong)} of a CastReport")
        parameters = data["parameters"]
        if parameters is not None:
            names = ("stored", "shared", "mixed", "unread")
            parameters = StoredParameters(**{**parameters, **{name: tuple(parameters[name]) for name in names}})
        return cls(
            **{name: data[name] for name in _PLAIN},
            greedy=GreedyFigures(*(data[name] for name in _GREEDY)),
            inserted=tuple(
                InsertedCast(**dict(zip(_CAST, facts, strict=True)), cost=CastCost[cost])
                for *facts, cost in data["inserted"]
            ),
            unused=tuple(Unused(*unused) for unused in data["unused"]),
            out_of_range=dict(data["out_of_range"]),
            parameters=parameters,
            _plan=None,
            _low=[],
            _told=tuple(Decision(*decision) for decision in data["decisions"]),
        )

    def summary(self) -> str:
        """One line: `casts: 234 (optimal in bytes; greedy: 367), 845.0 MiB (greedy: 1020.5 MiB)`, and what is offline.

        `optimal in bytes` names the objective: nothing else costs less of it. MiB are those of `cast_bytes`.
        """
        lost = ""
        if self.out_of_range:
            count = len(self.out_of_range)
            lost = f"; {count} parameter{'s' if count != 1 else ''} that {self.dtype} cannot hold"
        stored = f"; {self.parameters.summary()}" if self.parameters is not None else ""
        proof = (
            f"optimal in {self.objective}" if self.is_optimal else f"lower bound {self.lower_bound} {self.objective}"
        )
        return (
            f"casts: {self.casts} ({proof if self.solver == 'optimal' else self.solver}; greedy: {self.greedy_casts}), "
            f"{self.cast_bytes / _MEBIBYTE:.1f} MiB (greedy: {self.greedy_cast_bytes / _MEBIBYTE:.1f} MiB)"
            f"{lost}{stored}"
        )

    def __str__(self) -> str:
        """The summary, and a table of operators by precision with each rule's reason."""
        groups = Counter((d.what, d.mode, d.result, d.rule, d.level, d.why) for d in self.decisions)
        table = Table(title=f"AutoCast to {self.dtype}, objective {self.objective}", title_justify="left")
        for heading in ("calls", "operator", "arguments", "result", "rule", "said by", "why"):
            table.add_column(heading, justify="right" if heading == "calls" else "left")
        for group, count in sorted(groups.items()):
            table.add_row(str(count), *group)
        lost = [f"{name}: {self.dtype} cannot hold it: {reason}\n" for name, reason in self.out_of_range.items()]
        return f"{to_text(table)}\n{''.join(lost)}{self.summary()}\n"
