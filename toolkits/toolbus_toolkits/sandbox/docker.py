"""Confines by a container: `docker run` with an image that the operator names."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence

from toolbus_toolkits.sandbox.bubblewrap import of_the_system
from toolbus_toolkits.sandbox.plan import Confinement, SandboxUnavailable, is_below_any

__all__ = ["docker_variables", "docker_words", "find_docker"]

_OF_THE_IMAGE = frozenset({"HOME", "PATH", "TMPDIR"})


def find_docker(writable: Iterable[str]) -> str:
    """Return the path of `docker` of the system, from no folder that confined programs change.

    Raises:
        SandboxUnavailable: There is none.
    """
    writable = tuple(writable)
    for path in map(os.path.realpath, of_the_system("docker")):
        if not is_below_any(path, writable):
            return path
    raise SandboxUnavailable("there is no docker on this machine: install it, or use bubblewrap")


def docker_words(
    plan: Confinement, image: str, name: str, variables: int, system: Sequence[str]
) -> list[str]:
    """Return the words after `docker` and before a command that confine it as planned.

    Args:
        plan: What it gets.
        image: What it runs in; its programs are those of the image.
        name: That of the container, to end it by.
        variables: A descriptor that gives what `docker_variables` returns.
        system: Folders of the plan that are those of the image.

    Raises:
        SandboxUnavailable: The config asks for what docker does not hold.
    """
    if plan.unix_sockets:
        raise SandboxUnavailable("docker shows no sockets of this machine: leave out unix_sockets")
    words = ["run", "--rm", "-i", "--init", "--name", name, "--cap-drop", "ALL"]
    words += ["--security-opt", "no-new-privileges", "--read-only", "--tmpfs", "/tmp"]
    words += ["--user", f"{os.getuid()}:{os.getgid()}", "--workdir", plan.cwd]
    words += [] if plan.network else ["--network", "none"]
    if plan.max_processes is not None:
        words += ["--pids-limit", str(plan.max_processes)]
    for path in (*plan.write, *plan.read, *plan.own, *plan.protected):
        if path not in system:
            words += ["--mount", _mount(path, path, is_read_only=path not in plan.write)]
    for path in plan.hide:
        if is_below_any(path, system):
            continue
        if os.path.isdir(path):
            words += ["--mount", _field("type=tmpfs", f"target={path}", "tmpfs-mode=0000")]
        else:
            words += ["--mount", _mount("/dev/null", path, is_read_only=True)]
    return [*words, "--env-file", f"/proc/self/fd/{variables}", "--", image]


def docker_variables(environment: Mapping[str, str]) -> bytes:
    """Return the variables of a command, without those of the image, as `--env-file` reads them.

    Raises:
        SandboxUnavailable: One of them has a line break, which such a file cannot have.
    """
    lines = []
    for name, value in environment.items():
        if "\n" in value:
            raise SandboxUnavailable(f"docker takes no variable with a line break, such as {name}")
        if name not in _OF_THE_IMAGE:
            lines.append(f"{name}={value}\n")
    return "".join(lines).encode(errors="surrogateescape")


def _mount(source: str, target: str, *, is_read_only: bool) -> str:
    fields = ["type=bind", f"source={source}", f"target={target}"]
    return _field(*fields, *(["readonly"] if is_read_only else []))


def _field(*fields: str) -> str:
    """Return fields as one line of CSV, as docker reads them: a path may have a comma in it."""
    return ",".join('"{}"'.format(field.replace('"', '""')) for field in fields)
