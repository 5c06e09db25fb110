"""What an MCP server asks its user is a question of the call that it belongs to."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest

from support.mcp import asking_server
from support.mcp.processes import listening
from support.patience import PATIENCE_S
from support.redis.server import free_port
from support.rooms.approvals import Person, person_in
from toolbus import InvalidArguments, RoomClient, RoomException, ToolContext, ToolFailed
from toolbus.errors import ApprovalDenied
from toolbus_server.testing import running_server
from toolbus_toolkits.mcp import McpServer, ServerAccess
from toolbus_toolkits.mcp import connection as connections
from toolbus_toolkits.network import AddressPolicy

ACCESS = ServerAccess(AddressPolicy(("127.0.0.1",), allow_private=True))
KINDS = {
    "2025-11-25 pipes": "",
    "2025-11-25 SSE": "--sse",
    "2026-07-28 HTTP": "--http",
}
PAGE = "https://login.example.org:8443/a?b=c#d"


@asynccontextmanager
async def asking(kind: str, **options: Any) -> AsyncIterator[McpServer]:
    """Run a server that asks, and connect to it."""
    async with asyncio.timeout(PATIENCE_S):
        if not KINDS[kind]:
            script = asking_server.__file__
            async with McpServer("asking", command=sys.executable, args=[script], **options) as one:
                yield one
            return
        port = free_port()
        url = f"http://127.0.0.1:{port}/{'mcp' if KINDS[kind] == '--http' else 'sse'}"
        async with (
            listening(asking_server, KINDS[kind], port),
            McpServer("asking", url=url, access=ACCESS, **options) as one,
        ):
            yield one


@asynccontextmanager
async def in_a_room(kind: str, **options: Any) -> AsyncIterator[tuple[RoomClient, Person]]:
    """Host it in a room; give its caller, who answers."""
    async with (
        asking(kind, **options) as asker,
        running_server() as server,
        server.room("host") as host,
        server.room("ann") as ann,
        host.host(asker.toolkit()),
        person_in(ann) as person,
    ):
        yield ann, person


@pytest.mark.parametrize("kind", KINDS)
async def test_form_is_a_question_of_the_call_and_a_wrong_answer_leaves_it_open(kind: str) -> None:
    async with in_a_room(kind) as (ann, person):
        call = asyncio.create_task(ann.call("asking.book", message="How\x1b[2J\nlong\u202e?"))
        hold = await person.asked()
        assert (hold.kind, hold.tool, hold.asked_for) == ("answer", "asking.book", "ann")
        assert hold.body is not None
        assert hold.body.question == (
            "The MCP server asking asks, in its own words:\n> How\\x1b[2J\n> long\\u202e?"
        )
        assert hold.body.schema == {**asking_server.FORM, "additionalProperties": False}
        for wrong in ("two", {"days": 0}, {}, {"days": 1, "dais": 1}):
            with pytest.raises(InvalidArguments, match="the answer does not fit"):
                await ann.answer(hold, wrong)
        await ann.answer(hold, {"days": 2})
        assert await call == "accept {'days': 2}"


@pytest.mark.parametrize("kind", KINDS)
async def test_address_is_shown_with_its_host_and_the_person_opens_it(kind: str) -> None:
    async with in_a_room(kind) as (ann, person):
        call = asyncio.create_task(ann.call("asking.visit", url=PAGE))
        hold = await person.asked()
        assert hold.body is not None
        assert hold.body.question.startswith(
            "The MCP server asking asks you to open an address, in its own words:\n> Log in.\n\n"
            f"address: {PAGE}\nhost: login.example.org\n\nNothing opens it: open it yourself"
        )
        with pytest.raises(InvalidArguments, match='it must be one of "opened"'):
            await ann.answer(hold, "yes")
        await ann.answer(hold, "opened")
        assert await call == "accept None"


async def test_call_that_requires_an_open_address_is_made_again_once_it_is_opened() -> None:
    async with in_a_room("2025-11-25 pipes") as (ann, person):
        call = asyncio.create_task(ann.call("asking.download", url=PAGE))
        hold = await person.asked()
        assert hold.body is not None
        assert f"address: {PAGE}\nhost: login.example.org\n" in hold.body.question
        await ann.answer(hold, "opened")
        assert await call == "downloaded"
        await person.settled()
        call = asyncio.create_task(ann.call("asking.download", url=PAGE, times=9))
        await ann.deny(await person.asked())
        with pytest.raises(ToolFailed, match="refused the call") as failed:
            await call
        assert (failed.value.executed, failed.value.details["mcp_code"]) == ("maybe", -32042)


@pytest.mark.parametrize("tool", ["book", "visit"])
@pytest.mark.parametrize("kind", KINDS)
async def test_refusal_is_decline_and_no_answer_is_cancel(kind: str, tool: str) -> None:
    arguments = {"url": PAGE} if tool == "visit" else {}
    async with in_a_room(kind) as (ann, person):
        call = asyncio.create_task(ann.call(f"asking.{tool}", arguments))
        await ann.deny(await person.asked(), "not now")
        assert await call == "decline None"
        ended = await ann.invoke(f"asking.{tool}", arguments, approval_timeout_s=0)
        assert ended.value == "cancel None"


@pytest.mark.parametrize("kind", KINDS)
async def test_call_asks_again_with_what_it_knows_up_to_a_bound(kind: str) -> None:
    async def answer(question: Any) -> Any:
        asked.append(question)
        return {"days": len(asked)}

    asked: list[Any] = []
    async with asking(kind) as server:
        book = server.toolkit()
        result = await book.execute(ToolContext(answer=answer), "book", {"times": 3})
        assert result.value == "accept {'days': 1}; accept {'days': 2}; accept {'days': 3}"
        if kind.startswith("2026"):
            with pytest.raises(ToolFailed, match="more than 10 times") as failed:
                await book.execute(ToolContext(answer=answer), "book", {"times": 11})
            assert (failed.value.executed, len(asked)) == ("maybe", 13)
        else:
            result = await book.execute(ToolContext(answer=answer), "book", {"times": 22})
            assert str(result.value).endswith("accept {'days': 23}; decline None; decline None")


@pytest.mark.parametrize("kind", KINDS)
async def test_two_calls_under_way_are_asked_only_where_it_is_known_whose_question_it_is(
    kind: str,
) -> None:
    async with in_a_room(kind) as (ann, person):
        held = asyncio.create_task(ann.call("asking.hold"))
        while await ann.call("asking.held") == "0":
            pass
        call = asyncio.create_task(ann.call("asking.book"))
        if kind.startswith("2026"):
            hold = await person.asked()
            assert hold.tool == "asking.book"
            await ann.answer(hold, {"days": 2})
            assert await call == "accept {'days': 2}"
            await person.settled()
        else:
            assert await call == "decline None"
        await ann.call("asking.release")
        assert await held == "released"
        call = asyncio.create_task(ann.call("asking.book"))
        await ann.answer(await person.asked(), {"days": 3})
        assert await call == "accept {'days': 3}"


@pytest.mark.parametrize("kind", [kind for kind in KINDS if KINDS[kind]])
async def test_calls_with_a_connection_each_are_all_asked(kind: str) -> None:
    async with in_a_room(kind, stateful=False) as (ann, person):
        calls = [asyncio.create_task(ann.call("asking.book")) for _ in range(2)]
        holds = [await person.asked() for _ in calls]
        for hold in holds:
            await ann.answer(hold, {"days": 2})
        assert await asyncio.gather(*calls) == ["accept {'days': 2}"] * 2


async def test_call_that_has_asked_may_have_run_although_its_next_request_was_not_sent() -> None:
    async def answer(question: Any) -> Any:
        asked.set()
        await ended.wait()
        return {"days": 2}

    asked, ended = asyncio.Event(), asyncio.Event()
    port = free_port()
    server = McpServer("asking", url=f"http://127.0.0.1:{port}/mcp", access=ACCESS)
    async with AsyncExitStack() as stack:
        async with listening(asking_server, "--http", port):
            await stack.enter_async_context(server)
            context = ToolContext(answer=answer)
            call = asyncio.create_task(server.toolkit().execute(context, "book", {}))
            await asked.wait()
        ended.set()
        with pytest.raises(RoomException) as failed:
            await call
        assert (failed.value.executed, failed.value.retryable) == ("maybe", False)


@pytest.mark.parametrize("kind", KINDS)
async def test_question_ends_with_its_call(kind: str) -> None:
    async with in_a_room(kind) as (ann, person):
        call = asyncio.create_task(ann.call("asking.book"))
        await person.asked()
        call.cancel()
        assert (await person.settled()).outcome == "cancelled"
        assert await ann.call("asking.held") == "0"


@pytest.mark.parametrize(
    ("kind", "options", "declared"),
    [
        ("2026-07-28 HTTP", {}, "nothing"),
        ("2026-07-28 HTTP", {"stateful": False}, "nothing"),
        ("2025-11-25 SSE", {"stateful": False}, "nothing"),
        ("2025-11-25 pipes", {}, "form, url"),  # it is declared before it is known who calls
    ],
)
async def test_server_learns_that_nobody_can_be_asked(
    kind: str, options: dict[str, Any], declared: str
) -> None:
    async def answer(question: Any) -> Any:
        raise AssertionError

    async with asking(kind, **options) as server:
        toolkit = server.toolkit()
        assert (await toolkit.execute(ToolContext(), "declared", {})).value == declared
        able = ToolContext(answer=answer)
        assert (await toolkit.execute(able, "declared", {})).value == "form, url"
        if declared != "nothing":
            assert (await toolkit.execute(ToolContext(), "book", {})).value == "decline None"


@pytest.mark.parametrize(
    "url",
    [
        "javascript:alert(1)",
        "file:///etc/passwd",
        "https://evil.example\\@good.example/",
        "https://good.example\u202e/",
        "https://b\u00fccher.example/",
        "https:///path",
        "https://[::1",
        "https://a%2eb/",
        "https://secret.example/",
    ],
)
async def test_address_that_cannot_be_shown_as_it_is_opened_is_declined(url: str) -> None:
    async def answer(question: Any) -> Any:
        raise AssertionError

    async with asking("2025-11-25 pipes") as server:
        server._connection._questions._redact = lambda text: text.replace("secret", "***")
        context = ToolContext(answer=answer)
        result = await server.toolkit().execute(context, "visit", {"url": url})
        assert result.value == "decline None"


@pytest.mark.parametrize("kind", KINDS)
async def test_time_of_the_call_stands_still_while_a_person_thinks(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "_LATER_S", 0.0)

    async def answer(question: Any) -> Any:
        await asyncio.sleep(1.5)
        raise ApprovalDenied("no")

    async with asking(kind, timeout_s=1.0) as server:
        result = await server.toolkit().execute(ToolContext(answer=answer), "book", {})
        assert result.value == "decline None"
        with pytest.raises(ToolFailed, match="did not answer in time") as failed:
            await server.toolkit().execute(ToolContext(), "hold", {})
        assert failed.value.executed == "maybe"
