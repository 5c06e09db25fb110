"""Serves results of read-only tools again. In memory, bounded, for one event loop."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable, Mapping
from hashlib import sha256
from typing import Any, NamedTuple

import msgspec

from toolbus.chunks.chunk_types import Chunk, FileChunk, read_chunk
from toolbus.errors import InvalidArguments
from toolbus.middlewares.outcomes import checked_count, checked_seconds, extra_named, own_error
from toolbus.tools.middleware import CallNext, ToolCall
from toolbus.tools.tool_info import ToolInfo
from toolbus.tools.tool_run import Participant
from toolbus.wire import BadBody, pack_body

__all__ = ["Cache"]

_ENTRY_BYTES = 512
"""What an entry costs besides its packed chunks, roughly."""
_KEY_ENCODER = msgspec.msgpack.Encoder(order="deterministic")


class _SameObject:
    """Equal to another one of the same object, which it keeps alive."""

    __slots__ = ("_value",)

    def __init__(self, value: object) -> None:
        self._value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _SameObject) and self._value is other._value

    def __hash__(self) -> int:
        return id(self._value)


class _Entry(NamedTuple):
    chunks: tuple[bytes, ...]
    """The chunks, packed: they cannot change, and their size is known."""
    size: int
    ttl_s: float


class Cache:
    """A middleware that serves results of `read_only` tools again, for equal calls.

    A tool is cached for its `cache_ttl_s`, or as `tools` says. Calls are equal if owner (name and
    issuer), digest, tool, arguments, caller, principal and those that it was forwarded for are, and
    the `caller_context` where the tool reads it; 1, 1.0 and True are three arguments. For a toolkit
    of this process, which has no digest, the tool's own definition object takes its place, so that
    two toolkits never share.

    A result is kept when the call has ended well and is whole: no failures, no cut streams, no
    files in pieces. Equal calls that run at the same time each run. Tools that take an input are
    not cached. The least recently used results go first where a limit is reached.

    Needs the extra `toolbus[middlewares]`; raises `ModuleNotFoundError` without it.

    Args:
        max_entries: How many results it keeps.
        max_bytes: How many bytes they have in sum; a larger result is not kept.
        tools: Seconds for tools, by `toolkit.tool`, in place of what they say.
        clock: A monotonic clock in seconds.

    Raises `TypeError` or `ValueError` for other values. A toolkit raises `ValueError` when it is
    made with a cache for a tool that is not `read_only`: in the tool's own list, in `tools`, or
    because the tool has a `cache_ttl_s`. Where a tool is first known in a call, a call of one that
    `tools` names and that is not `read_only` is `InvalidArguments`.
    """

    def __init__(
        self,
        *,
        max_entries: int = 1_000,
        max_bytes: int = 16 * 1024 * 1024,
        tools: Mapping[str, float] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._max_entries = checked_count("max_entries", max_entries)
        self._max_bytes = checked_count("max_bytes", max_bytes)
        if not isinstance(tools, Mapping | None):
            raise TypeError('tools must be a dict such as {"words.count": 60}')
        self._tools = {
            name: checked_seconds(f"tools[{name!r}]", ttl_s)
            for name, ttl_s in (tools or {}).items()
        }
        with extra_named("Cache"):
            from cachetools import TLRUCache
        self._entries: TLRUCache[Any, _Entry] = TLRUCache(
            max_bytes,
            ttu=lambda key, entry, now: now + entry.ttl_s,
            timer=clock,
            getsizeof=lambda entry: entry.size,
        )

    def __len__(self) -> int:
        """Return the number of results that it keeps."""
        self._entries.expire()
        return len(self._entries)

    def clear(self) -> None:
        """Drop all results, so that every next call runs."""
        self._entries.clear()

    def check_tool(self, tool: ToolInfo, own: bool) -> None:
        """Raise `ValueError` for a tool that is to be cached and cannot be."""
        is_asked = own or tool.name in self._tools or tool.cache_ttl_s is not None
        if not is_asked:
            return
        if not tool.read_only:
            raise ValueError(_refusal(tool))
        if self._ttl_s(tool) is None and own:
            raise ValueError(f"tool {tool.name}: Cache needs its cache_ttl_s, in seconds")
        if tool.takes and own:
            raise ValueError(f"tool {tool.name} takes an input: Cache cannot compare inputs")

    async def __call__(self, call: ToolCall, next: CallNext, /) -> AsyncGenerator[Chunk, None]:
        """Serve the call from the cache, or run it and keep its result."""
        tool = call.tool
        if tool.name in self._tools and not tool.read_only:
            details = {"path": f"/tools/{tool.name}", "message": _refusal(tool)}
            refusal = InvalidArguments(_refusal(tool), details=details)
            raise own_error(call, refusal, began=False)
        ttl_s = self._ttl_s(tool)
        key = None
        if ttl_s is not None and tool.read_only and not tool.takes:
            key = _key_of(call)
        if key is not None and (entry := self._entries.get(key)) is not None:
            for packed in entry.chunks:
                yield read_chunk(packed)
            return
        result = _Recording(self._max_bytes if key is not None else 0)
        async for chunk in next(call):
            result.add(chunk)
            yield chunk
        if ttl_s is not None and result.is_complete and (tool.streaming or len(result.chunks) == 1):
            self._entries[key] = _Entry(tuple(result.chunks), result.size, ttl_s)
            while len(self._entries) > self._max_entries:
                self._entries.popitem()

    def _ttl_s(self, tool: ToolInfo) -> float | None:
        return self._tools.get(tool.name, tool.cache_ttl_s)


class _Recording:
    """The packed chunks of one result, as long as they fit; with 0 bytes it records nothing."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self.chunks: list[bytes] = []
        self.size = _ENTRY_BYTES
        self.is_complete = max_bytes >= _ENTRY_BYTES
        """Whether all chunks so far are recorded."""

    def add(self, chunk: Chunk) -> None:
        if not self.is_complete:
            return
        is_sendable = not isinstance(chunk, FileChunk) or chunk.is_whole
        if is_sendable:
            try:
                self.chunks.append(pack_body(chunk.to_wire()))
                self.size += len(self.chunks[-1])
            except BadBody:
                is_sendable = False
        if not is_sendable or self.size > self._max_bytes:
            self.is_complete = False
            self.chunks.clear()


def _key_of(call: ToolCall) -> tuple[bytes, _SameObject | None] | None:
    """Return what equal calls share; None if the call cannot be compared."""
    tool, context = call.tool, call.context
    parts = (
        *(tool.owner, tool.issuer, tool.digest, tool.name),
        dict(call.arguments),
        _identity(context.caller),
        _identity(context.on_behalf_of),
        [_identity(participant) for participant in context.forwarded_for],
        context.caller_context if tool.supports_context else None,
    )
    try:
        packed = _KEY_ENCODER.encode(parts)
    except (TypeError, ValueError, OverflowError, RecursionError):  # not JSON: the tool refuses it
        return None
    # Each toolkit has schemas of its own, which live as long as its tools do.
    definition = None if tool.digest else _SameObject(tool.input_schema)
    return sha256(packed).digest(), definition


def _identity(participant: Participant | None) -> tuple[str, str] | None:
    return None if participant is None else (participant.issuer, participant.name)


def _refusal(tool: ToolInfo) -> str:
    return f"tool {tool.name} is not read_only: Cache serves only tools that change nothing"
