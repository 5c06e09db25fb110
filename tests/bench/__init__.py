"""Measures the bus against bare relays, NATS, WAMP and MCP, in one run on one machine."""
