"""Several nodes that serve one bus, connected by Redis.

- `node`: this server's part, and the calls that arrive from other nodes; `lease`: membership;
  `exchange`: the version of what nodes exchange; `isolation`: the time without Redis;
  `standby`: the time beside nodes of another release.
- `replicated_room`, `replicated_rooms`: the state of a room, read from Redis and kept up to date by
  messages; `replication_codec` is the format in Redis.
- `peer_link`, `peer`: batches of frames to another node, and the ends of calls that were lost in
  them.
- `remote_participants`, `remote_admin`: participants, subscribers and administrators of other
  nodes.
- `redis`: connections to Redis; `scripts`: what runs inside it.
"""

from toolbus_server.missing_extra import extra_named

with extra_named():
    import hiredis as _hiredis  # noqa: F401 - only to name the extra if one of both is missing
    import redis as _redis  # noqa: F401
