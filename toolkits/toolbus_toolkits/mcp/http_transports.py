"""MCP over HTTP: streamable HTTP, and HTTP with SSE, the older way.

In both each message to the server is a POST of its own. Requests are sent in tasks of their own, so
that a slow one holds up no other, and each ends with an answer or with a `RequestFailed` that says
what was seen of it: nothing is guessed from texts. What the server sends is bounded: a body, an
event, the words of an error, and the streams of a minute.

Every exception counts as a failure of its request: what a server sends can make the HTTP client
raise any, such as AttributeError for a connection that ends at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

import anyio
import httpx2
import mcp_types as types
from anyio.abc import ObjectSendStream
from anyio.streams.memory import MemoryObjectSendStream
from mcp.shared.message import ClientMessageMetadata, SessionMessage
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from toolbus import ToolFailed
from toolbus.untrusted_text import one_line
from toolbus_toolkits.mcp.messages import (
    MAX_MESSAGE_BYTES,
    MAX_RAW_WORDS,
    NEGOTIATION,
    FailureKind,
    LoopShare,
    RequestFailed,
    Streams,
    read_messages,
)
from toolbus_toolkits.network import NOT_SENT, SECRET_QUERY, failure_reason, read_body, status_text
from toolbus_toolkits.network.client import retry_after_s

__all__ = ["EVENTS", "sse", "streamable_http", "without_query"]

EVENTS = "text/event-stream"
_MAX_ERROR_BYTES = 64 * 1024
"""A gateway may answer with a page of any length, of which a few words are used."""
_ERROR_TIME_S = 2.0
"""How long the words of an error are read: the status alone ends its request."""
_WORD_KEYS = ("error_description", "message", "detail", "error", "title", "reason")
"""Where the JSON of an error has its words: OAuth, problem details, frameworks."""
_FREE_STREAMS = 3
_STREAM_PAUSE_S = 1.0
"""Between further streams, because a server may end each at once."""
_SESSION = "mcp-session-id"
_VERSION = "mcp-protocol-version"
_END_S = 2.0
"""How long a server may take to answer that the session ends."""
_MAX_FAILED_RESUMES = 2
"""A server that ends each stream at once would get requests until the call times out."""
# Bounds of the pause that a server asks for before its stream is opened again.
_MIN_RETRY_S = 0.1
_MAX_RETRY_S = 60.0
_MAX_DOUBLINGS = 10
"""From the shortest pause to the longest; a thousand would exceed what a float can hold."""
_MAX_ID_CHARS = 4_096
"""It goes back in a header, and servers refuse a request with headers of some 8 KiB."""
_NO_ACCESS = frozenset({401, 404})
"""Statuses that say something of the whole session."""


def without_query(address: str) -> str:
    """Return an address without its query and fragment."""
    return urlsplit(address)._replace(query="", fragment="").geturl()


def _content_type(response: httpx2.Response) -> str:
    """Return the media type of a response, without parameters."""
    return response.headers.get("content-type", "")[:200].partition(";")[0].strip().lower()


class _HttpPosts(ObjectSendStream[SessionMessage]):
    """Sends messages to an address.

    Args:
        client: Sends the requests; a credential in its headers goes with each.
        address: Where to; its query, which may hold a token, is in no log.
        connect_timeout_s: For a connection, and for the answer to what is no request.
        inbox: Receives what comes from the server.
    """

    def __init__(
        self,
        client: httpx2.AsyncClient,
        address: str,
        connect_timeout_s: float,
        inbox: MemoryObjectSendStream[SessionMessage | Exception],
    ) -> None:
        self._client = client
        self._address = without_query(address)
        self._target = self._address
        self._query = urlsplit(address).query
        self._connect_timeout_s = connect_timeout_s
        self._inbox = inbox
        self._tasks = set[asyncio.Task[None]]()
        self._requests: dict[types.RequestId, asyncio.Task[None]] = {}
        self._is_closed = False

    async def send(self, item: SessionMessage) -> None:
        """Send a message: a request in a task of its own, and what gives one up too.

        Any other is sent before this returns. Raises `ClosedResourceError` if this is closed.
        """
        if self._is_closed:
            raise anyio.ClosedResourceError
        message = item.message
        if isinstance(message, types.JSONRPCRequest):
            task = self._begin(self._request_within_time(item, message))
            self._requests[message.id] = task
            task.add_done_callback(lambda _: self._requests.pop(message.id, None))
            return
        if getattr(message, "method", "") == "notifications/cancelled":
            self._begin(self._give_up(item))  # its caller waits no longer, whatever the server does
            return
        try:
            await self._notify(item)
        except Exception as error:
            await self._put(error)

    async def aclose(self) -> None:
        """Send nothing more, and end what is under way."""
        self._is_closed = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._inbox.close()

    def _begin(self, work: Any) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _give_up(self, item: SessionMessage) -> None:
        """Tell the server that a request is cancelled, and end its POST: nobody waits for it."""
        assert isinstance(item.message, types.JSONRPCNotification)
        try:
            async with asyncio.timeout(self._connect_timeout_s):
                await self._notify(item)
        except Exception as error:
            await self._put(error)
        finally:
            task = self._requests.get((item.message.params or {}).get("requestId", ""))
            if task is not None:
                task.cancel()

    async def _request_within_time(
        self, item: SessionMessage, message: types.JSONRPCRequest
    ) -> None:
        # The SDK probes with this request, and waits for longer than the whole connection may
        # take. A server that knows it answers at once; one that is silent gets `initialize`.
        limit_s = self._connect_timeout_s / 3 if message.method == "server/discover" else None
        try:
            async with asyncio.timeout(limit_s):
                await self._request(item, message)
        except TimeoutError:
            await self._fail(message, "it did not answer", "lost")
        except RequestFailed as error:
            error.request_id = message.id
            await self._put(error)
        except NOT_SENT as error:
            await self._fail(message, failure_reason(error), "not_sent")
        except ToolFailed as error:  # an address that is not allowed, or too many bytes
            kind: FailureKind = "not_sent" if error.executed == "no" else "unreadable"
            await self._fail(message, error.message, kind)
        except Exception as error:
            words = f"the connection was lost: {one_line(str(error), 200) or type(error).__name__}"
            await self._fail(message, words, "lost")

    async def _request(self, item: SessionMessage, message: types.JSONRPCRequest) -> None:
        """Send a request and put its answer into the inbox, or raise why there is none."""
        raise NotImplementedError

    async def _notify(self, item: SessionMessage) -> None:
        async with self._post(item, read_timeout_s=self._connect_timeout_s) as response:
            if not response.is_success:
                raise await self._refusal(response)

    async def _fail(self, message: types.JSONRPCRequest, words: str, kind: FailureKind) -> None:
        await self._put(RequestFailed(words, kind, request_id=message.id))

    async def _put(self, item: SessionMessage | Exception) -> None:
        try:
            await self._inbox.send(item)
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            pass  # the session has ended, and with it who waited

    def _headers(self, item: SessionMessage | None) -> dict[str, str]:
        """Return the headers of a message; None is for a stream."""
        match item:
            case SessionMessage(metadata=ClientMessageMetadata(headers=headers)) if headers:
                return dict(headers)
        return {}

    def _post(self, item: SessionMessage, read_timeout_s: float | None = None) -> Any:
        body = item.message.model_dump_json(by_alias=True, exclude_unset=True)
        headers = {
            "accept": f"application/json, {EVENTS}",
            "content-type": "application/json",
            **self._headers(item),
        }
        return self._open("POST", headers, content=body.encode(), read_timeout_s=read_timeout_s)

    def _open(
        self,
        method: str,
        headers: dict[str, str],
        *,
        content: bytes | None = None,
        read_timeout_s: float | None = None,
    ) -> Any:
        """Send an HTTP request; a context manager for its response.

        Without a time for reading, because the time of a call is limited where it is called, and a
        stream may be quiet for as long as it likes.
        """
        target = self._target if method == "POST" else self._address
        # The query belongs to the own address, and not to one that the server has named.
        secret = {SECRET_QUERY: self._query} if self._query and target == self._address else {}
        return self._client.stream(
            method,
            target,
            headers=headers,
            content=content,
            timeout=httpx2.Timeout(self._connect_timeout_s, read=read_timeout_s, pool=None),
            extensions=secret,
        )

    async def _refusal(
        self, response: httpx2.Response, kind: FailureKind = "status"
    ) -> RequestFailed:
        """Return the failure for a response that is no answer: its status and its words."""
        return _refused(response, await self._error_body(response), kind)

    async def _error_body(self, response: httpx2.Response) -> bytes:
        """Return the start of a body, as far as it comes soon."""
        body = b""
        with contextlib.suppress(Exception):
            _check_not_packed(response)
            async with asyncio.timeout(_ERROR_TIME_S):
                async for piece in response.aiter_raw():
                    body += piece
                    if len(body) > _MAX_ERROR_BYTES:
                        break
        return body[:_MAX_ERROR_BYTES]

    async def _read(
        self, data: bytes, answered: types.JSONRPCRequest | None, *, is_whole: bool
    ) -> bool:
        """Put the messages of a text into the inbox; return whether a request is answered.

        Args:
            data: The text.
            answered: The request whose response the text is a part of.
            is_whole: Whether the text is all of that response.
        """
        is_answered = False
        share = LoopShare()
        messages = read_messages(data)
        await share.give_back()
        for message in messages:
            if isinstance(message, RequestFailed):
                if answered is not None and is_whole:
                    message.request_id = answered.id
                is_answered |= answered is not None and str(message.request_id) == str(answered.id)
                await self._put(message)
                continue
            if isinstance(message, types.JSONRPCResponse | types.JSONRPCError) and answered:
                # It is null where the server did not read so far. Another id is that of another
                # request, whichever stream it comes by: its caller gets it.
                if message.id is None or str(message.id) == str(answered.id):
                    message.id = answered.id
                    is_answered = True
            await self._put(SessionMessage(message))
        return is_answered

    async def _events(self, response: httpx2.Response) -> AsyncIterator[httpx2.ServerSentEvent]:
        """Return the events of a response that is a stream."""
        _check_not_packed(response)
        response.encoding = "utf-8-sig"  # a byte order mark at the start is no part of it
        async for event in httpx2.EventSource(response, max_event_size=MAX_MESSAGE_BYTES):
            yield event


def _check_not_packed(response: httpx2.Response) -> None:
    """Raise `RequestFailed` for a body that is packed: small, it could be of any size unpacked."""
    if response.headers.get("content-encoding", "identity").lower() != "identity":
        raise RequestFailed("the server packed a message, which was not asked for", "lost")


def _refused(response: httpx2.Response, body: bytes, kind: FailureKind = "status") -> RequestFailed:
    status = response.status_code
    text = f"HTTP {status_text(status)}"
    if words := _words(body):
        text += f": {words}"
    after_s = retry_after_s(response.headers.get("retry-after", "")[:100])
    if after_s is not None:
        text += f" (try again in {after_s:.0f} s)"
    return RequestFailed(text, kind, status=status, retry_after_s=after_s)


def _words(body: bytes) -> str:
    """Return what the body of an error says, in one line."""
    text = body.decode(errors="replace").strip()
    with contextlib.suppress(ValueError, RecursionError):
        found = json.loads(text)
        if isinstance(found, dict) and isinstance(found.get("error"), dict):
            found = found["error"]
        if isinstance(found, dict):
            named = (found[key] for key in _WORD_KEYS if isinstance(found.get(key), str))
            text = next(named, text)
    return one_line(text, MAX_RAW_WORDS)


@asynccontextmanager
async def streamable_http(
    client: httpx2.AsyncClient, address: str, connect_timeout_s: float, on_doubt: Callable[[], None]
) -> AsyncIterator[Streams]:
    """Exchange messages with an address by streamable HTTP.

    A POST is answered by a message or by a stream of events.

    Args:
        client: Sends the requests.
        address: Where to.
        connect_timeout_s: For a connection, and for the answer to what is no request.
        on_doubt: Called when the stream of the server's own messages fails: the session may be
            gone, or the server.
    """
    inbox, received = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    posts = _StreamableHttp(client, address, connect_timeout_s, inbox)
    posts.on_doubt = on_doubt
    async with received, posts:
        try:
            yield received, posts
        finally:
            await posts.end_session()


class _StreamableHttp(_HttpPosts):
    """A server that keeps a session names it in its answer to `initialize`.

    Status 404 to a request with that name says that the session is gone; any other failure says
    nothing of it.
    """

    on_doubt: Callable[[], None]
    _session: str | None = None
    _version: str | None = None

    async def _request(self, item: SessionMessage, message: types.JSONRPCRequest) -> None:
        if message.method == "initialize":
            self._version = None  # it is what this request finds out
        async with self._post(item) as response:
            if not response.is_success:
                await self._take_error(response, message)
                return
            if message.method == "initialize":
                session = response.headers.get(_SESSION, "")
                self._session = session if _is_header_value(session) else None
            if response.status_code == 202:
                raise RequestFailed("the server took a request and sends no answer", "lost")
            if _content_type(response) == EVENTS:
                await self._take_events(response, message)
                return
            _check_not_packed(response)
            body = await read_body(response, MAX_MESSAGE_BYTES)
            if not await self._read(body, message, is_whole=True):
                raise RequestFailed("the server sent no answer in its response", "unreadable")

    async def _notify(self, item: SessionMessage) -> None:
        message = item.message
        is_cancel = getattr(message, "method", "") == "notifications/cancelled"
        if is_cancel and self._version in MODERN_PROTOCOL_VERSIONS:
            return  # there the end of its POST cancels a request
        await super()._notify(item)
        if getattr(message, "method", "") == "notifications/initialized" and self._session:
            self._begin(self._listen())

    def _headers(self, item: SessionMessage | None) -> dict[str, str]:
        headers = super()._headers(item)
        # What the SDK sends without a version of its own, such as answers, has that of the session.
        self._version = headers.get(_VERSION, self._version)
        if self._version is not None:
            headers[_VERSION] = self._version
        if self._session is not None:
            headers[_SESSION] = self._session
        return headers

    async def _take_error(self, response: httpx2.Response, message: types.JSONRPCRequest) -> None:
        if response.status_code == 404 and _SESSION in response.request.headers:
            raise await self._refusal(response, "no_session")
        body = await self._error_body(response)
        if message.method in NEGOTIATION:
            for answer in read_messages(body):
                if isinstance(answer, types.JSONRPCError):
                    answer.id = message.id
                    await self._put(SessionMessage(answer))
                    return
        raise _refused(response, body)

    async def _take_events(self, response: httpx2.Response, message: types.JSONRPCRequest) -> None:
        """Read the answer from a stream; one that breaks off is resumed where it can be."""
        position = _StreamPosition()
        is_answered = await self._is_answered_by(response, message, position)
        failures = 0
        while not is_answered:
            if not position.event_id or failures == _MAX_FAILED_RESUMES:
                raise RequestFailed("the stream ended without an answer", "lost")
            await asyncio.sleep(position.retry_s)
            failures += 1
            with contextlib.suppress(Exception):
                async with self._open("GET", self._stream_headers(position)) as resumed:
                    if resumed.is_success and _content_type(resumed) == EVENTS:
                        failures = 0  # some servers end streams often, to be asked again
                        is_answered = await self._is_answered_by(resumed, message, position)

    async def _is_answered_by(
        self, response: httpx2.Response, message: types.JSONRPCRequest, position: _StreamPosition
    ) -> bool:
        try:
            return await self._read_stream(response, message, position)
        except httpx2.SSEError as error:
            raise RequestFailed(str(error), "unreadable") from None
        except Exception:
            return False

    async def _read_stream(
        self,
        response: httpx2.Response,
        answered: types.JSONRPCRequest | None,
        position: _StreamPosition,
    ) -> bool:
        """Read a stream to its end, or to the answer; return whether that has come."""
        async for event in self._events(response):
            position.move(event)
            if event.event == "message" and event.data:
                if await self._read(event.data.encode(), answered, is_whole=False):
                    return True
        return False

    async def _listen(self) -> None:
        """Read the stream of the server's own messages, which some servers have."""
        position = _StreamPosition()
        was_open = False
        failures = 0
        for count in itertools.count():
            if count >= _FREE_STREAMS:
                pause_s = position.retry_s * 2 ** min(failures, _MAX_DOUBLINGS)
                await asyncio.sleep(max(_STREAM_PAUSE_S, min(pause_s, _MAX_RETRY_S)))
            with contextlib.suppress(Exception):
                async with self._open("GET", self._stream_headers(position)) as response:
                    if response.is_success and _content_type(response) == EVENTS:
                        was_open = True
                        failures = -1  # the end of a stream that was open is none
                        await self._read_stream(response, None, position)
                    elif not was_open and response.status_code not in _NO_ACCESS:
                        return  # it has no such stream
            failures += 1
            if failures:
                self.on_doubt()

    def _stream_headers(self, position: _StreamPosition) -> dict[str, str]:
        headers = {"accept": EVENTS, "cache-control": "no-store", **self._headers(None)}
        if position.event_id:
            headers["last-event-id"] = position.event_id
        return headers

    async def end_session(self) -> None:
        """Tell the server that the session ends; its answer is not awaited for long."""
        if self._session is None:
            return
        with contextlib.suppress(Exception):
            async with asyncio.timeout(_END_S), self._open("DELETE", self._headers(None)):
                pass


