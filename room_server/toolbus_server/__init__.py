"""The toolbus room server; it needs the packages of the extra `server`."""

try:
    from toolbus_server.limits import Limits
    from toolbus_server.settings import ServerSettings
    from toolbus_server.websocket.server import RoomServer
except ModuleNotFoundError as error:
    if error.name is None or error.name.startswith("toolbus"):
        raise
    raise ModuleNotFoundError(
        f"the server needs {error.name}, which is not installed: pip install 'toolbus[server]'",
        name=error.name,
    ) from None

__all__ = ["Limits", "RoomServer", "ServerSettings"]
