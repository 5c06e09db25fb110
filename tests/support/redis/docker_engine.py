"""Whether a Docker engine answers here: containers of tests need one."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

__all__ = ["why_no_docker"]


@cache
def why_no_docker() -> str | None:
    """Ask the engine itself, once: an existing socket or command proves nothing."""
    try:
        import docker  # type: ignore[import-untyped, unused-ignore] # ships no types
        from docker.errors import DockerException  # type: ignore[import-untyped, unused-ignore]
    except ImportError as error:
        return f"{error.name} is not installed"
    with _unclosed_sockets_forgiven():
        try:
            docker.from_env(timeout=10).ping()
        except (DockerException, OSError) as error:
            return f"no Docker engine answers: {type(error).__name__}"
    return None


@contextmanager
def _unclosed_sockets_forgiven() -> Iterator[None]:
    """Clean up after a client that leaves its sockets open when no engine answers."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        yield
        gc.collect()
