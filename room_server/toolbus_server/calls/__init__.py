"""Calls in flight: routing, streams, statistics."""
