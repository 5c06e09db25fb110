"""The state of a room: participants, toolkits, generations. Pure."""
