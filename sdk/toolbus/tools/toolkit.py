"""A named set of tools, and the single entry point to run them.

`Toolkit.execute` checks the arguments, runs a tool and returns a chunk, for local and remote
callers. The runner handles deadlines, concurrency and replies.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import logging
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from copy import copy, deepcopy
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack, overload

from pydantic import ValidationError

from toolbus.auth.grants import is_toolkit_name
from toolbus.chunks.carried_values import Carrying
from toolbus.chunks.chunk_types import Chunk, FileChunk, JsonChunk, MixedChunk
from toolbus.chunks.json_values import cut, shown
from toolbus.chunks.result_parts import MAX_JOINED_BYTES
from toolbus.concurrency.interrupts import is_ctrl_c
from toolbus.concurrency.slices import run_in_slices
from toolbus.diagnostics.user_code_errors import begin_at_author, error_text
from toolbus.errors import (
    Executed,
    InvalidArguments,
    InvalidResult,
    NotFound,
    RoomException,
    TooLarge,
    ToolFailed,
    note_call,
)
from toolbus.permissions.assessment import Assessment
from toolbus.tools.approvers import checked_approvers
from toolbus.tools.assessing import assessed
from toolbus.tools.chain import ToolChain, input_refusal, unreadable_input
from toolbus.tools.context import ToolContext, own_call, run_of
from toolbus.tools.definition import rules_of
from toolbus.tools.error_text import (
    SentErrors,
    checked_errors,
    described,
    refusal_message,
    refused_call,
)
from toolbus.tools.function_tool import FunctionTool
from toolbus.tools.middleware import Middleware, ToolCall, check_tool, checked_middlewares
from toolbus.tools.omission import Omission, entries_of
from toolbus.tools.options import ToolFields
from toolbus.tools.policy import Inquiry, checked_policy, foreseen, workdirs_of
from toolbus.tools.sliced_parameters import MAX_CONTAINERS
from toolbus.tools.tool import Tool, read_in_time
from toolbus.tools.tool_info import ToolInfo
from toolbus.tools.tool_run import ToolRun
from toolbus.wire import MAX_FRAME_BYTES, MAX_TOOLS, BadBody, ToolkitManifest, pack_body
from toolbus.wire.body_steps import LARGE_BODY_BYTES, ContainerCount, unpack_steps
from toolbus.wire.codec import pack_json_chunk, unpack_map

if TYPE_CHECKING:  # most programs record nothing, and have no permissions
    from toolbus.permissions.permissions import Permissions
    from toolbus.records.records import Records

__all__ = [
    "MAX_MIXED_BYTES",
    "MAX_RESULT_BYTES",
    "Toolkit",
    "checked_records",
    "failure_of",
    "invalid_name_text",
    "packed_result",
    "read_arguments",
    "read_large_arguments",
    "too_large",
]

F = TypeVar("F", bound=Tool | Callable[..., Any])

MAX_RESULT_BYTES = MAX_FRAME_BYTES - 32
"""The largest body of a result; its frame adds a few bytes of kind, id and length."""
MAX_MIXED_BYTES = MAX_JOINED_BYTES
"""The largest packed result of several chunks, which travels in parts."""


class Toolkit:
    """Tools that belong together, under one name.

    Args:
        name: A lower-case letter, then up to 63 of `a-z 0-9 _ -`.
        tools: Functions, decorated or not, bound methods, and instances of `Tool`.
        rules: How a model should use the tools together.
        title: A title for humans; the name by default.
        description: What the toolkit is for.
        thumbnail_url: A picture.
        annotations: JSON values for programs.
        version: The author's version of the definition.
        middlewares: What runs around each call of each tool, the first outermost.
        records: Where each call is recorded, with what middlewares did, and refused ones too.
        policy: What refuses calls, of every caller and in this process too. What it asks about
            waits until a person in the room approves it; in this process the turn asks.
        approvers: Who may approve calls of its tools: `role:x` and `name:x`; "others" for nobody
            who makes the call, or whom it is made for. By default all with the grant for the tool.
            A tool may have its own.
        errors: What callers get of the exceptions of its tools, unless a tool says otherwise:
            "text", "class", or by default what the room's server asks for; see `failure_of`.
        left_out: Tools of somebody else, such as an MCP server, that cannot be hosted.
        unchecked: Parts of such tools' schemas that are not checked here, each named by its tool.

    Raises `TypeError` or `ValueError` for an invalid tool, for two of one name, for invalid names
    and for more than 1,000 tools. `tool` adds further ones, until the toolkit is hosted.
    """

    def __init__(  # noqa: PLR0913 - the promised signature
        self,
        name: str,
        tools: Iterable[Tool | Callable[..., Any]] = (),
        *,
        rules: Sequence[str] = (),
        title: str | None = None,
        description: str = "",
        thumbnail_url: str = "",
        annotations: Mapping[str, Any] | None = None,
        version: str = "",
        middlewares: Iterable[Middleware] = (),
        records: Records | None = None,
        errors: SentErrors | None = None,
        policy: Permissions | None = None,
        approvers: Iterable[str] = (),
        left_out: Iterable[Omission] = (),
        unchecked: Iterable[Omission] = (),
    ) -> None:
        self.name: str = _checked_name(name)
        self.title: str = name if title is None else title
        self.description = description
        self.rules: tuple[str, ...] = rules_of(rules, f"toolkit {name!r}")
        self.thumbnail_url = thumbnail_url
        self.annotations: dict[str, Any] = deepcopy(dict(annotations or {}))
        self.version = version
        self.left_out: tuple[Omission, ...] = tuple(left_out)
        """What cannot be hosted. The annotation `left_out` of the manifest has it too."""
        self.unchecked: tuple[Omission, ...] = tuple(unchecked)
        """What of the tools' schemas is not checked. The annotation `unchecked` has it too."""
        self._tools = _by_name(name, tools)
        self._manifest = _definition(
            name=name,
            title=self.title,
            description=description,
            rules=self.rules,
            thumbnail_url=thumbnail_url,
            annotations={
                **deepcopy(self.annotations),
                **entries_of("left_out", self.left_out),
                **entries_of("unchecked", self.unchecked),
            },
            version=version,
            tools=tuple(tool.manifest() for tool in self._tools.values()),
        )
        label = f"toolkit {name!r}"
        self.middlewares: tuple[Middleware, ...] = checked_middlewares(middlewares, label)
        self.records: Records | None = checked_records(records, label)
        """Where its calls are recorded; may be set before it is hosted."""
        self.errors: SentErrors | None = checked_errors(errors, label)
        """What callers get of the exceptions of tools that do not say it themselves."""
        self.log_filters: Sequence[logging.Filter] = ()
        """What `toolbus host` and `RemoteToolkit` add to the handlers of the root logger while they
        host it, such as one that removes credentials; may be set before it is hosted."""
        self.workdirs: tuple[str, ...] = ()
        """The real paths of the folders that its tools work in, where it has such; may be set
        before it is used. What a person grants in a turn holds for these folders alone."""
        self.size_hint: str = ""
        """What to do about a definition that is too large for a room, for the error of hosting it;
        may be set before it is hosted."""
        self.unentered: Executed = "no" if type(self).execute is Toolkit.execute else "maybe"
        """`executed` of a call whose function was not entered: an override may act in its place."""
        self.approvers: tuple[str, ...] = checked_approvers(approvers, label)
        """Who may approve calls of its tools; may be set before it is hosted."""
        self._policy = checked_policy(policy, label)
        self._operator_policy: Permissions | None = None
        self._around = self._checked_middlewares()
        self._make_chains()
        self.in_process: object | None = None
        """The runner of its tools for callers in this process; made on first use."""
        self.is_in_use: bool = False
        """Whether it is or was hosted, or used in this process: its definition is fixed."""

    def __init_subclass__(cls, **options: Any) -> None:
        """Let an override of `execute` raise what a call raises, as `execute` itself does."""
        super().__init_subclass__(**options)
        bases = [base for base in cls.__bases__ if issubclass(base, Toolkit)]
        if all(cls.execute is not base.execute for base in bases):
            cls.execute = _raising_as_a_call(cls.execute)  # type: ignore[method-assign]

    @property
    def tools(self) -> tuple[Tool, ...]:
        """The tools, in the order of definition."""
        return tuple(self._tools.values())

    @property
    def policy(self) -> Permissions | None:
        """What refuses calls, or asks about them; a new one holds also for those that wait."""
        return self._policy

    @policy.setter
    def policy(self, policy: Permissions | None) -> None:
        self._policy = checked_policy(policy, f"toolkit {self.name!r}")
        self._make_chains()

    @property
    def operator_policy(self) -> Permissions | None:
        """The policy of who hosts it, such as `toolbus host --policy`. Both have to allow."""
        return self._operator_policy

    @operator_policy.setter
    def operator_policy(self, policy: Permissions | None) -> None:
        self._operator_policy = checked_policy(policy, f"toolkit {self.name!r}")
        self._make_chains()

    @property
    def policies(self) -> tuple[Permissions, ...]:
        """That of its author, then that of who hosts it; empty without both."""
        found = (self._policy, self._operator_policy)
        return tuple(policy for policy in found if policy is not None)

    def manifest(self) -> ToolkitManifest:
        """Return the published manifest of this toolkit. Not to be changed."""
        return self._manifest

    def get_tool(self, name: str) -> Tool:
        """Return a tool by its name, or raise `NotFound`."""
        found = self._tools.get(name)
        if found is None:
            raise NotFound(cut(f"there is no tool {self.name}.{name}"))
        return found

    def sends_error_text(self, tool: str, *, by_default: bool) -> bool:
        """Whether the callers of a tool get the text of its exceptions.

        Args:
            tool: Its name.
            by_default: What the room's server asks for, where neither tool nor toolkit says it.
                A toolkit with log filters works with secrets, which its exceptions may contain, so
                that a server cannot ask for them.
        """
        chosen = self.errors
        if tool in self._tools:
            chosen = self._tools[tool].errors or chosen
        if chosen is None:
            return by_default and not self.log_filters
        return chosen == "text"

    @overload
    def tool(self, function: F, /) -> F: ...
    @overload
    def tool(self, /, **options: Unpack[ToolFields]) -> Callable[[F], F]: ...
    def tool(self, function: Any = None, /, **options: Any) -> Any:
        """Add a function as the last tool; a decorator, with or without parentheses.

        The function itself does not change and stays callable. Options that `@tool` set on it hold
        unless `options` replaces them.

        Args:
            function: The function, where `@toolkit.tool` is written without parentheses; or a
                `Tool`.
            options: See `ToolOptions`.

        Raises:
            TypeError: It is not a function, or an option is unknown or does not fit it.
            ValueError: There is a tool of this name, or there would be over 1,000.
            RuntimeError: The toolkit is or was hosted, or an agent in this process uses it.
        """

        def add(value: Any) -> Any:
            if isinstance(value, str):
                raise TypeError(
                    f"@{self.name}.tool decorates a function; did you mean"
                    f" @{self.name}.tool(name={shown(value)})?"
                )
            made = FunctionTool(value, **options) if options else _as_tool(self.name, value)
            if self.is_in_use:
                raise RuntimeError(
                    f"toolkit {self.name!r} is in use, so that its tools are fixed: add"
                    f" {made.name!r} before it is hosted, or serve"
                    " toolkit.with_tools(function) in its place by room.replace"
                )
            if made.name in self._tools:
                raise ValueError(
                    f"toolkit {self.name!r} has a tool named {made.name!r} already,"
                    f" {_origin(self._tools[made.name])}: give this one another name,"
                    " @toolkit.tool(name=...)"
                )
            changed = self.with_tools(made)  # a copy: after an error nothing has changed
            self._tools = changed._tools
            self._manifest = changed._manifest
            self._around = changed._around
            self._make_chains()
            return value

        return add if function is None else add(function)

    def with_tools(self, *tools: Tool | Callable[..., Any]) -> Self:
        """Return a toolkit with further tools: another definition, with another digest.

        Its class, its other options and its middlewares are those of this toolkit, which does not
        change; the tools that both have are the same objects.

        Raises:
            TypeError: One is not a function or a tool.
            ValueError: Two tools would have one name, or there would be over 1,000.
        """
        all_tools = self._tools.copy()
        for value in tools:
            made = _as_tool(self.name, value)
            if made.name in all_tools:
                raise ValueError(
                    f"toolkit {self.name!r} would have two tools named {made.name!r}: "
                    f"{_origin(all_tools[made.name])} and {_origin(made)}"
                )
            all_tools[made.name] = made
        return self._redefined(_checked_number(self.name, all_tools))

    def without(self, *names: str) -> Self:
        """Return a toolkit without the tools of these names; otherwise as `with_tools`.

        Raises:
            TypeError: A name is not text.
            ValueError: There is no tool of a name.
        """
        for name in names:
            if not isinstance(name, str):
                raise TypeError(f"without takes names of tools, not {shown(name)}")
            if name not in self._tools:
                hint = f"there are {', '.join(self._tools)}" if self._tools else "it has no tools"
                if near := get_close_matches(name, self._tools, n=2):
                    hint = f"did you mean {' or '.join(near)}?"
                raise ValueError(f"toolkit {self.name!r} has no tool {shown(name)}: {cut(hint)}")
        remaining = {name: tool for name, tool in self._tools.items() if name not in names}
        return self._redefined(remaining)

    def _redefined(self, tools: dict[str, Tool]) -> Self:
        """Return a copy with other tools; it is neither hosted nor running anywhere."""
        other = copy(self)
        other.annotations = deepcopy(self.annotations)
        other._tools = tools
        manifests = tuple(tool.manifest() for tool in tools.values())
        other._manifest = self._manifest.model_copy(update={"tools": manifests})
        other._around = other._checked_middlewares()
        other._make_chains()
        other.in_process = None
        other.is_in_use = False
        return other

    async def make(self, room: object, model: object, config: object) -> Toolkit:
        """Return the toolkit itself: a toolkit is its own builder."""
        return self

    @asynccontextmanager
    async def hosting(self, room: Any) -> AsyncIterator[None]:
        """Do more while the toolkit is hosted, such as hosting others; nothing by default.

        It is entered once the toolkit can be called, and left before the toolkit is unregistered.
        A toolkit that runs in the process of its caller is not hosted.
        """
        yield

    def prompt_text(self, state: Mapping[str, Any]) -> str:
        """Return what a model should know now, for `Turn.prompt`; `state` is as in `context`."""
        return ""

    async def execute(
        self,
        context: ToolContext,
        name: str,
        arguments: dict[str, Any],
        attachment: Any = None,
    ) -> Chunk:
        """Check the arguments, run a tool and return its result.

        For a streaming tool each item is passed to the caller, and the result is empty.
        `attachment` is the input of the call, if it has one: a file as `Room.invoke` takes it, or
        an `InputStream`, which is what runners pass.

        This is the only entry point; an override gets every call and calls `super().execute`. An
        override that refuses a call raises `context.refuse(error)`, so that the error states that
        nothing ran.

        With a context that a program made, as a test does, it raises what `room.call` raises:
        `NotFound` and `InvalidArguments` before the tool's function is entered, `ToolFailed` for
        what the function raises, which is its `__cause__`, `InvalidResult` and `TooLarge` after it
        has ended, and `OSError` for a file that cannot be read. Each such call is a run of its own,
        without the tool's limits of time and concurrency. With the context of a call that runs, as
        an override and a tool have it, what the function raises is not changed.
        """
        run = run_of(context)
        if run.without_runner or (self.records is not None and run.recording is None):
            return await self._in_place_of_runner(context, name, arguments, attachment)
        try:
            chosen = self.get_tool(name)  # an override may refuse, or choose another tool
            chain = self._chains.get(name)
            if chosen is not self._tools.get(name):
                chain = self._chain_of(chosen, name)
            if chain is None:
                if attachment is not None:
                    raise input_refusal(chosen)
                if run.argument_bytes:
                    checked = await read_in_time(chosen, run, arguments)
                else:
                    checked = chosen.read_arguments(arguments)
        except RoomException as error:
            run.refuse(error)
            raise
        if chain is not None:
            return await chain.run(context, arguments, attachment)
        awaited = chosen.execute(context, **checked)
        if not chosen.marks_entry:
            run.entered = True
        result = await awaited
        try:
            return chosen.make_result(result)
        except RoomException as error:
            run.fail(error)
            raise

    async def assess(
        self,
        context: ToolContext,
        name: str,
        arguments: dict[str, Any],
        patterns: Sequence[str] = (),
    ) -> Assessment:
        """Return what a tool says about a call with these arguments; of it `assess` alone runs.

        Whatever the tool's own code does, there is an answer: see `toolbus.tools.assessing`.

        Args:
            context: The call.
            name: The tool's name.
            arguments: Values by parameter, checked here.
            patterns: The patterns of rules whose matches are asked.

        Raises `NotFound` and `InvalidArguments`, and what `assess` refuses a call with.
        """
        run = run_of(context)
        try:
            chosen = self.get_tool(name)
            checked = await read_in_time(chosen, run, arguments)
        except RoomException as error:
            run.refuse(error)
            raise
        policies = self.policies
        if not (policies or (chosen.approval and run.enforces_approval)):
            return await assessed(chosen, f"{self.name}.{name}", context, checked, patterns)
        # A turn has working directories of its own for this question; a hosted call has none.
        run.workdirs = run.workdirs or workdirs_of(policies)
        info = ToolInfo.of(self._manifest, chosen.manifest())
        call = ToolCall(info, arguments, context, run.call_id)
        inquiry = Inquiry(chosen, call, checked, policies)
        return await foreseen(chosen, policies, inquiry, patterns)

    async def _in_place_of_runner(
        self, context: ToolContext, name: str, arguments: dict[str, Any], attachment: Any
    ) -> Chunk:
        """Execute a call that has no runner, or whose runner makes no record, and record it."""
        run = run_of(context)
        if run.without_runner:
            return await _as_a_call(Toolkit.execute, self, context, name, arguments, attachment)
        assert self.records is not None
        run.unentered = self.unentered
        recording = run.begin_recording(self.records, f"{self.name}.{name}", arguments)
        recording.executed = lambda: run.executed
        try:
            with recording:
                try:
                    return await Toolkit.execute(self, context, name, arguments, attachment)
                except (Exception, SystemExit, KeyboardInterrupt) as error:
                    recording.end(failure_of(error, run))
                    raise
        finally:
            run.recording = None

    def _checked_middlewares(self) -> dict[str, tuple[Middleware, ...]]:
        """Return the middlewares of each tool, the outermost first. Raises if one refuses it."""
        around: dict[str, tuple[Middleware, ...]] = {}
        for tool in self._tools.values():
            own = checked_middlewares(tool.middlewares, f"tool {self.name}.{tool.name}")
            around[tool.name] = (*self.middlewares, *own)
            if around[tool.name]:
                info = ToolInfo.of(self._manifest, tool.manifest())
                check_tool(info, self.middlewares, own=False)
                check_tool(info, own, own=True)
        return around

    def _make_chains(self) -> None:
        """Make what runs the tools that are more than a function, for later calls."""
        self._chains = {
            tool.name: self._chain_of(tool, tool.name)
            for tool in self._tools.values()
            if self._around[tool.name] or self.policies or tool.approval or not tool.is_unary
        }

    def _chain_of(self, tool: Tool, name: str) -> ToolChain:
        # By the name that is called: middlewares and rules are about it, whatever tool runs.
        manifest = tool.manifest()
        if manifest.name != name:
            manifest = manifest.model_copy(update={"name": name})
        info = ToolInfo.of(self._manifest, manifest)
        return ToolChain(tool, info, self._around.get(name, ()), self)


