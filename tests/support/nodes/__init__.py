"""Servers that share a Redis, in one process or in several, and what they host."""
