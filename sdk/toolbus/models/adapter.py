"""What a provider's module offers (`Adapter`), and what asks its API (`Model`)."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

from toolbus.chunks.chunk_types import FileChunk
from toolbus.models.endings import Ending
from toolbus.models.token_usage import TokenUsage
from toolbus.turns.tool_use import ToolResult, ToolUse
from toolbus.turns.turn import Turn

__all__ = ["Adapter", "Conversation", "Model", "Plain"]

Plain: TypeAlias = dict[str, Any]
"""A JSON object as a provider's API takes or gives it."""
Conversation: TypeAlias = Sequence[Mapping[str, Any]]
"""The messages so far, oldest first, in the form of the provider: of `user` and `messages`."""


class Adapter(Protocol):
    """The words of one provider: pure functions over plain dicts, which the module's functions are.

    Nothing here waits, asks a network, or keeps a state. What a function returns may share parts
    with what it was given: do not change it in place.
    """

    def definitions(self, turn: Turn) -> list[Plain]:
        """Return the tools that can be called now, as the provider's tool definitions.

        A tool whose schema the provider takes in no form is a `ValueError` with its name; one of
        others is left out, and the log names it.
        """

    def request(self, turn: Turn, conversation: Conversation, instructions: str = "") -> Plain:
        """Return what the client's create call takes, apart from the model and the key.

        Args:
            turn: Its tools and its `prompt()` are part of the request.
            conversation: The messages so far.
            instructions: What the model reads before everything else.
        """

    def portable(self, conversation: Conversation) -> list[Plain]:
        """Return messages as another model of this API takes them.

        Thoughts, signatures and encrypted reasoning are left out, and what a tool of the provider
        gave: a server refuses those of another model. So may a message be that has nothing else.
        """

    def user(self, text: str, files: Iterable[FileChunk] = ()) -> Plain:
        """Return a message of the user.

        Args:
            text: What the user says.
            files: Pictures and documents, in memory.

        Raises `ValueError` for a file that is not in memory, or whose type or size the provider
        does not take, and for a message that is empty.
        """

    def uses(self, reply: Mapping[str, Any]) -> list[ToolUse]:
        """Return what the model asks for, in order; empty if this reply ends the loop.

        Raises `ModelError` for what is no reply of this API, and for one that says it failed.
        """

    def text(self, reply: Mapping[str, Any]) -> str:
        """Return what the model says to the user; thoughts are no part of it.

        Raises `ModelError` as `uses`.
        """

    def ending(self, reply: Mapping[str, Any]) -> Ending:
        """Return why the reply ended, and whether it has nothing for the user.

        Raises `ModelError` as `uses`.
        """

    def usage(self, reported: Mapping[str, Any]) -> TokenUsage:
        """Return how many tokens the request and the reply had; 0 where the server counts none.

        Args:
            reported: A reply, or an event of a streamed one; most events tell nothing. Several
                events may tell how many it was until then: the largest numbers are those of the
                reply.
        """

    def messages(self, reply: Mapping[str, Any], results: Sequence[ToolResult]) -> list[Plain]:
        """Return the reply and the results of its uses, to append to the conversation.

        Each use gets a result, in the order of the uses; one that has none in `results` counts as
        interrupted, since providers refuse a use without a result.

        Raises `ModelError` for what is no reply of this API, and `ValueError` for a result whose id
        no use of the reply has.
        """

    def collect(self, events: Iterable[Mapping[str, Any]]) -> Plain:
        """Put a streamed reply together: the same as the whole response would have been.

        Raises `ModelError` if the stream ended before the reply did, or has an error.
        """

    def text_of(self, event: Mapping[str, Any]) -> str:
        """Return the text that an event of a streamed reply adds to `text`; usually to show it."""


class Model(Protocol):
    """A model that answers requests of its adapter; `open_model` makes one."""

    @property
    def adapter(self) -> Adapter:
        """The words that it speaks."""

    async def reply(self, request: Mapping[str, Any]) -> Plain:
        """Ask the model and return the whole response. Raises `ModelError`."""

    def stream(self, request: Mapping[str, Any]) -> AsyncGenerator[Plain, None]:
        """Ask the model and yield the events of its reply, which `collect` of the adapter joins.

        Leaving the loop early ends the request; leave it with `contextlib.aclosing`. Raises
        `ModelError`, also between events.
        """

    async def aclose(self) -> None:
        """Close the connections of the client. The model can be used again after that."""