def read_arguments(run: ToolRun, packed: bytes) -> dict[str, Any]:
    """Unpack a call's arguments. Raises `InvalidArguments`, recorded: nothing ran."""
    try:
        arguments = unpack_map(packed)
        if type(arguments) is not dict:
            raise BadBody("", "arguments must be one object")
    except BadBody as error:
        raise run.refuse(_invalid(error.path, error.reason)) from error
    return arguments


async def read_large_arguments(run: ToolRun, packed: bytes) -> dict[str, Any]:
    """Do as `read_arguments`, in slices between which the event loop serves others."""
    if len(packed) <= LARGE_BODY_BYTES:
        return read_arguments(run, packed)
    run.argument_bytes = len(packed)
    steps = unpack_steps(packed, count=ContainerCount(MAX_CONTAINERS))
    try:
        arguments = await run_in_slices(steps, len(packed))
        if type(arguments) is not dict:
            raise BadBody("", "arguments must be one object")
    except BadBody as error:
        raise run.refuse(_invalid(error.path, error.reason)) from error
    return arguments


def _invalid(path: str, message: str) -> InvalidArguments:
    return InvalidArguments(message, details={"path": path, "message": message})


def packed_result(run: ToolRun, chunk: Chunk) -> bytes:
    """Pack the result of a tool as the body of its frame, for local and remote callers.

    Raises `InvalidResult` if it cannot be sent and `TooLarge` if it does not fit into one frame,
    recorded in the run. A result of several chunks may have `MAX_MIXED_BYTES`, if what of it is no
    file fits into one frame.
    """
    try:
        if type(chunk) is JsonChunk and not chunk.as_text:
            body = pack_json_chunk(chunk.json)
        else:
            body = pack_body(chunk.to_wire())
    except BadBody as error:
        raise run.fail(InvalidResult(error.reason)) from error
    if len(body) > MAX_RESULT_BYTES:
        if type(chunk) is not MixedChunk or chunk.value_bytes > MAX_RESULT_BYTES:
            raise too_large(run, body)
        if len(body) > MAX_MIXED_BYTES:
            raise too_large(run, body, MAX_MIXED_BYTES)
    return body


