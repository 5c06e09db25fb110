"""The limits of the gateway, each with who is hurt without it."""

from typing import Final

from toolbus.client.retry import DEFAULT_WAIT_FOR_HOST_S

__all__ = [
    "CALL_TIMEOUT_S",
    "HEARTBEAT_S",
    "LISTED_BYTES",
    "LISTED_TOOLS",
    "MAX_BODY_PARTS",
    "MAX_BODY_S",
    "MAX_DEFINITION_BYTES",
    "MAX_GONE_TOOLS",
    "MAX_HEADERS",
    "MAX_HEADERS_S",
    "MAX_HEADER_BYTES",
    "MAX_LISTENERS",
    "MAX_LISTEN_BYTES",
    "MAX_MEMBERS",
    "MAX_NAME_CHARS",
    "MAX_PER_ADDRESS",
    "MAX_PER_TOKEN",
    "MAX_PIPELINED",
    "MAX_REFUSAL_LINES",
    "MAX_REFUSED",
    "MAX_RESULT_BYTES",
    "MEMBER_IDLE_S",
    "REFUSED_S",
    "TOOLS_TTL_S",
    "WAIT_FOR_SERVER_S",
]

CALL_TIMEOUT_S: Final = 300.0
"""A call without an end would keep its client's connection and the host's place."""
WAIT_FOR_SERVER_S: Final = DEFAULT_WAIT_FOR_HOST_S
"""For which a request waits for a room server that is away: its client would learn so only at the
end of its call's time."""
HEARTBEAT_S: Final = 10.0
"""Between two progress messages at most: clients end a call that is silent for 30 to 300 s."""
LISTED_TOOLS: Final = 200
"""Beyond them a list fills the prompt of a model, and it gets a search in its place."""
LISTED_BYTES: Final = 512 * 1024
"""Of their definitions, for the same reason. And a list is written while everybody waits, 10 us for
each word: that of 200 tools may have 50 MiB."""
TOOLS_TTL_S: Final = 10.0
"""For which a client may use a list again: one that is not told of changes would call tools that
have gone."""
MAX_NAME_CHARS: Final = 64
"""Of the name of a tool: providers of models refuse a request with a longer one."""
MAX_RESULT_BYTES: Final = 8 * 1024 * 1024
"""Of the content of one result: all of it is in memory, and a third more as base64."""
MAX_DEFINITION_BYTES: Final = 64 * 1024 * 1024
"""Of the definitions that are kept, of all members: rooms choose how many there are."""
MAX_GONE_TOOLS: Final = 1_000
"""Names of tools that were listed, of one member: rooms may have ever new ones."""
MAX_LISTENERS: Final = 64
"""Streams about changed lists of one member: each keeps a task and a connection."""
MAX_MEMBERS: Final = 2_000
"""Connections to room servers: each takes memory here and a descriptor."""
MEMBER_IDLE_S: Final = 60.0
"""After which a connection without a request is closed: it takes memory here and at the server."""
MAX_REFUSED: Final = 1_000
"""Hashes of refused tokens that are kept: anybody can send any number of them."""
MAX_REFUSAL_LINES: Final = 20
"""A minute in the log, about refused requests: anybody could fill it."""
REFUSED_S: Final = 5.0
"""For which a refused token is not tried again: a flood of it would reach the room server."""
MAX_PER_ADDRESS: Final = 1_000
"""Requests at a time: one address would use all connections to the room server."""
MAX_PER_TOKEN: Final = 128
"""Requests at a time: each may have a body of 4 MiB and a result of 8 in memory."""
MAX_HEADER_BYTES: Final = 32 * 1024
"""The head of a request: anybody can send one, and it is in memory. A token has up to 16 KiB."""
MAX_HEADERS: Final = 100
"""Of a request: each takes far more memory than its bytes. Arguments are headers too."""
MAX_HEADERS_S: Final = 10.0
"""In which the head of a request arrives: a connection takes a descriptor, which others need."""
MAX_BODY_S: Final = 60.0
"""In which its body arrives, for the same reason."""
MAX_BODY_PARTS: Final = 66_000
"""Objects and lists in it: 4 MiB of them keep all other requests waiting for a second, and take 90
MB. A call may have 65,536 in its arguments."""
MAX_LISTEN_BYTES: Final = 64 * 1024
"""Of the body of a request for changed lists, which is in memory for as long as its stream."""
MAX_PIPELINED: Final = 16
"""Requests that wait behind one on its connection: 64 KiB of them would take megabytes here."""
