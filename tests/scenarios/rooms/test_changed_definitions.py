"""A host with another definition beside running ones: who serves, and who learns of it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from support.processes.command_line import CommandLine, Running
from toolbus import DefinitionConflict, Key, KeyRing, RemoteToolkit, RoomClient, tool
from toolbus_server import ServerSettings
from toolbus_server.testing import running_server

KITS = """
import os
from toolbus import RemoteToolkit, tool

@tool
def who() -> str:
    return os.environ["WHO"]

words = RemoteToolkit(
    "words", [who], description=os.environ.get("TEXT", ""), version=os.environ.get("RELEASE", "")
)
"""


class Service:
    """A server, and hosts of `words` as processes."""

    def __init__(self, command_line: CommandLine, server: Running) -> None:
        self.toolbus = command_line
        self.server = server

    def host(self, who: str, *flags: str, **variables: str) -> tuple[CommandLine, tuple[str, ...]]:
        """Return the command line of a host and its arguments."""
        variables = {"WHO": who, **{name.upper(): value for name, value in variables.items()}}
        mine = replace(self.toolbus, variables={**self.toolbus.variables, **variables})
        return mine, ("kits:words", "--name", "bob", *flags)

    def served_by(self, calls: int = 6) -> set[str]:
        """Call several times; return who answered."""
        return {self.toolbus.run_here("call", "words.who").out.strip() for _ in range(calls)}

    def reserve(self) -> list[dict[str, object]]:
        """Return the definitions in reserve."""
        [words] = self.toolbus.value_here("tools", "--json")
        reserve: list[dict[str, object]] = words["reserve"]
        return reserve


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    (tmp_path / "kits.py").write_text(KITS, encoding="utf-8")
    here = CommandLine(tmp_path)
    with here.serving() as (server, url):
        yield Service(here.at(url), server)


def test_replica_with_another_docstring_gets_no_call_until_the_others_are_gone(
    service: Service,
) -> None:
    """REG-9, REG-22, REG-14."""
    hosts = [service.host("one"), service.host("two"), service.host("three", text="Changed.")]
    with hosts[0][0].hosting(*hosts[0][1]) as one, hosts[1][0].hosting(*hosts[1][1]) as two:
        with hosts[2][0].hosting(*hosts[2][1]) as three:
            assert service.served_by() <= {"one", "two"}
            assert [
                (definition["hosts"], definition["last_call_ms"])
                for definition in service.reserve()
            ] == [(1, None)]
            for running in (one, two):
                assert running.end().code == 0
            assert service.served_by() == {"three"}
            host_log = three.end().err
    log = service.server.end().err
    for text in (host_log, log):
        assert "joins the reserve" in text
        assert ": a definition without a version (digest " in text
        assert "raise its version (PEP 440, such as 1.1), or host it with supersede=True" in text
    assert "supersedes" not in log


def test_higher_version_takes_over_and_all_that_watch_learn_of_it(service: Service) -> None:
    """REG-9, REG-24, EVENT-2: and the lower one serves again when it is gone."""
    lower, higher = service.host("lower", release="1.9"), service.host("higher", release="1.10")
    watching = service.toolbus.start("watch", "--json", "--interval", "0.2")
    with lower[0].hosting(*lower[1]) as old, watching as watch:
        assert watch.line()
        assert service.served_by(1) == {"lower"}
        with higher[0].hosting(*higher[1]) as new:
            assert service.served_by() == {"higher"}
            [superseded] = _next_superseded(watch)
            assert (superseded["from"]["version"], superseded["to"]["version"]) == ("1.9", "1.10")
            shown = service.toolbus.run_here("tools", "words").out
            assert "  in reserve: version 1.9 (digest " in shown
            assert "), 1 host, last call " in shown
            assert "words: in reserve: version 1.9" in service.toolbus.run_here("tools").out
            assert new.end().code == 0
        assert service.served_by() == {"lower"}
        assert service.reserve() == []
        host_log = old.end().err
    assert "this definition has been superseded and gets no calls: version 1.10" in host_log
    log = service.server.end().err
    assert "version 1.10 (digest" in log
    assert "'bob', instance" in log
    assert "supersedes version 1.9" in log
    assert "hosts now in reserve: 1" in log


def _next_superseded(watch: Running) -> list[dict[str, dict[str, str]]]:
    while True:
        found: list[dict[str, dict[str, str]]] = json.loads(watch.line())["superseded"]
        if found:
            return found


def test_flags_take_over_from_a_higher_version_or_refuse_to_start_beside_it(
    service: Service,
) -> None:
    """REG-22, REG-23."""
    higher, lower = service.host("higher", release="2"), service.host("lower", release="1")
    with higher[0].hosting(*higher[1]):
        refused = lower[0].run("host", *lower[1], "--no-supersede", "--json")
        assert (refused.code, refused.error["code"]) == (3, "definition_conflict")
        assert refused.error["details"]["version"] == "2"
        same = higher[0].hosting(*higher[1], "--no-supersede")
        with same, lower[0].hosting(*lower[1]):
            assert service.served_by() == {"higher"}
            with lower[0].hosting(*lower[1], "--supersede"):
                assert service.served_by() == {"lower"}
                assert [definition["hosts"] for definition in service.reserve()] == [2]


def words(text: str = "", version: str = "", supersede: bool | None = None) -> RemoteToolkit:
    """Make a toolkit that returns its description, or its version without one."""

    @tool
    async def who() -> str:
        return text or version

    kit = RemoteToolkit("words", [who], description=text, version=version, supersede=supersede)
    return kit


async def until_definitions(room: RoomClient, *texts: str) -> None:
    """Wait until these definitions have hosts: the one that serves, then those in reserve."""
    async with room.events(["toolkits"]) as events:
        while True:
            listed = [toolkit async for toolkit in room.toolkits()]
            kits = [
                (toolkit.version, *(other.version for other in toolkit.reserve))
                for toolkit in listed
            ]
            if kits == [texts]:
                return
            await anext(events)


async def test_restarted_server_puts_hosts_into_the_same_order() -> None:
    """REG-10: whichever returns first."""
    key, port = Key.generate(kid="test", iss="acme"), 0
    kits = [words(version="3"), words(version="2"), words(version="1", supersede=True)]
    async with asyncio.timeout(60), AsyncExitStack() as stack:
        rooms: list[RoomClient] = []
        for restart in range(2):
            settings = ServerSettings(keys=KeyRing([]), port=port, drain_s=0.0)
            async with running_server(key=key, settings=settings) as server:
                port = int(server.url.rpartition(":")[2])
                for kit in kits if not restart else ():
                    rooms.append(await stack.enter_async_context(server.room("host")))
                    await kit.start(rooms[-1])
                async with server.room("alice") as alice:
                    await until_definitions(alice, "1", "3", "2")
                    assert await alice.call("words.who") == "1"


async def test_host_learns_what_serves_instead_of_it_and_when_it_serves_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """REG-23, REG-24: a second registration with another definition replaces the host's own."""
    caplog.set_level("INFO", "toolbus.room.registrations")
    async with (
        asyncio.timeout(60),
        running_server() as server,
        server.room("host") as one,
        server.room("host") as two,
        server.room("alice") as alice,
        one.host(words(version="1")),
    ):
        with pytest.raises(DefinitionConflict):
            await words(version="2", supersede=False).start(two)
        async with two.host(words(version="2")):
            await until_definitions(alice, "2", "1")
        await until_definitions(alice, "1")
        await one.call("words.who")  # the notices were sent before its reply
    logged = [record for record in caplog.records if record.name == "toolbus.room.registrations"]
    for record, (level, text) in zip(
        logged,
        (
            ("WARNING", "this definition has been superseded and gets no calls: version 2"),
            ("INFO", "this definition serves now"),
        ),
        strict=True,
    ):
        assert record.levelname == level
        assert text in record.getMessage()