def too_large(run: ToolRun, body: bytes, most: int = MAX_RESULT_BYTES) -> TooLarge:
    """Record that a result has more than `most` bytes, and return the error to be raised."""
    text = f"the result has {len(body)} bytes, at most {most} can be sent"
    return run.fail(TooLarge(text))


def failure_of(exception: BaseException, run: ToolRun) -> RoomException:
    """Return the error that the caller gets for an exception of `Toolkit.execute`.

    An error that toolbus itself recorded, before the function was entered or after it had ended, is
    returned unchanged. Any other exception is the tool's, also an error of toolbus from a nested
    call: it becomes `ToolFailed`, with the text of the exception only if the tool raised
    `ToolFailed` or the run sends the texts of exceptions, and with the missing grant in place of
    the text if the server refused a nested call. An attachment that this process cannot read is
    `InvalidArguments`.
    `CancelledError` and the `KeyboardInterrupt` of a Ctrl-C are raised again.
    """
    if isinstance(exception, asyncio.CancelledError) or is_ctrl_c(exception):
        raise exception
    if isinstance(exception, RoomException) and run.is_recorded(exception):
        return exception
    if exception is run.input_error:
        return unreadable_input("/attachment", exception, "yes" if run.entered else "no")
    # What raised may have acted in the place of the function.
    executed: Executed = "maybe" if run.executed == "no" else run.executed
    refused = refused_call(exception)
    if isinstance(exception, ToolFailed) and refused is None:
        return ToolFailed(
            exception.message,
            executed=executed,
            retryable=exception.retryable,
            details=_sendable(exception.details),
            retry_after_s=exception.retry_after_s,
        )
    # The text of a refused nested call may name a tool that this caller may not see (ERR-9).
    with_text = refused is None and run.sends_error_text
    message, details = described(exception, with_text=with_text)
    if isinstance(exception, RoomException):
        details["code"] = exception.code
    if refused is None:
        return ToolFailed(message, executed=executed, details=details)
    message = f"{message}: {refusal_message(refused)}"
    return ToolFailed(message, executed=executed, details={**details, "refused": refused})


