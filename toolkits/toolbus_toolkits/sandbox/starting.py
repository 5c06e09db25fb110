"""One confined start: the words before a command, and what is cleaned up after it.

The functions block for milliseconds, and the first one of a config for longer: it probes.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import subprocess
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from toolbus_toolkits.sandbox.bubblewrap import Bubblewrap
from toolbus_toolkits.sandbox.config import Backend, SandboxConfig
from toolbus_toolkits.sandbox.confine import seccomp_filter
from toolbus_toolkits.sandbox.docker import docker_variables, docker_words, find_docker
from toolbus_toolkits.sandbox.landlock import landlock_options, landlock_words
from toolbus_toolkits.sandbox.pids_cgroup import PidsCgroup
from toolbus_toolkits.sandbox.plan import (
    Confinement,
    SandboxUnavailable,
    is_below_any,
    system_folders,
)
from toolbus_toolkits.sandbox.protection import (
    CONFINED_FOLDERS,
    FoldersInUse,
    FolderUse,
    find_protection,
    remove_placeholders,
)

__all__ = ["ConfinedStart", "confined_start", "dropped_by_shells", "protected_plan"]

_SHELL = "/bin/sh"
_NEWEST_ABI = 1 << 10
"""Of Landlock: the filter leaves to namespaces what it would refuse for an older one."""


@dataclass(slots=True)
class ConfinedStart:
    """What is started in place of a command, and what is held for it until all of it has ended."""

    backend: Backend
    argv: list[str]
    cwd: str
    environment: dict[str, str] = field(default_factory=lambda: {"PATH": os.defpath})
    """The variables of what confines it, which is not confined: those of a program, such as
    LD_PRELOAD, would let it load a library outside of its sandbox."""
    descriptors: list[int] = field(default_factory=list)
    """Those that it gets; they are closed here once it is started."""
    is_protected: bool = False
    """Whether secrets and settings in its folders are kept from it (`protect`)."""
    ready: int | None = None
    """A descriptor that is readable once the program runs; None if nobody waits for that."""
    use: FolderUse | None = None
    """Its use of the folders that it changes."""
    placeholders: tuple[str, ...] = ()
    """Files that are in repositories only while programs are confined to their folders."""
    group: PidsCgroup | None = None
    """What limits its processes, if the limits of a process do not."""
    _scratch: tempfile.TemporaryDirectory[str] | None = None
    _end: list[str] = field(default_factory=list)
    """A command that ends it, where killing its process does not."""

    def close_descriptors(self) -> None:
        """Close what the process got, once it was started. Idempotent."""
        while self.descriptors:
            os.close(self.descriptors.pop())

    def add(self, pid: int) -> None:
        """Limit the processes of what was started, before it becomes the program."""
        if self.group is not None:
            self.group.add(pid)

    def set_up(self) -> None:
        """Note that the program runs: others may change its folders from now on. Idempotent."""
        if self.ready is not None:
            os.close(self.ready)
            self.ready = None
        if self.use is not None:
            self.use.set_up()

    def end(self) -> None:
        """Clean up after the end of all of it, or when it was not started. Idempotent."""
        self.close_descriptors()
        self.set_up()
        if self.use is not None:
            self.use.leave()
            if not CONFINED_FOLDERS.count(self.use.folders):
                remove_placeholders(self.placeholders)
        if self.group is not None:
            self.group.remove()
        if self._scratch is not None:
            self._scratch.cleanup()
        if self._end:
            with contextlib.suppress(OSError, subprocess.TimeoutExpired):
                subprocess.run(self._end, capture_output=True, timeout=30, check=False)


def confined_start(
    backend: Backend | Bubblewrap,
    config: SandboxConfig,
    plan: Confinement,
    argv: Sequence[str],
    environment: Mapping[str, str],
) -> ConfinedStart:
    """Return what starts a command confined as planned.

    Raises:
        SandboxUnavailable: The backend cannot hold what the config asks.
    """
    if isinstance(backend, Bubblewrap):
        return _by_bubblewrap(backend, config, plan, argv, environment)
    if config.protect is True:
        raise SandboxUnavailable(f"{backend} cannot hold `protect`: use bubblewrap")
    if backend == "landlock":
        return _by_landlock(plan, argv, environment)
    if backend == "docker":
        return _by_docker(config, plan, argv, environment)
    return ConfinedStart("subprocess", list(argv), plan.cwd, dict(environment))


def _by_bubblewrap(
    backend: Bubblewrap,
    config: SandboxConfig,
    plan: Confinement,
    argv: Sequence[str],
    environment: Mapping[str, str],
) -> ConfinedStart:
    if not os.access(backend.path, os.X_OK):
        raise SandboxUnavailable(f"bubblewrap has gone from {backend.path!a}")
    asked = _has_places_within(plan)
    use = CONFINED_FOLDERS.enter(
        plan.write,
        sets_up=not backend.follows_no_symlink and (asked or config.protect is not False),
    )
    start = ConfinedStart("bubblewrap", [], plan.cwd, use=use)
    try:
        if asked and not (use.is_alone or backend.follows_no_symlink):
            raise FoldersInUse(_NOT_ALONE)
        if not (use.is_alone or backend.binds_descriptors):
            raise FoldersInUse("another confined program runs in the folder: use bubblewrap 0.10")
        if config.protect is not False:
            plan, start.is_protected = _protected(backend, config, plan, start, environment)
        if not _has_places_within(plan):
            use.set_up()
        plan = _limited(start, plan, extra_processes=2)
        program = [*_inner_words(start, plan, use, environment), *argv]
        opened = _opened(start, config, plan) if backend.binds_descriptors else {}
        words = [*backend.arguments(plan, opened), "--clearenv"]
        variables = dict(environment)
        if "TMPDIR" in variables and not plan.shows(os.path.realpath(variables["TMPDIR"])):
            variables["TMPDIR"] = "/tmp"
        for name, value in variables.items():
            words += ("--setenv", name, value)
        rules = {"network": True, "unix_sockets": plan.unix_sockets}
        words += ("--seccomp", str(_memfd(start, seccomp_filter(rules, _NEWEST_ABI))))
        arguments = b"".join(os.fsencode(word) + b"\0" for word in words)
        start.argv = [backend.path, "--args", str(_memfd(start, arguments)), "--", *program]
    except BaseException:
        start.end()
        raise
    return start


def _opened(start: ConfinedStart, config: SandboxConfig, plan: Confinement) -> dict[str, int]:
    """Open what a config names, so that no other program puts a symlink there meanwhile."""
    opened = {}
    for path in {*plan.write, *config.read} & {*plan.write, *plan.read}:
        opened[path] = os.open(path, os.O_PATH)
        start.descriptors.append(opened[path])
        if os.readlink(f"/proc/self/fd/{opened[path]}") != path:
            raise SandboxUnavailable(f"{path!a} of the sandbox is reached by a symlink now")
    return opened


def _has_places_within(plan: Confinement) -> bool:
    """Whether something is hidden or protected in a folder that other programs change."""
    return bool(plan.protected) or any(is_below_any(path, plan.write) for path in plan.hide)


def _inner_words(
    start: ConfinedStart, plan: Confinement, use: FolderUse, environment: Iterable[str]
) -> list[str]:
    """Return the words of a shell that does within the sandbox what must be done there."""
    lines = []
    if plan.max_processes is not None:
        # Set within the namespace, where no other processes of the user count. The first process
        # of the sandbox is one of bubblewrap.
        count = plan.max_processes + 1
        lines.append(f"{{ ulimit -u {count} 2>/dev/null || ulimit -p {count}; }}")
    if use.is_setting_up:
        start.ready, writing = os.pipe()
        start.descriptors.append(writing)
        lines.append(f"echo > /proc/self/fd/{writing}")  # not every shell takes >&12
    if not lines:
        return []
    _require_names_of_shells(environment)
    return [_SHELL, "-c", " && ".join([*lines, 'exec "$@"']), "sh"]


def dropped_by_shells(environment: Iterable[str]) -> str | None:
    """Return the first variable that a shell may drop for its name; None if there is none."""
    names = (name for name in environment if not (name.isidentifier() and name.isascii()))
    return next(names, None)


def _require_names_of_shells(environment: Iterable[str]) -> None:
    name = dropped_by_shells(environment)
    if name is not None:
        raise SandboxUnavailable(f"shells drop a variable of the name {name!a}: leave it out")


def _limited(start: ConfinedStart, plan: Confinement, *, extra_processes: int) -> Confinement:
    """Limit the processes of root by a control group, and return what is left of the plan.

    The group may have `extra_processes` more, those of the backend itself.
    """
    if plan.max_processes is None or os.getuid() != 0:
        return plan
    start.group = PidsCgroup.make(plan.max_processes + extra_processes)
    return replace(plan, max_processes=None)


_NOT_ALONE = (
    "another confined program runs in the same folder: bubblewrap 0.12 or newer is needed to hide"
    " or protect files in it meanwhile"
)


def _protected(
    backend: Bubblewrap,
    config: SandboxConfig,
    plan: Confinement,
    start: ConfinedStart,
    environment: Iterable[str],
) -> tuple[Confinement, bool]:
    """Return the plan with secrets hidden and settings protected, and whether that is held."""
    try:
        if not backend.follows_no_symlink:
            if start.use is None or not start.use.is_alone:
                raise FoldersInUse(_NOT_ALONE)
            _require_names_of_shells(environment)
        return protected_plan(backend, plan, start), True
    except SandboxUnavailable as error:
        if config.protect is True:
            raise type(error)(f"protect: {error}") from None
        return plan, False


def protected_plan(
    backend: Bubblewrap, plan: Confinement, start: ConfinedStart | None = None
) -> Confinement:
    """Return a plan with the secrets and settings that are in its folders by now.

    For a start, what git would read is made in each `.git`, so that the program does not make it.

    Raises:
        SandboxUnavailable: They cannot be found, or are too many.
    """
    found = find_protection(plan.write, plan.hide, fills_git=start is not None)
    if start is not None:
        start.placeholders = found.placeholders
    more = replace(
        plan, hide=(*plan.hide, *found.hide), protected=(*plan.protected, *found.protected)
    )
    backend.arguments(more)
    return more


def _memfd(start: ConfinedStart, data: bytes) -> int:
    """Return a descriptor that the started process reads some bytes from."""
    descriptor = os.memfd_create("toolbus-sandbox")
    start.descriptors.append(descriptor)
    os.write(descriptor, data)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


def _by_landlock(
    plan: Confinement, argv: Sequence[str], environment: Mapping[str, str]
) -> ConfinedStart:
    made = tempfile.TemporaryDirectory(prefix="toolbus-sandbox-", ignore_cleanup_errors=True)
    start = ConfinedStart("landlock", [], plan.cwd, _scratch=made)
    try:
        folder = os.path.realpath(made.name)
        # The real ones cannot be covered without a mount namespace.
        variables = {**environment, "HOME": folder, "TMPDIR": folder}
        options = landlock_options(_limited(start, plan, extra_processes=0), variables, folder)
        start.argv = [*landlock_words(_memfd(start, options)), *argv]
        start.use = CONFINED_FOLDERS.enter(plan.write, sets_up=False)
    except BaseException:
        start.end()
        raise
    return start


def _by_docker(
    config: SandboxConfig, plan: Confinement, argv: Sequence[str], environment: Mapping[str, str]
) -> ConfinedStart:
    docker = find_docker(plan.write)
    name = f"toolbus-{secrets.token_hex(8)}"
    system = [path for path in map(os.path.realpath, system_folders()) if path not in config.read]
    variables = docker_variables(environment)
    # The client finds its engine by variables and files of its own user.
    own = {key: value for key, value in os.environ.items() if key.startswith("DOCKER_")}
    own |= {key: os.environ[key] for key in ("HOME", "PATH") if key in os.environ}
    # The engine runs it, which does not end with its client.
    start = ConfinedStart("docker", [], "/", own, _end=[docker, "rm", "--force", name])
    try:
        descriptor = _memfd(start, variables)
        words = docker_words(plan, config.image or "", name, descriptor, system)
    except BaseException:
        start.close_descriptors()
        raise
    start.argv = [docker, *words, *argv]
    return start
