"""Tools of descriptions, called against a server on loopback."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from support.web.described_api import call_op, echo, kit_of
from support.web.scripted_server import Answer, Seen, WebServer, web_server
from toolbus import FileChunk, InvalidArguments, TextChunk, ToolContext, ToolFailed
from toolbus.permissions.rule import Rule
from toolbus.tools.context import run_of
from toolbus.tools.toolkit import packed_result
from toolbus.untrusted_text import SHOWN_CHARS
from toolbus_server.testing import room_of
from toolbus_toolkits.openapi import ApiOptions, OpenApiToolkit, PageRule
from toolbus_toolkits.openapi.model import Operation
from toolbus_toolkits.openapi.responses import ReadResponse, result_of


@pytest.fixture
async def server() -> AsyncIterator[WebServer]:
    async with web_server(echo) as running:
        yield running


def _kit(
    tmp_path: Path, server: WebServer, operation: dict[str, Any], **more: Any
) -> OpenApiToolkit:
    return kit_of(tmp_path, server.url, operation, **more)


@pytest.mark.parametrize(
    ("path", "parameters", "arguments", "target"),
    [
        ("/x?beta=true", [], {}, "/v1/x?beta=true"),
        ("/x?beta=true#part", [], {}, "/v1/x?beta=true"),
        ("/x#part?a=1", [], {}, "/v1/x"),
        ("/x?", [], {}, "/v1/x"),
        ("/x?a=1", ["b"], {"b": "c d"}, "/v1/x?a=1&b=c%20d"),
        ("/x?a=1&b=2", ["a"], {"a": "3"}, "/v1/x?b=2&a=3"),
        ("/x?a={b}", ["b"], {"b": ["c", "&d"]}, "/v1/x?a=c,%26d"),
        ("/x?a={b}&c=1", ["b"], {}, "/v1/x?c=1"),
        ("/{p}?a={p}", [], {"p": "q#r"}, "/v1/q%23r?a=q%23r"),
        ("/x{?a,b}{#c}", ["a", "b"], {"b": "1"}, "/v1/x?b=1"),
    ],
)
async def test_a_query_in_the_path_is_sent_as_a_query_and_a_fragment_not_at_all(
    tmp_path: Path,
    server: WebServer,
    path: str,
    parameters: list[str],
    arguments: dict[str, Any],
    target: str,
) -> None:
    described: list[dict[str, Any]] = [{"name": each, "in": "query"} for each in parameters]
    if "{p}" in path:
        described.append({"name": "p", "in": "path", "required": True})
    kit = _kit(tmp_path, server, {"parameters": described}, path=path)
    assert (await call_op(kit, **arguments))["target"] == target


_LIST, _OBJECT = ["a b", "c/d"], {"r": 1, "g": "x&y"}


@pytest.mark.parametrize(
    ("parameter", "value", "target"),
    [
        ({"in": "path"}, "../admin?x", "/v1/things/..%2Fadmin%3Fx"),
        ({"in": "path", "allowReserved": True}, "../admin?x", "/v1/things/..%2Fadmin%3Fx"),
        ({"in": "path"}, _LIST, "/v1/things/a%20b,c%2Fd"),
        ({"in": "path", "explode": True}, _OBJECT, "/v1/things/r=1,g=x%26y"),
        ({"in": "path", "style": "label", "explode": True}, _LIST, "/v1/things/.a%20b.c%2Fd"),
        ({"in": "path", "style": "label"}, _OBJECT, "/v1/things/.r,1,g,x%26y"),
        ({"in": "path", "style": "matrix"}, _LIST, "/v1/things/;p=a%20b,c%2Fd"),
        ({"in": "path", "style": "matrix", "explode": True}, _LIST, "/v1/things/;p=a%20b;p=c%2Fd"),
        ({"in": "path", "style": "matrix", "explode": True}, _OBJECT, "/v1/things/;r=1;g=x%26y"),
        ({"in": "query"}, _LIST, "/v1/things?p=a%20b&p=c%2Fd"),
        ({"in": "query", "explode": False}, _LIST, "/v1/things?p=a%20b,c%2Fd"),
        ({"in": "query"}, _OBJECT, "/v1/things?r=1&g=x%26y"),
        ({"in": "query", "style": "spaceDelimited"}, _LIST, "/v1/things?p=a%20b%20c%2Fd"),
        ({"in": "query", "style": "pipeDelimited"}, _LIST, "/v1/things?p=a%20b%7Cc%2Fd"),
        (
            {"in": "query", "style": "deepObject"},
            {"r": {"k": 1}, "g": ["x", {"a": 2}], "n": None},
            "/v1/things?p%5Br%5D%5Bk%5D=1&p%5Bg%5D%5B0%5D=x&p%5Bg%5D%5B1%5D%5Ba%5D=2",
        ),
        ({"in": "query", "style": "deepObject"}, ["x"], "/v1/things?p%5B0%5D=x"),
        ({"in": "query", "allowReserved": True}, "/a?b&c=d#e", "/v1/things?p=/a?b%26c%3Dd%23e"),
        ({"in": "query"}, True, "/v1/things?p=true"),
        ({"in": "query"}, None, "/v1/things"),
        ({"in": "query", "content": {"application/json": {}}}, [1], "/v1/things?p=%5B1%5D"),
    ],
)
async def test_a_parameter_is_written_by_its_style(
    tmp_path: Path, server: WebServer, parameter: dict[str, Any], value: Any, target: str
) -> None:
    path = "/things/{p}" if parameter["in"] == "path" else "/things"
    kit = _kit(
        tmp_path, server, {"parameters": [{"name": "p", "schema": {}, **parameter}]}, path=path
    )
    assert (await call_op(kit, p=value))["target"] == target


async def test_header_and_cookie_parameters_of_the_path_level_are_sent(
    tmp_path: Path, server: WebServer
) -> None:
    kit = _kit(
        tmp_path,
        server,
        {
            "parameters": [
                {"name": "X-Tag", "in": "header", "schema": {"type": "array"}},
                {"name": "session", "in": "cookie", "schema": {"type": "string"}},
            ]
        },
    )
    answer = await call_op(kit, **{"X-Tag": ["a", "b"], "session": "s;x"})
    assert answer["cookie"] == "session=s%3Bx"
    assert server.seen[0].headers["x-tag"] == "a,b"
    with pytest.raises(ToolFailed, match="line breaks"):
        await call_op(kit, **{"X-Tag": ["a\r\nX-Admin: 1"]})


@pytest.mark.parametrize("value", ["", ".", ".."])
async def test_a_path_parameter_that_would_change_the_path_is_refused(
    tmp_path: Path, server: WebServer, value: str
) -> None:
    parameter = {"name": "id", "in": "path", "required": True, "schema": {"type": "string"}}
    kit = _kit(tmp_path, server, {"parameters": [parameter]}, path="/things/{id}/rows")
    with pytest.raises(ToolFailed, match="path"):
        await call_op(kit, id=value)
    assert server.seen == []


async def test_defaults_are_not_sent_unless_given(tmp_path: Path, server: WebServer) -> None:
    body = {"type": "object", "properties": {"size": {"type": "integer", "default": 3}}}
    operation = {
        "parameters": [{"name": "q", "in": "query", "schema": {"default": "all"}}],
        "requestBody": {"content": {"application/json": {"schema": body}}},
    }
    kit = _kit(tmp_path, server, operation, method="post")
    answer = await call_op(kit)
    assert (answer["target"], answer["body"], answer["type"]) == ("/v1/things", "", "")


@pytest.mark.parametrize(
    ("answer", "value"),
    [
        (Answer(204), None),
        (Answer(body=b'"x"', headers={"content-type": "application/problem+json"}), "x"),
        (
            Answer(body='["é"]'.encode("utf-16"), headers={"content-type": "application/json"}),
            ["é"],
        ),
        (Answer(body=b"not json", headers={"content-type": "application/json"}), "not json"),
        (Answer(body=b"\xe9", headers={"content-type": "text/csv; charset=latin-1"}), "é"),
        (
            Answer(
                body=b"\x89",
                headers={
                    "content-type": "image/png",
                    "content-disposition": 'attachment; filename="../../a.png"',
                },
            ),
            FileChunk(b"\x89", "a.png", "image/png"),
        ),
    ],
)
async def test_a_result_is_json_text_or_a_file_by_its_content_type(
    tmp_path: Path, answer: Answer, value: Any
) -> None:
    async with web_server(lambda _: answer) as server:
        assert await call_op(_kit(tmp_path, server, {})) == value


JSON = {"content-type": "application/json"}
TEXT = {"content-type": "text/plain"}
DEEP = "[" * 40 + "]" * 40


@pytest.mark.parametrize(
    ("answer", "chunk"),
    [
        (Answer(201, b'{"wei": 100000000000000000000000}', JSON), {"wei": "1" + "0" * 23}),
        (Answer(201, b"[" + b"7" * 5_000 + b"]", JSON), ["7" * 5_000]),
        (Answer(201, b"[1e400, NaN]", JSON), ["1e400", "NaN"]),
        (Answer(201, b'"\\ud800"', JSON), "\ufffd"),
        (Answer(201, b'"\xff"', JSON), "\ufffd"),
        (Answer(201, b'\xef\xbb\xbf{"a": 1}', JSON), {"a": 1}),
        (Answer(201, b'{"a": 1, "a": 2}', JSON), {"a": 2}),
        (Answer(201, DEEP.encode(), JSON), None),
        (Answer(201, b"{", JSON), TextChunk("{", ("",))),
        (Answer(201, b"[0," * 200_000, JSON), TextChunk("[0," * 200_000, ("",))),
        (
            Answer(201, b"[" * 3_000_000, JSON),
            FileChunk(b"[" * 3_000_000, "result.txt", "text/plain; charset=utf-8"),
        ),
        (
            Answer(201, b'["' + b"x" * 2_000_000 + b'"]', JSON),
            FileChunk(b'["' + b"x" * 2_000_000 + b'"]', "result.json", "application/json"),
        ),
        (
            Answer(201, b"x" * 2_000_000, TEXT),
            FileChunk(b"x" * 2_000_000, "result.txt", "text/plain; charset=utf-8"),
        ),
    ],
)
async def test_nothing_of_an_answer_is_lost(tmp_path: Path, answer: Answer, chunk: Any) -> None:
    async with web_server(lambda _: answer) as server:
        kit = _kit(tmp_path, server, {}, method="post")
        got = await kit.execute(ToolContext(), "op", {})
    assert isinstance(got, FileChunk) or packed_result(run_of(ToolContext()), got)
    if isinstance(chunk, TextChunk | FileChunk):
        assert got == chunk
    else:
        assert chunk is None or got.value == chunk
        assert got.as_text or got.value in ({"a": 1}, {"a": 2}, "\ufffd")


def test_a_credential_in_a_carried_answer_is_removed() -> None:
    body = b'{"s3cret-value": [1e400], "deep": ' + b"[" * 40 + b'"s3cret-value"' + b"]" * 40 + b"}"
    operation = Operation("op", "GET", "/things", ())
    answer = ReadResponse(200, JSON, body)
    found = result_of(operation, answer, lambda text: text.replace("s3cret-value", "[...]"))
    assert "s3cret" not in repr(found)
    assert len(found.as_text) == 2


async def test_a_status_of_failure_is_reported_with_the_words_of_the_service(
    tmp_path: Path,
) -> None:
    headers = {"content-type": "text/plain", "retry-after": "7200"}
    async with web_server(lambda _: Answer(429, b"x" * 9_000, headers)) as server:
        kit = _kit(tmp_path, server, {})
        with pytest.raises(ToolFailed, match="answered 429 Too Many Requests") as failed:
            await call_op(kit)
    error = failed.value
    assert (error.executed, error.retryable, error.retry_after_s) == ("yes", True, 7200)
    assert (error.details["status"], len(error.details["body"])) == (429, 2_000)
    assert error.message.endswith(": " + "x" * (SHOWN_CHARS - 1) + "…")


async def test_a_failed_connection_is_not_executed_and_a_missing_answer_may_be(
    tmp_path: Path,
) -> None:
    never = asyncio.Event()

    async def wait(_: Seen) -> Answer:
        await never.wait()
        return Answer()

    async with web_server(wait) as server:
        slow = _kit(tmp_path, server, {}, method="post", options={"timeout_s": 0.2})
        with pytest.raises(ToolFailed, match="the time is over") as unanswered:
            await call_op(slow)
        refused = _kit(tmp_path, server, {})
    with pytest.raises(ToolFailed, match=r"connect to 127.0.0.1:\d+: .*fail") as unsent:
        await call_op(refused)
    assert (unanswered.value.executed, unanswered.value.retryable) == ("maybe", False)
    assert (unsent.value.executed, unsent.value.retryable) == ("no", True)


class _Store:
    """A resolver with one value, as that of the credential store."""

    def for_host(self, text: str, host: str) -> str:
        if host.partition(":")[0] != "127.0.0.1":
            raise ToolFailed("the credential may not go there", executed="no")
        return text.replace("${cred:o/t/k}", "s3cret")

    def for_command(self, text: str, command: str) -> str:
        raise ToolFailed("not for a command", executed="no")

    def redact(self, text: str) -> str:
        return text.replace("s3cret", "[credential o/t/k]")


@pytest.mark.parametrize(
    ("scheme", "text", "header", "value"),
    [
        ({"type": "apiKey", "in": "header", "name": "X-Key"}, "${cred:o/t/k}", "x-key", "s3cret"),
        ({"type": "apiKey", "in": "cookie", "name": "k"}, "${cred:o/t/k}", "cookie", "k=s3cret"),
        ({"type": "http", "scheme": "bearer"}, "${cred:o/t/k}", "authorization", "Bearer s3cret"),
        ({"type": "oauth2", "flows": {}}, "${cred:o/t/k}", "authorization", "Bearer s3cret"),
        (
            {"type": "http", "scheme": "basic"},
            "me:${cred:o/t/k}",
            "authorization",
            "Basic bWU6czNjcmV0",
        ),
    ],
)
async def test_a_credential_is_presented_as_its_scheme_says(
    tmp_path: Path, server: WebServer, scheme: dict[str, Any], text: str, header: str, value: str
) -> None:
    kit = _kit(
        tmp_path,
        server,
        {"security": [{"main": []}]},
        components={"securitySchemes": {"main": scheme}},
        options={"credentials": {"main": text}, "resolver": _Store()},
    )
    await call_op(kit)
    assert server.seen[0].headers[header] == value


async def test_a_key_in_the_query_is_sent_and_shown_nowhere(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")

    def leak(seen: Seen) -> Answer:
        return Answer(500, seen.target.encode(), {"content-type": "text/plain"})

    scheme = {"type": "apiKey", "in": "query", "name": "key"}
    async with web_server(leak) as server:
        kit = _kit(
            tmp_path,
            server,
            {"security": [{"main": []}]},
            components={"securitySchemes": {"main": scheme}},
            options={"credentials": {"main": "${cred:o/t/k}"}, "resolver": _Store()},
        )
        with pytest.raises(ToolFailed) as failed:
            await call_op(kit)
    assert server.seen[0].target == "/v1/things?key=s3cret"
    assert failed.value.details["body"] == "/v1/things?key=[credential o/t/k]"
    assert "s3cret" not in f"{failed.value} {caplog.text}"


@pytest.mark.parametrize(
    ("method", "operation", "arguments", "shown"),
    [
        ("delete", {}, {"id": "a/b", "key": "s3cret"},
         ("DELETE {}/v1/things/a%2Fb?key=[credential o/t/k]", "")),
        ("post", {"content": {"application/json": {"schema": {"properties": {"name": {}}}}}},
         {"id": 1, "name": "s3cret\x1b"},
         ("POST {}/v1/things/1 with 24 bytes of application/json",
          '{"name": "[credential o/t/k]\\u001b"}')),
        ("put", {"content": {"image/png": {}}}, {"id": 1},
         ("PUT {}/v1/things/1 with files, if the call has some", "")),
        ("get", {}, {"id": ".."}, ("its request cannot be made: a segment of the path must", "")),
        ("get", {}, {"id": "${cred:o/t/k}"}, ("its request cannot be made: ", "")),
        ("get", {}, {"id": "x" * 10_000}, ("GET {}/v1/things/xxxx", "")),
    ],
)  # fmt: skip
async def test_an_assessment_shows_the_request_without_credentials(
    tmp_path: Path,
    server: WebServer,
    method: str,
    operation: dict[str, Any],
    arguments: dict[str, Any],
    shown: tuple[str, str],
) -> None:
    parameters = [
        {"name": "id", "in": "path", "required": True, "schema": {}},
        {"name": "key", "in": "query", "schema": {}},
    ]
    kit = _kit(
        tmp_path,
        server,
        {"parameters": parameters, **({"requestBody": operation} if operation else {})},
        method=method,
        path="/things/{id}",
        options={"resolver": _Store(), "read_only_methods": ["GET"]},
    )
    tool = kit.get_tool("op")
    said = await tool.assess(ToolContext(), tool.read_arguments(arguments))
    assert said.message.startswith(shown[0].format(server.url))
    assert len(said.message) <= 1_000
    assert said.preview == shown[1]
    assert said.read_only is (method == "get")
    assert said.suggestions == (Rule(behavior="allow", tool=f"{kit.name}.op"),)
    assert not server.seen


_JSON, _BYTES = {"content-type": "application/json"}, {"content-type": "application/x"}
_MARK = "[credential o/t/k]"


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (Answer(200, b'{"k": "\\u00733cret", "n": 1}', _JSON), {"k": _MARK, "n": 1}),
        (Answer(200, b'"s3cret', _JSON), f'"{_MARK}'),
        (Answer(200, b"\xff s3cret", _BYTES), b"\xff " + _MARK.encode()),
        (Answer(401, b'{"k": "\\u00733cret"}', _JSON), f'{{"k": "{_MARK}"}}'),
    ],
)
async def test_a_service_that_returns_a_credential_shows_its_name(
    tmp_path: Path, answer: Answer, expected: Any
) -> None:
    schemes = {"securitySchemes": {"main": {"type": "http", "scheme": "bearer"}}}
    options = {"credentials": {"main": "${cred:o/t/k}"}, "resolver": _Store()}
    async with web_server(lambda _: answer) as server:
        secured: dict[str, Any] = {"security": [{"main": []}]}
        kit = _kit(tmp_path, server, secured, components=schemes, options=options)
        try:
            found = await kit.execute(ToolContext(), "op", {})
            value = found.data if isinstance(found, FileChunk) else found.value
        except ToolFailed as error:
            value = error.details["body"]
    assert value == expected


async def test_a_reference_in_arguments_is_refused(tmp_path: Path, server: WebServer) -> None:
    parameter = {"name": "q", "in": "query", "schema": {}}
    kit = _kit(tmp_path, server, {"parameters": [parameter]})
    with pytest.raises(InvalidArguments) as refused:
        await call_op(kit, q=[{"a": "${cred:o/t/k}"}])
    assert (refused.value.executed, refused.value.details["path"]) == ("no", "/q/0/a")
    assert server.seen == []


async def test_an_operation_without_its_credential_sends_nothing(
    tmp_path: Path, server: WebServer
) -> None:
    schemes = {"securitySchemes": {"main": {"type": "http", "scheme": "bearer"}}}
    kit = _kit(tmp_path, server, {"security": [{"main": []}]}, components=schemes)
    with pytest.raises(ToolFailed, match="gives one of main in `credentials`") as refused:
        await call_op(kit)
    assert (refused.value.executed, server.seen) == ("no", [])
    with pytest.raises(ValueError, match="no security scheme 'other'"):
        _kit(tmp_path, server, {}, options={"credentials": {"other": "${cred:o/t/k}"}})


def _page(seen: Seen) -> Answer:
    number = int(seen.target.partition("cursor=")[2] or 1)
    body: dict[str, Any] = {"rows": [number]}
    headers = {"content-type": "application/json"}
    if number < 3:
        body["next"] = number + 1
        headers["link"] = f'</v1/x>; rel="first", </v1/things?cursor={number + 1}>; rel="next"'
    return Answer(body=json.dumps(body).encode(), headers=headers)


@pytest.mark.parametrize(
    "rule", [PageRule(), PageRule(cursor="/next", parameter="cursor")], ids=["link", "cursor"]
)
async def test_pages_are_a_stream(tmp_path: Path, rule: PageRule) -> None:
    pages: list[Any] = []

    async def keep(chunk: Any) -> None:
        pages.append(chunk.value["rows"][0])

    async with web_server(_page) as server:
        kit = _kit(tmp_path, server, {}, options={"pages": {"op": rule}})
        context = ToolContext()
        run_of(context).on_chunk = keep  # type: ignore[attr-defined]
        await kit.execute(context, "op", {})
    assert pages == [1, 2, 3]


@pytest.mark.parametrize("index", ["9", "²", "9" * 5_000, "-1", "x"])
async def test_a_cursor_at_an_index_that_no_list_has_ends_the_pages(
    tmp_path: Path, index: str
) -> None:
    pages: list[Any] = []

    async def keep(chunk: Any) -> None:
        pages.append(chunk.value["rows"])

    async with web_server(_page) as server:
        rule = PageRule(cursor=f"/rows/{index}", parameter="cursor")
        kit = _kit(tmp_path, server, {}, options={"pages": {"op": rule}})
        context = ToolContext()
        run_of(context).on_chunk = keep  # type: ignore[attr-defined]
        await kit.execute(context, "op", {})
    assert pages == [[1]]


async def test_a_next_page_on_another_server_is_not_requested(tmp_path: Path) -> None:
    def elsewhere(_: Seen) -> Answer:
        return Answer(body=b"{}", headers={"link": '<http://127.0.0.2/x>; rel="next"'})

    async def drop(_: Any) -> None: ...

    async with web_server(elsewhere) as server:
        kit = _kit(tmp_path, server, {}, options={"pages": {"op": PageRule()}})
        context = ToolContext()
        run_of(context).on_chunk = drop  # type: ignore[attr-defined]
        with pytest.raises(ToolFailed, match="on another server"):
            await kit.execute(context, "op", {})


async def test_private_servers_are_refused_unless_allowed(
    tmp_path: Path, server: WebServer
) -> None:
    _kit(tmp_path, server, {})
    file = tmp_path / "api.json"
    with pytest.raises(ValueError, match="is private"):
        OpenApiToolkit.from_file(file)  # no call could reach it
    named = ApiOptions(server=server.url.replace("127.0.0.1", "localhost"))
    kit = OpenApiToolkit.from_file(file, options=named)
    with pytest.raises(ToolFailed, match="is private") as refused:
        await call_op(kit)
    assert (refused.value.executed, server.seen) == ("no", [])


async def test_hosted_tools_share_connections_until_the_last_one_stops(
    tmp_path: Path, server: WebServer
) -> None:
    kit = _kit(tmp_path, server, {})
    tool = kit.get_tool("op")
    await tool.start(None)
    await call_op(kit)
    await call_op(kit)
    assert (server.connections, server.all_closed.is_set()) == (1, False)
    await tool.stop()
    await asyncio.wait_for(server.all_closed.wait(), 30)
    await call_op(kit)
    assert server.connections == 2


async def test_a_participant_calls_streams_and_uploads_through_a_room(tmp_path: Path) -> None:
    body = {"required": True, "content": {"application/octet-stream": {}}}
    upload = {"/files": {"post": {"operationId": "upload", "requestBody": body}}}

    def answer(seen: Seen) -> Answer:
        if seen.method == "POST":
            return Answer(body=seen.body, headers={"content-type": "image/png"})
        return _page(seen)

    async with web_server(answer) as server, room_of("host", "alice") as (host, alice):
        options = {"name": "api", "pages": {"op": PageRule()}}
        kit = _kit(tmp_path, server, {}, paths=upload, options=options)
        async with host.host(kit):
            received = await alice.invoke("api.upload", attachment=FileChunk(b"1" * 100_000))
            assert isinstance(received, FileChunk)
            assert (await received.read(), received.mime_type) == (b"1" * 100_000, "image/png")
            async with alice.stream("api.op") as chunks:
                pages = [chunk.into(dict[str, Any])["rows"] async for chunk in chunks]
            server.answer = lambda _: Answer(404, b"gone", {"content-type": "text/plain"})
            with pytest.raises(ToolFailed, match="404 Not Found") as failed:
                await alice.invoke("api.upload", attachment=FileChunk(b"1"))
    assert pages == [[1], [2], [3]]
    assert failed.value.details == {"status": 404, "method": "POST", "body": "gone"}


async def test_a_caller_elsewhere_learns_whether_the_server_was_reached(tmp_path: Path) -> None:
    never = asyncio.Event()

    async def wait(_: Seen) -> Answer:
        await never.wait()
        return Answer()

    async with room_of("host", "alice") as (host, alice):
        async with web_server(wait) as server:
            kit = _kit(tmp_path, server, {}, options={"name": "api", "timeout_s": 0.2})
            async with host.host(kit):
                with pytest.raises(ToolFailed, match="the time is over") as unanswered:
                    await alice.call("api.op")
        async with host.host(kit):
            with pytest.raises(ToolFailed, match="could not connect") as unsent:
                await alice.call("api.op")
    assert (unanswered.value.executed, unsent.value.executed) == ("maybe", "no")


@pytest.mark.parametrize("name", ["Host", "content-length", "Transfer-Encoding"])
async def test_a_header_of_http_is_not_an_argument(
    tmp_path: Path, server: WebServer, name: str
) -> None:
    kit = _kit(tmp_path, server, {"parameters": [{"name": name, "in": "header"}]})
    assert kit.get_tool("op").manifest().input_schema["properties"] == {}


def test_a_header_with_a_line_break_in_its_name_is_refused(
    tmp_path: Path, server: WebServer
) -> None:
    with pytest.raises(ValueError, match="not the name of a header"):
        _kit(tmp_path, server, {"parameters": [{"name": "A\r\nB", "in": "header"}]})


LATER_REQUESTS = {
    "a redirect to a private address": Answer(303, headers={"location": "http://127.0.0.2:1/"}),
    "a redirect to a dead server": Answer(303, headers={"location": "http://127.0.0.1:9/"}),
    "a redirect to no address": Answer(303, headers={"location": "http://[::1"}),
    "redirects without an end": Answer(303, headers={"location": "/again"}),
    "a response that is too large": Answer(body=b"0" * 2_000),
}


@pytest.mark.parametrize("case", LATER_REQUESTS)
async def test_an_error_after_an_answer_never_says_that_nothing_ran(
    tmp_path: Path, case: str
) -> None:
    options = {"name": "api", "max_response_bytes": 1_000}
    async with (
        web_server(lambda _: LATER_REQUESTS[case]) as server,
        room_of("host", "alice") as (host, alice),
    ):
        kit = _kit(tmp_path, server, {}, method="post", options=options)
        async with host.host(kit):
            with pytest.raises(ToolFailed) as hosted:
                await alice.call("api.op")
        with pytest.raises(ToolFailed) as local:
            await call_op(kit)
    assert {seen.method for seen in server.seen} >= {"POST"}
    assert "no" not in (hosted.value.executed, local.value.executed)
    assert (hosted.value.retryable, local.value.retryable) == (False, False)


async def test_a_page_that_is_not_reached_does_not_say_that_nothing_ran(tmp_path: Path) -> None:
    long = {"content-type": "application/json", "link": f'</v1/{"x" * 90_000}>; rel="next"'}
    async with web_server(lambda _: Answer(body=b"[1]", headers=long)) as server:
        kit = _kit(tmp_path, server, {}, options={"pages": {"op": PageRule()}})
        with pytest.raises(ToolFailed, match="Link has more than 16,384") as failed:
            await kit.execute(ToolContext(on_chunk=_ignored), "op", {})
    assert (failed.value.executed, len(server.seen)) == ("yes", 1)


async def _ignored(_: Any) -> None:
    """Receive a chunk."""


@pytest.mark.parametrize("charset", ["idna", "undefined", "punycode", "zlib", "unicode_escape"])
async def test_a_charset_that_is_none_of_text_is_read_as_utf_8(
    tmp_path: Path, charset: str
) -> None:
    body = "a-\\u0041 \u00e9".encode()
    kind = {"content-type": f"text/plain; charset={charset}"}
    async with web_server(lambda _: Answer(body=body, headers=kind)) as server:
        assert await call_op(_kit(tmp_path, server, {})) == body.decode()
