"""Finding tools where a room has more of them than a prompt holds."""
