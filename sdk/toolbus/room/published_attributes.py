"""The attributes and builders that a participant publishes, kept for the next connection.

After a reconnect the server may have kept them or not, and a request whose reply was lost may have
been carried out. Therefore everything is published again, so that both sides agree.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from toolbus.bounded_logging import bounded_logger
from toolbus.chunks.json_values import packed_json
from toolbus.client.caller import Caller
from toolbus.errors import InvalidArguments, RoomException
from toolbus.room.participants import BuilderInfo
from toolbus.wire import MAX_ATTRIBUTES_BYTES, Attributes, Builders, pack_body, unpack_body

__all__ = ["PublishedAttributes"]

_logger = bounded_logger(__name__)


class PublishedAttributes:
    """The published attributes and builders of one participant.

    Args:
        caller: Sends the requests.
    """

    def __init__(self, caller: Caller) -> None:
        self._caller = caller
        self._attributes: dict[str, Any] = {}
        self._unconfirmed: set[str] = set()
        """Names of attributes whose change had no reply."""
        self._offers: list[dict[str, Any]] | None = None

    async def set_attributes(self, attributes: Mapping[str, Any]) -> None:
        """Change some attributes; None removes one.

        Raises:
            InvalidArguments: They are not JSON, too many or too long; nothing has changed.
            RoomException: The request failed.
        """
        # A copy, so that later changes by the program are not published by `replay`.
        changes: dict[str, Any] = unpack_body(packed_json("attributes", dict(attributes)))
        present = {name: value for name, value in changes.items() if value is not None}
        if len(pack_body(present)) > MAX_ATTRIBUTES_BYTES:
            words = f"attributes have at most {MAX_ATTRIBUTES_BYTES} bytes together"
            details = {"path": "/attributes", "message": words}
            raise InvalidArguments(words, details=details)
        try:
            await self._caller.request(Attributes, changes)
        except BaseException as error:
            if _may_be_applied(error):
                self._unconfirmed |= changes.keys()
            raise
        merged = {**self._attributes, **changes}
        self._attributes = {name: value for name, value in merged.items() if value is not None}
        self._unconfirmed -= changes.keys()

    async def offer_builders(self, builders: Iterable[BuilderInfo]) -> None:
        """Publish the toolkits that are built on request; replaces the previous list.

        Raises:
            InvalidArguments: One is not a `BuilderInfo`, or its name or JSON Schema is invalid.
            RoomException: The request failed.
        """
        offered = tuple(builders) if isinstance(builders, Iterable) else (None,)
        if not all(isinstance(builder, BuilderInfo) for builder in offered):
            maker = "toolbus.turns.builders.builder_infos"
            raise InvalidArguments(f"builders are offered as BuilderInfo: {maker} makes them")
        packed = packed_json("offer", [builder.to_wire() for builder in offered])
        offers: list[dict[str, Any]] = unpack_body(packed)
        try:
            await self._caller.request(Builders, {"offer": offers})
        except BaseException as error:
            if _may_be_applied(error) and self._offers is None:
                self._offers = []
            raise
        self._offers = offers

    async def replay(self, deadline_at: float) -> None:
        """Publish everything on the new connection."""
        attributes = {**dict.fromkeys(self._unconfirmed), **self._attributes}
        try:
            if attributes:
                await self._caller.ask(Attributes, attributes, deadline_at=deadline_at)
                self._unconfirmed.clear()
            if self._offers is not None:
                options = {"offer": self._offers}
                await self._caller.ask(Builders, options, deadline_at=deadline_at)
        except RoomException as error:
            _logger.error("attributes and builders could not be published again: %s", error)


def _may_be_applied(error: BaseException) -> bool:
    """Whether the server may have carried out a request that ended with this error."""
    return not isinstance(error, RoomException) or error.executed != "no"
