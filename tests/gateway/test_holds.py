"""Calls that wait for a person, made by clients of MCP: who is asked, and how the call ends."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import mcp_types as types
import pytest
from mcp.client.client import Client
from mcp.client.session import ClientRequestContext, ElicitationFnT
from mcp.client.stdio import StdioServerParameters
from mcp.shared.exceptions import MCPError

from gateway.conftest import Door, running_gateway
from support.patience import PATIENCE_S
from support.rooms.approvals import person_in
from toolbus import ApiScope, ExternalTool, Tool, ToolContext, Toolkit, tool
from toolbus.permissions import Assessment
from toolbus.room.holds import HoldBody, HoldInfo
from toolbus_gateway import questions
from toolbus_gateway.forms import Form
from toolbus_gateway.service import GatewayService, GatewaySettings
from toolbus_server.testing import TestServer, running_server

KEYS = ("one secret of all replicas, long enough",)
MODERN, LEGACY = "2026-07-28", "legacy"
FIRST = ("accept", {"approve": True})
NAME = {
    "type": "object",
    "properties": {"name": {"type": "string", "minLength": 2}},
    "required": ["name"],
}
MARK = {"type": "integer", "minimum": 1, "maximum": 5}


@dataclass
class Desk:
    """A toolkit whose tools wait for a person, and what of them ran."""

    ran: list[Any] = field(default_factory=list)

    @property
    def toolkit(self) -> Toolkit:
        @tool(approval=True)
        async def pay(amount: int) -> str:
            """Pay."""
            self.ran.append(amount)
            return f"paid {amount}"

        @tool(approval=True, approval_timeout_s=0.1)
        async def rush() -> None:
            """Wait for nobody."""

        @tool(read_only=True)
        async def order(context: ToolContext) -> str:
            """Ask twice."""
            size = await context.ask("Which size?", options=["small", "large"])
            who = await context.ask("For whom?", schema=NAME)
            return f"{size} for {who['name']}"

        @tool(read_only=True)
        async def insist(context: ToolContext) -> str:
            """Ask the same until the answer is right."""
            while (found := await context.ask("Which size?")) != "small":
                self.ran.append(found)
            return str(found)

        @tool
        async def sign(context: ToolContext) -> str:
            """Ask for a name, in the middle of something that is not to be done twice."""
            self.ran.append("began")
            return str(
                (await context.ask("Who signs?", schema={"title": "signer", **NAME}))["name"]
            )

        @tool
        async def once(context: ToolContext) -> Any:
            """Ask in the middle of something that is not to be done twice."""
            self.ran.append("began")
            return await context.ask("Go on?")

        @tool
        async def outer(context: ToolContext) -> Any:
            """Call another tool, which waits."""
            self.ran.append("began")
            return await context.room.call("desk.pay", amount=1)

        review = ExternalTool("review", {}, description="Review.", output_schema=MARK)
        return Toolkit("desk", [pay, rush, order, insist, sign, once, outer, review])


@dataclass
class User:
    """The user of a client: what was shown, and the answers, the last of which is repeated."""

    answers: list[tuple[str, dict[str, Any] | None]]
    shown: list[types.ElicitRequestFormParams] = field(default_factory=list)

    async def __call__(
        self, context: ClientRequestContext, params: types.ElicitRequestParams
    ) -> types.ElicitResult:
        assert isinstance(params, types.ElicitRequestFormParams)
        self.shown.append(params)
        action, content = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        return types.ElicitResult.model_validate({"action": action, "content": content})


@pytest.fixture
def desk() -> Desk:
    return Desk()


@pytest.fixture
async def open_door(desk: Desk) -> AsyncIterator[Door]:
    async with (
        running_gateway(state_keys=KEYS) as door,
        door.server.room("host") as host,
        host.host(desk.toolkit),
        asyncio.timeout(PATIENCE_S),
    ):
        yield door


@asynccontextmanager
async def replica_of(door: Door, keys: tuple[str, ...] = KEYS) -> AsyncIterator[Door]:
    settings = GatewaySettings(url=door.server.url, port=0, drain_s=1, state_keys=keys)
    service = GatewayService(settings)
    await service.start()
    yield Door(door.server, service)
    await service.stop()


def text_of(result: Any) -> str:
    return "\n".join(getattr(block, "text", "") for block in result.content)


def facts_of(result: Any) -> tuple[str, str]:
    assert result.is_error
    facts = result.meta["toolbus/error"]
    return facts["code"], facts["executed"]


async def asked(client: Client, name: str, /, *answered: Any, **arguments: Any) -> Any:
    """Make one request by hand; of a round before, `answered` is its result and what it gets."""
    more: dict[str, Any] = {}
    if answered:
        before, action, content = answered
        answer = types.ElicitResult(action=action, content=content)
        more["request_state"] = before if isinstance(before, str) else before.request_state
        key = "approve" if isinstance(before, str) else next(iter(before.input_requests))
        more["input_responses"] = {key: answer}
    call = client.session.call_tool(name, arguments, allow_input_required=True, **more)
    return await call


@pytest.mark.parametrize(
    ("name", "arguments", "answers", "result", "shown"),
    [
        ("desk__pay", {"amount": 5}, [FIRST], "paid 5", '"amount": 5'),
        ("desk__review", {}, [("accept", {"answer": 4})], "4", "Answer this call"),
        (
            "desk__order",
            {},
            [("accept", {"answer": "small"}), ("accept", {"name": "ann"})],
            "small for ann",
            "Which size?",
        ),
        (  # what does not fit is asked again, and why is shown
            "desk__review",
            {},
            [("accept", {"answer": 7}), ("accept", None), ("accept", {"answer": 2})],
            "2",
            "Answer this call",
        ),
    ],
)
async def test_user_of_a_client_is_asked_by_the_result_of_its_call(
    open_door: Door,
    name: str,
    arguments: dict[str, Any],
    answers: list[Any],
    result: str,
    shown: str,
) -> None:
    user, number = User(answers), len(answers)
    async with open_door.client(elicitation_callback=user) as client:
        found = await client.call_tool(name, arguments)
    assert text_of(found) == result
    assert shown in user.shown[0].message
    assert len(user.shown) == number


@pytest.mark.parametrize(
    "answer", [("decline", None), ("cancel", None), ("accept", {"approve": False})]
)
async def test_what_the_user_refuses_does_not_run(open_door: Door, desk: Desk, answer: Any) -> None:
    async with open_door.client(elicitation_callback=User([answer])) as client:
        refused = await client.call_tool("desk__pay", {"amount": 5})
    assert facts_of(refused) == ("approval_denied", "no")
    assert desk.ran == []


async def test_answer_is_taken_at_another_replica(open_door: Door, desk: Desk) -> None:
    user = User([FIRST])
    async with (
        replica_of(open_door) as other,
        open_door.client(elicitation_callback=user) as client,
        other.client(elicitation_callback=user) as there,
    ):
        question = await asked(client, "desk__pay", amount=5)
        assert desk.ran == []
        assert text_of(await asked(there, "desk__pay", question, *FIRST, amount=5)) == "paid 5"
    assert desk.ran == [5]


@pytest.mark.parametrize("how", ["altered", "other user", "other arguments", "other key", "late"])
async def test_state_that_is_not_of_this_call_is_refused(
    open_door: Door,
    desk: Desk,
    how: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    user = User([FIRST])
    async with AsyncExitStack() as stack:
        keys = ("another secret, also one of 32 bytes",) if how == "other key" else KEYS
        other = await stack.enter_async_context(replica_of(open_door, keys))
        options: dict[str, Any] = {"elicitation_callback": user}
        client = await stack.enter_async_context(open_door.client(**options))
        name = "bob" if how == "other user" else "alice"
        there = await stack.enter_async_context(other.client(name=name, **options))
        question = await asked(client, "desk__pay", amount=5)
        state = question.request_state
        if how == "altered":
            state = state[:-1] + ("A" if state[-1] != "A" else "B")
        if how == "late":
            real = time.time
            monkeypatch.setattr("mcp.server.request_state.time.time", lambda: real() + 301)
        amount = 6 if how == "other arguments" else 5
        with pytest.raises(MCPError, match="requestState"):
            await asked(there, "desk__pay", state, *FIRST, amount=amount)
    lines = [line for line in caplog.messages if "--state-key" in line]
    assert len(lines) == (how in ("altered", "other key"))
    assert desk.ran == []


async def test_function_that_asks_the_same_again_gets_another_answer(
    open_door: Door, desk: Desk
) -> None:
    user = User([("accept", {"answer": "large"}), ("accept", {"answer": "small"})])
    async with open_door.client(elicitation_callback=user) as client:
        assert text_of(await client.call_tool("desk__insist", {})) == "small"
    assert len(user.shown) == 2
    assert set(desk.ran) == {"large"}


async def given(client: Client, tool: str, key: str, content: Any, **arguments: Any) -> Any:
    """Make a call that brings an answer with it, before anything was asked."""
    answer = types.ElicitResult(action="accept", content=content)
    more: Any = {"allow_input_required": True, "input_responses": {key: answer}}
    return await client.session.call_tool(tool, arguments, **more)


async def test_answer_that_comes_with_a_call_is_that_to_the_question_of_its_name(
    open_door: Door, desk: Desk
) -> None:
    """Also of a function that is not to begin twice."""
    async with open_door.client(elicitation_callback=User([FIRST])) as client:
        assert text_of(await given(client, "desk__sign", "signer", {"name": "ann"})) == "ann"
        assert desk.ran == ["began"]
        for found in (
            await given(client, "desk__pay", "approve", {"approve": True}, amount=5),
            await given(client, "desk__order", "answer", {"answer": "small"}),
        ):
            assert isinstance(found, types.InputRequiredResult)
    assert desk.ran == ["began"]


@pytest.mark.parametrize("name", ["sign", "around"])
async def test_answer_that_came_with_a_call_and_does_not_fit_leaves_the_question_open(
    open_door: Door, desk: Desk, name: str
) -> None:
    """A call within the call has questions of its own, by whatever name."""

    @tool
    async def around(context: ToolContext) -> Any:
        return await context.room.call("desk.sign")

    async with (
        open_door.server.room("other") as other,
        other.host(Toolkit("outer", [around])),
        open_door.server.room("alice") as alice,
        person_in(alice) as person,
        open_door.client(elicitation_callback=User([FIRST])) as client,
    ):
        owner, answer = ("desk", "a") if name == "sign" else ("outer", "eve")
        call = asyncio.create_task(given(client, f"{owner}__{name}", "signer", {"name": answer}))
        await alice.answer(await person.asked(), {"name": "ann"})
        assert text_of(await call) == "ann"


async def test_call_that_has_changed_meanwhile_is_asked_again_three_times(
    open_door: Door, desk: Desk
) -> None:
    async with AsyncExitStack() as hosts, open_door.client(elicitation_callback=User([FIRST])) as c:

        async def change(version: str) -> None:
            await hosts.aclose()
            again = await hosts.enter_async_context(open_door.server.room("other"))
            kit = Toolkit("changing", desk.toolkit.tools, version=version)
            await hosts.enter_async_context(again.host(kit))

        await change("1")
        found = await asked(c, "changing__pay", amount=5)
        for number in range(3):
            await change(f"{number + 2}")
            found = await asked(c, "changing__pay", found, *FIRST, amount=5)
            assert isinstance(found, types.InputRequiredResult)
        await change("9")
        found = await asked(c, "changing__pay", found, *FIRST, amount=5)
        assert facts_of(found) == ("approval_denied", "no")
    assert desk.ran == []


async def test_call_that_somebody_approves_while_it_is_cancelled_is_not_made_again(
    open_door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[int] = []
    has_begun = asyncio.Event()

    @tool(approval=True)
    async def wait(number: int) -> None:
        ran.append(number)
        has_begun.set()
        await asyncio.Event().wait()

    real = questions._asked

    async with (
        open_door.server.room("other") as other,
        other.host(Toolkit("slow", [wait])),
        open_door.server.room("alice") as alice,
        person_in(alice) as person,
        open_door.client(elicitation_callback=User([FIRST])) as client,
    ):

        async def and_approve(asking: asyncio.Task[Any]) -> Any:
            result = await real(asking)
            await alice.approve(await person.asked())
            await has_begun.wait()
            return result

        monkeypatch.setattr(questions, "_asked", and_approve)
        found = await asked(client, "slow__wait", number=1)
    assert facts_of(found) == ("unavailable", "maybe")
    assert ran == [1]


async def test_preview_that_has_changed_meanwhile_is_shown_again(open_door: Door) -> None:
    ran: list[str] = []

    class Write(Tool):
        name = "write"
        description = "Write a file."
        input_schema = {"type": "object", "properties": {}}  # noqa: RUF012 - as tools define themselves
        approval = True
        preview = "- a"

        async def assess(self, context: Any, arguments: Any) -> Assessment:
            return Assessment("ask", preview=self.preview)

        async def execute(self, context: ToolContext, /, **arguments: Any) -> str:
            ran.append(self.preview)
            return "written"

    write = Write()
    async with (
        open_door.server.room("other") as other,
        other.host(Toolkit("files", [write])),
        open_door.client(elicitation_callback=User([FIRST])) as client,
    ):
        first = await asked(client, "files__write")
        write.preview = "- b"
        second = await asked(client, "files__write", first, *FIRST)
        assert "- b" in second.input_requests["approve"].params.message
        assert ran == []
        assert text_of(await asked(client, "files__write", second, *FIRST)) == "written"


TEXT = {"type": "string"}
CHOICES = {"type": "array", "items": {"type": "string", "enum": ["a", "b"]}}


@pytest.mark.parametrize(
    ("schema", "options", "properties"),
    [
        (None, (), {"answer": TEXT}),
        (None, ("a", "b"), {"answer": TEXT | {"enum": ["a", "b"]}}),
        (TEXT | {"format": "email", "pattern": "x"}, (), {"answer": TEXT | {"format": "email"}}),
        (TEXT | {"format": "uuid"}, (), {"answer": TEXT}),
        (TEXT | {"format": []}, (), {"answer": TEXT}),
        (MARK, (), {"answer": MARK}),
        (
            {"type": "object", "properties": {"a": TEXT, "b": CHOICES}},
            (),
            {"a": TEXT, "b": CHOICES},
        ),
        ({"type": "object", "properties": {"a": TEXT, "b": {"type": "object"}}}, (), None),
        ({"type": "object", "properties": {"a": True}}, (), None),
        ({"type": "object"}, (), None),
        ({"type": "array", "items": TEXT}, (), None),
        ({"anyOf": [TEXT, MARK]}, (), None),
        ({"type": ["string", "null"]}, (), None),
    ],
)
def test_question_is_a_form_if_its_fields_are_plain(
    schema: Any, options: tuple[str, ...], properties: Any
) -> None:
    body = HoldBody({}, "", question="Which?", schema=schema, options=options)
    hold = HoldInfo("1", "desk", "desk.ask", "host", "ann", "", b"", "answer", body=body)
    form = Form.of(hold)
    assert (None if form is None else form.schema["properties"]) == properties


class Progress(asyncio.Queue[str]):
    async def __call__(self, progress: float, total: float | None, message: str | None) -> None:
        if message is not None:
            self.put_nowait(message)


@pytest.mark.parametrize("mode", [MODERN, LEGACY])
@pytest.mark.parametrize("name", ["pay", "once", "outer"])
async def test_client_that_cannot_be_asked_hears_what_its_call_waits_for(
    open_door: Door, desk: Desk, mode: str, name: str
) -> None:
    # A function that has begun is not run again for a question: it is answered elsewhere, too.
    options: dict[str, Any] = {} if name == "pay" else {"elicitation_callback": User([FIRST])}
    progress = Progress()
    arguments = {"amount": 1} if name == "pay" else {}
    async with (
        open_door.client(mode, **options) as client,
        open_door.server.room("alice") as alice,
        person_in(alice) as person,
    ):
        call = client.call_tool(f"desk__{name}", arguments, progress_callback=progress)
        running = asyncio.create_task(call)
        hold = await person.asked()
        assert f"toolbus approvals {hold.kind} {hold.id}" in await progress.get()
        if hold.kind == "answer":
            await alice.answer(hold, "yes")
        else:
            await alice.approve(hold)
        assert text_of(await running) == ("yes" if name == "once" else "paid 1")
        assert (
            await progress.get() == f"{'answered' if name == 'once' else 'approved'}: {hold.tool}"
        )
    assert desk.ran.count("began") <= 1


async def test_who_may_not_settle_is_not_asked(open_door: Door, desk: Desk) -> None:
    user, progress, scope = User([FIRST]), Progress(), ApiScope.agent_default()
    async with open_door.client(api=scope, elicitation_callback=user) as client:
        expired = await client.call_tool("desk__rush", {}, progress_callback=progress)
    assert facts_of(expired) == ("approval_expired", "no")
    assert "desk.rush" in await progress.get()
    assert (user.shown, desk.ran) == ([], [])


@asynccontextmanager
async def editor(server: TestServer, mode: str, user: ElicitationFnT) -> AsyncIterator[Client]:
    """Start `toolbus mcp` as ann, for a client that shows forms."""
    parameters = StdioServerParameters(
        command=sys.executable,
        args=["-m", "toolbus", "mcp", "--room", "lab", "--url", server.url],
        env={"TOOLBUS_HOME": "/nonexistent", "TOOLBUS_TOKEN": server.token("ann")},
    )
    async with (
        asyncio.timeout(PATIENCE_S),
        Client(parameters, mode=mode, elicitation_callback=user) as client,
    ):
        yield client


@pytest.mark.parametrize(
    ("mode", "name", "answer", "result"),
    [
        (MODERN, "pay", FIRST, "paid 1"),
        (MODERN, "pay", ("decline", None), None),
        (LEGACY, "pay", FIRST, "paid 1"),
        (LEGACY, "pay", ("decline", None), None),
        # Its call goes on while it is asked, also one that has begun.
        (LEGACY, "outer", FIRST, "paid 1"),
        (LEGACY, "once", ("accept", {"answer": "yes"}), "yes"),
    ],
)
async def test_editor_is_asked_by_elicitation(
    desk: Desk, mode: str, name: str, answer: Any, result: str | None
) -> None:
    user = User([answer])
    async with (
        running_server() as server,
        server.room("host") as host,
        host.host(desk.toolkit),
        editor(server, mode, user) as client,
    ):
        arguments = {"amount": 1} if name == "pay" else {}
        found = await client.call_tool(f"desk__{name}", arguments)
    if result is None:
        assert facts_of(found) == ("approval_denied", "no")
        assert desk.ran == []
    else:
        assert text_of(found) == result
    assert len(user.shown) == 1


async def test_question_goes_away_that_somebody_else_has_answered(desk: Desk) -> None:
    is_shown, is_gone = asyncio.Event(), asyncio.Event()

    async def look(
        context: ClientRequestContext, params: types.ElicitRequestParams
    ) -> types.ElicitResult:
        is_shown.set()
        try:
            await asyncio.Event().wait()
        finally:
            is_gone.set()
        raise AssertionError

    async with (
        running_server() as server,
        server.room("host") as host,
        host.host(desk.toolkit),
        server.room("ann") as ann,
        person_in(ann) as person,
        editor(server, LEGACY, look) as client,
    ):
        running = asyncio.create_task(client.call_tool("desk__pay", {"amount": 1}))
        await is_shown.wait()
        await ann.approve(await person.asked())
        assert text_of(await running) == "paid 1"
        await is_gone.wait()
