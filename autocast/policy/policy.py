"""`Policy`: one frozen value that says everything a cast decision depends on, and reads and prints as one line."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, NoReturn

import type_hints
from autocast.errors import PolicyError
from autocast.messages import named_options
from autocast.policy import presets
from autocast.policy.choices import UNDECIDED
from autocast.policy.patterns import compiled
from autocast.policy.text import dtype_name, fields_of, text_of
from type_hints import UnknownOperatorError

#: (operator, attribute, values): float32 where the call's attribute has one of the values, as text.
Condition = tuple[str, str, tuple[str, ...]]

#: Options with few legal values.
LEGAL: dict[str, tuple[str, ...]] = {
    "dtype": ("bfloat16", "float16"),
    "preset": tuple(presets.PRESETS),
    "objective": ("bytes", "casts"),
    "solver": ("optimal", "greedy"),
    "parameters": ("float32", "offline", "offline_shared"),
    "accumulation": ("fp32", "bf16sr"),
    "weight_gradients": ("fp32", "bf16sr"),
}

#: What `mixed_ops` may name, and whether a row of the tables is meant.
MIXED_OPS: dict[str, Callable[[type_hints.Row], bool]] = {
    "gemm": presets.multiplies_matrices,
    "softmax": lambda row: row.name == "relax.nn.softmax",
}

_OPERATORS = ("low_ops", "float32_ops", "unsupported_ops", "widest_ops")
_PATTERNS = ("low_names", "float32_names", "low_regions", "float32_regions")
_SWITCHES = ("guarded", "fp32_params")

#: Pairs of fields in which no entry may stand twice.
_OPPOSITES = (
    ("low_ops", "float32_ops"),
    ("low_ops", "unsupported_ops"),
    ("low_ops", "widest_ops"),
    ("float32_ops", "widest_ops"),
    ("unsupported_ops", "widest_ops"),
    ("low_names", "float32_names"),
    ("low_regions", "float32_regions"),
)


@named_options(PolicyError, {}, positional='try Policy.parse("mp1, dtype=float16")')
@dataclass(frozen=True, kw_only=True, repr=False)
class Policy:
    """What is low, what is float32, and how parameters and sums are kept.

    Who wins where several fields concern one call is said in `autocast.policy.precedence`. Operators may be named as
    in `CustomTypeHint`; patterns are exact names, globs, or regular expressions between slashes, and match whole names.

    Parameters
    ----------
    dtype
        The low dtype: "bfloat16" or "float16", or torch's dtype of that name.
    out_dtype
        The dtype of floating-point results; None: what they were.
    preset
        mp0, mp1, mp4, default, rules or pure: see `autocast.policy.PRESETS`.
    low_ops, float32_ops
        Operators in low precision, and in float32.
    conditional_float32_ops
        (operator, attribute, values): float32 in the calls whose attribute has one of the values.
    unsupported_ops
        More operators without a low-precision form, besides `autocast.policy.UNSUPPORTED`.
    widest_ops
        Operators that take their arguments in the widest dtype among them: low only where all are low already.
    low_names, float32_names
        Patterns of names: of a call's result, or of a parameter that it reads. `low_names` wins.
    low_regions, float32_regions
        Patterns of paths of torch modules, which select what is inside, too. `low_regions` wins.
    guarded
        Only what is inside `fp16_guard` is changed.
    mixed_ops
        "gemm": low operands, float32 result. "softmax": float32 operand, low result.
    objective, solver
        What AutoCast minimizes ("bytes" that casts move, or "casts"), and how ("optimal" or "greedy").
    parameters
        "float32"; "offline": stored low where every use is low; "offline_shared": kept twice where some uses are.
        Where it is not given the preset says: "offline" for pure, else "float32".
    accumulation, weight_gradients
        How sums of low products, and the gradients of linear layers' weights, are kept: "fp32", or "bf16sr": bfloat16
        with stochastic rounding.
    fp32_params
        Whether a training step keeps float32 masters of the parameters that it reads in low precision.

    Raises
    ------
    PolicyError
        A value is none of the legal ones, or two fields contradict each other.

    Examples
    --------
    >>> Policy(preset="mp1", low_ops=("relu",))
    Policy(preset="mp1", low_ops=("nn.relu",))
    """

    dtype: str = "bfloat16"
    out_dtype: str | None = None
    preset: str = "rules"
    low_ops: tuple[str, ...] = ()
    float32_ops: tuple[str, ...] = ()
    conditional_float32_ops: tuple[Condition, ...] = ()
    unsupported_ops: tuple[str, ...] = ()
    widest_ops: tuple[str, ...] = ()
    low_names: tuple[str, ...] = ()
    float32_names: tuple[str, ...] = ()
    low_regions: tuple[str, ...] = ()
    float32_regions: tuple[str, ...] = ()
    guarded: bool = False
    mixed_ops: tuple[str, ...] = ()
    objective: str = "bytes"
    solver: str = "optimal"
    parameters: str | None = None
    accumulation: str = "fp32"
    weight_gradients: str = "fp32"
    fp32_params: bool = True

    def __post_init__(self) -> None:
        def store(name: str, value: object) -> None:
            object.__setattr__(self, name, value)

        _require("preset", self.preset, LEGAL["preset"])
        store("dtype", dtype_name(self.dtype))
        store("out_dtype", None if self.out_dtype is None else dtype_name(self.out_dtype))
        for name in _OPERATORS:
            store(name, _sorted(_operator(name, entry) for entry in _entries(name, getattr(self, name))))
        conditions = _several("conditional_float32_ops", self.conditional_float32_ops)
        store("conditional_float32_ops", _sorted(map(_condition, conditions)))
        for name in _PATTERNS:
            store(name, _sorted(_pattern(name, entry) for entry in _entries(name, getattr(self, name))))
        store("mixed_ops", _sorted(_entries("mixed_ops", self.mixed_ops)))
        if self.parameters is None:
            store("parameters", presets.PRESETS[self.preset].parameters)
        self._check()

    def _check(self) -> None:
        for name, legal in (*LEGAL.items(), ("out_dtype", (None, "float32", self.dtype))):
            _require(name, getattr(self, name), legal)
        for name in _SWITCHES:
            if not isinstance(getattr(self, name), bool):
                _illegal(name, getattr(self, name), (True, False))
        for entry in self.mixed_ops:
            _require("mixed_ops", entry, tuple(MIXED_OPS))
        for first, second in _OPPOSITES:
            for entry in sorted(set(getattr(self, first)) & set(getattr(self, second))):
                _contradiction(f"{first} and {second} both name {entry!r}")
        for operator, attribute, values in self.conditional_float32_ops:
            for name in ("float32_ops", "unsupported_ops"):
                if operator in getattr(self, name):
                    _contradiction(
                        f"{name} names {operator!r}, and conditional_float32_ops names it where {attribute} is "
                        f"{' or '.join(values)}"
                    )
        for kind in self.mixed_ops:
            for name in _OPERATORS:
                for operator in getattr(self, name):
                    row = type_hints.table_row(type_hints.normalize_op_name(operator))
                    if row is not None and MIXED_OPS[kind](row):
                        _contradiction(f"{name} names {operator!r}, which mixed_ops={kind!r} means too")
        for name in ("accumulation", "weight_gradients"):
            if getattr(self, name) == "bf16sr" and self.dtype != "bfloat16":
                _contradiction(f"{name}='bf16sr' rounds to bfloat16, and dtype is {self.dtype!r}")

    @classmethod
    def parse(cls, text: str) -> Policy:
        """The policy that a text describes: what `str` prints, or its short form, as in `mp1, dtype=float16`.

        A word alone is a preset or a dtype; quotes may be left out around names, globs and regular expressions.

        Raises
        ------
        PolicyError
            The text is no text or no such list, names a field that there is not, or the policy contradicts itself.
        """
        if not isinstance(text, str):
            raise PolicyError(f'Policy.parse: got a {type(text).__name__}, expected a text; try "mp1, dtype=float16"')
        words = {word: name for name in ("preset", "dtype") for word in LEGAL[name]}
        return cls(**fields_of(text, words, [field.name for field in fields(cls)]))

    def __str__(self) -> str:
        said = []
        for field in fields(self):
            value = getattr(self, field.name)
            default = field.default if field.name != "parameters" else presets.PRESETS[self.preset].parameters
            if value != default:
                said.append(f"{field.name}={text_of(value)}")
        return f"Policy({', '.join(said)})"

    __repr__ = __str__


def as_policy(policy: Policy | str | None, **short_forms: Any) -> Policy:
    """A policy, from one, from its text, or from the keywords that are short forms of its fields (None: not given).

    Raises
    ------
    PolicyError
        A policy and a short form are both given, or the policy is not one.
    """
    given = {name: value for name, value in short_forms.items() if value is not None}
    if policy is None:
        return Policy(**given)
    if not isinstance(policy, Policy | str):
        raise PolicyError(f'policy={policy!r}: expected a Policy or a text such as "mp1"')
    known = Policy.parse(policy) if isinstance(policy, str) else policy
    if given:
        names = ", ".join(f"{name}={value!r}" for name, value in given.items())
        both = str(replace(known, **given))
        remedy = repr(both[len("Policy(") : -1]) if isinstance(policy, str) else both
        raise PolicyError(f"policy={policy!r} and {names} are both given; expected one of them: try policy={remedy}")
    return known


def _contradiction(what: str) -> None:
    raise PolicyError(f"Policy: {what}; these contradict each other")


def _require(name: str, got: object, legal: tuple[object, ...]) -> None:
    if got not in legal:
        _illegal(name, got, legal)


def _illegal(name: str, got: object, legal: tuple[object, ...]) -> NoReturn:
    raise PolicyError(f"Policy: {name}={got!r}; expected one of {', '.join(map(repr, legal))}")


def _several(name: str, value: Any) -> Iterable[Any]:
    if not isinstance(value, Iterable) or isinstance(value, str | bytes | Mapping):
        raise PolicyError(f"Policy: {name}={value!r}; expected a tuple of entries")
    return value


def _entries(name: str, value: Any) -> tuple[str, ...]:
    entries = (value,) if isinstance(value, str) else tuple(_several(name, value))
    for entry in entries:
        if not isinstance(entry, str) or not entry:
            raise PolicyError(f"Policy: {name} has the entry {entry!r}; expected a name, as text")
    return entries


def _sorted(entries: Iterable[Any]) -> tuple[Any, ...]:
    return tuple(sorted(set(entries)))


def _operator(name: str, entry: str) -> str:
    """The shortest name that surely means the same operator."""
    try:
        full = type_hints.normalize_op_name(entry)
    except UnknownOperatorError as error:
        raise PolicyError(f"Policy: {name}: {error}") from error
    row = type_hints.table_row(full)
    if name == "low_ops" and row is not None and row.label in UNDECIDED:
        raise PolicyError(f"Policy: low_ops names {entry!r}, whose precision cannot be chosen: {row.label} ({row.why})")
    return full.removeprefix("relax.")


def _condition(entry: Any) -> Condition:
    if not isinstance(entry, tuple | list) or len(entry) != 3 or not isinstance(entry[1], str):
        raise PolicyError(
            f"Policy: conditional_float32_ops has the entry {entry!r}; expected (operator, attribute, values), such "
            'as ("nn.softmax", "axis", (1,))'
        )
    operator, attribute, values = entry
    values = (values,) if isinstance(values, str) or not isinstance(values, Iterable) else values
    return _operator("conditional_float32_ops", operator), attribute, _sorted(map(str, values))


def _pattern(name: str, entry: str) -> str:
    compiled(entry)
    return entry
