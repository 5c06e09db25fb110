"""PROTOCOL.md, sections "Calls" and "Errors", between raw participants and a real server."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Any

from msgspec.structs import astuple

from support.clients.raw_client import RawClient, details_of, raw_participant
from support.clients.raw_requests import (
    answer,
    ask,
    call_of,
    call_through,
    failure_of,
    id_of,
    next_of,
    offer,
    refusal,
    stop_reading,
    toolkit_of,
)
from toolbus import AgentsGrant, ApiScope, ToolContext, Toolkit, tool
from toolbus.errors import RoomException
from toolbus.wire import (
    Call,
    Cancel,
    Dispatch,
    Failed,
    Result,
    exception_of,
    pack_body,
    unpack_body,
)
from toolbus_server.limits import Limits
from toolbus_server.testing import TestServer, running_server


class RawParticipants:
    """A server, a host of `echo.say` and alice, all raw."""

    def __init__(self, stack: AsyncExitStack) -> None:
        self._stack = stack
        self.server: TestServer
        self.host: RawClient
        self.alice: RawClient

    async def __aenter__(self) -> RawParticipants:
        self.server = await self._stack.enter_async_context(running_server())
        self.host = await self.join("host")
        self.alice = await self.join("alice")
        await ask(self.host, offer())
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self._stack.aclose()

    async def join(self, name: str, api: ApiScope | None = None, role: str = "user") -> RawClient:
        token = self.server.token(name, api=api, role=role)
        return await self._stack.enter_async_context(raw_participant(self.server, token=token))

    def call(self, **fields: Any) -> Any:
        return call_through(self.alice, self.host, call_of(**fields))


def raw_participants() -> RawParticipants:
    return RawParticipants(AsyncExitStack())


async def test_call_reaches_its_host_untouched_with_facts_from_the_servers_tables() -> None:
    """CALL-6, CALL-20, STREAM-8: nothing in a call can change who the caller is."""
    async with raw_participants() as on:
        forged: dict[str, Any] = {"caller": ["x", "root", "admin", "y"], "private": True, "hops": 0}
        forged["builders"] = pack_body([["everything"]])
        sent = call_of(arguments=b"\xc1 nobody reads this", **forged)
        got = await call_through(on.alice, on.host, sent)
        assert (got.call_id, got.toolkit, got.tool) == (sent.call_id, "echo", "say")
        assert got.arguments == sent.arguments
        card = [id_of(on.alice), "alice", "user", on.server.key.iss]
        # A client that announces nothing about chunks is sent none (STREAM-8).
        may_build = pack_body([["*"]])  # BUILD-3
        assert got.header == {"caller": pack_body(card), "builders": may_build, "whole": True}
        words = pack_body({"thread": "t"})
        got = await on.call(request_id=8, caller_context=words, attempt=2)
        assert got.header == {
            "caller": pack_body(card),
            "builders": may_build,
            "whole": True,
            "caller_context": words,
            "attempt": 2,
        }
        answer(on.host, got, [1, {"a": 1}])
        assert await on.alice.reply_to(8) == Result(8, pack_body([1, {"a": 1}]))


async def test_id_in_flight_is_refused_a_second_time() -> None:
    """CALL-1, CALL-2, CALL-8."""
    async with raw_participants() as on:
        first = await on.call(call_id="c")
        failed = await refusal(on.alice, call_of(request_id=8, call_id="c"))
        assert failed.code == "duplicate_call_id"
        assert (await refusal(on.alice, call_of(call_id="d"))).code == "duplicate_call_id"
        for call_id in ("", "x" * 65):
            failed = await refusal(on.alice, call_of(request_id=9, call_id=call_id))
            assert failed.code == "invalid_arguments"
            assert details_of(failed)["path"] == "/call_id"
        answer(on.host, first)
        assert isinstance(await on.alice.reply_to(7), Result)
        await on.call(call_id="c")


async def test_bare_name_is_the_own_private_toolkit_else_the_public_one() -> None:
    """CALL-3."""
    async with raw_participants() as on:
        await ask(on.host, offer(public=False, shared_with=["*"], request_id=2))
        assert "private" not in (await on.call(request_id=1)).header
        shared = await on.call(request_id=2, participant="host")
        assert shared.header["private"] is True
        await ask(on.alice, offer(public=False, request_id=3))
        own = await call_through(on.alice, on.alice, call_of(request_id=4))
        assert own.header["private"] is True
        assert (await refusal(on.alice, call_of(request_id=5, participant="bob"))).code == (
            "not_found"
        )


async def test_missing_toolkits_are_not_found_and_calls_without_a_grant_are_denied() -> None:
    """CALL-4, REG-8."""
    async with raw_participants() as on:
        await ask(on.host, offer(toolkit_of("vault", "open"), 2, public=False))
        grants = AgentsGrant(call=True, allow=["echo", "vault"], deny=["echo.s*"])
        bob = await on.join("bob", ApiScope(agents=grants))
        denied = await refusal(bob, call_of())
        assert (denied.code, denied.executed) == ("permission_denied", "no")
        for name in ("no.say", "echo.no"):
            assert (await refusal(bob, call_of(name))).code == "not_found"
        missing = await refusal(bob, call_of("vaulx.open"))
        hidden = await refusal(bob, call_of("vault.open"))
        assert hidden.message.replace("vault", "vaulx") == missing.message
        assert astuple(hidden)[1:4] == astuple(missing)[1:4]
        eve = await on.join("eve", ApiScope(agents=AgentsGrant(call=True)))
        await call_through(eve, on.host, call_of())


async def test_pinned_call_runs_no_other_definition() -> None:
    """CALL-5."""
    async with raw_participants() as on:
        digest = (await ask(on.host, offer(request_id=2)))["digest"]
        await on.call(request_id=1, pin=digest)
        failed = await refusal(on.alice, call_of(request_id=2, pin="0" * 64))
        assert (failed.code, failed.executed) == ("definition_changed", "no")
        assert details_of(failed) == {"digest": digest}


async def test_deadline_is_sent_to_the_host_and_ends_the_call() -> None:
    """CALL-7, CALL-8, CALL-9, CALL-11, ERR-2, guarantee "host stalls"."""
    async with raw_participants() as on:
        assert 0 < (await on.call(request_id=1)).remaining_ms <= Limits().call_timeout_ms
        assert 0 < (await on.call(request_id=2, timeout_ms=5_000)).remaining_ms <= 5_000
        failed = await refusal(on.alice, call_of(request_id=3, timeout_ms=0))
        assert (failed.code, failed.executed, failed.retryable) == ("deadline_exceeded", "no", True)
        got = await on.call(request_id=4, timeout_ms=30)
        failed = await failure_of(on.alice, 4)
        assert (failed.code, failed.executed) == ("deadline_exceeded", "maybe")
        assert not failed.retryable
        assert await next_of(on.host, Cancel) == Cancel(got.id, "deadline")
        answer(on.host, got)
        await on.call(request_id=4)
        assert on.server.server.hub.router.dropped == 1


async def test_cancel_ends_a_call_at_once_and_has_no_reply_of_its_own() -> None:
    """CALL-10, CALL-11, ERR-2."""
    async with raw_participants() as on:
        got = await on.call()
        on.alice.send_frame(Cancel(7, "changed my mind"))
        on.alice.send_frame(Cancel(7, "changed my mind"))
        failed = await failure_of(on.alice, 7)
        assert (failed.code, failed.executed) == ("cancelled", "maybe")
        assert await next_of(on.host, Cancel) == Cancel(got.id, "cancelled")
        on.alice.send_frame(call_of(request_id=8))
        answer(on.host, await next_of(on.host, Dispatch))
        assert (await next_of(on.alice, Result)).id == 8


async def test_call_that_was_not_written_never_runs_and_is_never_sent() -> None:
    """CALL-11, CALL-18, ERR-2: it waits in the host's outbox and is removed from there."""
    async with raw_participants() as on:
        stop_reading(on.host)
        for number in range(9):
            on.alice.send_frame(call_of(request_id=number, arguments=bytes(1_000_000)))
        on.alice.send_frame(call_of(request_id=90))
        on.alice.send_frame(Cancel(90, ""))
        on.alice.send_frame(Cancel(0, ""))
        taken_back = await failure_of(on.alice, 90)
        assert (taken_back.code, taken_back.executed) == ("cancelled", "no")
        assert taken_back.retryable
        assert (await failure_of(on.alice, 0)).executed == "maybe"
        transport: Any = on.host.writer.transport
        transport.resume_reading()
        on.alice.send_frame(call_of(request_id=91))
        seen: list[str] = []
        while not seen or seen[-1] != f"{91:032x}":
            seen.append((await next_of(on.host, Dispatch)).call_id)
        assert f"{90:032x}" not in seen


