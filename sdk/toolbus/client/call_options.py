"""The options of a call, and the type of its result. Invalid ones are refused before it is sent.

`Room.invoke`, `stream`, `assess` and `explain`, and those of a `Turn`, have them as keywords, so
that editors show them; below that each call has one `CallOptions`.
"""

from __future__ import annotations

from collections.abc import Callable
from inspect import iscoroutinefunction
from sys import float_info
from types import FunctionType
from typing import Any, get_args

from msgspec import Struct
from msgspec.structs import force_setattr
from pydantic import TypeAdapter

from toolbus.chunks.attachments import as_attachment, check_readable
from toolbus.chunks.chunk_sequences import file_bodies
from toolbus.chunks.chunk_types import Chunk, FileChunk
from toolbus.chunks.json_values import packed_json, shown
from toolbus.client.caller import DEFAULT_TIMEOUT_S
from toolbus.client.input_sender import InputSender, as_items, bodies_of_items, invalid_option
from toolbus.tools.approvers import (
    DEFAULT_APPROVAL_S,
    approval_milliseconds,
    approval_seconds,
)
from toolbus.wire import MAX_PURPOSE_CHARS, BadBody, pack_body

__all__ = [
    "MAX_TIMEOUT_S",
    "NO_OPTIONS",
    "CallOptions",
    "call_seconds",
    "converted",
    "is_time",
    "result_type",
    "text_of",
    "waiting_seconds",
]

MAX_TIMEOUT_S = 2**31
"""The timeout of a call is below this number of seconds."""
_NAMES = ("participant", "on_behalf_of", "pin")


def text_of(what: str, value: Any) -> str:
    """Return a string as a plain `str`; the server would refuse a subclass as a broken frame.

    Raises InvalidArguments that names `what`.
    """
    if not isinstance(value, str):
        raise invalid_option(what, f"{what} must be text, not {type(value).__name__}")
    return str.__str__(value)


