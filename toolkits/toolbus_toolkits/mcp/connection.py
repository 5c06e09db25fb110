"""The connection to one MCP server: one task opens it, watches it, opens it again, and closes it.

    connecting -> connected -> failed -> connecting ...

Calls come from other tasks and never open or close anything. A call that finds no connection fails
at once and has not run; one whose connection ends may have run. A call that meets a failure which
may concern others has the owner list the tools again: only if that fails too, the connection is
opened again. So a server cannot say anything to one caller that ends the calls of the others.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from math import inf
from typing import Any, Literal, TypeAlias
from urllib.parse import urlsplit

import mcp_types as types
from mcp import Client, MCPError
from mcp.client import IncomingMessage, InputRequiredRoundsExceededError
from mcp.client.subscriptions import ListenNotSupportedError, SubscriptionLost
from mcp.shared.dispatcher import ProgressFnT

from toolbus import Omission, RoomException, ToolFailed, Unavailable
from toolbus.bounded_logging import bounded_logger
from toolbus.concurrency.pausable_clock import PausableClock
from toolbus.concurrency.tasks import is_cancelled, wait_for_first
from toolbus.untrusted_text import one_line
from toolbus.wire import MAX_TOOLS
from toolbus_toolkits.credentials.redaction import redacted_json
from toolbus_toolkits.mcp.config import ServerEntry
from toolbus_toolkits.mcp.elicitation import AskPerson, UserQuestions
from toolbus_toolkits.mcp.exchange import TOO_MANY, SeenTools, ToolLists, exchange
from toolbus_toolkits.mcp.http_transports import without_query
from toolbus_toolkits.mcp.log_budget import LogBudget
from toolbus_toolkits.mcp.messages import (
    CURRENT_CALL,
    MAX_WORDS,
    RequestFailed,
    SentRequests,
    ServerError,
)
from toolbus_toolkits.mcp.transports import Link, ServerAccess, open_link
from toolbus_toolkits.network import host_text
from toolbus_toolkits.sandbox import Backend, summary

__all__ = ["ConnectionState", "ServerConnection", "first_of"]

_Mode: TypeAlias = Literal["auto", "legacy"]
"""Whether the SDK probes for newer versions first, or begins with `initialize`."""
ConnectionState: TypeAlias = Literal["connecting", "connected", "failed", "closed"]

_FIRST_DELAY_S = 0.5
_MAX_DELAY_S = 60.0
"""A program that ends at once would be started again and again, with a line in the log each
time."""
_LATER_S = 1.0
"""The SDK's time-out comes after that of the host, whose error is the better one."""
_MAX_PAGES = 100
"""A server may answer with one more cursor each time, and with no tool."""
_SLICE = 50
"""Tools that are looked at in one piece."""
_LIST_PAUSE_S = 1.0
_LIST_AGAIN_S = 30.0
"""After a list that was refused."""
_CHECK_S = 2.0
"""A call that failed waits so long until it is known whether the connection still works, so that
`state` is right when its caller reads of the failure."""
_SESSION_CODES = frozenset({-32_600, -32_000, -32_001})
"""With these some servers say that they do not know a session, in an answer of status 200. They
say other things with them too, so that they are a reason to look, and none to begin again."""

_logger = bounded_logger(__name__)


class _OtherMode(Exception):
    """An attempt failed as it does at a server that wants another first request."""


