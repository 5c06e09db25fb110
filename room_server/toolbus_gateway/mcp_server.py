"""The methods of MCP, for members over HTTP and over standard input and output.

One low-level server of the MCP SDK answers all paths and both revisions; whose request it is, the
transport says.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from typing import Any, NamedTuple, TypeAlias

import mcp_types as types
from anyio import CancelScope
from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.server.lowlevel.server import Server
from mcp.server.request_state import (
    AESGCMRequestStateCodec,
    InvalidRequestState,
    RequestStateBoundary,
    RequestStateSecurity,
)
from mcp.server.streamable_http import REQUEST_CANCELLED
from mcp.server.subscriptions import ListenHandler, ServerEvent, ToolsListChanged
from mcp.shared.exceptions import MCPError
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS

from toolbus.bounded_logging import bounded_logger
from toolbus.errors import RoomException, Unavailable
from toolbus.tools.approvers import DEFAULT_APPROVAL_S
from toolbus.untrusted_text import SHOWN_CHARS, one_line
from toolbus_gateway.limits import MAX_LISTENERS
from toolbus_gateway.listing import Target
from toolbus_gateway.member import Member
from toolbus_gateway.names import SEARCH_NAMES
from toolbus_gateway.progress import ProgressSender
from toolbus_gateway.questions import (
    CallResult,
    ClientQuestions,
    QuestionRounds,
    SessionQuestions,
)
from toolbus_gateway.results import ERROR_KEY, error_result, shown_error
from toolbus_gateway.search import NamedCall, ToolSearches
from toolbus_gateway.tool_calls import CallSettings, call_tool

__all__ = ["ASKER", "ASKER_KEY", "Asker", "GatewayServer", "RunningCalls", "as_mcp_error"]

_logger = bounded_logger(__name__)
_Context: TypeAlias = ServerRequestContext[Any, Any]


class Asker(NamedTuple):
    """Whose a request is, and what its path names."""

    member: Member
    target: Target
    session: Hashable = None
    """What a `notifications/cancelled` of another request has to have in common with a call; None
    where the transport finds the call itself."""


ASKER_KEY = "toolbus.asker"
"""The key of the asker in the scope of a request over HTTP."""
ASKER: ContextVar[Asker] = ContextVar("toolbus_gateway_asker")
"""The asker of the request that is read now: the SDK asks for the schema of a tool without it."""


class RunningCalls:
    """The calls that run, by session and request id: another request may cancel one."""

    def __init__(self) -> None:
        self._scopes: dict[tuple[Hashable, Hashable], list[CancelScope]] = {}
        self._have_ended = False

    async def run(self, key: tuple[Hashable, Hashable], call: Awaitable[CallResult]) -> CallResult:
        """Run a call until its result, or until it is cancelled.

        Raises `MCPError` if `cancel` with its key does that; `end_all` gives it a result.
        """
        scope = CancelScope()
        scopes = self._scopes.setdefault(key, [])
        scopes.append(scope)
        try:
            with scope:
                return await call
        finally:
            scopes.remove(scope)
            if not scopes:
                del self._scopes[key]
        if self._have_ended:
            return error_result(Unavailable("the gateway has stopped", executed="maybe"))
        raise MCPError(REQUEST_CANCELLED, "Request cancelled")

    def cancel(self, key: tuple[Hashable, Hashable]) -> None:
        """Cancel the call of a key, if it runs here; of an id in use twice nobody knows which."""
        match self._scopes.get(key):
            case [scope]:
                scope.cancel()

    def end_all(self) -> None:
        """Cancel all calls, each of which gets a result that says so."""
        self._have_ended = True
        for scopes in self._scopes.values():
            for scope in scopes:
                scope.cancel()


@dataclass(frozen=True, slots=True)
class _MemberChanges:
    """The changes of one member's tools, as the SDK's handler of listen streams reads them."""

    member: Member

    async def publish(self, event: ServerEvent) -> None:
        """Refuse: only the room says what has changed."""
        raise NotImplementedError

    def subscribe(self, listener: Callable[[ServerEvent], None]) -> Callable[[], None]:
        return self.member.on_change(lambda: listener(ToolsListChanged()))


class _StateCodec(AESGCMRequestStateCodec):
    """Seals states; says once that one is not of its keys, as where replicas have not the same."""

    _has_warned = False

    def unseal(self, token: str) -> bytes:
        try:
            return super().unseal(token)
        except InvalidRequestState:
            if not self._has_warned:
                self._has_warned = True  # any client can send any number of them
                _logger.warning(
                    "a client brought back a state that no key of this gateway has sealed: "
                    "--state-key has to be the same at all replicas"
                )
            raise


class GatewayServer:
    """The server of the MCP SDK with the handlers of the gateway.

    Args:
        asker_of: Returns the asker of a request.
        settings: The limits of calls.
        state_keys: Secrets of all replicas, of 32 bytes or more; the first one seals what clients
            bring back. Without any it is one of this process.
        has_sessions: Whether a client with a session can be asked while its call runs.
    """

    def __init__(
        self,
        asker_of: Callable[[_Context], Asker],
        settings: CallSettings | None = None,
        *,
        state_keys: Sequence[str] = (),
        has_sessions: bool = False,
    ) -> None:
        self._asker_of = asker_of
        self._has_sessions = has_sessions
        self._settings = settings or CallSettings()
        self._searches = ToolSearches()
        self._listening: dict[Member, set[ListenHandler]] = {}
        self._is_stopping = False
        self.running: RunningCalls = RunningCalls()
        self.mcp: Server[Any] = Server(
            "toolbus",
            version=version("toolbus"),
            get_tool_input_schema=_input_schema,
            on_call_tool=self._call_tool,
            on_subscriptions_listen=self._listen,
        )
        self.mcp.middleware.append(self._list_again)
        security = RequestStateSecurity(
            codec=_StateCodec(state_keys or [secrets.token_bytes(32)]),
            ttl=DEFAULT_APPROVAL_S,
            bind_principal=self._principal,
        )
        # It seals what a call that waits gives its client, for this user, tool and arguments.
        self.mcp.middleware.append(RequestStateBoundary(security, default_audience="toolbus"))
        # A handler may return a dict; only this way of adding one has that in its types.
        self.mcp.add_request_handler("tools/list", types.PaginatedRequestParams, self._list_tools)

    def end_listening(self) -> None:
        """End all streams about changed lists, each with its last message, and begin no more."""
        self._is_stopping = True
        for handlers in self._listening.values():
            for handler in handlers:
                handler.close()

    async def _list_again(self, ctx: _Context, call_next: CallNext) -> HandlerResult:
        """Answer with a list that was answered before, if it has the same tools and revision.

        The SDK checks and copies every tool for every answer, which is most of its time.
        """
        asked = ctx.params or {}
        is_plain = not asked or (asked.keys() == {"_meta"} and isinstance(asked["_meta"], dict))
        if ctx.method != "tools/list" or not is_plain:
            return await call_next(ctx)
        asker = self._asker_of(ctx)
        listing = asker.member.known_listing(asker.target)
        if listing is not None and (known := listing.answers.get(ctx.protocol_version)) is not None:
            return known
        answer = await call_next(ctx)
        listing = asker.member.known_listing(asker.target)
        if listing is not None and isinstance(answer, dict) and answer["tools"] == listing.wire:
            # Its tools are in memory once.
            listing.answers[ctx.protocol_version] = {**answer, "tools": listing.wire}
        return answer

    async def _list_tools(
        self, ctx: _Context, params: types.PaginatedRequestParams | None
    ) -> dict[str, Any]:
        asker = self._asker_of(ctx)
        if params is not None and params.cursor is not None:
            raise MCPError(types.INVALID_PARAMS, "there is no such page: the list has one")
        try:
            listing = await asker.member.listing(asker.target)
        except RoomException as error:
            raise as_mcp_error(error) from error
        return {
            "tools": self._searches.wire(listing),
            "ttlMs": int(asker.member.tools_ttl_s * 1000),
            "cacheScope": "private",
            "resultType": "complete",
        }

    def _principal(self, ctx: _Context) -> str:
        """Return whose a state is, and for which path: nobody else can use it."""
        member, target = self._asker_of(ctx)[:2]
        me = member.room.me
        return json.dumps([member.room.room, me.issuer, me.name, *target])

    def _questions(
        self, ctx: _Context, params: types.CallToolRequestParams
    ) -> ClientQuestions | None:
        """Return how the user of a client is asked about a call; None if it cannot be."""
        found = ctx.session.client_capabilities
        asks = None if found is None else found.elicitation
        # One without modes is that of the revisions that had forms alone.
        has_forms = asks is not None and (asks.form is not None or asks.url is None)
        if ctx.protocol_version not in HANDSHAKE_PROTOCOL_VERSIONS:
            state = params.request_state
            if not has_forms and state is None:
                return None
            return QuestionRounds(state, params.input_responses, can_ask=has_forms)
        if not (has_forms and self._has_sessions):
            return None
        return SessionQuestions(ctx.session, ctx.request_id)

    async def _call_tool(self, ctx: _Context, params: types.CallToolRequestParams) -> CallResult:
        asker = self._asker_of(ctx)
        try:
            found = await self._find(asker, params.name, params.arguments or {})
        except RoomException as error:
            return error_result(error)
        if isinstance(found, types.CallToolResult):
            return found
        progress = None
        if ctx.meta is not None and ctx.meta.get("progress_token") is not None:
            progress = ProgressSender(ctx.session.report_progress)
        questions = self._questions(ctx, params)
        call = call_tool(asker.member, *found, self._settings, progress, questions)
        return await self.running.run((asker.session, ctx.request_id), call)

    async def _find(
        self, asker: Asker, name: str, arguments: dict[str, Any]
    ) -> NamedCall | types.CallToolResult:
        """Return the call of a tool by its listed name, or the result of a search for tools.

        Raises `MCPError` and `RoomException`.
        """
        member, target = asker.member, asker.target
        listing = await member.listing(target)
        if name in SEARCH_NAMES and target in member.searched:
            return await self._searches.use(
                listing, name, arguments, partial(member.unlisted, target)
            )
        tool = listing.tools.get(name) or await member.unlisted(target, name)
        if tool is None:
            near = listing.near(name)
            hint = f"; near names: {', '.join(near)}" if near else ""
            text = f"there is no tool {one_line(name, SHOWN_CHARS)} here{hint}"
            raise MCPError(types.INVALID_PARAMS, text, data={"near": near})
        return NamedCall(tool, arguments)

    async def _listen(
        self, ctx: _Context, params: types.SubscriptionsListenRequestParams
    ) -> types.SubscriptionsListenResult:
        member = self._asker_of(ctx).member
        handlers = self._listening.setdefault(member, set())
        if len(handlers) >= MAX_LISTENERS:
            text = f"a token has at most {MAX_LISTENERS} streams about changed lists"
            raise MCPError(types.INTERNAL_ERROR, text)
        handler = ListenHandler(_MemberChanges(member))
        handlers.add(handler)
        end = member.on_end(handler.close)
        try:
            await member.follow()
            if self._is_stopping:
                raise MCPError(types.INTERNAL_ERROR, "the gateway is stopping")
            return await handler(ctx, params)
        except RoomException as error:
            raise as_mcp_error(error) from error
        finally:
            end()
            handlers.discard(handler)
            if not handlers:
                self._listening.pop(member, None)


def _input_schema(name: str) -> Mapping[str, Any] | None:
    """Return the input schema of a tool for the check of `Mcp-Param-*` headers.

    None, which checks nothing, where the tools of the asker are not known yet.
    """
    asker = ASKER.get(None)
    listing = None if asker is None else asker.member.known_listing(asker.target)
    tool = None if listing is None else listing.tools.get(name)
    return None if tool is None else tool.definition.body["inputSchema"]


def as_mcp_error(error: RoomException) -> MCPError:
    """Return an error of the room for a method that has no result for it."""
    meta = error_result(error).meta or {}
    return MCPError(types.INTERNAL_ERROR, shown_error(error).message, data=meta.get(ERROR_KEY))
