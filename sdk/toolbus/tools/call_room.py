"""The type of `context.room`: the methods of a room that a running tool can use.

A protocol, because the package of rooms is above that of tools. A hosted tool gets a
`toolbus.Room`, which has all of these methods.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from types import UnionType
from typing import TYPE_CHECKING, Any, Protocol, TypedDict, TypeVar, Unpack, overload

from toolbus.chunks.chunk_types import Chunk
from toolbus.permissions.assessment import Assessment

if TYPE_CHECKING:
    from typing import _SpecialForm  # what type checkers take `Literal[...]` for

__all__ = ["CallRoom", "InvokeOptions", "StreamOptions"]

T = TypeVar("T")


class _Options(TypedDict, total=False):
    participant: str | None
    timeout_s: float | None
    on_behalf_of: str | None
    caller_context: dict[str, Any] | None
    attachment: Any
    pin: str | None
    retry: bool
    wait_for_host_s: float | None
    on_progress: Callable[[Any], None] | None
    on_held: Callable[[Any], None] | None
    purpose: str | None
    approval_timeout_s: float | None


class InvokeOptions(_Options, total=False):
    """The options of `Room.invoke`, apart from `returns`."""


class StreamOptions(_Options, total=False):
    """The options of `Room.stream`."""

    input: Any
    stall_timeout_s: float | None


class CallRoom(Protocol):
    """The room of a call. What a tool calls through it is nested in the tool's own call.

    A nested call has the same principal and no more time than the call itself. `toolbus.Room`
    documents the parameters of each method and the errors that it raises.
    """

    @overload
    async def call(self, tool: str, arguments: Mapping[str, Any] | None = None, /) -> Any: ...
    @overload
    async def call(self, tool: str, /, **arguments: Any) -> Any: ...
    async def call(self, tool: str, arguments: Any = None, /, **named: Any) -> Any:
        """Call a tool, written `toolkit.tool`, and return the plain value."""

    @overload
    async def invoke(
        self,
        tool: str,
        arguments: Mapping[str, Any] | None = None,
        /,
        *,
        returns: type[T],
        **options: Unpack[InvokeOptions],
    ) -> T: ...
    @overload
    async def invoke(
        self,
        tool: str,
        arguments: Mapping[str, Any] | None = None,
        /,
        *,
        returns: UnionType | _SpecialForm | None = None,
        **options: Unpack[InvokeOptions],
    ) -> Any: ...
    async def invoke(self, tool: str, arguments: Any = None, /, **options: Any) -> Any:
        """Call a tool and return its chunk, or its value as the type `returns`."""

    def stream(
        self,
        tool: str,
        arguments: Mapping[str, Any] | None = None,
        /,
        **options: Unpack[StreamOptions],
    ) -> AbstractAsyncContextManager[AsyncIterator[Chunk]]:
        """Call a tool and read its chunks as they arrive."""

    async def assess(  # noqa: PLR0913 - the promised signature
        self,
        tool: str,
        arguments: Mapping[str, Any] | None = None,
        /,
        *,
        patterns: Sequence[str] = (),
        participant: str | None = None,
        on_behalf_of: str | None = None,
        pin: str | None = None,
        timeout_s: float = 5.0,
    ) -> Assessment:
        """Ask what a tool says about one input, where it runs; nothing else of it runs."""

    def forwarding(self) -> CallRoom:
        """Return the room as the caller of this call sees it: its calls are forwarded ones."""

    async def toolkit(
        self, name: str, participant: str | None = None, pin: str | None = None
    ) -> Any:
        """Return a proxy of a toolkit, with its tools as methods."""

    def toolkits(self, search: str | None = None) -> AsyncGenerator[Any, None]:
        """List the toolkits that the host can see."""

    async def participants(self) -> list[Any]:
        """List the participants of the room."""

    async def list_builders(self, participant: str) -> list[Any]:
        """List the toolkits that a participant builds on request."""

    async def send(self, to: str, name: str, body: Any = None) -> int:
        """Send a message to the participants of a name."""

    async def broadcast(self, name: str, body: Any = None) -> int:
        """Send a message to all other participants of the room."""