class ServerConnection:
    """The connection to one MCP server.

    Args:
        name: The name of its toolkit, for messages.
        entry: How it is reached.
        access: What it may reach, and its credentials.
        on_tools: Called in the owner's task with each list of tools, when it has changed.
    """

    def __init__(
        self,
        name: str,
        entry: ServerEntry,
        access: ServerAccess,
        on_tools: Callable[[list[types.Tool]], Awaitable[None]],
    ) -> None:
        self.name = name
        self._entry = entry
        self._access = access
        self._on_tools = on_tools
        self.state: ConnectionState = "connecting"
        self.reason: str = ""
        """Why it is not connected."""
        self.instructions: str = ""
        """How the server says that its tools are used."""
        self.seen: SeenTools = SeenTools(entry.shows)
        """What the last list had beside the tools that were handed over."""
        self._logged = ""
        # Of the server, and not of a connection: one that fails is opened again and again.
        self._lines = LogBudget()
        self._unread = LogBudget(at_once=10, every_s=60.0)
        self._failures = LogBudget(at_once=20, every_s=10.0)  # calls may end a server often
        self._questions = UserQuestions(name, self.redact)
        self._attempts = 0
        # `initialize` is what every server knows. Some end at another first request, and some never
        # answer it, so that only a server with an address is probed for newer versions first.
        self._modes: list[_Mode] = ["auto", "legacy"]
        if entry.transport != "streamable_http":
            self._modes.reverse()
        self._refused_by: Client | None = None
        self._has_answered = False
        self._client: Client | None = None
        self._link: Link | None = None
        self._shown_backend: Backend | None = None
        self.begin()

    def begin(self) -> None:
        """Forget an earlier connection, before `run`."""
        self.state = "connecting"
        self.reason = ""
        # New ones, because an event belongs to the event loop in which it was first waited for.
        self._changed = asyncio.Event()  # the tools are to be listed again
        self._checked = asyncio.Event()  # they have been listed, or the connection has ended
        self._broken = asyncio.Event()  # a call without a session of its own found the server back
        self._wanted = asyncio.Event()  # somebody waits for the next attempt to connect
        self._tried = asyncio.Event()  # an attempt has ended

    @property
    def confined_by(self) -> Backend | None:
        """What confines the program that is connected; None if nothing does."""
        if self._link is None or self.state != "connected":
            return None
        return self._link.confined_by

    async def tried(self) -> None:
        """Wait until it was connected, or has failed, once."""
        await self._tried.wait()

    async def retry(self) -> None:
        """Try to connect now, if it is not connected, and wait until that has ended."""
        before = self._attempts
        while self.state == "connecting" or (self.state == "failed" and self._attempts == before):
            self._tried.clear()
            self._wanted.set()
            await self._tried.wait()

    async def run(self) -> None:
        """Connect, and again whenever the connection ends, until cancelled."""
        delay_s = 0.0
        loop = asyncio.get_running_loop()
        while True:
            began = loop.time()
            was_connected = False
            try:
                async with self._opened() as client:
                    was_connected = True
                    await self._watch(client)
                self._fail(self.reason or self._words(ConnectionError("the connection has ended")))
            except Exception as error:  # a server, and the SDK for it, may raise anything
                self._fail(self._words(error))
                _logger.debug("MCP server %s: %s", self.name, self.reason, exc_info=True)
            if is_cancelled():  # anyio may raise another error in the place of it
                raise asyncio.CancelledError
            # One that worked is opened again soon, however often its calls end it; the pauses grow
            # only for a server that ends, or refuses, before it has answered a call.
            if self._has_answered or loop.time() - began > _MAX_DELAY_S:
                delay_s = 0.0
            if not was_connected or loop.time() - began < _FIRST_DELAY_S:
                delay_s = max(delay_s, _FIRST_DELAY_S)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._wanted.wait(), delay_s)
            delay_s = min(max(delay_s * 2, _FIRST_DELAY_S), _MAX_DELAY_S)

    def end(self) -> None:
        """Take the connection as closed, after `run` has ended."""
        self.state = "closed"
        self.reason = "it is closed"
        self._client = None
        self._tried.set()

    def redact(self, text: str) -> str:
        """Return a text without the values of credentials that the server got."""
        return self._access.redact(text)

    @asynccontextmanager
    async def _opened(self) -> AsyncIterator[Client]:
        """Connect and list the tools; disconnect after the block."""
        self.state = "connecting"
        self._attempts += 1
        self._has_answered = False
        self._wanted.clear()
        async with AsyncExitStack() as stack:
            # Where each call has a connection of its own, this one has none.
            can_ask = self._entry.stateful
            client, self._link = await self._enter(stack, can_ask=can_ask)
            tools = await self._list(client)
            self.instructions = self.redact(client.instructions or "")
            await self._on_tools(tools)
            self._changed.clear()
            self._checked.set()
            self._broken.clear()
            self._wanted.clear()
            self.state = "connected"
            self.reason = ""
            self._logged = ""
            if self.confined_by not in (None, self._shown_backend):
                self._shown_backend = self.confined_by  # once, and not at each connection
                words = summary(self.confined_by)
                _logger.warning("MCP server %s: %s", self.name, words)
            if self._entry.stateful:
                self._client = client
            stack.callback(self._disconnected)
            self._tried.set()
            yield client

    def _disconnected(self) -> None:
        self._client = None
        self.state = "connecting"
        self._checked.set()

    async def _enter(self, stack: AsyncExitStack, *, can_ask: bool) -> tuple[Client, Link]:
        """Connect, in another mode if the server does not speak the first; it is remembered."""
        async with asyncio.timeout(self._entry.connect_timeout_s):
            for mode in self._modes:
                async with AsyncExitStack() as attempt:
                    try:
                        client, link = await self._enter_in(mode, attempt, can_ask=can_ask)
                    except _OtherMode as error:
                        if mode == self._modes[-1]:
                            raise ConnectionError(str(error)) from error
                    else:
                        self._modes.sort(key=lambda known: known != mode)
                        stack.push_async_exit(attempt.pop_all())
                        return client, link
        raise AssertionError("unreachable")

    async def _enter_in(
        self, mode: _Mode, stack: AsyncExitStack, *, can_ask: bool
    ) -> tuple[Client, Link]:
        on_line = partial(self._lines.log, _logger.info, "MCP server %s: %s", self.name)
        link = await stack.enter_async_context(
            open_link(self._entry, self._access, on_line, self._changed.set)
        )
        lists = ToolLists(self.name, lambda: client.protocol_version, self.redact, self.seen)
        client = Client(
            exchange(link.transport, self.name, lists, self._unread, self.redact),
            mode=mode,
            read_timeout_seconds=self._entry.connect_timeout_s,
            message_handler=self._receive,
            elicitation_callback=self._questions.answer if can_ask else None,
            client_info=types.Implementation(name="toolbus", version="1"),
            cache=None,  # a changed list has to be seen
        )
        try:
            await stack.enter_async_context(client)
        except Exception as error:  # the SDK may raise anything, also in groups
            await link.explain()
            words = self._words(error, link)
            # The SDK begins with `initialize` itself where a probe is refused, but not where the
            # server ends at it. One that ends at `initialize` would be started again in vain.
            if (mode == "auto" and _is_lost(error)) or (mode == "legacy" and _is_answer(error)):
                raise _OtherMode(words) from error
            raise ConnectionError(words) from error
        # The toolkit checks results, in time in proportion to them. A schema of a server could
        # hold the SDK's check, and with it the event loop, for ever.
        client.session.validate_tool_result = _accept  # type: ignore[method-assign]
        return client, link

    async def _list(self, client: Client) -> list[types.Tool]:
        """Return all tools, page by page, in the order of their names.

        One whose name holds a value of a credential is left out, and so is one that is invalid.
        """
        self.seen.clear()
        found: dict[str, types.Tool] = {}
        cursor: str | None = None
        seen = set[str]()
        async with asyncio.timeout(self._entry.connect_timeout_s):  # for all pages together
            while len(seen) < _MAX_PAGES and len(found) < MAX_TOOLS:
                try:
                    page = await client.list_tools(cursor=cursor)
                except MCPError as error:
                    # One that has prompts or resources only.
                    if client.server_capabilities.tools is None and not _is_lost(error):
                        return []
                    raise
                for tool in page.tools:
                    self._add(tool, found)
                cursor = page.next_cursor
                if not cursor or cursor in seen:
                    break
                seen.add(cursor)
            else:
                self.seen.left_out.append(Omission("all on further pages", TOO_MANY))
        listed: list[types.Tool] = []
        for _, tool in sorted(found.items()):
            text = tool.model_dump_json(by_alias=True)
            if self.redact(text) != text:  # it holds a value of a credential
                data = redacted_json(tool.model_dump(mode="json", by_alias=True), self.redact)
                tool = types.Tool.model_validate(data)
            listed.append(tool)
            if len(listed) % _SLICE == 0:
                await asyncio.sleep(0)
        return listed

    def _add(self, tool: types.Tool, found: dict[str, types.Tool]) -> None:
        reason = ""
        name = self.redact(tool.name)
        if name != tool.name:
            reason = "its name holds a credential"
        elif name in found:
            reason = "it is listed twice, and only the first is used"
        elif tool.execution is not None and tool.execution.task_support == "required":
            reason = "its server runs it only as a task of MCP, which is not supported here"
        if reason:
            self.seen.left_out.append(Omission(name, reason))
        else:
            found[name] = tool

    async def _watch(self, client: Client) -> None:
        """List the tools again when they change.

        Return when the connection has ended, or a call found that it is to be opened again.
        """
        assert self._link is not None
        closed = self._link.closed
        ends = (closed, self._broken, self._wanted)
        listening = asyncio.create_task(self._listen(client))
        try:
            while not any(event.is_set() for event in ends):
                await first_of(*ends, self._changed)
                if self._changed.is_set() and not closed.is_set():
                    self._changed.clear()
                    try:
                        tools = await self._list(client)
                    except MCPError as error:
                        if not self._is_alive_after(error):
                            raise
                        asyncio.get_running_loop().call_later(_LIST_AGAIN_S, self._changed.set)
                        self._checked.set()
                    else:
                        self._checked.set()
                        await self._on_tools(tools)
                    with contextlib.suppress(TimeoutError):  # further changes are read together
                        await asyncio.wait_for(first_of(*ends), _LIST_PAUSE_S)
        finally:
            listening.cancel()
            await asyncio.gather(listening, return_exceptions=True)

    def _is_alive_after(self, error: MCPError) -> bool:
        """Whether a list that failed says nothing of the connection: it was refused, or put off."""
        if isinstance(error.data, ServerError):
            return self._entry.url is None or error.data.code not in _SESSION_CODES
        return isinstance(error.data, RequestFailed) and error.data.status in (429, 503)

    async def _listen(self, client: Client) -> None:
        """Learn of changes from a server of a version that sends them only on request."""
        with contextlib.suppress(ListenNotSupportedError, MCPError):
            while True:
                try:
                    async with client.listen(tools_list_changed=True) as changes:
                        async for _ in changes:
                            self._changed.set()
                    return
                except SubscriptionLost:
                    if is_cancelled():
                        return
                    self._changed.set()  # it may have changed meanwhile
                    await asyncio.sleep(_FIRST_DELAY_S)

    async def _receive(self, message: IncomingMessage) -> None:
        if isinstance(message, types.ToolListChangedNotification):
            self._changed.set()

    async def call(
        self,
        tool: str,
        arguments: dict[str, Any],
        on_progress: ProgressFnT | None = None,
        ask: AskPerson | None = None,
    ) -> types.CallToolResult:
        """Call a tool by its original name.

        A cancelled task cancels the call at the server. The time limit of the call stands still
        while a person is asked.

        Args:
            tool: Its name.
            arguments: Its arguments.
            on_progress: Gets its progress.
            ask: Asks a person what the server asks its user; None where nobody can be asked.

        Raises:
            Unavailable: There is no connection, or the server does not know the session: nothing
                ran. Or the connection ended: the tool may have run.
            ToolFailed: There is no answer that can be read. The tool may have run.
            ServerError: The server answered with an error. The tool may have run.
        """
        if self._entry.stateful:
            client = self._client
            link = self._link
            if client is None or link is None or link.closed.is_set():
                raise self._unavailable()
            return await self._call(client, link, tool, arguments, on_progress, ask)
        async with AsyncExitStack() as stack:
            try:
                client, link = await self._enter(stack, can_ask=ask is not None)
            except Exception as error:  # as in `run`
                self._fail(self._words(error))
                raise self._unavailable() from error
            if self.state == "failed":  # it is back: the owner connects again, and lists its tools
                self._broken.set()
            return await self._call(client, link, tool, arguments, on_progress, ask)

    def _unavailable(self) -> Unavailable:
        reason = self.reason or "the connection has ended or is being opened"
        text = f"MCP server {self.name} is not connected: {reason}"
        return Unavailable(text, executed="no", retryable=True)

    async def _call(
        self,
        client: Client,
        link: Link,
        tool: str,
        arguments: dict[str, Any],
        on_progress: ProgressFnT | None,
        ask: AskPerson | None,
    ) -> types.CallToolResult:
        requests = SentRequests(can_ask=ask is not None)
        clock = PausableClock()
        limit = clock.timeout_at(clock.time() + self._entry.timeout_s + _LATER_S)
        current = CURRENT_CALL.set(requests)
        try:
            with self._questions.during_call(client.session, ask, clock):
                async with limit as limited:
                    result = await self._result(client, tool, arguments, on_progress)
        except TimeoutError:
            if not limited.expired():
                raise
            failure = RequestFailed("it did not answer in time", "timeout")
        except InputRequiredRoundsExceededError as error:
            words = f"it asked its user more than {error.max_rounds} times for one call"
            failure = RequestFailed(words, "unreadable")
        except RequestFailed as error:  # while it was sent
            failure = error
        except MCPError as error:
            if isinstance(error.data, ServerError):
                self._note_answer()
                if error.data.code in _SESSION_CODES and self._entry.url is not None:
                    await self._check(client)
                raise error.data from None
            failure = _failure_of(error, requests)
        else:
            self._note_answer()
            return result
        finally:
            CURRENT_CALL.reset(current)
        raise await self._error(failure, requests, client, link)

    async def _result(
        self,
        client: Client,
        tool: str,
        arguments: dict[str, Any],
        on_progress: ProgressFnT | None,
    ) -> types.CallToolResult:
        """Make a call, and again once its user has opened what its server requires for it."""
        while True:
            try:
                # The SDK has a limit for each request, which goes on while a person is asked.
                return await client.call_tool(tool, arguments, inf, progress_callback=on_progress)
            except MCPError as error:
                if not await self._questions.has_opened(error):
                    raise

    def _note_answer(self) -> None:
        self._refused_by = None
        self._has_answered = True

    async def _error(
        self, failure: RequestFailed, requests: SentRequests, client: Client, link: Link
    ) -> RoomException:
        """Return the error of a call without an answer; what may concern others is looked into."""
        has_not_run = failure.has_not_run and requests.count <= 1
        if failure.kind == "no_session":
            # A server that says this of session after session is not believed: it may have run the
            # tool each time, and a call that did not run is sent again.
            has_not_run = has_not_run and self._refused_by in (None, client)
            self._refused_by = client
        if failure.kind not in ("timeout", "unreadable"):
            await link.explain()
            await self._check(client)
        words = self._words(failure, link)
        if link.closed.is_set() and link is self._link:  # the owner comes to it later
            self._disconnected()
            self.reason = words
        if has_not_run:
            text = f"MCP server {self.name} did not get the call: {words}"
            return Unavailable(text, executed="no", retryable=True)
        if failure.kind == "lost":
            text = f"MCP server {self.name} was lost during the call: {words}"
            return Unavailable(text, executed="maybe", retryable=False)
        text = f"MCP server {self.name}: {words}"
        details = {} if failure.status is None else {"http_status": failure.status}
        return ToolFailed(
            text, executed="maybe", details=details, retry_after_s=failure.retry_after_s
        )

    async def _check(self, client: Client) -> None:
        """Have the owner find out whether the connection works, and wait a moment for it."""
        self._checked.clear()
        self._changed.set()
        if client is self._client:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._checked.wait(), _CHECK_S)

    def _fail(self, reason: str) -> None:
        if self._logged != reason:  # once, and not at each attempt
            text = "MCP server %s is not connected: %s"
            self._failures.log(_logger.warning, text, self.name, reason)
        self._logged = reason
        self.state = "failed"
        self.reason = reason
        self._tried.set()

    def _words(self, error: BaseException, link: Link | None = None) -> str:
        """Return why a connection failed, without secrets."""
        error = _first_of_group(error)
        link = link or self._link
        text = str(error) or type(error).__name__
        if isinstance(error, TimeoutError):
            text = f"it did not answer within {self._entry.connect_timeout_s:g} s"
        if link is not None and link.ending() not in text:
            text += f"; {link.ending()}"
        if self._entry.url is not None:  # its path and query may hold a secret
            host = host_text(urlsplit(self._entry.url).netloc)
            for address in (self._entry.url, without_query(self._entry.url)):
                text = text.replace(address, host)
            text = text.partition("\n")[0]
            if host not in text:
                text = f"{host}: {text}"
        return one_line(self._access.redact(text), MAX_WORDS)


