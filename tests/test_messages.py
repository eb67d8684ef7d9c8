"""What errors and warnings share."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, replace

import pytest

from autocast.errors import AutocastError
from autocast.messages import named_options, nearest, version_of, warn


@named_options(AutocastError, {"lr": "the Trainer has it"}, positional="say which")
@dataclass(frozen=True, kw_only=True)
class Chosen:
    """A value with two options."""

    size: int = 1
    depth: int = 2


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Chosen(sise=1), "^Chosen: got the option 'sise'; nearest: size. Expected name=value, of size, depth$"),
        (lambda: Chosen(lr=1), "got the option 'lr'; the Trainer has it"),
        (lambda: Chosen(3), "got a int without a name; say which"),
        (lambda: replace(Chosen(), width=1), "got the option 'width'"),
    ],
)
def test_an_option_that_there_is_not_is_an_error_of_ours(make, message):
    with pytest.raises(AutocastError, match=message):
        make()


def test_named_options_leave_the_class_as_it_was():
    assert Chosen(depth=3) == replace(Chosen(), depth=3)
    assert list(inspect.signature(Chosen).parameters) == ["size", "depth"]


def test_the_nearest_names_are_three_at_most():
    assert nearest("gellu", ["gelu", "relu", "exp", "gelu_tanh", "elu"]).split(", ")[0] == "gelu"
    assert nearest("zzz", ["gelu"]) == "none that is alike"


def test_a_warning_points_at_the_line_outside_of_the_project():
    inner = {"warn": warn, "__name__": "autocast.inner"}
    exec("def call():\n    warn('careful', UserWarning)", inner)
    with pytest.warns(UserWarning, match="careful") as said:
        inner["call"]()
    assert said[0].filename == __file__


def test_a_package_that_is_imported_from_a_folder_has_no_version_and_is_no_error():
    assert version_of("pytest") == pytest.__version__
    assert version_of("no-package-of-this-name") == "not installed"