async def _as_a_call(
    execute: Callable[..., Awaitable[Chunk]],
    toolkit: Toolkit,
    context: ToolContext,
    name: str,
    *rest: Any,
    **named: Any,
) -> Chunk:
    """Execute a call that no runner makes, and raise what its caller would get of one."""
    context = own_call(context)
    run = run_of(context)
    run.unentered = toolkit.unentered
    run.sends_error_text = toolkit.sends_error_text(name, by_default=False)
    called = f"{toolkit.name}.{name}"
    running = execute(toolkit, context, name, *rest, **named)
    if toolkit.records is None:
        return await _ended_as_a_call(run, called, running)
    arguments = rest[0] if rest else named.get("arguments")
    with run.begin_recording(toolkit.records, called, arguments) as recording:
        recording.executed = lambda: run.executed
        return await _ended_as_a_call(run, called, running)


async def _ended_as_a_call(run: ToolRun, called: str, running: Awaitable[Chunk]) -> Chunk:
    try:
        chunk = await running
        if not isinstance(chunk, FileChunk):  # hosts send files in pieces
            packed_result(run, chunk)  # raises if a host could not send it
        return chunk
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        raise failure_of(RuntimeError("the tool raised CancelledError"), run) from error
    except (Exception, SystemExit, KeyboardInterrupt) as error:
        failure = failure_of(error, run)
        if run.recording is not None:
            run.recording.end(failure)
        raised = error if error is run.input_error else failure
        note_call(raised, called)
        if raised is error:
            raise
        begin_at_author(error)
        raise failure from error