async def test_host_is_notified_that_its_caller_is_lost() -> None:
    """CALL-12."""
    async with raw_participants() as on:
        got = await on.call()
        on.alice.abort()
        assert await next_of(on.host, Cancel) == Cancel(got.id, "caller_gone")


async def test_lost_host_ends_its_calls_and_only_idempotent_ones_may_be_retried() -> None:
    """CALL-13."""
    async with raw_participants() as on:
        manifest = toolkit_of("pay", "once")
        manifest["tools"].append({"name": "again", "input_schema": {}, "idempotent": True})
        await ask(on.host, offer(manifest, 2))
        for number, name in enumerate(("pay.once", "pay.again")):
            await call_through(on.alice, on.host, call_of(name, number))
        on.host.abort()
        for number, retryable in enumerate((False, True)):
            failed = await failure_of(on.alice, number)
            assert (failed.code, failed.executed) == ("host_lost", "maybe")
            assert failed.retryable is retryable


async def test_nested_call_ends_no_later_than_its_parent() -> None:
    """CALL-14, CALL-16."""
    async with raw_participants() as on:
        inner_host = await on.join("inner")
        await ask(inner_host, offer(toolkit_of("deep", "down")))
        outer = await on.call(timeout_ms=5_000)
        nested = call_of("deep.down", parent=outer.id, timeout_ms=60_000)
        inner = await call_through(on.host, inner_host, nested)
        assert inner.remaining_ms is not None
        assert inner.remaining_ms <= outer.remaining_ms
        assert unpack_body(inner.header["caller"])[1] == "host"
        assert unpack_body(inner.header["on_behalf_of"])[:2] == [id_of(on.alice), "alice"]
        stranger = await refusal(on.alice, call_of("deep.down", 9, parent=outer.id))
        assert stranger.code == "permission_denied"
        answer(on.host, outer)
        too_late = call_of("deep.down", 9, parent=outer.id)
        assert (await refusal(on.host, too_late)).code == "permission_denied"