def _is_header_value(text: str) -> bool:
    """Whether a text of a server can be sent back in a header."""
    return 0 < len(text) <= _MAX_ID_CHARS and text.isascii() and text.isprintable()


class _StreamPosition:
    """How far a stream has been read, and when it is opened again if it ends."""

    def __init__(self) -> None:
        self.event_id = ""
        self.retry_s = 1.0

    def move(self, event: httpx2.ServerSentEvent) -> None:
        """Take the id and the retry time of an event; an id that no header takes is ignored."""
        if _is_header_value(event.id):
            self.event_id = event.id
        if event.retry is not None:
            self.retry_s = min(max(event.retry / 1000, _MIN_RETRY_S), _MAX_RETRY_S)


@asynccontextmanager
async def sse(
    client: httpx2.AsyncClient, address: str, connect_timeout_s: float, closed: asyncio.Event
) -> AsyncIterator[Streams]:
    """Exchange messages with an address by HTTP with SSE.

    Args:
        client: Sends the requests.
        address: Where the stream is.
        connect_timeout_s: For a connection, and for the answers to messages.
        closed: Set when the stream has ended.

    Raises:
        RequestFailed: There is no such stream.
        HTTPError: The server cannot be reached.
    """
    inbox, received = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    posts = _Sse(client, address, connect_timeout_s, inbox)
    async with received, posts:
        await posts.open(closed)
        yield received, posts


