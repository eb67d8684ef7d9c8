"""The admissible modes of one call: what its casting rule answers, asked until the answer is stable.

A mode says which dtype each castable tensor among the arguments must have. A rule is asked with all of them in low
precision, and with all in float32; an answer that differs from the question is asked again until it repeats itself.
Both questions may lead to one mode (the call is fixed) or to two (it is flexible: the solver chooses).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import repeat
from typing import Any, NoReturn

import tvm
from tvm import relax

import type_hints
from autocast.errors import CastingRuleError
from autocast.passes.casting.leaves import Tree, leaves, retype
from autocast.passes.casting.results import has_out_dtype, inferred_dtypes
from autocast.passes.casting.solver import FULL, LOW
from type_hints.helpers import castable_dtype

#: Dtypes of the castable tensors among the arguments of a call, in the order of a left-to-right walk.
Dtypes = tuple[str, ...]

#: The types of arguments that a rule of the tables may name.
_TENSORS = (relax.TensorType, tvm.ir.TupleType)

_UNTOUCHED = type_hints.PrimType(None)

#: How often a rule is asked before it counts as one that never accepts its own answer.
_ATTEMPTS = 8


@dataclass(frozen=True, slots=True)
class Modes:
    """What a rule admits: `low` and `full` are equal where it is fixed.

    `result` is what it asks of the result: None (the dtype that TVM infers), a dtype, or "either" (both cost no cast).
    """

    low: Dtypes
    full: Dtypes
    result: str | None


@dataclass(frozen=True, slots=True)
class Ruling:
    """What calls of one kind may do, in nodes of the cut problem.

    `node` is the one that the call is in, None where each has one of its own. `reads` are the nodes that want the
    leaves of each argument, `results` those that say in which dtype TVM infers the leaves of the result; None stands
    for the call's node. `wanted` is the `result` of the call's `Modes`.
    """

    node: int | None
    reads: tuple[tuple[int | None, ...], ...]
    results: tuple[int | None, ...]
    wanted: str | None
    has_out_dtype: bool

    @classmethod
    def of(
        cls,
        modes: Modes,
        results: tuple[Dtypes, Dtypes],
        has_out_dtype: bool,
        trees: Sequence[Tree],
        amp: str,
    ) -> Ruling:
        """The ruling of modes; `results` are the dtypes of the result's leaves in either, `trees` the arguments."""

        def nodes(low: Dtypes, full: Dtypes) -> Iterator[int | None]:
            return (None if a != b else LOW if a == amp else FULL for a, b in zip(low, full, strict=True))

        wanted = nodes(modes.low, modes.full)
        reads = tuple(tuple(next(wanted) for _ in leaves(tree)) for tree in trees)
        fixed = LOW if modes.low and modes.low[0] == amp else FULL
        node = fixed if modes.low == modes.full else None
        return cls(node, reads, tuple(nodes(*results)), modes.result, has_out_dtype)


