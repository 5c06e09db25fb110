"""The toolbus room server; it needs the packages of the extra `server`."""

from toolbus_server.missing_extra import extra_named as _extra_named

with _extra_named():
    from toolbus_server.limits import Limits
    from toolbus_server.settings import ServerSettings
    from toolbus_server.websocket.server import RoomServer

__all__ = ["Limits", "RoomServer", "ServerSettings"]
