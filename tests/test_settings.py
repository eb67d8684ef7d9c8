"""The environment variables that the project reads."""

from __future__ import annotations

import pytest

from autocast import settings
from autocast.errors import AutocastError


def test_an_unset_or_empty_variable_has_its_default(monkeypatch):
    monkeypatch.delenv("AUTOCAST_DEBUG", raising=False)
    monkeypatch.setenv("AUTOCAST_DUMP", "")
    assert settings.debug() == (0, False)
    assert settings.text("AUTOCAST_DUMP") == ""


def test_a_variable_is_read_when_it_is_asked_for(monkeypatch):
    for text, expected in {"3": (3, False), "poison": (0, True), "2, poison": (2, True)}.items():
        monkeypatch.setenv("AUTOCAST_DEBUG", text)
        assert settings.debug() == expected


@pytest.mark.parametrize("text", ["yes", "1,2", "poison,"])
def test_text_that_cannot_be_parsed_is_an_error_that_names_the_variable(monkeypatch, text):
    monkeypatch.setenv("AUTOCAST_DEBUG", text)
    with pytest.raises(AutocastError, match=f"AUTOCAST_DEBUG='{text}': expected int, poison"):
        settings.debug()


def test_the_settings_table_shows_every_setting_and_its_value(monkeypatch):
    monkeypatch.setenv("AUTOCAST_DEBUG", "2")
    rows = {row[0]: row for row in zip(*(column.cells for column in settings.table().columns), strict=True)}
    assert list(rows) == [setting.name for setting in settings.SETTINGS]
    assert rows["AUTOCAST_DEBUG"][1:4] == ("int, poison, or both with a comma", "0", "2")
