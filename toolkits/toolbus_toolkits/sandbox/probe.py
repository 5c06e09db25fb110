"""Finds a backend that confines as a config asks, and starts commands with it.

A backend is believed only after it was seen: a command is run once with the very options of the
config, and it tries to leave.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path

from toolbus.settings import user_folder
from toolbus.untrusted_text import SHOWN_CHARS, one_line
from toolbus_toolkits.sandbox.bubblewrap import Bubblewrap, in_path
from toolbus_toolkits.sandbox.config import Backend, SandboxConfig
from toolbus_toolkits.sandbox.plan import Confinement, SandboxUnavailable, confinement
from toolbus_toolkits.sandbox.protection import CONFINED_FOLDERS, FoldersInUse
from toolbus_toolkits.sandbox.starting import ConfinedStart, confined_start, protected_plan

__all__ = ["backend_for", "confined_command", "found_backend", "probed", "would_protect"]

_AUTO: tuple[Backend, ...] = ("bubblewrap", "landlock")
_PROBE_S = 60.0
_READ, _WRITTEN = 97, 98
_ATTEMPTS = f"""
[ "$(cat "$1" 2>/dev/null)" = secret ] && exit {_READ}
(echo written > "$2") 2>/dev/null && exit {_WRITTEN}
exit 0
"""

_HINTS = (
    # AppArmor lets a namespace be made, and takes its rights away.
    (
        "RTM_NEWADDR",
        "AppArmor of Ubuntu keeps programs from confining others: give {path} a profile that"
        " allows `userns`, or set kernel.apparmor_restrict_unprivileged_userns=0",
    ),
    (
        "setting up uid map",
        "AppArmor or the container keeps programs from confining others: give {path} a profile"
        " that allows `userns`, or start the container with --security-opt apparmor=unconfined",
    ),
    (
        "namespace",
        "user namespaces are not allowed, as in Docker's default profile: allow them (sysctl"
        " user.max_user_namespaces, kernel.unprivileged_userns_clone; in a container a seccomp"
        " profile that allows `unshare` and `mount`), or use landlock",
    ),
    (
        "mount proc",
        "this container may not mount /proc: start it with --security-opt"
        " systempaths=unconfined, or use landlock",
    ),
    ("Landlock", "the kernel needs Landlock: Linux 5.13 or newer, with `landlock` in lsm="),
    ("daemon", "docker needs an engine that runs, and that this user may use"),
)


def confined_command(
    config: SandboxConfig,
    argv: Sequence[str],
    environment: Mapping[str, str],
    cwd: str | os.PathLike[str] | None,
) -> ConfinedStart:
    """Return what starts a command as a config confines it.

    Its backend is probed at the first use of a config in this process.

    Args:
        config: What the command may reach.
        argv: The path of a program, or its name in PATH of `environment`, and its arguments.
        environment: All its variables.
        cwd: The folder that it starts in; `/` if None.

    Raises:
        SandboxUnavailable: It cannot be confined so. Nothing was started.
    """
    for name, value in environment.items():
        if not name or "=" in name or "\0" in name + value:
            raise SandboxUnavailable(f"a program cannot have the variable {name[:SHOWN_CHARS]!a}")
    backend = found_backend(config)
    plan = confinement(config, cwd or "/", environment.get("HOME", ""))
    if backend != "docker":  # whose programs are those of its image
        shows = plan.shows if backend != "subprocess" else os.path.exists
        argv = [_shown_program(argv[0], environment, shows), *argv[1:]]
    return confined_start(backend, config, plan, argv, environment)


def _shown_program(
    command: str, environment: Mapping[str, str], shows: Callable[[str], bool]
) -> str:
    """Return the first program of a name in PATH that a sandbox shows.

    The first of all may lie in the user's folder, as those of pyenv and nvm do.

    Raises:
        SandboxUnavailable: It shows none.
    """
    found = [command] if os.sep in command else in_path(command, environment)
    for path in found:
        folder, name = os.path.split(path)
        program = os.path.realpath(path)
        if shows(program):
            if shows(os.path.join(os.path.realpath(folder), name)):
                return path
            if os.path.basename(program) == name:  # some programs do what their name says
                return program
    missing = one_line(os.path.realpath(next(iter(found), command)), SHOWN_CHARS)
    raise SandboxUnavailable(f"its sandbox does not show {missing}: add it to `read`")


def backend_for(config: SandboxConfig) -> Backend:
    """Return the backend that passes its probe for a config: what it names, or the first one.

    The probe runs at the first use of a config in this process.

    Raises:
        SandboxUnavailable: None passes; the message says for each one what to install or allow.
    """
    backend = found_backend(config)
    return "bubblewrap" if isinstance(backend, Bubblewrap) else backend


def would_protect(config: SandboxConfig, *, awaited: int = 0) -> bool:
    """Whether secrets and settings would be kept from a program that started now.

    It may be otherwise a moment later: a start that depends on it is made with `protect=True`.

    Args:
        config: What the program may reach.
        awaited: So many confined programs in its folders will have ended before it starts.

    Raises:
        SandboxUnavailable: Nothing confines as the config asks.
    """
    backend = found_backend(config)
    if config.protect is False or not isinstance(backend, Bubblewrap):
        return False
    plan = confinement(config, "/")
    try:
        protected_plan(backend, plan)
    except SandboxUnavailable:
        return False
    return backend.follows_no_symlink or CONFINED_FOLDERS.count(plan.write) <= awaited


@lru_cache(maxsize=256)
def found_backend(config: SandboxConfig) -> Backend | Bubblewrap:
    """Return the backend for a config, and for bubblewrap which program it is.

    Raises:
        SandboxUnavailable: As `backend_for`.
    """
    if config.backend == "subprocess":
        return "subprocess"
    failures = []
    for name in _AUTO if config.backend == "auto" else (config.backend,):
        try:
            backend = Bubblewrap.find(config.write) if name == "bubblewrap" else name
            probed(backend, config)
        except OSError as error:
            failures.append(f"{name}: {error}")
        else:
            return backend
    raise SandboxUnavailable("nothing confines programs here: " + "; ".join(failures))


def probed(backend: Backend | Bubblewrap, config: SandboxConfig) -> None:
    """Run a command once as a config asks; it tries to read and to write outside.

    Raises:
        SandboxUnavailable: It did not run, or it left.
    """
    plan = confinement(config, "/")
    with _outside(plan) as folder:
        secret = folder / "secret"
        secret.write_text("secret")
        attempts = ["/bin/sh", "-c", _ATTEMPTS, "sh", str(secret), str(folder / "written")]
        environment = {"PATH": os.defpath}
        try:
            start = confined_start(backend, config, plan, attempts, environment)
        except FoldersInUse:  # by what has passed a probe itself
            config = config.model_copy(update={"protect": False})
            start = confined_start(backend, config, plan, attempts, environment)
        try:
            result = subprocess.run(
                start.argv,
                env=start.environment,
                cwd=start.cwd,
                pass_fds=start.descriptors,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=_PROBE_S,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise SandboxUnavailable(one_line(str(error), SHOWN_CHARS)) from None
        finally:
            start.end()
        if result.returncode == _READ:
            raise SandboxUnavailable("its probe read a file outside")
        if result.returncode == _WRITTEN or (folder / "written").exists():
            raise SandboxUnavailable("its probe wrote a file outside")
    if result.returncode:
        text = result.stderr.decode(errors="replace").strip() or f"status {result.returncode}"
        raise SandboxUnavailable(_explained(text, start.argv[0]))


@contextmanager
def _outside(plan: Confinement) -> Iterator[Path]:
    """Give a new folder that a program planned so does not see."""
    for folder in (tempfile.gettempdir(), "/var/tmp", os.fspath(user_folder()), "/dev/shm"):
        if not plan.shows(os.path.realpath(folder)) and os.access(folder, os.W_OK):
            with tempfile.TemporaryDirectory(prefix="toolbus-probe-", dir=folder) as made:
                yield Path(made)
            return
    raise SandboxUnavailable("there is no folder outside to probe with: name smaller folders")


def _explained(text: str, path: str) -> str:
    shown = one_line(text, SHOWN_CHARS)
    hint = next((hint for sign, hint in _HINTS if sign in text), "")
    return f"{shown}; {hint.format(path=path)}" if hint else shown
