"""What clients of MCP paste to use a room: their forms differ in a few keys."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any
from urllib.parse import quote

from toolbus_gateway.listing import Target

__all__ = [
    "TOKEN_VARIABLE",
    "ClientForm",
    "entry_name",
    "http_config",
    "room_address",
    "stdio_config",
]

TOKEN_VARIABLE = "TOOLBUS_TOKEN"
"""The variable that has a token; a client fills it in where the token itself is not printed."""
_QUESTION = {
    "type": "promptString",
    "id": "toolbus-token",
    "description": "Token of the room",
    "password": True,
}
"""Asked by VS Code once; it keeps the answer."""


class ClientForm(StrEnum):
    """Whose form it is."""

    CLAUDE = "claude"
    """That of Claude, which most clients share."""
    CURSOR = "cursor"
    VSCODE = "vscode"


_PLACES = {
    ClientForm.CLAUDE: f"${{{TOKEN_VARIABLE}}}",
    ClientForm.CURSOR: f"${{env:{TOKEN_VARIABLE}}}",
    ClientForm.VSCODE: f"${{input:{_QUESTION['id']}}}",
}
"""What each client replaces by the token."""


def entry_name(room: str, target: Target) -> str:
    """Return the name of an entry: letters, digits, `-` and `_`, as all clients take it."""
    return "-".join(filter(None, ("toolbus", room, target.toolkit)))


def room_address(gateway: str, room: str, target: Target) -> str:
    """Return the address of a room, or of one toolkit in it, at a gateway."""
    address = f"{gateway.rstrip('/')}/rooms/{room}/mcp"
    if target.toolkit is None:
        return address
    owner = "" if target.participant is None else f"?participant={quote(target.participant)}"
    return f"{address}/{target.toolkit}{owner}"


def stdio_config(
    form: ClientForm, name: str, command: Sequence[str], env: Mapping[str, str]
) -> dict[str, Any]:
    """Return the configuration that starts a command.

    Args:
        form: The client.
        name: The name of the entry.
        command: The program and its arguments.
        env: Variables that the program gets beside those of the client.
    """
    entry: dict[str, Any] = {"command": command[0], "args": list(command[1:])}
    if env:
        entry["env"] = dict(env)
    if form is ClientForm.VSCODE:
        return {"servers": {name: {"type": "stdio", **entry}}}
    return {"mcpServers": {name: entry}}


def http_config(form: ClientForm, name: str, address: str, token: str | None) -> dict[str, Any]:
    """Return the configuration that reaches a gateway.

    Args:
        form: The client.
        name: The name of the entry.
        address: The address of the room.
        token: The token; None for what the client takes from its user or from a variable.
    """
    headers = {"Authorization": f"Bearer {token or _PLACES[form]}"}
    entry = {"type": "http", "url": address, "headers": headers}
    if form is ClientForm.VSCODE:
        servers = {"servers": {name: entry}}
        return servers if token else {"inputs": [_QUESTION], **servers}
    return {"mcpServers": {name: entry}}
