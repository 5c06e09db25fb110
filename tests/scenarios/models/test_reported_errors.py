"""Errors that servers report in their own ways: one table decides for all APIs what may pass."""

from __future__ import annotations

import contextlib
import gzip
import json
import tracemalloc
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest

from support.models.model_server import KEY, Broken, model_server
from support.models.wire_replies import APIS, Says, whole_reply
from toolbus import ModelError, ModelRetries, Turn
from toolbus.agents.model_requests import RequestToModel, model_events
from toolbus.models.adapter import Model, Plain
from toolbus.models.registry import open_model

each_api = pytest.mark.parametrize("api", APIS)

ERRORS: list[tuple[Any, bool, str]] = [
    ({"error": {"code": 429, "message": "slow down"}}, True, "slow down"),
    ({"error": {"code": "429", "message": "slow down"}}, True, "slow down"),
    ({"error": {"code": 500, "message": "oops"}}, True, "oops"),
    (
        {"error": {"code": 502, "message": "lost", "metadata": {"raw": "by it"}}},
        True,
        "lost: by it",
    ),
    ({"error": {"code": 503, "status": "UNAVAILABLE", "message": "busy"}}, True, "busy"),
    ({"error": {"code": 529, "message": "busy"}}, True, "busy"),
    ({"error": {"code": 408, "message": "late"}}, True, "late"),
    ({"error": {"code": 400, "message": "wrong"}}, False, "wrong"),
    ({"error": {"code": 404, "type": "server_error", "message": "none"}}, False, "none"),
    ({"error": {"status": "RESOURCE_EXHAUSTED", "message": "quota"}}, True, "quota"),
    ({"error": {"status": "INVALID_ARGUMENT", "message": "no"}}, False, "no"),
    ({"error": {"type": "overloaded_error", "message": "busy"}}, True, "busy"),
    ({"error": {"type": "RateLimitError", "message": "slow"}}, True, "slow"),
    ({"error": {"type": "server_error", "code": None, "message": "x"}}, True, "x"),
    ({"error": {"code": "rate_limit_exceeded", "message": "slow"}}, True, "slow"),
    ({"error": {"type": "too_many_requests", "message": "slow"}}, True, "slow"),
    ({"error": {"message": "gone", "metadata": {"error_type": "unavailable"}}}, True, "gone"),
    ({"error": {"code": "server_error"}}, True, "server_error"),
    ({"error": {"type": "insufficient_quota", "code": 429, "message": "pay"}}, False, "pay"),
    ({"error": {"code": "context_length_exceeded", "message": "long"}}, False, "long"),
    ({"error": {"type": "invalid_request_error", "message": "no"}}, False, "no"),
    ({"error": "model overloaded"}, True, "model overloaded"),
    ({"error": "Unexpected endpoint or method."}, False, "Unexpected endpoint or method."),
    ({"error": {"error": {"message": "within", "code": 503}}}, True, "within"),
    ([{"error": {"code": 429, "message": "listed"}}], True, "listed"),
    ({"type": "error", "error": {"type": "api_error", "message": "down"}}, True, "down"),
    ({"object": "error", "type": "BadRequestError", "code": 400, "message": "a"}, False, "a"),
    ({"choices": None, "error_type": "BadRequestError", "error_message": "b"}, False, "b"),
    ({"choices": None, "base_resp": {"status_code": 1, "status_msg": "key"}}, False, "key"),
    ({"choices": None, "base_resp": {"status_msg": "rate limit"}}, True, "rate limit"),
    ({"choices": None, "base_resp": {"status_msg": "insufficient balance"}}, False, "balance"),
    ({"detail": "boom"}, False, "boom"),
    ({"detail": [{"msg": "Field required", "loc": ["body"]}]}, False, "Field required"),
    ({"success": False, "errors": [{"code": 7000, "message": "no route"}]}, False, "no route"),
    ({"message": "kaput", "code": "ServiceUnavailable"}, True, "kaput"),
    ({"error": {"message": "wait", "code": 429, "retry_after": 0}}, True, "wait"),
]
"""What a server reports, whether it may pass, and the words that are shown."""


def as_event(error: Any) -> bytes:
    return f"data: {json.dumps(error)}\n\n".encode()


def as_named_event(error: Any) -> bytes:
    return f"event: error\ndata: {json.dumps(error)}\n\n".encode()


def as_line(error: Any) -> bytes:
    return f"error: {json.dumps(error)}\n\n".encode()


def as_body(error: Any) -> bytes:
    return json.dumps(error, indent=2).encode()


PLACES = [as_event, as_named_event, as_line, as_body]


