"""What nodes exchange, as a number, and where nodes of all releases look for it."""

__all__ = ["EXCHANGE_KEY", "EXCHANGE_VERSION", "LEASES_KEY"]

EXCHANGE_VERSION = 2
"""What nodes exchange: entries of the inbox, keys in Redis, and the scripts that change them.

Raise it with each change that a node of the release before would not understand. Its nodes and
those of this release then never have a lease at the same time.
"""
EXCHANGE_KEY = "toolbus:nodes"
"""The exchange version of all nodes that have a lease; it expires with the last of these leases.

Earlier releases have a sorted set of leases there, so that each of both notices the other.
"""
LEASES_KEY = "toolbus:nodes:leases"
"""The sorted set of leases in Redis: nodes with their incarnations, by expiry."""
