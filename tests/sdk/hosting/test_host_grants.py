from __future__ import annotations

import asyncio
import logging
from types import SimpleNamespace
from typing import Any

import pytest

from toolbus import Permissions, Rule, Toolkit, Unavailable, tool
from toolbus.hosting.host_grants import HostGrants
from toolbus.permissions.granted_rules import MAX_GRANTED_RULES
from toolbus.tools.tool_run import Participant


@tool
async def write(path: str) -> None:
    pass


FILES = Toolkit("files", [write])
ANN = Participant("1", "ann")
TOOL = SimpleNamespace(
    name="files.write", own_name="files.write", owner="", issuer="", alias="", workdirs=()
)


def call_of(path: str) -> Any:
    context = SimpleNamespace(caller=ANN, on_behalf_of=None, forwarded_for=(), is_hosted=True)
    return SimpleNamespace(tool=TOOL, context=context, arguments={"path": path})


class Server:
    """Has the bodies of the rules that are listed."""

    def __init__(self, error: Exception | None = None) -> None:
        self.listed: list[bytes] = []
        self._error = error

    async def ask(self, *fields: Any, on_result: Any) -> dict[str, Any]:
        if self._error is not None:
            raise self._error
        dispatch, kind, _, body, options = fields
        assert (dispatch, kind, options["tool"]) == (None, "granted", "files.write")
        self.listed.append(body)
        try:
            await asyncio.get_running_loop().create_future()
            raise AssertionError("nothing is taken back")
        finally:
            self.listed.remove(body)


async def settled() -> None:
    for _ in range(3):
        await asyncio.sleep(0)


async def test_beyond_the_limit_the_oldest_rule_is_forgotten_and_withdrawn() -> None:
    grants, server = HostGrants(), Server()
    grants.list_at(server.ask, FILES, "d", public=True)
    for number in range(MAX_GRANTED_RULES + 1):
        grants.grant(call_of(str(number)), "", (), (), has_input=False)
    await settled()
    assert len(server.listed) == len(grants.rules) == MAX_GRANTED_RULES
    assert not grants.covering(call_of("0"), "", has_input=False)
    assert grants.covering(call_of("1"), "", has_input=False)
    grants.end()
    await settled()
    assert not server.listed


async def test_rule_that_the_server_does_not_list_counts_and_is_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    grants, refusing = HostGrants(), Server(Unavailable("it is older"))
    with caplog.at_level(logging.WARNING):
        grants.list_at(refusing.ask, FILES, "d", public=True)
        grants.grant(call_of("a"), "", (), (), has_input=False)
        await settled()
        grants.grant(call_of("b"), "", (), (), has_input=False)
        await settled()
    assert len(grants.rules) == len(caplog.records) == 2
    server = Server()
    grants.list_at(server.ask, FILES, "d", public=True)  # another one, after a reconnect
    await settled()
    assert len(server.listed) == 2


async def test_new_pattern_takes_the_place_of_the_oldest_where_a_tool_compares_no_more() -> None:
    grants, base = HostGrants(), Permissions("dont_ask")
    for number in range(100):
        rule = Rule(behavior="allow", tool="files.write", match=f"{number}-*")
        grants.grant(call_of("a"), "", (rule,), (base,), has_input=False)
    patterns = grants.joined(base, call_of("a"), "", has_input=False).patterns(call_of("a"))
    assert "99-*" in patterns
    assert len(patterns) == len(grants.rules) == 64


async def test_call_that_sends_more_than_arguments_is_not_granted_by_them() -> None:
    grants = HostGrants()
    grants.grant(call_of("a"), "", (), (), has_input=True)
    assert not grants.rules
    grants.grant(call_of("a"), "", (), (), has_input=False)
    assert not grants.covering(call_of("a"), "", has_input=True)