def _first_of_group(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup) and error.exceptions:
        error = error.exceptions[0]
    return error


async def _accept(name: str, result: types.CallToolResult) -> None:
    """Take a result as it is."""


def _is_answer(error: BaseException) -> bool:
    """Whether an error was sent by the server."""
    error = _first_of_group(error)
    if not isinstance(error, MCPError) or isinstance(error.data, RequestFailed):
        return False
    return error.code not in (types.CONNECTION_CLOSED, types.REQUEST_TIMEOUT)


def _is_lost(error: BaseException) -> bool:
    """Whether the server may have ended, or no longer knows the session."""
    error = _first_of_group(error)
    if not isinstance(error, MCPError):
        return False
    if isinstance(error.data, RequestFailed):
        return error.data.kind in ("lost", "no_session", "not_sent")
    return error.code == types.CONNECTION_CLOSED


def _failure_of(error: MCPError, requests: SentRequests) -> RequestFailed:
    """Return the failure behind an error that the SDK made: the code is its own then."""
    if isinstance(error.data, RequestFailed):
        return error.data
    if error.code == types.REQUEST_TIMEOUT:
        return RequestFailed("it did not answer in time", "timeout")
    if error.code == types.CONNECTION_CLOSED:
        return RequestFailed("the connection has ended", "lost" if requests.count else "not_sent")
    words = f"the server asked for what it cannot have here: {error.message}"
    return RequestFailed(words, "unreadable")


async def first_of(*events: asyncio.Event) -> None:
    """Wait until one of the events is set."""
    await wait_for_first(*(event.wait() for event in events))