def _raising_as_a_call(execute: Callable[..., Awaitable[Chunk]]) -> Any:
    """Return an override of `Toolkit.execute` that raises what a call raises."""

    @functools.wraps(execute)
    async def executed(
        self: Toolkit, context: ToolContext, name: str, *rest: Any, **named: Any
    ) -> Chunk:
        if run_of(context).without_runner:
            return await _as_a_call(execute, self, context, name, *rest, **named)
        return await execute(self, context, name, *rest, **named)

    return executed


def _sendable(details: object) -> dict[str, Any]:
    """Convert a tool's details to JSON, as a result; empty if that is not possible."""
    try:
        written = Carrying().plain(details, 1)
    except InvalidResult:
        return {}
    return written if isinstance(written, dict) else {}


def checked_records(value: Records | None, label: str) -> Records | None:
    """Return the value of `records=`. Raises `TypeError` for anything but records and None."""
    if value is None:  # then nothing of records is imported
        return None
    from toolbus.records.records import Records

    if not isinstance(value, Records):
        raise TypeError(
            f"{label}: records must be Records.memory() or Records.sqlite(PATH), not"
            f" {type(value).__name__}"
        )
    return value


def _by_name(toolkit: str, tools: Iterable[Tool | Callable[..., Any]]) -> dict[str, Tool]:
    found: dict[str, Tool] = {}
    if not isinstance(tools, Iterable):
        is_tool = isinstance(tools, Tool) or (callable(tools) and not isinstance(tools, type))
        form = f'did you mean Toolkit("{toolkit}", [{getattr(tools, "__name__", "tool")}])?'
        hint = form if is_tool else _right_form(tools)
        raise TypeError(f"toolkit {toolkit!r}: tools must be a list of tools; {hint}")
    for value in tools:
        made = _as_tool(toolkit, value)
        if made.name in found:
            raise ValueError(f"toolkit {toolkit!r} has two tools named {made.name!r}")
        found[made.name] = made
    return _checked_number(toolkit, found)