@contextlib.asynccontextmanager
async def opened(api: str, *script: Says | Broken, **options: Any) -> Any:
    async with model_server(*script) as server:
        settings: dict[str, Any] = {"api_key": KEY, "max_retries": 0} | options
        model = open_model(f"{api}:stub", server.url(api), **settings)
        async with contextlib.aclosing(model):
            yield model, server


def request_of(model: Model, turn: Any) -> Plain:
    return model.adapter.request(turn, [model.adapter.user("hi")])


async def whole(model: Model) -> Plain:
    async with Turn(None) as turn:
        return await model.reply(request_of(model, turn))


async def streamed(model: Model, *middlewares: Any) -> Plain:
    """Ask as an agent does; return the reply."""
    async with Turn(None) as turn:
        call = RequestToModel(model, request_of(model, turn), turn, 1)
        seen: list[Any] = []
        async with contextlib.aclosing(model_events(call, middlewares)) as events:
            async for event in events:
                if event == {"type": "toolbus.restart"}:
                    seen.clear()
                else:
                    seen.append(event)
        return model.adapter.collect(seen)


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toolbus.models.client_model._FIRST_PAUSE_S", 0.0)


@each_api
@pytest.mark.parametrize("place", PLACES)
async def test_a_reported_error_has_the_words_of_the_server_and_is_asked_again_if_it_may_pass(
    api: str, place: Callable[[Any], bytes]
) -> None:
    script = [Broken(body=place(row[0])) for row in ERRORS for _ in range(1 + row[1])]
    async with opened(api, *script, max_retries=1) as (model, server):
        for number, (error, may_pass, words) in enumerate(ERRORS, 1):
            with pytest.raises(ModelError) as caught:
                await streamed(model)
            assert (caught.value.retryable, words in str(caught.value)) == (may_pass, True), error
            assert len(server.requests) == sum(1 + row[1] for row in ERRORS[:number]), error


@each_api
@pytest.mark.parametrize("place", PLACES)
async def test_an_error_behind_the_beginning_of_a_reply_ends_it(
    api: str, place: Callable[[Any], bytes]
) -> None:
    script = [Broken(after=Says("a long text"), body=place(row[0])) for row in ERRORS]
    async with opened(api, *script, max_retries=1) as (model, server):
        for number, (error, may_pass, words) in enumerate(ERRORS, 1):
            server.said.clear()
            with pytest.raises(ModelError) as caught:
                await streamed(model)
            assert (caught.value.retryable, words in str(caught.value)) == (may_pass, True), error
            assert len(server.requests) == number, "a reply that began is not asked for again"


@each_api
@pytest.mark.parametrize("is_streamed", [False, True])
async def test_the_status_of_a_refusal_is_judged_with_what_its_body_says(
    api: str, is_streamed: bool
) -> None:
    refusals: list[tuple[int, Any, bool]] = [
        (429, {"error": {"code": "insufficient_quota", "message": "pay"}}, False),
        (429, {"error": {"type": "invalid_request_error", "message": "slow"}}, True),
        (500, {"error": {"code": 400, "message": "wrong"}}, False),
        (413, {"error": {"code": "rate_limit_exceeded", "message": "too large"}}, False),
        (500, {"error": {"code": "context_length_exceeded", "message": "long"}}, False),
        (501, {"error": {"message": "not implemented"}}, False),
        (503, {"detail": "busy"}, True),
    ]
    script = [Broken(status, json.dumps(body).encode()) for status, body, _ in refusals]
    async with opened(api, *script) as (model, _):
        for status, body, may_pass in refusals:
            ask = streamed if is_streamed else whole
            with pytest.raises(ModelError) as caught:
                await ask(model)
            assert (caught.value.status, caught.value.retryable) == (status, may_pass), body


@each_api
@pytest.mark.parametrize(
    ("body", "may_pass", "words"),
    [
        (b"", True, "an empty reply"),
        (b": waiting\n\n", True, "an empty reply"),
        (b"<html><body>Login please</body></html>", False, "Login please"),
        (b"<html>" + b"x" * 500_000, False, "<html>xx"),
        (b"upstream connect error or disconnect", True, "upstream connect error"),
        (b"no such thing", False, "no such thing"),
        (b'data: {"a\n\n', False, "no reply"),
        (b"[1, 2]", False, "no reply"),
        (b'{"cut": ', False, "no reply"),
    ],
)
async def test_what_is_not_a_reply_is_an_error_that_shows_it(
    api: str, body: bytes, may_pass: bool, words: str
) -> None:
    async with opened(api, Broken(body=body)) as (model, _):
        with pytest.raises(ModelError) as caught:
            await streamed(model)
    assert (caught.value.retryable, words in str(caught.value)) == (may_pass, True)