async def test_principal_must_be_allowed_too_and_cannot_be_chosen() -> None:
    """CALL-16."""
    async with raw_participants() as on:
        await ask(on.host, offer(toolkit_of("vault", "open"), 2))
        bob = await on.join("bob", ApiScope(agents=AgentsGrant(call=True, allow=["echo"])))
        got = await call_through(bob, on.host, call_of())
        forged: dict[str, Any] = {"on_behalf_of": "alice"}
        for options in ({}, forged):
            failed = await refusal(on.host, call_of("vault.open", parent=got.id, **options))
            assert failed.code == "permission_denied"
        failed = await refusal(on.host, call_of(request_id=9, parent=got.id, on_behalf_of="alice"))
        assert (failed.code, failed.executed) == ("permission_denied", "no")
        same = call_of(request_id=8, parent=got.id, on_behalf_of="bob")
        inner = await call_through(on.host, on.host, same)
        assert unpack_body(inner.header["on_behalf_of"])[1] == "bob"


async def test_acting_for_another_needs_the_grant_and_the_other() -> None:
    """CALL-17."""
    async with raw_participants() as on:
        acting = AgentsGrant(call=True, act_for=["alice", "carol", "bob"])
        agent = await on.join("agent", ApiScope(agents=acting))
        await on.join("bob", ApiScope())
        got = await call_through(agent, on.host, call_of(on_behalf_of="alice"))
        assert unpack_body(got.header["on_behalf_of"])[:2] == [id_of(on.alice), "alice"]
        # Not present; without grants; not in act_for, with and without such a participant.
        refusals = {}
        for name in ("carol", "bob", "host", "zoe"):
            failed = await refusal(agent, call_of(request_id=8, on_behalf_of=name))
            assert failed.code == "permission_denied", name
            refusals[name] = failed.message.replace(name, "NAME")
        assert refusals["host"] == refusals["zoe"]


async def test_host_that_no_longer_serves_a_toolkit_answers_no_host() -> None:
    """CALL-19, CONN-11: it reconnected and has not registered what its older connection had."""
    async with raw_participants() as on:
        older = raw_participant(on.server, "sdk", instance="one")
        async with older as client:
            await ask(client, offer(toolkit_of("slow", "hang")))
            async with on.server.room("sdk", instance="one"):
                failed = await refusal(on.alice, call_of("slow.hang"))
                assert (failed.code, failed.executed, failed.retryable) == ("no_host", "no", True)