class _Sse(_HttpPosts):
    """One stream of events has all messages of the server, and ends with the session.

    Its first event names the address that messages are sent to. It may be quiet for as long as it
    likes.
    """

    async def open(self, closed: asyncio.Event) -> None:
        """Open the stream and wait for the address that messages are sent to."""
        opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        reading = self._begin(self._read_stream(opened))
        reading.add_done_callback(lambda _: closed.set())
        await asyncio.wait([reading, opened], return_when=asyncio.FIRST_COMPLETED)
        if not opened.done():
            await reading
            raise RequestFailed("the stream ended before it named an address", "lost")

    async def _read_stream(self, opened: asyncio.Future[None]) -> None:
        headers = {"accept": EVENTS, "cache-control": "no-store"}
        try:
            async with self._open("GET", headers) as response:
                if not response.is_success:
                    raise await self._refusal(response)
                if _content_type(response) != EVENTS:
                    raise RequestFailed("the server sent no stream of events", "unreadable")
                async for event in self._events(response):
                    if event.event == "endpoint" and not opened.done():
                        self._target = self._checked(event.data)
                        opened.set_result(None)
                    elif event.event == "message" and event.data:
                        await self._read(event.data.encode(), None, is_whole=False)
        except Exception:
            if not opened.done():
                raise
        finally:
            self._inbox.close()

    def _checked(self, target: str) -> str:
        """Return the address for messages: a credential goes to no other origin."""
        own = httpx2.URL(self._address)
        try:
            url = own.join(target)
        except (httpx2.InvalidURL, ValueError):
            raise RequestFailed("the server named an address that is none", "unreadable") from None
        if (url.scheme, url.host, url.port) != (own.scheme, own.host, own.port):
            raise RequestFailed("the server named an address of another origin", "unreadable")
        return str(url)

    async def _request(self, item: SessionMessage, message: types.JSONRPCRequest) -> None:
        async with self._post(item) as response:
            if not response.is_success:
                if response.status_code == 404:  # each address of this kind names a session
                    raise await self._refusal(response, "no_session")
                raise await self._refusal(response)
