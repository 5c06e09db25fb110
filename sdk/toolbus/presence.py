"""What a participant says of itself, kept so that it is said again after a reconnect.

The server may have kept it or not, and may have done what its lost answer did not tell; what is
said again is therefore all of it, so that both sides agree afterwards.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from toolbus.calls import Caller
from toolbus.errors import InvalidArguments, RoomException
from toolbus.people import BuilderInfo
from toolbus.plain_json import packed_json
from toolbus.wire import MAX_ATTRIBUTES_BYTES, Attributes, Builders, pack_body, unpack_body

__all__ = ["Presence"]

_logger = logging.getLogger(__name__)


class Presence:
    """The attributes and the builders of one participant.

    Args:
        caller: Asks the server.
    """

    def __init__(self, caller: Caller) -> None:
        self._caller = caller
        self._attributes: dict[str, Any] = {}
        self._unsure: set[str] = set()
        """Attributes of which the server may or may not have heard."""
        self._offers: list[dict[str, Any]] | None = None

    async def set_attributes(self, attributes: Mapping[str, Any]) -> None:
        """Change some; None takes one away.

        Raises:
            InvalidArguments: They are no JSON values, too many or too long; nothing has changed.
            RoomException: The server could not be told.
        """
        # A copy, so that what the caller changes later is not said again as if it were set.
        changes: dict[str, Any] = unpack_body(packed_json("attributes", dict(attributes)))
        said = {name: value for name, value in changes.items() if value is not None}
        if len(pack_body(said)) > MAX_ATTRIBUTES_BYTES:
            words = f"attributes have at most {MAX_ATTRIBUTES_BYTES} bytes together"
            details = {"path": "/attributes", "message": words}
            raise InvalidArguments(words, details=details)
        try:
            await self._caller.request(Attributes, changes)
        except BaseException as error:
            if _may_be_known(error):
                self._unsure |= changes.keys()
            raise
        merged = {**self._attributes, **changes}
        self._attributes = {name: value for name, value in merged.items() if value is not None}
        self._unsure -= changes.keys()

    async def offer_builders(self, builders: Sequence[BuilderInfo]) -> None:
        """Say which toolkits are built on request; replaces what was said before.

        Raises:
            InvalidArguments: One is no `BuilderInfo`, or has no toolkit's name or no JSON Schema.
            RoomException: The server could not be told.
        """
        if not all(isinstance(each, BuilderInfo) for each in builders):
            words = "builders are offered as BuilderInfo: builder_infos(builders) makes them"
            raise InvalidArguments(words)
        packed = packed_json("offer", [each.to_wire() for each in builders])
        offers: list[dict[str, Any]] = unpack_body(packed)
        try:
            await self._caller.request(Builders, {"offer": offers})
        except BaseException as error:
            if _may_be_known(error) and self._offers is None:
                self._offers = []
            raise
        self._offers = offers

    async def say_again(self, deadline_at: float) -> None:
        """Tell the connection that is there now what the one before it was told."""
        attributes = {**dict.fromkeys(self._unsure), **self._attributes}
        try:
            if attributes:
                await self._caller.ask(Attributes, attributes, deadline_at=deadline_at)
                self._unsure.clear()
            if self._offers is not None:
                options = {"offer": self._offers}
                await self._caller.ask(Builders, options, deadline_at=deadline_at)
        except RoomException as error:
            _logger.error("what this participant says of itself is not known: %s", error)


def _may_be_known(error: BaseException) -> bool:
    """Tell whether the server may have done what this error, or a cancel, came of."""
    return not isinstance(error, RoomException) or error.executed != "no"
