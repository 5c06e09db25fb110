"""Several nodes that serve one bus, connected by Redis.

- `node`: this server's part; `lease` and `node_name`: membership.
- `replicated_room`, `replicated_rooms`: the state of a room, read from Redis and kept up to date by
  messages; `published_state` finds what has changed, `replication_codec` is the format in Redis,
  `room_index` lists the rooms.
- `peer_link`, `peer`: batches of frames to another node; `inbound_calls` serves the calls that
  arrive in them, `delivery_failures` ends those that were lost on the way.
- `remote_participants`, `remote_subscribers`, `remote_admin`: participants, events and
  administrators of other nodes.
- `redis`: connections to Redis; `scripts`: what runs inside it.
"""

from toolbus_server.missing_extra import extra_named

with extra_named():
    import hiredis as _hiredis  # noqa: F401 - only to name the extra if one of both is missing
    import redis as _redis  # noqa: F401
