"""Which definition of a hosted toolkit a dispatch means, on each connection of one participant.

A dispatch names a toolkit, not its definition. The server sends the reply to a registration in the
order of its dispatches: those before it mean the old definition, those after it the new one. So the
reply itself, as it is read, switches the definition. Where that order is unknown, because a
connection was lost between request and reply, calls are refused as `no_host`, which callers try
again, until the server has confirmed one of both.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from math import inf

from toolbus.hosting.hosted_toolkit import HostedToolkit, InvalidOffer
from toolbus.tools.toolkit import Toolkit

__all__ = ["Definitions"]

_NEVER = -1


class Definitions:
    """The toolkits that one participant hosts, by name and whether they are public."""

    __slots__ = ("_hosted", "_latest", "_numbers", "get")

    def __init__(self) -> None:
        self._hosted: dict[tuple[str, bool], HostedToolkit] = {}
        self._numbers = count(1)
        self._latest: tuple[float, object | None] = (0, None)
        self.get: Callable[[tuple[str, bool]], HostedToolkit | None] = self._hosted.get
        """Find what is hosted by its key."""

    def add_connection(self, connection: object | None) -> float:
        """Return the number of a new connection: higher than those of all before it."""
        self._latest = next(self._numbers), connection
        return self._latest[0]

    def add(self, toolkit: Toolkit, *, public: bool) -> HostedToolkit:
        """Host a toolkit. Raises InvalidOffer if one of its name is hosted already."""
        hosted = HostedToolkit(toolkit, public)
        if hosted.key in self._hosted:
            raise InvalidOffer(f"this connection already hosts a toolkit {toolkit.name}")
        self._hosted[hosted.key] = hosted
        return hosted

    def remove(self, hosted: HostedToolkit) -> None:
        """Accept no more calls for a toolkit; no effect if it has been replaced."""
        if self._hosted.get(hosted.key) is hosted:
            del self._hosted[hosted.key]

    # Replacing a definition

    def request(self, old: HostedToolkit) -> None:
        """Note that the server is being asked to replace a definition.

        Calls of later connections are in doubt until the reply, or until `confirm`.
        """
        old.limit_to(old.first_connection, min(old.last_connection, self._latest[0]))

    def accept(self, old: HostedToolkit, new: HostedToolkit, connection: object | None) -> bool:
        """Switch to the new definition as the reply is read.

        Returns False if there is a newer connection: the old definition was registered there, and
        the server has to be asked again.
        """
        number, latest = self._latest
        if connection is not latest:
            old.limit_to(number, _NEVER)
            return False
        new.limit_to(number, new.last_connection)
        self._hosted[new.key] = new
        return True

    def doubt(self, hosted: HostedToolkit) -> None:
        """Refuse calls until `confirm`: it is unknown which definition the server has."""
        hosted.limit_to(hosted.first_connection, _NEVER)

    def confirm(self, hosted: HostedToolkit, connection: object | None = None) -> None:
        """Serve a definition that the server has: by its reply on a connection, or as before."""
        if connection is None or connection is self._latest[1]:
            hosted.limit_to(hosted.first_connection, inf)