def _definition(name: str, **fields: Any) -> ToolkitManifest:
    """Return the manifest of a toolkit. Raises ValueError for a field that is too long or wrong."""
    try:
        return ToolkitManifest(name=name, **fields)
    except ValidationError as error:
        raise ValueError(f"toolkit {name!r}: {error_text(error)}") from None


def _checked_number(toolkit: str, tools: dict[str, Tool]) -> dict[str, Tool]:
    """Return the tools of a toolkit. Raises ValueError if there are too many."""
    if len(tools) > MAX_TOOLS:
        raise ValueError(
            f"toolkit {toolkit!r} has {len(tools):,} tools, at most {MAX_TOOLS:,} are allowed: "
            "make several toolkits"
        )
    return tools


def _checked_name(name: Any) -> str:
    """Return a toolkit's name. Raises TypeError or ValueError with the right form."""
    if callable(name) or isinstance(name, list | tuple):
        first = name[0] if isinstance(name, list | tuple) and name else name
        label = getattr(first, "__name__", "tool")
        raise TypeError(
            "a Toolkit takes its name first, then a list of tools;"
            f' did you mean Toolkit("{cut(label)}", [{cut(label)}])?'
        )
    if is_toolkit_name(name):
        return str(name)
    raise ValueError(invalid_name_text(name))