def is_time(value: object) -> bool:
    """Whether this is a finite number of seconds, 0 or more."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return 0 <= value <= float_info.max


def call_seconds(value: Any, default_s: float = DEFAULT_TIMEOUT_S) -> float:
    """Validate the timeout of a call in seconds; None is the default. Raises InvalidArguments."""
    if value is None:
        return default_s
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if is_number and -MAX_TIMEOUT_S < value < MAX_TIMEOUT_S:
        return float(value)
    raise invalid_option("timeout_s", "timeout_s must be a finite number of seconds")


def waiting_seconds(value: Any) -> float:
    """Validate for how many seconds a call waits for a host. Raises InvalidArguments."""
    if is_time(value) and value < MAX_TIMEOUT_S:
        return float(value)
    text = "wait_for_host_s must be a number of seconds, 0 or more"
    raise invalid_option("wait_for_host_s", text)


class CallOptions(Struct, frozen=True, kw_only=True, eq=False):
    """The options of one call, checked once: those that `Room.invoke` and `stream` document.

    Raises `InvalidArguments` for an invalid one.
    """

    # A struct as the plan of the call: a frozen dataclass takes a microsecond longer, in each call.

    timeout_s: float = DEFAULT_TIMEOUT_S
    """As `call_seconds` returns it; infinity means unlimited."""
    participant: str | None = None
    on_behalf_of: str | None = None
    pin: str | None = None
    caller_context: Any = None
    attachment: Any = None
    """A `FileChunk`, made of whatever stands for a file."""
    input: Any = None
    """An async iterator, made of any iterable."""
    retry: bool = True
    wait_for_host_s: float | None = None
    stall_timeout_s: float | None = None
    on_progress: Callable[[Any], None] | None = None
    on_held: Callable[[Any], None] | None = None
    purpose: str | None = None
    approval_timeout_s: float | None = DEFAULT_APPROVAL_S

    def __post_init__(self) -> None:
        for name in _NAMES:
            value = getattr(self, name)
            if value is not None and type(value) is not str:
                force_setattr(self, name, text_of(name, value))
        if self.wait_for_host_s is not None:
            force_setattr(self, "wait_for_host_s", waiting_seconds(self.wait_for_host_s))
        stall_s = self.stall_timeout_s
        if stall_s is not None and not (is_time(stall_s) and 0 < stall_s < MAX_TIMEOUT_S):
            text = "stall_timeout_s must be a number of seconds above 0, or None"
            raise invalid_option("stall_timeout_s", text)
        if self.on_progress is not None or self.on_held is not None:
            self._check_functions()
        if self.purpose is not None or self.approval_timeout_s != DEFAULT_APPROVAL_S:
            self._check_approval()
        if self.attachment is not None:
            if self.input is not None:
                raise invalid_option("input", "a call takes input or an attachment, not both")
            force_setattr(self, "attachment", as_attachment(self.attachment))
        if self.input is not None:
            force_setattr(self, "input", as_items(self.input))

    def _check_functions(self) -> None:
        for name in ("on_progress", "on_held"):
            report = getattr(self, name)
            if report is not None and (not callable(report) or iscoroutinefunction(report)):
                text = f"{name} must be a plain function with one parameter"
                raise invalid_option(name, text)

    def _check_approval(self) -> None:
        """Check what concerns the persons who approve the call."""
        if self.purpose is not None:
            force_setattr(self, "purpose", text_of("purpose", self.purpose))
            if len(self.purpose) > MAX_PURPOSE_CHARS:
                text = f"purpose must have at most {MAX_PURPOSE_CHARS} characters"
                raise invalid_option("purpose", text)
        try:
            seconds = approval_seconds(self.approval_timeout_s, "the call")
        except ValueError as error:
            raise invalid_option("approval_timeout_s", str(error)) from None
        force_setattr(self, "approval_timeout_s", seconds)

    @property
    def has_input(self) -> bool:
        """Whether the call sends an attachment or values."""
        return self.attachment is not None or self.input is not None

    def to_wire(self) -> dict[str, Any]:
        """Return the options that every call sends. Raises `InvalidArguments` for the context."""
        sent: dict[str, Any] = {}
        for name in _NAMES:
            value = getattr(self, name)
            if value is not None:
                sent[name] = value
        if self.caller_context is not None:
            try:
                sent["caller_context"] = pack_body(self.caller_context)
            except BadBody:
                sent["caller_context"] = packed_json("caller", self.caller_context)
        if self.has_input:
            sent["input"] = True
        if self.on_progress is not None:
            sent["progress"] = True
        if self.purpose is not None:
            sent["purpose"] = self.purpose
        if self.approval_timeout_s != DEFAULT_APPROVAL_S:
            sent["approval_ms"] = approval_milliseconds(self.approval_timeout_s)
        return sent

    async def input_sender(self) -> InputSender | None:
        """Make the sender of the input; None if there is none.

        Raises:
            OSError: A local file cannot be read.
        """
        if self.attachment is not None:
            await check_readable(self.attachment)
            return InputSender(file_bodies(self.attachment))
        return None if self.input is None else InputSender(bodies_of_items(self.input))


NO_OPTIONS = CallOptions()
"""The options of a call that names none."""


def result_type(returns: Any) -> Any:
    """Return a requested type as `converted` takes it: a class of chunks, or an adapter.

    Raises TypeError if no result can be converted to it.
    """
    if isinstance(returns, TypeAdapter):
        return returns
    try:
        if isinstance(returns, type) and any(issubclass(kind, returns) for kind in get_args(Chunk)):
            return returns
        if isinstance(returns, str | FunctionType):  # pydantic accepts some of these
            raise TypeError("text or a function")
        adapter: TypeAdapter[Any] = TypeAdapter(returns)
        _ = adapter.validator.title  # raises if a name in an annotation cannot be resolved
    except Exception as error:
        text = f"returns must be a type that pydantic can read, not {shown(returns)}"
        raise TypeError(text) from error
    return adapter


async def converted(chunk: Chunk, returns: Any) -> Any:
    """Convert a result into a type; a file that becomes its bytes is read completely first."""
    if isinstance(chunk, FileChunk) and not chunk.is_whole and returns is not FileChunk:
        chunk = FileChunk(await chunk.read(), chunk.name, chunk.mime_type)
    return chunk.into(returns)
