"""Whether a Docker engine answers here, and which images it has: containers of tests need both."""

from __future__ import annotations

import gc
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING

from support.pytest_plugins.missing_parts import not_verified

if TYPE_CHECKING:
    from testcontainers.core.container import DockerContainer

__all__ = ["container_of", "require_engine", "require_image", "why_no_docker", "why_no_image"]

_PULL_S = 300
# Read before anything changes it: an engine that is named must answer in CI.
_IS_NAMED = bool(os.environ.get("DOCKER_HOST"))


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


@cache
def why_no_image(name: str) -> str | None:
    """Return why containers of an image cannot run; an image that is missing is pulled, once."""
    why = why_no_docker()
    if why is not None:
        return why
    import docker
    from docker.errors import DockerException, ImageNotFound

    with _unclosed_sockets_forgiven():
        client = docker.from_env(timeout=_PULL_S)
        try:
            client.images.get(name)
        except ImageNotFound:
            repository, _, tag = name.partition(":")
            try:
                client.images.pull(repository, tag or "latest")
            except (DockerException, OSError) as error:
                return f"the image {name} is not here and cannot be pulled: {type(error).__name__}"
        finally:
            client.close()
    return None


def require_engine(what: str) -> None:
    """Skip the test as not verified if no engine answers."""
    why = why_no_docker()
    if why is not None:
        not_verified(what, why, ci_has_it=_IS_NAMED)


def require_image(what: str, name: str) -> None:
    """Skip the test as not verified if an image cannot run here; CI may lack a registry."""
    require_engine(what)
    why = why_no_image(name)
    if why is not None:
        not_verified(what, why, ci_has_it=False)


def container_of(image: str) -> DockerContainer:
    """Make a container, to be started; tests stop their containers themselves.

    The container of testcontainers that removes what a killed run left needs an image of its own;
    where that is missing it is left out.
    """
    from testcontainers.core.config import testcontainers_config
    from testcontainers.core.container import DockerContainer

    if why_no_image(testcontainers_config.ryuk_image) is not None:
        testcontainers_config.ryuk_disabled = True
    return DockerContainer(image)


@contextmanager
def _unclosed_sockets_forgiven() -> Iterator[None]:
    """Clean up after a client that leaves its sockets open when no engine answers."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        yield
        gc.collect()