def invalid_name_text(name: object) -> str:
    """Return why this is no name of a toolkit, and the nearest one that is."""
    text = name.lower() if isinstance(name, str) else ""
    near = re.sub(r"[^a-z0-9_-]+", "-", text).strip("-_")[:64]
    hint = f"; did you mean {near!r}?" if is_toolkit_name(near) else ""
    return (
        f"{shown(name)} is not a toolkit name: a lower-case letter, then up to 63 of"
        f" a-z 0-9 _ -{hint}"
    )


def _origin(tool: Tool) -> str:
    """Return where a tool comes from: the function that it calls, or its class."""
    function = getattr(tool, "function", None) or type(tool)
    while isinstance(function, functools.partial):  # with preset arguments
        function = function.func
    module = getattr(function, "__module__", None)
    name = getattr(function, "__qualname__", None) or type(tool).__qualname__
    return f"{module}.{name}" if module else name


def _as_tool(toolkit: str, value: object) -> Tool:
    if isinstance(value, Tool):
        return value
    if callable(value) and not isinstance(value, type):
        return FunctionTool(value)
    raise TypeError(f"toolkit {toolkit!r}: {_right_form(value)}")


def _right_form(value: object) -> str:
    """Say what is wrong about a value that is listed as a tool, and what to write."""
    if isinstance(value, type) and issubclass(value, Tool):
        return f"{value.__name__} is a class: pass an instance of it, {value.__name__}(...)"
    if isinstance(value, Toolkit):
        return f"the toolkit {value.name!r} is not a tool: list its tools, *toolkit.tools"
    owner = type(value)
    what = f"an object of {owner.__name__}"
    if isinstance(value, type):
        owner = value
        what = f"the class {owner.__name__}"
    if owner.__module__ in ("builtins", "types"):
        return f"{shown(value)} is not a function or a Tool"
    found = [name for name in dir(owner) if not name.startswith("_")]
    attributes = {name: inspect.getattr_static(owner, name, None) for name in found}
    methods = [
        name
        for name, attribute in attributes.items()
        if callable(attribute) or isinstance(attribute, classmethod)
    ]
    if not methods:
        return cut(f"{what} is not a function or a Tool, and has no methods to list")
    made = f"{owner.__name__[:1].lower()}{owner.__name__[1:]}"
    first = ""
    if owner is value:
        first = f"{made} = {owner.__name__}(...), then "
    listed = cut(", ".join(f"{made}.{name}" for name in methods))
    return f"{what} is not a tool: list its methods: {first}tools=[{listed}]"