async def test_of_two_hosts_the_one_with_fewer_calls_is_taken() -> None:
    """CALL-21, REG-9."""
    async with raw_participants() as on:
        second = await on.join("host")
        await ask(second, offer())
        for number in range(6):
            on.alice.send_frame(call_of(request_id=number))
        for each in (on.host, second, on.host, second, on.host, second):
            await next_of(each, Dispatch)


async def test_calls_in_flight_of_a_caller_are_limited() -> None:
    """CALL-18."""
    async with raw_participants() as on:
        for number in range(Limits().max_calls):
            on.alice.send_frame(call_of(request_id=number))
        failed = await refusal(on.alice, call_of(request_id=5_000))
        assert (failed.code, failed.executed, failed.retryable) == ("quota_exceeded", "no", True)
        assert failed.retry_after_ms
        await call_through(on.host, on.host, call_of(request_id=1))


async def test_call_that_fits_the_callers_frame_and_not_the_hosts_is_too_large() -> None:
    """CALL-22: the header that the server adds takes room too."""
    async with raw_participants() as on:
        bare = len(pack_body([16, *astuple(call_of(arguments=bytes(2**20 - 100)))]))
        call: Call = call_of(arguments=bytes(2**20 - 100 + 2**20 - bare))
        failed = await refusal(on.alice, call)
        assert (failed.code, failed.executed) == ("too_large", "no")


async def test_largest_result_of_a_host_reaches_its_caller() -> None:
    """BODY-6: whatever the caller's id is."""
    async with raw_participants() as on:
        got = await on.call(request_id=2**53)
        bare = len(pack_body([2, got.id, bytes(2**20 - 100)]))
        largest = bytes(2**20 - 100 + 2**20 - bare)
        on.host.send_frame(Result(got.id, largest))
        assert await on.alice.reply_to(2**53) == Result(2**53, largest)
        fits = await on.call(request_id=3)
        on.host.send_frame(Result(fits.id, bytes(2**20 - 32)))
        assert isinstance(await on.alice.reply_to(3), Result)


async def test_failure_of_a_host_is_forwarded_within_limits() -> None:
    """ERR-3, ERR-7."""
    async with raw_participants() as on:
        got = await on.call()
        huge = pack_body({"words": "x" * 40_000})
        on.host.send_frame(Failed(got.id, "brand_new", "surely", True, "m" * 9_000, huge, 40))
        failed = await failure_of(on.alice, 7)
        assert failed == Failed(7, "brand_new", "maybe", True, "m" * 4_096, None, 40)
        error = exception_of(failed)
        assert (type(error).__mro__[1], error.code) == (RoomException, "brand_new")
        assert (error.executed, error.retry_after_s) == ("maybe", 0.04)


async def test_host_sends_the_path_of_invalid_arguments_and_no_text_of_a_tool() -> None:
    """ERR-5, ERR-6, BODY-2, CALL-19."""

    @tool
    async def count(context: ToolContext, days: int) -> int:
        raise KeyError("secret words")

    @tool(timeout_s=0.02)
    async def stuck() -> None:
        await asyncio.Event().wait()

    async with raw_participants() as on:
        host = on.server.room("sdk")
        async with host, host.host(Toolkit("sums", [count, stuck])):
            for arguments, path in (({"days": "2"}, "/days"), ([], ""), ({"days": b"2"}, "/days")):
                wrong = call_of("sums.count", arguments=pack_body(arguments))
                failed = await refusal(on.alice, wrong)
                assert (failed.code, failed.executed) == ("invalid_arguments", "no")
                assert details_of(failed)["path"] == path
            wrong = call_of("sums.count", arguments=pack_body({"days": 1}), caller_context=b"\xc1")
            failed = await refusal(on.alice, wrong)
            assert (failed.code, failed.executed) == ("invalid_arguments", "no")
            raised = call_of("sums.count", arguments=pack_body({"days": 2}))
            failed = await refusal(on.alice, raised)
            assert (failed.code, failed.executed) == ("tool_failed", "yes")
            assert details_of(failed) == {"cause": "KeyError"}
            assert "secret" not in failed.message
            failed = await refusal(on.alice, call_of("sums.stuck"))
            assert (failed.code, failed.executed) == ("deadline_exceeded", "yes")
