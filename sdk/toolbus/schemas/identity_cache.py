"""Keeps what is made of schemas that others share, for which equality would be too slow."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from threading import Lock
from typing import Generic, TypeVar

__all__ = ["IdentityCache"]

K = TypeVar("K")
T = TypeVar("T")

MAX_CACHED = 2_048
"""Schemas whose readings are cached: twice the tools of a large turn."""


class IdentityCache(Generic[K, T]):
    """Keeps what is made of schemas or tools, by their identity, the last used ones.

    A schema is kept alive as long as what was made of it, so that no other one has its `id`.
    """

    def __init__(self, make: Callable[[K], T], size: int = MAX_CACHED) -> None:
        self._make = make
        self._size = size
        self._cached: OrderedDict[int, tuple[K, T]] = OrderedDict()
        self._lock = Lock()

    def __call__(self, schema: K) -> T:
        """Return what is made of a schema; what `make` raises is raised, and not cached."""
        key = id(schema)
        with self._lock:
            if (entry := self._cached.get(key)) is not None:
                self._cached.move_to_end(key)
                return entry[1]
        made = self._make(schema)
        with self._lock:
            self._cached[key] = (schema, made)
            if len(self._cached) > self._size:
                self._cached.popitem(last=False)
        return made
