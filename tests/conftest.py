"""What holds for every test: clean variables, an order, and a list of what was missing."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator

import pytest

from support.pytest_plugins.missing_parts import words_of_missing
from support.pytest_plugins.running_order import in_running_order
from support.redis.server import RedisServer, redis_server


def pytest_configure() -> None:
    """Let what tests start keep its bytecode, else all compile toolbus; and hear Ctrl-C."""
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in the background of a shell
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def _no_settings_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take away what the person who runs the tests has set for toolbus and OpenTelemetry."""
    for name in list(os.environ):
        if name.startswith(("TOOLBUS_", "OTEL_")):
            monkeypatch.delenv(name)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Where there are several workers, let none wait for another at the end."""
    if hasattr(config, "workerinput"):
        items[:] = in_running_order(items)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    missing = words_of_missing(terminalreporter.stats.get("skipped", ()))
    if missing:
        terminalreporter.section("not verified", yellow=True)
        for words in missing:
            terminalreporter.line(words, yellow=True)


@pytest.fixture
async def redis() -> AsyncIterator[RedisServer]:
    """A Redis of the test's own, empty."""
    async with redis_server() as server:
        yield server
