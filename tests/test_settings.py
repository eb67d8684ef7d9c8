"""The environment variables that the project reads."""

from __future__ import annotations

import pytest

from autocast import settings
from autocast.errors import AutocastError


def test_an_unset_or_empty_variable_has_its_default(monkeypatch):
    monkeypatch.delenv("AUTOCAST_DEBUG", raising=False)
    monkeypatch.setenv("AUTOCAST_DUMP", "")
    assert settings.integer("AUTOCAST_DEBUG") == 0
    assert settings.text("AUTOCAST_DUMP") == ""


def test_a_variable_is_read_when_it_is_asked_for(monkeypatch):
    monkeypatch.setenv("AUTOCAST_DEBUG", "3")
    assert settings.integer("AUTOCAST_DEBUG") == 3


def test_text_that_is_no_number_is_an_error_that_names_the_variable(monkeypatch):
    monkeypatch.setenv("AUTOCAST_DEBUG", "yes")
    with pytest.raises(AutocastError, match=r"AUTOCAST_DEBUG='yes': expected int"):
        settings.integer("AUTOCAST_DEBUG")
