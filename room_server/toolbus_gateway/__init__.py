"""The gateway: clients of MCP use the toolkits of a room with their own tokens.

The way of one call:

    http_app       the path names the room; the bearer token is checked
    member_pool    one connection of each token in each room
    mcp_server     the method of MCP, in either revision
    listing        the tools of the member, by the names that clients see
    tool_calls     the call in the room, its progress and its result

`stdio` serves one member on standard input and output in place of the first two.
"""
