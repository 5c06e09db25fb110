"""What goes wrong between a model and its API, through the real clients of the providers."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import socket
import traceback
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import pytest

from support.models.model_server import KEY, Broken, ModelServer, model_server
from support.models.wire_replies import APIS, INPUT_TOKENS, OUTPUT_TOKENS, Says
from toolbus.models.adapter import Model
from toolbus.models.model_error import ModelError
from toolbus.models.registry import open_model

ASKED: dict[str, dict[str, Any]] = {
    "openai-chat": {"messages": [{"role": "user", "content": "hi"}]},
    "openai-responses": {"input": [{"role": "user", "content": "hi"}]},
    "anthropic": {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 9},
    "gemini": {"contents": [{"role": "user", "parts": [{"text": "hi"}]}]},
}
each_api = pytest.mark.parametrize("api", APIS)
both_ways = pytest.mark.parametrize("is_streamed", [False, True], ids=["whole", "streamed"])


def refusal(status: int, told: str = "no", **headers: str) -> Broken:
    body = json.dumps({"error": {"message": told, "type": "some_error"}}).encode()
    return Broken(status, body, {name.replace("_", "-"): each for name, each in headers.items()})


@contextlib.asynccontextmanager
async def opened(
    api: str, *script: Says | Broken, **options: Any
) -> AsyncIterator[tuple[Model, ModelServer]]:
    async with model_server(*script) as server:
        settings: dict[str, Any] = {"api_key": KEY, "max_retries": 0} | options
        model = open_model(f"{api}:stub", server.url(api), **settings)
        async with contextlib.aclosing(model):
            yield model, server


async def asked(model: Model, api: str, is_streamed: bool = False) -> Any:
    if not is_streamed:
        return await model.reply(ASKED[api])
    return [event async for event in model.stream(ASKED[api])]


async def failure(
    api: str, is_streamed: bool, *script: Says | Broken, **options: Any
) -> ModelError:
    async with opened(api, *script, **options) as (model, _):
        with pytest.raises(ModelError) as caught:
            await asked(model, api, is_streamed)
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None
    return caught.value


# So far ahead that the minutes until a test runs do not matter.
TOMORROW = format_datetime(datetime.now(UTC) + timedelta(days=1), usegmt=True)
A_DAY_S = pytest.approx(86_400, abs=43_200)


REFUSALS: list[tuple[Broken, bool, Any, str]] = [
    (refusal(401, "who are you"), False, None, "answered 401: who are you"),
    (refusal(403), False, None, "answered 403: no"),
    (refusal(404, "no such model"), False, None, "no such model"),
    (refusal(429, retry_after="7"), True, 7.0, "answered 429"),
    (refusal(429, retry_after_ms="1500", retry_after="7"), True, 1.5, ""),
    (refusal(429, retry_after=TOMORROW), True, A_DAY_S, ""),
    (refusal(429, retry_after="soon"), True, None, ""),
    (refusal(429, retry_after="nan", x_should_retry="false"), False, None, ""),
    (refusal(500), True, None, "answered 500"),
    (refusal(503, retry_after="0"), True, 0.0, ""),
    (refusal(529, "overloaded"), True, None, "overloaded"),
    (Broken(502, b"<html>bad\n gateway"), True, None, r"<html>bad\n gateway"),
    (Broken(500, b'"words"'), True, None, "500"),
    (Broken(500, b"[[[["), True, None, "[[[["),
    (Broken(500, b""), True, None, "500"),
    (Broken(500, b"a gateway", is_cut=True), True, None, "a gateway"),
    (refusal(307, location="http://127.0.0.1:9/"), False, None, "http://127.0.0.1:9/"),
]
"""What is answered, whether it may pass, after how many seconds, and words of the error."""


@each_api
@both_ways
async def test_a_refusal_is_told_with_status_words_and_pause(api: str, is_streamed: bool) -> None:
    async with opened(api, *(row[0] for row in REFUSALS)) as (model, _):
        for answer, is_retryable, pause_s, words in REFUSALS:
            with pytest.raises(ModelError) as caught:
                await asked(model, api, is_streamed)
            error = caught.value
            assert (error.status, error.retryable) == (answer.status, is_retryable), answer
            assert error.retry_after_s == pause_s, answer
            assert words in str(error)
            assert error.__cause__ is None
            assert error.__context__ is None


async def test_gemini_tells_the_pause_in_the_body() -> None:
    details = [{"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "37s"}]
    body = {"error": {"code": 429, "message": "quota", "details": details}}
    error = await failure("gemini", False, Broken(429, json.dumps(body).encode()))
    assert (error.retry_after_s, "quota" in str(error)) == (37.0, True)


@each_api
async def test_what_is_no_reply_is_an_error(api: str) -> None:
    bodies = [b"", b"<html>", b'{"a', b"[1, 2]", b"{}", b"null", b'"a"', b'{"choices": [], "b": 1}']
    async with opened(api, *(Broken(200, body) for body in bodies)) as (model, server):
        while server.script:
            with pytest.raises(ModelError, match="no reply"):
                await asked(model, api)


@each_api
async def test_what_is_no_event_ends_a_stream_with_an_error(api: str) -> None:
    data = [b"data: {\n\n", b"event: message_start\ndata: {\n\n"]
    parts = [Broken(after=Says("a long text"), body=each) for each in data]
    async with opened(api, parts[api == "anthropic"]) as (model, _):
        with pytest.raises(ModelError, match="no reply"):
            await asked(model, api, True)


@pytest.mark.parametrize("api", APIS[:3])  # the client of Gemini drops what it does not know
async def test_an_error_with_the_status_of_success_is_told(api: str) -> None:
    error = await failure(api, False, Broken(200, b'{"error": {"message": "out of credit"}}'))
    assert "out of credit" in str(error)


@each_api
@both_ways
async def test_a_body_that_is_cut_is_an_error_that_may_pass(api: str, is_streamed: bool) -> None:
    part = Broken(after=Says("a long text"), is_cut=True) if is_streamed else Broken(is_cut=True)
    assert (await failure(api, is_streamed, part)).retryable


@each_api
async def test_an_error_within_a_stream_is_told_without_the_key(api: str) -> None:
    told = {"message": f"overloaded, {KEY}", "type": "overloaded_error", "code": 503}
    head = "" if api == "gemini" else "event: error\n"
    data = json.dumps({"error": told, "type": "error", "message": told["message"]})
    part = Broken(after=Says("a long text"), body=f"{head}data: {data}\n\n".encode())
    seen: list[Any] = []
    async with opened(api, part) as (model, _):

        async def whole() -> None:
            async for each in model.stream(ASKED[api]):
                seen.append(each)
            model.adapter.collect(seen)

        with pytest.raises(ModelError, match=r"overloaded, \[key\]"):
            await whole()
    assert seen


@each_api
@both_ways
async def test_the_key_is_in_no_error_log_or_traceback(
    api: str, is_streamed: bool, caplog: pytest.LogCaptureFixture
) -> None:
    def echo(_: str, headers: dict[str, str]) -> bytes:
        assert any(KEY in value for value in headers.values())
        return json.dumps({"error": {"message": f"Incorrect API key: {headers}"}}).encode()

    caplog.set_level(logging.DEBUG)
    for name in ("openai", "anthropic", "google_genai", "httpx2", "httpcore2"):
        caplog.set_level(logging.DEBUG, name)
    error = await failure(api, is_streamed, Broken(401, echo, {"x-echo": KEY}))
    shown = traceback.TracebackException.from_exception(error, capture_locals=True)
    own = [str(each.locals) for each in shown.stack if "toolbus" in each.filename]
    assert "[key]" in str(error)
    assert own
    assert KEY not in "".join([*own, *shown.format_exception_only(), repr(error), str(vars(error))])
    assert KEY not in "".join(f"{each.getMessage()}{each.exc_text}" for each in caplog.records)


@each_api
@both_ways
async def test_a_refused_connection_is_an_error_that_may_pass(api: str, is_streamed: bool) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        model = open_model(
            f"{api}:stub", f"http://127.0.0.1:{taken.getsockname()[1]}", max_retries=0
        )
        async with contextlib.aclosing(model):
            with pytest.raises(ModelError, match="cannot be reached") as caught:
                await asked(model, api, is_streamed)
    assert caught.value.retryable


@each_api
@both_ways
@pytest.mark.parametrize("part", [Broken(waits=True), Broken(after=Says("text"), waits=True)])
async def test_a_server_that_says_nothing_more_is_left(
    api: str, is_streamed: bool, part: Broken
) -> None:
    async with opened(api, refusal(400), part, timeout_s=1.0) as (model, server):
        with contextlib.suppress(ModelError):  # making a client takes time too
            await asked(model, api, is_streamed)
        with pytest.raises(ModelError, match=r"did not answer within 1 s"):
            await asked(model, api, is_streamed)
        await server.left.wait()


@each_api
@both_ways
async def test_cancelling_ends_the_request(api: str, is_streamed: bool) -> None:
    part = Broken(after=Says("text"), waits=True)
    async with opened(api, part) as (model, server):
        task = asyncio.create_task(asked(model, api, is_streamed))
        await server.waiting.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await server.left.wait()


@each_api
async def test_leaving_the_events_early_ends_the_request(api: str) -> None:
    async with opened(api, Broken(after=Says("text"), waits=True)) as (model, server):
        async with contextlib.aclosing(model.stream(ASKED[api])) as events:
            await anext(events)
        await server.left.wait()


@each_api
@both_ways
async def test_a_refusal_of_any_size_is_read_to_a_limit(api: str, is_streamed: bool) -> None:
    part = Broken(500, b"x" * 1_000_000, waits=True)
    async with opened(api, part) as (model, server):
        with pytest.raises(ModelError) as caught:
            await asked(model, api, is_streamed)
        await server.left.wait()
    assert 100 < len(str(caught.value)) < 1_200


@each_api
@both_ways
async def test_a_failure_that_may_pass_is_tried_again(api: str, is_streamed: bool) -> None:
    script: list[Says | Broken] = [
        refusal(503, retry_after="0"),
        refusal(429, retry_after_ms="1"),
        Says("hello"),
    ]
    async with opened(api, *script, max_retries=2) as (model, server):
        assert "hello" in json.dumps(await asked(model, api, is_streamed)) or is_streamed
    assert (len(server.requests), server.wrongs) == (3, [])


@each_api
@both_ways
async def test_the_tokens_of_a_request_are_told(api: str, is_streamed: bool) -> None:
    async with opened(api, Says("a long text", (("t__a", {"x": 1}),))) as (model, server):
        told = await asked(model, api, is_streamed)
    adapter, wanted = model.adapter, (INPUT_TOKENS, OUTPUT_TOKENS)
    reply = adapter.collect(told) if is_streamed else told
    assert adapter.usage(reply) == wanted
    if is_streamed:  # also before the reply is whole
        assert tuple(map(max, zip(*map(adapter.usage, told), strict=True))) == wanted
    assert server.wrongs == []


@pytest.mark.parametrize(
    "body",
    [
        '{"detail": [{"type": "extra_forbidden", "loc": ["body", "stream_options"]}]}',
        '{"error": {"message": "Unrecognized request argument supplied: stream_options"}}',
    ],
)
async def test_a_server_that_refuses_to_count_is_asked_without(body: str) -> None:
    refused = Broken(422 if "detail" in body else 400, body.encode())
    async with opened("openai-chat", refused, Says("a"), Says("b")) as (model, server):
        for _ in range(2):
            server.said.clear()
            assert model.adapter.usage(
                model.adapter.collect(await asked(model, "openai-chat", True))
            ) == (0, 0)
    assert ["stream_options" in request for request in server.requests] == [True, False, False]


@each_api
async def test_options_are_part_of_each_request(api: str) -> None:
    name = {"openai-responses": "max_output_tokens", "gemini": "max_output_tokens"}.get(
        api, "max_tokens"
    )
    async with opened(api, Says("a"), options={name: 5}) as (model, server):
        await asked(model, api)
    [body] = server.requests
    assert body.get("generationConfig", {}).get("maxOutputTokens", body.get(name)) == 5
    assert server.wrongs == []


async def test_a_client_that_cannot_be_made_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "ftp://nowhere")
    async with opened("gemini", Says("a")) as (model, _):
        with pytest.raises(ModelError, match="cannot be made"):
            await asked(model, "gemini")


@each_api
@pytest.mark.parametrize(
    ("answer", "retries"),
    [
        (refusal(401, retry_after="0"), 5),
        (refusal(429, retry_after="3600"), 5),  # longer than a reply may take
        (refusal(503, retry_after="0"), 0),
    ],
)
async def test_nothing_is_tried_again_in_vain(api: str, answer: Broken, retries: int) -> None:
    async with opened(api, answer, max_retries=retries) as (model, server):
        with pytest.raises(ModelError):
            await asked(model, api)
    assert len(server.requests) == 1


@each_api
def test_a_model_is_used_in_one_event_loop_after_the_other(api: str) -> None:
    async def ask(model: Model, server: ModelServer) -> None:
        async with contextlib.aclosing(model):
            for is_streamed in (False, True):
                server.said.clear()  # each request begins a conversation
                await asked(model, api, is_streamed)

    async def both() -> None:
        script = [Says("a"), Says("b")] * 2
        async with model_server(*script) as server:
            model = open_model(f"{api}:stub", server.url(api))
            for _ in range(2):
                await asyncio.to_thread(asyncio.run, ask(model, server))
        assert server.connections == 2

    asyncio.run(both())


@each_api
@both_ways
async def test_a_reply_is_read_to_a_limit(
    api: str, is_streamed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("toolbus.models.bounded_client._MAX_REPLY_BYTES", 100_000)
    long = Broken(body=json.dumps({"filler": "x" * 100_000}).encode())
    if is_streamed:
        long = Broken(after=Says("a word " * 1_000), waits=True)
    error = await failure(api, is_streamed, long)
    assert "a reply of more than 100,000 bytes" in str(error)
    assert not error.retryable


@each_api
@both_ways
async def test_the_frames_of_a_cancelled_reply_have_no_key(api: str, is_streamed: bool) -> None:
    async with opened(api, Broken(waits=True)) as (model, server):

        async def ask() -> None:
            async with asyncio.timeout(10) as limit:
                waiting = asyncio.create_task(server.waiting.wait())
                waiting.add_done_callback(lambda _: limit.reschedule(0))
                await asked(model, api, is_streamed)

        with pytest.raises(TimeoutError) as caught:
            await ask()
    shown = traceback.TracebackException.from_exception(caught.value, capture_locals=True)
    assert KEY not in "".join(shown.format())


@pytest.mark.parametrize("api", ["anthropic", "gemini"])
async def test_a_request_of_another_api_is_told(api: str) -> None:
    async with opened(api) as (model, server):
        with pytest.raises(ModelError, match=r"does not take this request, .*adapter\.request"):
            await model.reply({"input": [{"role": "user", "content": "Hello"}]})
    assert server.requests == []
