"""What errors and warnings share: names that may have been meant, and the line of the user's that they are about."""

from __future__ import annotations

import difflib
import functools
import math
import numbers
import os
import re
import sys
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import fields
from importlib import metadata
from pathlib import Path
from typing import Any, TypeVar

from autocast.errors import AutocastError

Class = TypeVar("Class", bound=type)

#: Packages whose frames lie between a user's line and a warning.
_PACKAGES = frozenset({"autocast", "type_hints", "tvm", "tvm_ffi"})


#: An operator as the errors of TVM's type inference print it, with its description and arguments.
_OPERATOR = re.compile(r'ir\.Op\(span=.*?name="([^"]+)".*?support_level=\d+\)')


def version_of(package: str) -> str:
    """The version of a package, or "not installed": a checkout on the path runs without, too."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


def reason(error: Exception) -> str:
    """What an error of TVM says in its last line, with operators by their names alone."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    return _OPERATOR.sub(r"\1", lines[-1].strip()).rstrip(".") if lines else "no message"


def beginning(error: BaseException) -> str:
    """What an error of torch says before the advice, the code and the calls that it adds: 12 lines at most."""
    return "\n".join(str(error).strip().partition("\n\n")[0].splitlines()[:12])


def nearest(text: str, names: Iterable[str]) -> str:
    """Up to three of `names` that look like `text`, for a message."""
    found = difflib.get_close_matches(text.strip("/"), sorted(set(names)), n=3, cutoff=0.4)
    return ", ".join(found) or "none that is alike"


def warn(message: str, category: type[Warning]) -> None:
    """Warn at the line that led here: the innermost one outside of this project and of TVM."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in _PACKAGES:
        frame, level = frame.f_back, level + 1
    warnings.warn(message, category, stacklevel=level)


def check_names(
    owner: str, given: Iterable[str], names: Collection[str], error: type[AutocastError], elsewhere: Mapping[str, str]
) -> None:
    """Raise `error` unless all keywords that `owner` was given are among `names`; `elsewhere` says what else to do."""
    if unknown := sorted(set(given) - set(names)):
        remedy = elsewhere.get(unknown[0], f"nearest: {nearest(unknown[0], names)}")
        raise error(f"{owner}: got the option {unknown[0]!r}; {remedy}. Expected name=value, of {', '.join(names)}")


def named_options(
    error: type[AutocastError], elsewhere: Mapping[str, str], positional: str
) -> Callable[[Class], Class]:
    """Decorate a dataclass of keywords: `error`, and not a TypeError, where it is given what it has no field for.

    Parameters
    ----------
    error
        What is raised.
    elsewhere
        What to do instead of passing a keyword that users of other libraries try, by its name.
    positional
        What to do instead of passing an argument without its name.
    """

    def decorate(cls: Class) -> Class:
        names = [field.name for field in fields(cls)]
        init = cls.__init__  # type: ignore[misc]

        @functools.wraps(init)
        def checked(self: Any, *args: Any, **options: Any) -> None:
            if args:
                got = f"a {type(args[0]).__name__} without a name"
                raise error(f"{cls.__name__}: got {got}; {positional}. Expected name=value, of {', '.join(names)}")
            check_names(cls.__name__, options, names, error, elsewhere)
            init(self, **options)

        setattr(cls, "__init__", checked)  # noqa: B010
        return cls

    return decorate


def check_option(
    owner: object, name: str, is_legal: Callable[[Any], bool], error: type[AutocastError], expected: str
) -> None:
    """Raise `error` unless the field `name` of `owner` is legal; a value of a wrong type is not."""
    check_value(type(owner).__name__, name, getattr(owner, name), is_legal, error, expected)


def check_value(
    where: str, name: str, value: Any, is_legal: Callable[[Any], bool], error: type[AutocastError], expected: str
) -> None:
    """Raise `error` unless the argument `name` is legal; a value of a wrong type is not."""
    try:
        legal = is_legal(value)
    except (TypeError, ValueError):
        legal = False
    if not legal:
        raise error(f"{where}: {name} is {shown(value)}, expected {expected}")


def check_kind(where: str, value: Any, kind: Any, error: type[AutocastError], expected: str) -> None:
    """Raise `error` unless `value` is of the class `kind`, or of one of several."""
    if not isinstance(value, kind):
        got = f"the class {value.__name__}" if isinstance(value, type) else f"a {type(value).__name__}"
        raise error(f"{where}: got {got}, expected {expected}")


def shown(value: Any, limit: int = 80) -> str:
    """A value for a message, the beginning of it where it is long."""
    text = repr(value)
    return text if len(text) <= limit else f"{text[:limit]}..."


def is_number(value: Any) -> bool:
    """Whether `value` is a real number of Python or numpy, neither infinite nor a truth value."""
    return isinstance(value, numbers.Real) and not isinstance(value, bool) and math.isfinite(value)


def is_whole(value: Any) -> bool:
    """Whether `value` is a whole number of 64 bits, and not a truth value."""
    return isinstance(value, numbers.Integral) and not isinstance(value, bool) and abs(int(value)) <= sys.maxsize


def is_count(value: Any, least: int = 0) -> bool:
    """Whether `value` is a whole number of at least `least`."""
    return bool(is_whole(value) and value >= least)


def checked_path(where: str, path: Any, error: type[AutocastError]) -> Path:
    """A path from what a user passed for one.

    Raises
    ------
    error
        It is neither a text nor a path, or names no file.
    """
    if not isinstance(path, str | os.PathLike) or not Path(path).name or "\0" in str(path):
        got = shown(path) if isinstance(path, str | os.PathLike) else f"a {type(path).__name__}"
        raise error(f"{where}: got {got} for the path, expected the name of a file, such as 'model.autocast'")
    return Path(path)
