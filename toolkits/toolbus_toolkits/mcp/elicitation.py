"""What an MCP server asks its user (elicitation), as a question of the call that it belongs to.

From 2026-07-28 on the question is the result of the call's own request, so that it is known whose
it is. Before, a server sends it by the connection and names no call: it is that of the only call
under way on that connection, and is declined where there are several.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple, TypeAlias
from urllib.parse import urlsplit

import mcp_types as types
from mcp import ClientSession, MCPError
from mcp.client import ClientRequestContext
from pydantic import ValidationError

from toolbus import RoomException
from toolbus.bounded_logging import bounded_logger
from toolbus.concurrency.pausable_clock import PausableClock
from toolbus.errors import ApprovalDenied
from toolbus.schemas.foreign import usable_schema
from toolbus.untrusted_text import one_line, printable
from toolbus_toolkits.credentials.redaction import Redact, redacted_json
from toolbus_toolkits.mcp.log_budget import LogBudget
from toolbus_toolkits.mcp.messages import MAX_RAW_WORDS, MAX_WORDS, ServerError

__all__ = ["AskPerson", "UserQuestions"]

AskPerson: TypeAlias = Callable[..., Awaitable[Any]]
"""`ToolContext.ask` of a call."""

_OPENED = "opened"
_MAX_QUESTIONS = 20
"""Of one call: a server could ask without end, however often a person refuses."""
_is_address = re.compile(r"https?://[A-Za-z0-9._~:/?#\[\]@!$&'()*+,;=%-]+").fullmatch
"""A URI as RFC 3986 has it: browsers read what else there is, such as a backslash, in other ways
than this host, and the person would be shown another host than is opened."""
_is_host = re.compile(r"[a-z0-9._-]+|[0-9a-f:.]+").fullmatch
_logger = bounded_logger(__name__)


class _Question(NamedTuple):
    text: str
    schema: dict[str, Any] | None
    options: tuple[str, ...]


class _Call:
    """One call that is under way, and what is asked for it."""

    def __init__(self, ask: AskPerson | None, clock: PausableClock) -> None:
        self.ask = ask
        self.asked = 0
        self._clock = clock
        self._asking: set[asyncio.Task[Any]] = set()

    async def answer(self, question: _Question) -> types.ElicitResult:
        """Ask a person; a refusal is "decline", and "cancel" that there is no answer.

        Raises `RoomException` where the person could not be asked.
        """
        self.asked += 1
        # In a task of its own, because an answer is not waited for any more when the call ends.
        asking = asyncio.create_task(self._value(question))
        self._asking.add(asking)
        try:
            await asyncio.wait([asking])
        finally:
            asking.cancel()
            self._asking.discard(asking)
        if asking.cancelled():
            return types.ElicitResult(action="cancel")
        try:
            value = asking.result()
            content = None if question.schema is None else value
            return types.ElicitResult(action="accept", content=content)
        except ApprovalDenied:
            return types.ElicitResult(action="decline")

    async def _value(self, question: _Question) -> Any:
        assert self.ask is not None
        with self._clock.paused():
            # Who made the call says how long it waits.
            return await self.ask(
                question.text, schema=question.schema, options=question.options, timeout_s=None
            )

    def end(self) -> None:
        """Ask no longer."""
        for asking in self._asking:
            asking.cancel()


_current: ContextVar[_Call | None] = ContextVar("current MCP call", default=None)


class UserQuestions:
    """What one server asks its users, over all its connections.

    Args:
        server: Its name.
        redact: Removes credentials from its texts.
    """

    def __init__(self, server: str, redact: Redact) -> None:
        self._server = server
        self._redact = redact
        self._calls: dict[ClientSession, list[_Call]] = {}
        self._declined = LogBudget(at_once=5, every_s=60.0)

    @contextmanager
    def during_call(
        self, session: ClientSession, ask: AskPerson | None, clock: PausableClock
    ) -> Iterator[None]:
        """Let a person answer what is asked for a call that the block makes.

        Args:
            session: The session that it is made with.
            ask: Asks a person; None where nobody can be asked.
            clock: That of the call's time limit, which stands still meanwhile.
        """
        call = _Call(ask, clock)
        calls = self._calls.setdefault(session, [])
        calls.append(call)
        token = _current.set(call)
        try:
            yield
        finally:
            _current.reset(token)
            calls.remove(call)
            if not calls:
                del self._calls[session]
            call.end()

    async def answer(
        self, context: ClientRequestContext, params: types.ElicitRequestParams
    ) -> types.ElicitResult:
        """Answer a question of the server; this is the callback of the SDK."""
        calls = self._calls.get(context.session, [])
        # The SDK asks in the context of the call where its own result is the question.
        call = _current.get()
        if call not in calls:
            call = calls[0] if len(calls) == 1 else None
        if call is None:
            return self._decline(params, f"it does not say for which of {len(calls)} calls")
        return await self._answer(call, params)

    async def has_opened(self, error: MCPError) -> bool:
        """Have a person open what the server of this call requires to be opened before.

        That is an error of 2025-11-25. Return whether all of it was opened; not for other errors.
        """
        call, answer = _current.get(), error.data
        if call is None or not isinstance(answer, ServerError):
            return False
        if answer.code != types.URL_ELICITATION_REQUIRED:
            return False
        try:
            required = types.ElicitationRequiredErrorData.model_validate(answer.data, by_name=False)
        except ValidationError:
            return False
        for params in required.elicitations:
            if (await self._answer(call, params)).action != "accept":
                return False
        return bool(required.elicitations)

    async def _answer(self, call: _Call, params: types.ElicitRequestParams) -> types.ElicitResult:
        if call.ask is None:
            return self._decline(params, "nobody can be asked here")
        if call.asked == _MAX_QUESTIONS:
            return self._decline(params, f"the call has asked {_MAX_QUESTIONS} times")
        try:
            question = _question_of(self._server, params, self._redact)
        except ValueError as error:
            return self._decline(params, str(error))
        try:
            return await call.answer(question)
        except RoomException as error:
            self._log(params, f"no answer, {error.code}")
        except ValidationError:  # its schema is looser than a form of MCP may be
            self._log(params, "the answer is not one of a form")
        return types.ElicitResult(action="cancel")

    def _decline(self, params: types.ElicitRequestParams, reason: str) -> types.ElicitResult:
        self._log(params, f"declined, {reason}")
        return types.ElicitResult(action="decline")

    def _log(self, params: types.ElicitRequestParams, outcome: str) -> None:
        question = one_line(self._redact(params.message[:MAX_RAW_WORDS]), MAX_WORDS)
        text = "MCP server %s asked its user (%s): %s"
        self._declined.log(_logger.warning, text, self._server, outcome, question)


def _question_of(server: str, params: types.ElicitRequestParams, redact: Redact) -> _Question:
    """Return what a person is asked. Raises `ValueError` for an address that is not shown."""
    # Each line is marked, so that no text of the server looks like one of this host.
    lines = printable(redact(params.message), MAX_RAW_WORDS).split("\n")
    words = "\n".join(f"> {line}" for line in lines)
    if isinstance(params, types.ElicitRequestFormParams):
        schema = usable_schema(redacted_json(params.requested_schema, redact)).schema
        if "properties" in schema:  # a form has no other fields, and a name may be misspelt
            schema.setdefault("additionalProperties", False)
        schema["type"] = "object"
        return _Question(f"The MCP server {server} asks, in its own words:\n{words}", schema, ())
    url = params.url
    host = urlsplit(url).hostname if _is_address(url) else None
    if host is None or not _is_host(host) or redact(url) != url:
        raise ValueError("its address is not one that can be shown")
    text = (
        f"The MCP server {server} asks you to open an address, in its own words:\n{words}\n\n"
        f"address: {url}\nhost: {host}\n\nNothing opens it: open it yourself if you trust this "
        f'host, and answer "{_OPENED}" when you are done there.'
    )
    return _Question(text, None, (_OPENED,))
