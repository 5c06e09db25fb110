"""The toolbus room server."""

from toolbus_server.limits import Limits
from toolbus_server.settings import ServerSettings
from toolbus_server.websocket.server import RoomServer

__all__ = ["Limits", "RoomServer", "ServerSettings"]
