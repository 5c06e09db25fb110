"""What holds for every test: clean variables, order and turn, and a list of what was missing."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator, Generator

import pytest

from support.alone import on_the_floor
from support.dealing import StretchScheduling
from support.missing_parts import words_of_missing
from support.redis_server import RedisServer, redis_server
from support.running_order import in_running_order


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


def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> StretchScheduling | None:
    """Let workers that take files take them in the order that was chosen for their tests."""
    return StretchScheduling(config, log) if config.getoption("dist") == "loadfile" else None


@pytest.hookimpl(wrapper=True, tryfirst=True)  # before a test's own time limit begins
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Where there are several workers, run a test that measures time while no other one runs."""
    if not hasattr(item.config, "workerinput"):
        return (yield)
    alone = item.get_closest_marker("alone") is not None
    with on_the_floor(item.config.rootpath, alone=alone):
        return (yield)


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
