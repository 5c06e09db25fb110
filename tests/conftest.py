"""What holds for every test: clean variables, and a list of what could not be verified."""

from __future__ import annotations

import os

import pytest

from support.missing_parts import words_of_missing


@pytest.fixture(autouse=True)
def _no_settings_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take away what the person who runs the tests has set for toolbus and OpenTelemetry."""
    for name in list(os.environ):
        if name.startswith(("TOOLBUS_", "OTEL_")):
            monkeypatch.delenv(name)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    missing = words_of_missing(terminalreporter.stats.get("skipped", ()))
    if missing:
        terminalreporter.section("not verified", yellow=True)
        for words in missing:
            terminalreporter.line(words, yellow=True)
