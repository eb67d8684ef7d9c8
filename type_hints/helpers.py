"""The helpers that rules and tables are written with: `low(2)`, `full(1)`, `follow(1)` and what they are made of."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal, TypeAlias

import tvm
from tvm import relax

from type_hints.errors import CastingRuleError
from type_hints.hints import Argument, Hint, PrimType, TupleType

#: Dtypes that a cast decision may change. float64 and the 8-bit floats stay what the model's author made them.
CASTABLE = frozenset(("float32", "bfloat16", "float16"))

NONE = PrimType(None)
FLOAT32 = PrimType("float32")
_HINTS = {None: NONE, "float32": FLOAT32, "bfloat16": PrimType("bfloat16"), "float16": PrimType("float16")}

# TVM keeps one object for each dtype: comparing identities costs a tenth of fetching the name.
_SHARED = tuple((relax.TensorType((1,), name).dtype, name) for name in sorted(CASTABLE, reverse=True))

_TensorType = relax.TensorType
_TupleType = tvm.ir.TupleType

Which = int | Iterable[int]


def castable_dtype(type: Any) -> str | None:
    """The dtype of a tensor whose precision may be changed; None for every other type."""
    if not isinstance(type, _TensorType):
        return None
    dtype = type.dtype
    if dtype is None:
        return None
    for shared, known in _SHARED:
        if shared.same_as(dtype):
            return known
    name = dtype.dtype
    return name if name in CASTABLE else None


def gen_hint_helper(type: Any, dtype: str | None) -> Hint:
    """The hint that asks for `dtype` wherever `type` holds floating-point tensors.

    Parameters
    ----------
    type
        The `checked_type` of an argument.
    dtype
        "float32", the AMP dtype, or None for "do not touch".

    Returns
    -------
    Hint
        `PrimType(dtype)` for a tensor in float32, bfloat16 or float16; a `TupleType` of such hints for a
        tuple; `PrimType(None)` for integers, booleans, float64, shapes and everything else.
    """
    if isinstance(type, _TupleType):
        return TupleType([gen_hint_helper(field, dtype) for field in type.fields])
    if dtype is None or castable_dtype(type) is None:
        return NONE
    return _HINTS.get(dtype) or PrimType(dtype)


def check_dtype(type: Any, dtype: str) -> bool:
    """Whether `type` is a tensor of `dtype`, or a tuple of nothing but such tensors."""
    if isinstance(type, _TensorType):
        return type.dtype is not None and type.dtype.dtype == dtype
    if isinstance(type, _TupleType):
        fields = type.fields
        return len(fields) > 0 and all(check_dtype(field, dtype) for field in fields)
    return False


class TableRule:
    """A rule made by one of the helpers below; `label` is its class in the tables, `which` what it concerns.

    `kept` are arguments that stay float32 beside those.

    It promises to look at nothing but the dtypes of its arguments and of the result, so that one answer serves
    every call with these dtypes. A rule that looks at shapes or expressions must be a callable of another type.
    """

    __slots__ = ("kept", "label", "which")

    def __init__(self, label: str, which: Which, kept: Which = ()) -> None:
        self.label = label
        self.which = _indices(label, which)
        self.kept = _indices(label, kept)

    def __repr__(self) -> str:
        which = tuple(sorted(self.which))
        leading = which == tuple(range(len(which)))
        return f"{self.label}({'' if not which else len(which) if leading else which})"

    def __call__(self, args: Sequence[Argument], ret_type: Any, amp_dtype: str) -> list[Hint]:
        """One hint for each argument; here: none is to be touched."""
        return [NONE] * len(args)


class _Generic(TableRule):
    """One precision, whatever the arguments are."""

    __slots__ = ("cast_to_amp", "free_result")

    def __init__(
        self, label: str, cast_to_amp: bool, which: Which, kept: Which = (), free_result: bool = False
    ) -> None:
        super().__init__(label, which, kept)
        self.cast_to_amp = cast_to_amp
        self.free_result = free_result

    def __call__(self, args: Sequence[Argument], ret_type: Any, amp_dtype: str) -> list[Hint]:
        dtype = amp_dtype if self.cast_to_amp else "float32"
        hints: list[Hint] = [
            gen_hint_helper(argument.checked_type, dtype)
            if index in self.which
            else gen_hint_helper(argument.checked_type, "float32")
            if index in self.kept
            else NONE
            for index, argument in enumerate(args)
        ]
        if self.free_result and hints[0] is not NONE:
            wanted = _dtype_name(ret_type)
            if wanted == "float32" or wanted == amp_dtype:
                hints.append(_HINTS.get(wanted) or PrimType(wanted))
        return hints


class _Infer(TableRule):
    """The precision that most of the arguments have now, or the one of the argument `leader`."""

    __slots__ = ("leader", "order")

    def __init__(self, label: str, which: Which, leader: int | None = None) -> None:
        super().__init__(label, which)
        self.leader = leader
        self.order = tuple(sorted(self.which))

    def __call__(self, args: Sequence[Argument], ret_type: Any, amp_dtype: str) -> list[Hint]:
        trees: list[tuple[int, _Tree]] = []
        balance = 0
        for index in self.order:
            if index >= len(args):
                break
            # The pass builds an argument's type when asked for it: ask once.
            tree, votes = _votes(args[index].checked_type, amp_dtype)
            trees.append((index, tree))
            if self.leader is None or index == self.leader:
                balance += votes
        chosen = amp_dtype if balance > 0 else "float32"
        hint = _HINTS.get(chosen) or PrimType(chosen)
        hints: list[Hint] = [NONE] * len(args)
        for index, tree in trees:
            hints[index] = _plant(tree, hint)
        return hints


#: Where a type has castable tensors: True for one, a list for a tuple, False for everything else.
_Tree: TypeAlias = "bool | list[_Tree]"


def _votes(type: Any, amp_dtype: str) -> tuple[_Tree, int]:
    """Where `type` has tensors in float32 or the AMP dtype, and how many more of them are in the latter."""
    if isinstance(type, _TupleType):
        branches = [_votes(field, amp_dtype) for field in type.fields]
        return [tree for tree, _ in branches], sum(votes for _, votes in branches)
    dtype = castable_dtype(type)
    if dtype == amp_dtype:
        return True, 1
    return dtype == "float32", -1 if dtype == "float32" else 0


def _plant(tree: _Tree, hint: PrimType) -> Hint:
    if isinstance(tree, list):
        return TupleType([_plant(branch, hint) for branch in tree])
    return hint if tree else NONE


def _dtype_name(type: Any) -> str | None:
    """The dtype of a tensor type, as a name; `ret_type` may be a stand-in whose dtype is a plain string."""
    dtype = getattr(type, "dtype", None)
    name = dtype if isinstance(dtype, str) else getattr(dtype, "dtype", None)
    return str(name) if name is not None else None


def _indices(label: str, which: Which) -> frozenset[int]:
    if isinstance(which, int):
        which = range(which) if which > 0 and which is not True else (-1,)
    indices = tuple(which) if isinstance(which, Iterable) else (-1,)
    if not all(isinstance(index, int) and not isinstance(index, bool) and index >= 0 for index in indices):
        raise CastingRuleError(
            f"{label}({which!r}): expected how many leading arguments the rule concerns (at least 1), "
            "or their indices, such as (0, 2)"
        )
    return frozenset(indices)


def generic_cast(cast_to_amp: bool, which: Which) -> TableRule:
    """A rule that asks for one precision, whatever the arguments are (RAF's always and never cast).

    Parameters
    ----------
    cast_to_amp
        True asks for the AMP dtype, False for float32.
    which
        How many leading arguments it concerns, or their indices. All others get `PrimType(None)`.
    """
    return low(which) if cast_to_amp else full(which)


def infer_cast(which: Which) -> TableRule:
    """A rule that gives the arguments `which` one common precision: the one that most of them have now.

    Arguments all in the AMP dtype stay there, arguments all in float32 stay there, so both are stable. Of
    mixed arguments the majority wins, and a tie goes to float32. Other arguments get `PrimType(None)`.
    """
    return follow(which)


def low(which: Which, *, keep: Which = (), result: Literal["either"] | None = None) -> TableRule:
    """Table entry: arguments `which` in the AMP dtype.

    Parameters
    ----------
    which
        How many leading arguments, or their indices.
    keep
        Indices of arguments that must be float32 beside them.
    result
        "either": the operator accumulates in float32 and stores in any precision, so the rule adds one
        hint for the result that echoes the dtype currently wanted of it.
    """
    if isinstance(keep, int):
        keep = (keep,)
    if result not in (None, "either"):
        raise CastingRuleError(f"low({which!r}, result={result!r}): expected None, or 'either' for a free result")
    return _Generic("low", True, which, keep, result == "either")


def full(which: Which) -> TableRule:
    """Table entry: arguments `which` in float32."""
    return _Generic("full", False, which)


def follow(which: Which, *, leader: int | None = None) -> TableRule:
    """Table entry: arguments `which` in the precision that they already have.

    `leader` is the index of the argument whose precision the others take; without one the majority decides
    (see `infer_cast`).
    """
    if leader is not None and not (isinstance(leader, int) and leader in _indices("follow", which)):
        raise CastingRuleError(f"follow({which!r}, leader={leader!r}): expected the leader to be one of the arguments")
    return _Infer("follow", which, leader)


def untouched() -> TableRule:
    """Table entry: no floating-point argument whose precision could matter; all keep their original dtype."""
    return TableRule("untouched", ())


def cast() -> TableRule:
    """Table entry: the operator is itself a cast, which the pass reuses, skips or cancels; hints say nothing."""
    return TableRule("cast", ())


def opaque() -> TableRule:
    """Table entry: not an operator of models (run-time, memory, foreign calls): do not touch."""
    return TableRule("opaque", ())
