"""The toolbus room server."""

from toolbus_server.limits import Limits
from toolbus_server.server import RoomServer
from toolbus_server.settings import ServerSettings

__all__ = ["Limits", "RoomServer", "ServerSettings"]