@dataclass(frozen=True, slots=True)
class RuleQuery:
    """A call's casting rule together with the arguments it is asked about.

    `arguments` pairs each expression with its tree; `derived` maps a derived operator's hints back onto the real call.
    """

    rule: type_hints.Rule
    arguments: Sequence[tuple[Any, Tree]]
    result: tuple[Any, Tree]
    amp: str
    where: Callable[[], str]
    derived: type_hints.DerivedCall | None = None

    def modes(self) -> Modes:
        """The modes that the rule admits.

        Raises
        ------
        CastingRuleError
            The rule raises, answers too many, too few or the wrong kind of hints, never accepts its own answer, or
            wants the opposite of what it is given.
        """
        low, low_result = self._settle(self.amp)
        full, full_result = self._settle("float32")
        if any(a == "float32" and b == self.amp for a, b in zip(low, full, strict=True)):
            self._fail(f"contradicts itself on {{}}: asked in low precision it wants {low}, asked in float32 {full}")
        if low_result is None:
            return Modes(low, full, None)
        other = self._ask(low, "float32")[1] if low == full else full_result
        if other == low_result:
            return Modes(low, full, low_result)
        if (low_result, other) != (self.amp, "float32"):
            self._fail(f"contradicts itself on the result of {{}}: {low_result} for {self.amp}, {other} for float32")
        return Modes(low, full, "either")

    def _settle(self, start: str) -> tuple[Dtypes, str | None]:
        """Ask with every castable argument in dtype `start`, then with the answers, until one is accepted."""
        dtypes: Dtypes = tuple(start for _, tree in self._real_arguments() for _ in leaves(tree))
        history = []
        for _ in range(_ATTEMPTS):
            answer, result = self._ask(dtypes, start)
            if answer == dtypes:
                return answer, result
            history.append(f"given {dtypes} it wants {answer}")
            dtypes = answer
        self._fail(f"contradicts itself on {{}}: {'; '.join(history[-2:])}. A rule must accept its own answer")

    def _real_arguments(self) -> Sequence[tuple[Any, Tree]]:
        if self.derived is None:
            return self.arguments
        return [self.arguments[position] for position in self.derived.positions]

    def _ask(self, dtypes: Dtypes, result: str) -> tuple[Dtypes, str | None]:
        """What the rule answers, for arguments of `dtypes` and a result wanted in dtype `result`."""
        given = iter(dtypes)
        types = [retype(expr.ty, tree, given) for expr, tree in self._real_arguments()]
        if self.derived is not None:
            by_position = dict(zip(self.derived.positions, types, strict=True))
            types = [by_position.get(position) for position in range(len(self.arguments))]
        questions = [type_hints.Argument(expr, type) for (expr, _), type in zip(self.arguments, types, strict=True)]
        try:
            answers = self.rule(questions, retype(*self.result, repeat(result)), self.amp)
            if not isinstance(answers, Sequence) or isinstance(answers, str):
                raise TypeError(f"got {answers!r}, expected a list of hints, one for each argument: [PrimType(dtype)]")
            hints = [type_hints.as_hint(answer) for answer in answers]
            if self.derived is not None:
                hints = self.derived.real_hints(hints)
        except Exception as error:
            what = f"{type(error).__name__}: {error}"
            raise CastingRuleError(
                f"AutoCast: the casting rule {_name(self.rule)} failed on {self.where()}: {what}"
            ) from error
        arguments = self._real_arguments()
        while len(hints) > len(arguments) + 1 and hints[-1] == _UNTOUCHED:
            hints.pop()  # RAF's operators have arguments for what are attributes here
        if len(hints) not in (len(arguments), len(arguments) + 1):
            self._fail(
                f"answered {len(hints)} hints for {{}}, expected {len(arguments)} (one for each argument) "
                "or one more for the result"
            )
        answer = [
            dtype
            for at, (hint, (expr, tree)) in enumerate(zip(hints, arguments, strict=False))
            for dtype in self._read(hint, tree, expr.ty, at)
        ]
        if len(hints) == len(arguments):
            return tuple(answer), None
        if not isinstance(hints[-1], type_hints.PrimType) or hints[-1].dtype not in (None, "float32", self.amp):
            self._fail(
                f'answered {hints[-1]!r} for the result of {{}}, expected PrimType("float32") or PrimType("{self.amp}")'
            )
        return tuple(answer), hints[-1].dtype

    def _read(self, hint: Any, tree: Tree, type: Any, at: int) -> Iterator[str]:
        """The dtypes that a hint asks of the leaves of one argument, of this type."""
        if isinstance(tree, list):
            if isinstance(hint, type_hints.TupleType) and len(hint.fields) == len(tree):
                for field, branch, part in zip(hint.fields, tree, type.fields, strict=True):
                    yield from self._read(field, branch, part, at)
                return
            if hint == _UNTOUCHED:
                yield from (leaf.dtype for leaf in leaves(tree))
                return
            self._fail(f"answered {hint!r} for argument {at} of {{}}, expected a TupleType of {len(tree)} hints")
        allowed = (None, "float32", self.amp) if tree is not None else (None,)
        if tree is None and (isinstance(hint, type_hints.TupleType) or _is_no_float(hint) or castable_dtype(type)):
            return  # a float that has no tree is in the 16 bits that its author chose
        if not isinstance(hint, type_hints.PrimType) or hint.dtype not in allowed:
            expected = " or ".join(f"{type_hints.PrimType(dtype)!r}" for dtype in allowed)
            what = "" if tree is not None else ", which is not a floating-point tensor to cast"
            self._fail(f"answered {hint!r} for argument {at} of {{}}{what}; expected {expected}")
        if tree is not None:
            yield hint.dtype or tree.dtype

    def _fail(self, what: str) -> NoReturn:
        raise CastingRuleError(f"AutoCast: the casting rule {_name(self.rule)} {what.replace('{}', self.where())}")


