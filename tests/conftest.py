"""What holds for every test: clean variables, an order, and a list of missing parts."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from support.pytest_plugins.missing_parts import tests_not_verified
from support.pytest_plugins.running_order import in_running_order
from support.redis.server import RedisServer, redis_server


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--not-verified-to",
        metavar="FILE",
        help="write the tests that are NOT VERIFIED into a file: `pytest @FILE` runs them",
    )


def pytest_configure() -> None:
    """Let child processes keep their bytecode, else all of them compile toolbus; and receive
    Ctrl-C.
    """
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    # What takes long on a busy machine is no failure.
    settings.register_profile(
        "toolbus", deadline=None, suppress_health_check=[HealthCheck.too_slow]
    )
    settings.load_profile("toolbus")
    if (
        signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    ):  # a background process of a shell ignores it
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def _no_settings_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove the variables for toolbus and OpenTelemetry of the person who runs the tests."""
    for name in list(os.environ):
        if name.startswith(("TOOLBUS_", "OTEL_")):
            monkeypatch.delenv(name)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """With several workers, order the files so that no worker waits for another at the end."""
    if hasattr(config, "workerinput"):
        items[:] = in_running_order(items)


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    missing = tests_not_verified(terminalreporter.stats.get("skipped", ()))
    if missing:
        terminalreporter.section("not verified", yellow=True)
        for text in dict.fromkeys(missing.values()):
            terminalreporter.line(text, yellow=True)
    file: str | None = config.getoption("--not-verified-to")
    if file is not None:
        Path(file).write_text("".join(f"{test}\n" for test in missing), encoding="utf-8")


@pytest.fixture
async def redis() -> AsyncIterator[RedisServer]:
    """An empty Redis for this test."""
    async with redis_server() as server:
        yield server
