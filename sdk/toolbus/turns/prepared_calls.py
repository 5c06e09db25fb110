"""What a program or a model asks a turn for becomes a call, or the error for which there is none.

Everything is checked here before anything of a call runs.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from contextlib import suppress
from itertools import count
from typing import Any

from toolbus.chunks.json_values import packed_json, shown
from toolbus.client.call_options import CallOptions, call_seconds
from toolbus.client.input_sender import invalid_option
from toolbus.errors import DeadlineExceeded, InvalidArguments, RoomException
from toolbus.room.call_form import argument_object
from toolbus.schemas.from_model import tool_arguments
from toolbus.tools.tool_info import ToolInfo
from toolbus.turns.tool_use import ToolUse, arguments_of
from toolbus.turns.turn_calls import Judge, TurnCall, TurnEntry
from toolbus.turns.turn_chunks import CollectedChunks
from toolbus.turns.turn_runs import PreparedUse, TurnRuns
from toolbus.turns.turn_tools import TurnTools
from toolbus.wire import unpack_body

__all__ = ["PreparedCalls"]


class PreparedCalls:
    """Prepares the calls of one turn.

    Args:
        tools: The tools that can be called.
        runs: Runs the calls, and records refused ones.
        judge: Decides whether a call may run; None in a turn without permissions.
        timeout_s: The time-out of a call that names none.
    """

    def __init__(
        self, tools: TurnTools, runs: TurnRuns, judge: Judge | None, timeout_s: float
    ) -> None:
        self._tools = tools
        self._runs = runs
        self._judge = judge
        self._timeout_s = timeout_s
        self._prefix = secrets.token_hex(12)
        self._numbers = count(1)

    def of_program(
        self,
        tool: str,
        arguments: Mapping[str, Any] | None,
        given: Mapping[str, Any],
        collected: CollectedChunks,
    ) -> TurnCall:
        """Prepare the call of a program.

        Args:
            tool: `toolkit.tool`.
            arguments: Values by parameter.
            given: The options, by their names in `Turn.invoke`.
            collected: Takes the chunks of a stream.

        Raises `RoomException` for a call that cannot begin.
        """
        call_id = f"{self._prefix}{next(self._numbers):08x}"
        try:
            entry = self._tools.of_program(tool)
            values = argument_object(arguments)
            entry, values, via = self._named(entry, values)
            options = _call_options(given, self._timeout_s)
        except RoomException as error:
            self._runs.refused(tool, call_id, error)
            raise
        return TurnCall(call_id, entry, values, options, collected, judge=self._judge, via=via)

    def of_use(
        self, use: ToolUse, given: Mapping[str, Any], collected: CollectedChunks
    ) -> PreparedUse:
        """Prepare the call of a use. What cannot begin has its error."""
        try:
            if use.invalid:
                arguments_of(use)  # raises, also where there is no such tool
            entry = self._tools.of_model(use.name)
            schema = entry.info.input_schema
            if use.arguments is None and schema.get("properties"):
                # A server may have lost them: the tool would run with its defaults.
                words = "the call came without arguments; {} means that there are none"
                raise InvalidArguments(words, details={"path": "", "message": words})
            values = tool_arguments(schema, arguments_of(use))
            entry, values, via = self._named(entry, values)
            sent = {**given, "attachment": use.attachment, "input": use.input}
            options = _call_options(sent, self._timeout_s)
        except RoomException as error:
            self._runs.refused(use.name, use.id, error)
            return PreparedUse(use, error=error)
        call = TurnCall(
            use.id, entry, values, options, collected, use=use, judge=self._judge, via=via
        )
        return PreparedUse(use, call)

    def called(self, use: ToolUse) -> tuple[str, Any]:
        """Return the tool that a use calls and the arguments for it; see `Turn.called`."""
        name = use.name
        arguments = use.arguments
        entry = self._tools.find_by_model(name)
        if entry is None:
            return name, arguments
        if entry.naming is not None:
            with suppress(RoomException):  # it is the result of the use
                entry, arguments, _ = self._named(entry, arguments_of(use))
        return entry.info.name, arguments

    def _named(
        self, entry: TurnEntry, arguments: dict[str, Any]
    ) -> tuple[TurnEntry, dict[str, Any], ToolInfo | None]:
        """Return the tool that a call is of, the arguments for it, and which tool named it, if any.

        A tool of the turn itself comes before one of the room: names mean one thing in a turn.
        """
        if entry.naming is None:
            return entry, arguments, None
        self._tools.check_active(entry)
        name, inner = entry.naming.read(arguments)
        found = self._tools.find(name) or entry.naming.entry(name, entry.group)
        if found.naming is not None:
            raise InvalidArguments(f"{entry.info.name} does not call {name}: name another tool")
        if not isinstance(inner, str):  # of a program
            inner = argument_object(inner)
        values = tool_arguments(found.info.input_schema, arguments_of(ToolUse("", name, inner)))
        return found, values, entry.info


def _call_options(given: Mapping[str, Any], default_timeout_s: float) -> CallOptions:
    """Check the options of a call and what it sends.

    Args:
        given: Those of the keywords of `Turn.invoke` that were given.
        default_timeout_s: The time-out of a call that names none.

    Raises `InvalidArguments`, and `DeadlineExceeded` if there is no time for it.
    """
    context = given.get("caller_context")
    options = CallOptions(
        timeout_s=call_seconds(given.get("timeout_s"), default_timeout_s),
        caller_context=None if context is None else _checked_context(context),
        attachment=given.get("attachment"),
        input=given.get("input"),
        on_progress=given.get("on_progress"),
    )
    if options.timeout_s <= 0:
        raise DeadlineExceeded("no time was left for the call", executed="no")
    return options


def _checked_context(context: object) -> dict[str, Any]:
    """Return the caller's own data as the tool gets it: a copy, as JSON."""
    if not isinstance(context, Mapping):
        text = f"caller_context must be one object, not {shown(context)}"
        raise invalid_option("caller_context", text)
    copied: dict[str, Any] = unpack_body(packed_json("caller_context", dict(context)))
    return copied