def decide(
    call: relax.Call,
    args: list[relax.Expr],
    trees: list[Tree],
    result: tuple[Any, Tree],
    row: type_hints.Row | None,
    derived: type_hints.DerivedCall | None,
    amp: str,
    where: Callable[[], str],
) -> Ruling:
    """Ask the rule of `row` what a call may do; without a rule, or castable arguments, everything stays as it is.

    Raises
    ------
    CastingRuleError
        The rule misbehaves or names arguments that the call does not have, or TVM refuses the dtypes that it wants.
    """
    kept = tuple(leaf.dtype for tree in trees for leaf in leaves(tree))
    originals = tuple(leaf.dtype for leaf in leaves(result[1]))
    if row is None or not kept:
        return Ruling.of(Modes(kept, kept, None), (originals, originals), False, trees, amp)
    if isinstance(row.rule, type_hints.TableRule) and type_hints.tensor_arguments(row.name) is None:
        tensors = {at: str(arg.ty) for at, arg in enumerate(args) if isinstance(arg.ty, _TENSORS)}
        type_hints.check_named_arguments(f"AutoCast: {where()}", row.name, row.rule, tensors)
    arguments = list(zip(args, trees, strict=True))
    if derived is not None:
        by_position = dict(zip(derived.positions, arguments, strict=True))
        arguments = [by_position.get(at, (None, None)) for at in range(len(derived.arguments))]
    modes = RuleQuery(row.rule, arguments, result, amp, where, derived).modes()

    def inferred(dtypes: Dtypes) -> Dtypes:
        return originals if dtypes == kept else inferred_dtypes(call, trees, dtypes, amp, _name(row.rule), where)

    full = inferred(modes.full)
    try:
        low = inferred(modes.low)
    except CastingRuleError:
        if modes.low == modes.full:
            raise
        # TVM wants the dtype of a number among the arguments or attributes: the border of R.layout_transform, say.
        modes, low = replace(modes, low=modes.full), full
    is_free = has_out_dtype(call)
    if is_free and modes.result == "either" and str(call.attrs.out_dtype) == amp:
        # Written by hand, this rounding is as much the author's wish as a cast would be.
        modes = replace(modes, result=amp)
    return Ruling.of(modes, (low, full), is_free, trees, amp)


def _name(rule: Any) -> str:
    return getattr(rule, "__name__", None) or repr(rule)


def _is_no_float(hint: Any) -> bool:
    """Whether a hint names the dtype of integers or truth values, which RAF's rules repeat for arguments of these."""
    return isinstance(hint, type_hints.PrimType) and (hint.dtype or "").startswith(("int", "uint", "bool"))


def missing_rules(missing: Mapping[str, Counter]) -> str:
    """What to say of operators without a rule, of which it is counted how often each function calls them."""
    rows = [
        f"  {name}: {sum(counts.values())} call{'s' if sum(counts.values()) > 1 else ''} in "
        f"{', '.join(f'@{function}' for function in sorted(counts))}; "
        f'add one: type_hints.register_op_cast_rule("{name}", type_hints.follow(1), why="...")'
        for name, counts in sorted(missing.items())
    ]
    return (
        f"AutoCast: {len(missing)} operator{'s have' if len(missing) > 1 else ' has'} no casting rule:\n"
        + "\n".join(rows)
    )
