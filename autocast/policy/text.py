"""Policies as text: what `Policy.parse` reads, and `str` writes."""

from __future__ import annotations

import ast
import json
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

import numpy as np

from autocast.errors import PolicyError
from autocast.messages import nearest, shown

_TOKEN = re.compile(
    r"""\s*(?:
    (?P<quoted>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')
  | (?P<regular>/.+?/(?=\s*(?:[,)\]}]|$)))
  | (?P<mark>[=,()\[\]{}])
  | (?P<word>(?:[^\s,=()\[\]{}'"]|\[[^\]\s]*\])+)
  | (?P<end>$)
  | (?P<other>.+)
    )""",
    re.VERBOSE | re.DOTALL,
)
_CLOSING = {"(": ")", "[": "]", "{": "}"}
#: How deep lists stand in each other: no field of a policy needs more.
_DEEPEST = 8

_CONSTANTS = {"True": True, "False": False, "None": None}
_FORM = (
    "A policy is field=value, ...; a list stands in parentheses, and quotes around a name may be left out where it has "
    "no blank, comma, quote or parenthesis: 'mp1, dtype=float16, float32_names=(head.*, 0.weight)'"
)


def dtype_name(dtype: object) -> str:
    """The name of a dtype of numpy (or its scalars' class), ml_dtypes, torch or TVM; a text is one already."""
    return np.dtype(dtype).name if isinstance(dtype, type) else str(dtype).removeprefix("torch.")


class _Token(NamedTuple):
    kind: str
    text: str

    def __str__(self) -> str:
        return "the end" if self.kind == "end" else shown(self.text)


def fields_of(text: str, words: Mapping[str, str], known: Sequence[str]) -> dict[str, Any]:
    """The fields that a policy's text sets.

    Parameters
    ----------
    text
        `mp1, low_ops=(exp, nn.relu)`, or what `str` of a policy prints.
    words
        The fields that are set by a word without a name before it, by the word.
    known
        The names of all fields.

    Raises
    ------
    PolicyError
        The text does not read so, or names a field that is none, or one twice.
    """
    fields: dict[str, Any] = {}
    last = None
    for name, value in _Reader(text).items():
        if name is None:
            name = words.get(value) if isinstance(value, str) else None
            if name is None:
                _fail(
                    text,
                    f"{shown(value)} is neither a preset nor a dtype, expected one of {', '.join(words)}"
                    + _listed(last, value),
                )
        if name not in known:
            _fail(text, f"has a field {shown(name)}; nearest: {nearest(name, known)}")
        if name in fields:
            _fail(text, f"says {name} twice; expected it once")
        fields[name] = value
        last = name, value
    return fields


def text_of(value: Any) -> str:
    """A field's value, as `fields_of` reads it."""
    if isinstance(value, tuple):
        return f"({', '.join(map(text_of, value))}{',' if len(value) == 1 else ''})"
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else repr(value)


def _listed(last: tuple[str, Any] | None, value: Any) -> str:
    """What to try where a list may have lost its parentheses."""
    if last is None or not isinstance(last[1], str):
        return ""
    return f"; if it belongs to {last[0]}: {last[0]}=({last[1]}, {value})"


def _fail(text: str, what: str) -> NoReturn:
    raise PolicyError(f"Policy.parse: {shown(text, 200)}: {what}")


class _Reader:
    """Reads one text: items are separated by commas, each a value, with or without a name."""

    def __init__(self, text: str) -> None:
        self._text = text
        inside = text.strip()
        if inside.startswith("Policy(") and inside.endswith(")"):
            inside = inside[len("Policy(") : -1]
        self._tokens = [_Token(match.lastgroup or "", match[match.lastgroup or 0]) for match in _TOKEN.finditer(inside)]
        self._next = 0

    def items(self) -> Iterator[tuple[str | None, Any]]:
        while self._peek().kind != "end":
            name = None
            if self._tokens[self._next + 1].text == "=":
                token = self._take()
                if token.kind != "word":
                    self._unexpected(token, "a field's name")
                name = token.text
                self._take()
            yield name, self._value()
            self._separate("")

    def _value(self, depth: int = 0) -> Any:
        token = self._take()
        if token.kind == "quoted":
            return self._unquoted(token)
        if token.kind == "word":
            return _CONSTANTS.get(token.text, token.text)
        if token.kind == "regular":
            return token.text
        if token.text not in _CLOSING:
            self._unexpected(token, "a value")
        if depth == _DEEPEST:
            self._unexpected(token, f"lists in at most {_DEEPEST} lists")
        closing, values = _CLOSING[token.text], []
        while self._peek().text != closing:
            values.append(self._value(depth + 1))
            self._separate(closing)
        self._take()
        return tuple(values)

    def _unquoted(self, token: _Token) -> str:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # `\\d` is what it looks like, and Python warns that it may not stay so
                text: str = ast.literal_eval(token.text)
        except (SyntaxError, ValueError):
            self._unexpected(token, "a text in quotes as Python writes it, with backslashes doubled")
        return text

    def _separate(self, end: str) -> None:
        """Pass the comma after a value; there need be none before the end."""
        if self._peek().text == ",":
            self._take()
        elif self._peek().text != end:
            self._unexpected(self._peek(), f"a comma or {repr(end) if end else 'the end'}")

    def _peek(self) -> _Token:
        return self._tokens[self._next]

    def _take(self) -> _Token:
        self._next += 1
        return self._tokens[self._next - 1]

    def _unexpected(self, token: _Token, expected: str) -> NoReturn:
        _fail(self._text, f"got {token}, expected {expected}. {_FORM}")