@each_api
@pytest.mark.parametrize("write", [as_body, lambda reply: as_body([reply]), as_event])
async def test_a_whole_reply_in_place_of_a_stream_is_read(
    api: str, write: Callable[[Any], bytes]
) -> None:
    says = Says("It is noon.", (("t__a", {"x": 1}),))
    reply = whole_reply(api, says)
    async with opened(api, Broken(body=write(reply))) as (model, _):
        reply = await streamed(model)
    assert model.adapter.text(reply) == "It is noon."
    [use] = model.adapter.uses(reply)
    arguments = json.loads(use.arguments) if isinstance(use.arguments, str) else use.arguments
    assert (use.name, arguments) == ("t__a", {"x": 1})


@each_api
async def test_events_are_read_however_a_server_writes_their_lines(api: str) -> None:
    reply = whole_reply(api, Says("hello"))
    if api == "openai-chat":
        reply["choices"][0]["delta"] = reply["choices"][0].pop("message")
    elif api == "openai-responses":
        reply = {"type": "response.completed", "response": reply}
    data = json.dumps(reply)
    streams = [
        f"data: {data}\n\n",
        f"data:{data}\r\n\r\n",
        f"\ufeffdata: {data}\r\r",
        f": x\ndata: {data}",
        f'data: {{}}\n\n{{"ping": 1}}\n\ndata: {data}\n\n',
    ]
    if api == "anthropic":  # its streams have several events
        streams = [f"\ufeff{data}", f"\n\n{data}\r\n"]
    bodies = [Broken(body=stream.encode()) for stream in streams]
    async with opened(api, *bodies) as (model, server):
        while server.script:
            assert model.adapter.text(await streamed(model)) == "hello"


BUSY = Broken(503, b'{"error": {"message": "busy"}}')
FAILED = Broken(body=as_event({"error": {"code": 503, "message": "busy"}}))
CUT = Broken(body=b'data: {"a": ', is_cut=True)
BROKEN = Broken(after=Says("a long text"), is_cut=True)


@each_api
@pytest.mark.parametrize(
    ("attempts", "max_retries", "kinds", "requests"),
    [
        (3, 2, [BUSY], 3),
        (3, 2, [FAILED], 3),
        (3, 2, [CUT], 3),
        (3, 2, [BROKEN], 3),
        (3, 2, [BROKEN, BUSY, FAILED], 3),
        (2, 5, [BUSY, BROKEN], 2),
        (4, 1, [BUSY, FAILED], 4),
        (1, 5, [BUSY], 1),
        (None, 2, [BUSY], 3),
        (None, 2, [FAILED, CUT], 3),
        (None, 2, [BROKEN], 1),
    ],
)
async def test_retries_of_the_model_and_of_the_middleware_do_not_multiply(
    api: str, attempts: int | None, max_retries: int, kinds: list[Broken], requests: int
) -> None:
    middlewares = [] if attempts is None else [ModelRetries(attempts, backoff_s=0)]
    async with opened(api, *(kinds * 20)[:20], max_retries=max_retries) as (model, server):
        with pytest.raises(ModelError):
            await streamed(model, *middlewares)
    assert len(server.requests) == requests


async def test_refused_connections_are_not_multiplied_either(
    unused_tcp_port_factory: Callable[[], int],
) -> None:
    model = open_model("openai:m", f"http://127.0.0.1:{unused_tcp_port_factory()}", max_retries=4)
    asked = 0
    original = model.stream_once  # type: ignore[attr-defined]

    def counted(request: Any) -> Any:
        nonlocal asked
        asked += 1
        return original(request)

    model.stream_once = counted  # type: ignore[attr-defined]
    async with contextlib.aclosing(model):
        with pytest.raises(ModelError, match="cannot be reached"):
            await streamed(model, ModelRetries(3, backoff_s=0))
    assert asked == 3


@cache
def packed(times: int) -> bytes:
    """Return 64 MiB of one line, packed so often."""
    data = gzip.compress(b"x" * 2**26)
    return data if times == 1 else gzip.compress(data)


@each_api
@pytest.mark.parametrize("status", [200, 500])
@pytest.mark.parametrize("ask", [streamed, whole])
async def test_a_packed_body_is_counted_while_it_is_unpacked(
    api: str, status: int, ask: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("toolbus.models.bounded_client._MAX_REPLY_BYTES", 4 * 2**20)
    bodies = [
        Broken(status, packed(times), {"content-encoding": ", ".join(["gzip"] * times)})
        for times in (1, 2)
    ]
    async with opened(api, Broken(400), *bodies) as (model, _):
        with pytest.raises(ModelError):  # the client is made
            await ask(model)
        tracemalloc.start()
        try:
            for _ in bodies:
                with pytest.raises(ModelError):
                    await ask(model)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert peak < 16 * 2**20
