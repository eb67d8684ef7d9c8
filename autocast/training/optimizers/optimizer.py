"""What all optimizers share: hyperparameters as a frozen value, groups of parameters, slots of state."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from fnmatch import fnmatchcase
from typing import Any, NamedTuple, TypeVar

from tvm import relax

from autocast.errors import TrainingError
from autocast.messages import check_option, is_number, named_options

#: Binds an expression to a variable of the function that is being built.
Emit = Callable[..., relax.Var]

Self = TypeVar("Self", bound="Optimizer")


#: Decorates every optimizer: the keywords of torch's that stand elsewhere here are errors that say where.
optimizer_options = named_options(
    TrainingError,
    {
        "lr": "the learning rate belongs to the trainer: Trainer(..., learning_rate=...)",
        "params": "what is trained is the model that the trainer is given",
    },
    positional='what is trained is the model that the trainer is given, and groups=(Group("*.bias", ...),) differ',
)


class Operands(NamedTuple):
    """What the update of one parameter reads: tensors of the parameter's shape, then 0-d tensors. All float32.

    Attributes
    ----------
    parameter, gradient : relax.Var
    slots : dict of str to relax.Var
        The parameter's own state, by the names in `Optimizer.slots`.
    learning_rate : relax.Var
    scalars : dict of str to relax.Var
        What `Optimizer.scalars` computed for this step.
    emit : callable
        `emit(expr, name)` binds an expression that is used more than once.
    total : callable
        What a 0-d sum over the elements of a tensor is, where these are a share of those that the parameter has.
    """

    parameter: relax.Expr
    gradient: relax.Expr
    slots: Mapping[str, relax.Expr]
    learning_rate: relax.Expr
    scalars: Mapping[str, relax.Expr]
    emit: Emit
    total: Callable[[relax.Expr], relax.Expr] = lambda part: part


class Group:
    """Other hyperparameters for the parameters whose names match.

    Parameters
    ----------
    *patterns : str
        Shell patterns of parameter names: `"*.bias"`, `"*LayerNorm*"`. They are case-sensitive.
    **changes
        Hyperparameters of the optimizer: `weight_decay=0.0`, `learning_rate_factor=0.1`.
    """

    def __init__(self, *patterns: str, **changes: Any) -> None:
        self.patterns, self.changes = patterns, changes

    def matches(self, name: str) -> bool:
        """Whether a parameter called `name` belongs to this group."""
        return any(fnmatchcase(name, pattern) for pattern in self.patterns)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Group) and repr(self) == repr(other)

    def __hash__(self) -> int:
        return hash(repr(self))

    def __repr__(self) -> str:
        changes = [f"{name}={value!r}" for name, value in self.changes.items()]
        return f"Group({', '.join([*map(repr, self.patterns), *changes])})"


@optimizer_options
@dataclass(frozen=True, kw_only=True)
class Optimizer:
    """Base class: a frozen value whose `repr` says everything about it.

    Attributes
    ----------
    weight_decay : float
        How much of a parameter is taken off it in each step; every optimizer says how.
    learning_rate_factor : float
        Multiplies the learning rate; of use in groups.
    groups : tuple of Group
        The first one that matches a parameter's name changes the hyperparameters for it.
    """

    weight_decay: float = 0.0
    learning_rate_factor: float = 1.0
    groups: tuple[Group, ...] = ()

    def __post_init__(self) -> None:
        self._check(
            "groups",
            lambda groups: all(isinstance(group, Group) for group in groups),
            "a tuple of Groups, such as (Group('*.bias', weight_decay=0.0),)",
        )
        known = {field.name for field in fields(self)} - {"groups"}
        for group in self.groups:
            unknown = sorted(group.changes.keys() - known)
            named = group.patterns and all(isinstance(pattern, str) for pattern in group.patterns)
            if unknown or not named:
                raise TrainingError(
                    f"{type(self).__name__}: {group} changes {unknown or 'no parameters'}; expected patterns of names, "
                    f"then some of {', '.join(sorted(known))}"
                )
        for name in ("weight_decay", "learning_rate_factor"):
            self._check(name, lambda value: is_number(value) and value >= 0, "a finite number of 0 or more")
        for group in self.groups:
            replace(self, **group.changes, groups=())  # raises where the changes are not legal

    @property
    def slots(self) -> tuple[str, ...]:
        """The tensors that are kept for each parameter, in its shape. They start as zeros."""
        return ()

    def scalars(self, step: relax.Expr) -> dict[str, relax.Expr]:
        """What a group's updates share, once a step: 0-d float32 expressions of `step`, 0-d float64, from 1."""
        return {}

    def update(self, operands: Operands) -> tuple[relax.Expr, ...]:
        """The new parameter, then its new slots."""
        raise NotImplementedError

    def of(self: Self, name: str) -> Self:
        """The optimizer for the parameter called `name`: its group's hyperparameters, and no groups."""
        changes = next((group.changes for group in self.groups if group.matches(name)), {})
        return replace(self, **changes, groups=())

    def check_groups(self, names: Iterable[str]) -> None:
        """Raise TrainingError if a pattern matches none of the parameters `names`."""
        names = list(names)
        for group in self.groups:
            for pattern in group.patterns:
                if not any(fnmatchcase(name, pattern) for name in names):
                    some = ", ".join(names if len(names) <= 4 else [*names[:4], "..."])
                    raise TrainingError(
                        f"{type(self).__name__}: the pattern {pattern!r} of {group} matches none of the {len(names)} "
                        f"trained parameters ({some}); expected a shell pattern, as '*.bias' is"
                    )

    def _check(self, name: str, is_legal: Callable[[Any], bool], expected: str) -> None:
        check_option(self, name, is_legal, TrainingError, expected)


def number(value: float) -> relax.Expr:
    """A 0-d float32 literal."""
    return relax.const(value, "float32")
