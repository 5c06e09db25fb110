"""The limits of the gateway, each with who is hurt without it."""

from typing import Final

__all__ = [
    "CALL_TIMEOUT_S",
    "HEARTBEAT_S",
    "LISTED_TOOLS",
    "MAX_DEFINITION_BYTES",
    "MAX_LISTENERS",
    "MAX_MEMBERS",
    "MAX_NAME_CHARS",
    "MAX_REFUSED",
    "MAX_RESULT_BYTES",
    "MEMBER_IDLE_S",
    "REFUSED_S",
    "TOOLS_TTL_S",
]

CALL_TIMEOUT_S: Final = 300.0
"""A call without an end would keep its client's connection and the host's place."""
HEARTBEAT_S: Final = 10.0
"""Between two progress messages at most: clients end a call that is silent for 30 to 300 s."""
LISTED_TOOLS: Final = 200
"""Beyond them a list fills the prompt of a model, and it gets a search in its place."""
TOOLS_TTL_S: Final = 10.0
"""For which a client may use a list again: one that is not told of changes would call tools that
have gone."""
MAX_NAME_CHARS: Final = 64
"""Of the name of a tool: providers of models refuse a request with a longer one."""
MAX_RESULT_BYTES: Final = 8 * 1024 * 1024
"""Of the content of one result: all of it is in memory, and a third more as base64."""
MAX_DEFINITION_BYTES: Final = 64 * 1024 * 1024
"""Of the definitions that are kept, of all members: rooms choose how many there are."""
MAX_LISTENERS: Final = 64
"""Streams about changed lists of one member: each keeps a task and a connection."""
MAX_MEMBERS: Final = 2_000
"""Connections to room servers: each takes memory here and a descriptor."""
MEMBER_IDLE_S: Final = 60.0
"""After which a connection without a request is closed: it takes memory here and at the server."""
MAX_REFUSED: Final = 1_000
"""Hashes of refused tokens that are kept: anybody can send any number of them."""
REFUSED_S: Final = 5.0
"""For which a refused token is not tried again: a flood of it would reach the room server."""
