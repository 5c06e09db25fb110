"""Measures a call against a bare relay, stock websockets and NATS, in one run on one machine."""
