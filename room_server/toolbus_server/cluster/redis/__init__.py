"""The connection to Redis, and the checks of a Redis."""
