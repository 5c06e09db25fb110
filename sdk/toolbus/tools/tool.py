"""Tools: how they are defined, and how a call of one runs.

A tool is a subclass of `Tool`, or a function wrapped by `FunctionTool`. Their `execute` checks
nothing: `Toolkit.execute` is the entry point.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from pydantic import TypeAdapter

from toolbus.bounded_logging import bounded_logger
from toolbus.chunks.carried_values import as_declared
from toolbus.chunks.chunk_types import Chunk, result_chunk
from toolbus.chunks.json_values import NotJson
from toolbus.concurrency.slices import run_in_slices
from toolbus.permissions.assessment import Assessment, assessment_of_flags
from toolbus.schemas.validation import invalid_arguments
from toolbus.tools.context import ToolContext
from toolbus.tools.definition import CompiledDefinition, ToolDefinition
from toolbus.tools.input_stream import ATTACHMENT, InputParameter
from toolbus.tools.middleware import Middleware
from toolbus.tools.result_checks import check_result
from toolbus.tools.signature import read_method_input
from toolbus.tools.tool_run import ToolRun
from toolbus.wire.body_steps import Steps

__all__ = ["Tool", "read_in_time"]

_logger = bounded_logger(__name__)
_SENT_AS_THEY_ARE = (str, bytes, bytearray, memoryview, NotJson, Iterator, AsyncIterator)
"""What no declared type writes: texts, files, chunks, and what is refused."""


class Tool(ToolDefinition, ABC):
    """One action of a toolkit.

    A subclass defines itself by class attributes or by the constructor, and overrides `execute`:

        class Forecast(Tool):
            name = "forecast"
            input_schema = {"properties": {"city": {"type": "string"}}, "required": ["city"]}

            async def execute(self, context, /, city):
                return {"city": city}

    If `execute` is an async generator the tool returns a stream. If it has a parameter `attachment`
    the tool takes what the caller sends while the call runs: an `InputStream[Row]` or a `FileChunk`
    by its annotation, an `InputStream` of chunks without one.

    Args:
        name: 1 to 64 of `A-Z a-z 0-9 _ -`.
        input_schema: A JSON Schema of the arguments, which are one object. `TypeError` unless it is
            a dict.
        title: A title for humans; the name by default.
        description: What the tool does, for humans and models.
        rules: How a model should use the tool.
        thumbnail_url: A picture.
        defs: Definitions that are added to the schema's `$defs`; `ValueError` on a conflict.
        supports_context: Whether it reads `context.caller_context`.
        output_schema: A JSON Schema that every result has to match.
        read_only: It changes nothing.
        idempotent: Running it twice has the effect of running it once.
        streaming: It returns its result chunk by chunk, because `execute` yields. By default it
            follows from `execute`; `ValueError` if the two differ.
        timeout_s: Seconds that one call may run.
        max_concurrency: How many calls one host runs at a time.
        affinity: Which calls stay with one host: "none", "caller", or an argument's name.
        concurrency_safe: Several calls of one agent may run at a time; by default as `read_only`.
        destructive: It may delete or overwrite what cannot be restored.
        open_world: It acts on systems that its author does not control, such as the internet.
        external: A person or another program outside the host gives its result.
        approval: A person has to approve each call. A host lets it wait for that.
        approvers: Who may approve its calls: `role:x`, `name:x`, and "others" for nobody who makes
            the call, or whom it is made for.
        approval_timeout_s: Seconds that a call waits for a person; 0 never waits, None waits
            without limit.
        cache_ttl_s: Seconds that a cache may serve a result again for equal arguments. `ValueError`
            unless the tool is `read_only`.
        annotations: JSON values for programs, in addition to those of its toolkit.
        errors: What callers get of an exception: "text", its class and its text, or "class", its
            class alone; by default as the toolkit says.
        middlewares: What runs around each call, the first outermost.
    """

    middlewares: Sequence[Middleware] = ()
    """What runs around each call, inside the middlewares of its toolkit."""

    marks_entry = False
    """Whether `execute` itself calls `context.enter()`, because its function starts later."""
    input_parameter: InputParameter | None = None
    """The parameter of `execute` that receives the input of a call."""
    orchestration = False
    """Whether it only steers its own agent, as the tools that switch groups and read skills do. It
    counts as read-only in the process of that agent; it is never in a manifest."""
    _returned: TypeAdapter[Any] | None = None
    """The declared type of a result, which says what fields it has; None if none does."""
    _has_logged_text = False
    """Whether a result of it with text in place of a value was logged."""
    has_logged_assess = False
    """Whether a failure of its `assess` was logged."""
    is_unary: bool = True
    """Whether it takes only arguments and returns one result; set when it is compiled."""

    @property
    def is_async(self) -> bool:
        """Whether `execute` runs on the event loop from start to end."""
        return True

    # `*_` lets type checkers accept an override that names its arguments; it is never passed.
    @abstractmethod
    def execute(self, context: ToolContext, /, *_: Any, **arguments: Any) -> Any:
        """Run the tool with arguments that match its schema.

        Async: it returns a value that `result_chunk` accepts, or yields such values.
        """

    def reached(self, arguments: Mapping[str, Any]) -> str:
        """Return the tool that a call reaches, `toolkit.tool`, if this one only forwards; else "".

        By the arguments alone: rules about the reached tool hold also where `assess` fails.
        """
        return ""

    async def assess(self, context: ToolContext, arguments: dict[str, Any]) -> Assessment:
        """Return what a call with these arguments would be, without making it.

        It is asked before a call, also by callers elsewhere, and runs for at most 5 s. What it
        raises, and what takes longer, is an ask that no allow rule replaces. By default the flags
        of the tool answer: see `toolbus.permissions.assessment.assessment_of_flags`.

        Args:
            context: The call. `context.patterns` has the patterns of rules that were asked about.
            arguments: The checked arguments, in the form for `execute`. Not to be changed.
        """
        return assessment_of_flags(self.manifest())

    def match_rule(self, pattern: str, arguments: dict[str, Any]) -> bool:
        """Return whether a rule's pattern covers a call with these arguments.

        The language of patterns is the tool's own; by default no pattern covers anything. It is
        called on a thread. What it raises makes every deny and ask pattern a match, and so does
        what it returns that is no bool.
        """
        return False

    @property
    def has_assess(self) -> bool:
        """Whether it assesses its inputs itself; else its flags answer."""
        return type(self).assess is not Tool.assess

    @property
    def has_patterns(self) -> bool:
        """Whether it has a `match_rule`."""
        return type(self).match_rule is not Tool.match_rule

    async def start(self, room: Any) -> None:
        """Prepare for calls; runs before the tool's toolkit is registered in a room."""

    async def stop(self) -> None:
        """Release what `start` acquired; runs after the last call has ended."""

    def read_arguments(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Check arguments against the schema and return them in the form for `execute`.

        Raises `InvalidArguments` with the first violation's path and message, and, if there are
        several, with up to 32 of them in `details["all"]`.
        """
        check = (self._compiled or self._compile()).arguments
        try:
            if check.fits(arguments):
                return arguments
        except ValueError:  # not JSON; the violation is found below
            pass
        raise invalid_arguments(check.violations(arguments))

    def read_steps(self, arguments: dict[str, Any]) -> Steps[dict[str, Any]]:
        """Do as `read_arguments`, for large arguments and in steps where that is possible."""
        yield
        return self.read_arguments(arguments)

    def make_result(self, value: Any) -> Chunk:
        """Convert the return value of `execute` to a chunk that matches the output schema.

        Raises `InvalidResult` if it does not match, or has no form that can be sent. What JSON or
        msgpack cannot carry is text in the chunk: see `result_chunk`. The first such result of a
        tool is logged.
        """
        if self._returned is not None and not isinstance(value, _SENT_AS_THEY_ARE):
            value = as_declared(self._returned, value)
        chunk = result_chunk(value)
        if chunk.as_text and not self._has_logged_text:
            self._has_logged_text = True
            place = chunk.as_text[0] or "/"
            further = len(chunk.as_text) - 1 + chunk.more_as_text
            _logger.warning(
                "tool %s: %s of a result is text, as JSON cannot carry it%s;"
                " later results of this tool are not logged",
                self.name,
                place,
                f" (and {further} further places)" if further else "",
            )
        check = (self._compiled or self._compile()).result
        if check is not None:
            check_result(check, chunk)
        return chunk

    def _compile(self) -> CompiledDefinition:
        yields = self._yields()
        if self.streaming != yields and self._declares_streaming():
            text = "yields" if yields else "yields nothing"
            raise ValueError(f"{self._label}: streaming is {self.streaming}, and execute {text}")
        self.streaming = yields
        self._check_judges()
        settled = super()._compile()
        self.input_parameter = self._input_parameter(settled)
        if self.input_parameter is not None:
            update = {
                "takes": self.input_parameter.takes,
                "takes_required": self.input_parameter.required,
            }
            settled = replace(settled, manifest=settled.manifest.model_copy(update=update))
            self._compiled = settled
        self.is_unary = not yields and self.input_parameter is None
        return settled

    def _check_judges(self) -> None:
        """Refuse an `assess` or a `match_rule` whose calls could only fail."""
        for name, is_async, must in (
            ("assess", True, "must be async"),
            ("match_rule", False, "must not be async"),
        ):
            method = getattr(type(self), name)
            found = (method, inspect.unwrap(method))
            if any(map(inspect.iscoroutinefunction, found)) is not is_async:
                raise TypeError(f"{self._label}: {name} {must}")

    def _yields(self) -> bool:
        """Return whether `execute` returns a stream. Raises `TypeError` if it is not async."""
        execute = type(self).execute
        inner = inspect.unwrap(execute)
        if inspect.isasyncgenfunction(execute):
            return True
        if inspect.iscoroutinefunction(execute) or inspect.iscoroutinefunction(inner):
            return False
        if inspect.isasyncgenfunction(inner):
            return True
        raise TypeError(f"{self._label}: execute must be async")

    def _declares_streaming(self) -> bool:
        declaring = (kind for kind in type(self).__mro__ if "streaming" in vars(kind))
        return "streaming" in vars(self) or next(declaring) is not ToolDefinition

    def _input_parameter(self, settled: CompiledDefinition) -> InputParameter | None:
        """Find the parameter for the input, unless the schema has one of its name."""
        if ATTACHMENT in settled.manifest.input_schema.get("properties", {}):
            return None
        return read_method_input(self.execute, self._label)


async def read_in_time(tool: Tool, run: ToolRun, arguments: dict[str, Any]) -> dict[str, Any]:
    """Check and convert arguments, large ones in slices. Raises `InvalidArguments`."""
    if not run.argument_bytes:
        return tool.read_arguments(arguments)
    return await run_in_slices(tool.read_steps(arguments), run.argument_bytes, continues=True)
